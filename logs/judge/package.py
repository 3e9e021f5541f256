"""Writes a submission tree (systems, results, benchmarks) from five runs, and has the official tools judge the tree."""

import io
import re
import shutil
import subprocess
import tarfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from configs.errors import UserError
from configs.load import ROOT
from configs.registry import INVENTED_SOURCES
from logs.disk import explain_disk_errors, write_json
from logs.folder import SUMMARY_FILE, RunFolder
from logs.judge.compliance import digest_of
from logs.judge.evidence import problem_of
from logs.judge.official import RULESET, ToolFinding, judge_package
from logs.judge.system import describe, read_environment
from logs.judge.unverified import RETIRED, footnote
from logs.mlperf import RESULT_FILES
from logs.read.parse import parse_log
from logs.read.record import RunRecord

NUM_RUNS = 5
"""Number of result files that a ResNet submission must have. *Source*: the official package checker."""


@dataclass(frozen=True)
class Packaged:
    """A submission tree and the verdicts on the tree. A tree that failed is removed: ``folder`` does not exist then.

    Attributes:
        folder: The folder of the tree.
        findings: The verdict of each tool.
        notes: What MLCommons asks to be said of a score that it has not reviewed, and that it takes none any more.
    """

    folder: Path
    findings: tuple[ToolFinding, ...]
    notes: tuple[str, ...]

    @property
    def passed(self) -> bool:
        """Whether every check that the rules ask for passed."""
        return all(finding.passed is not False for finding in self.findings)


@dataclass(frozen=True)
class _Run:
    folder: RunFolder
    environment: dict[str, Any]
    record: RunRecord


def package(
    runs: Sequence[Path], org: str, destination: Path, *, fields: Mapping[str, str], custom_rcp: Path | None = None
) -> Packaged:
    """Write the tree ``destination``/``org`` from five runs of one recipe, and judge it; remove a tree that fails.

    Args:
        runs: Five run folders, in the order of the result files.
        org: The submitter: letters, digits, dots, dashes.
        destination: The folder to write into; it must not contain ``org``.
        fields: Fields of the system description that the runs have not recorded, or that replace recorded fields.
        custom_rcp: A file with reference points, see `logs.judge.rcp.custom_rcps`. If None, MLPerf's.

    Raises:
        UserError: If the runs are not five, differ in recipe, cluster or machine, trained on generated images, missed
            their target, or have files that contradict each other; if fields of the system description are unknown,
            the tree exists, or the disk is full.
    """
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]*", org):
        raise UserError(
            f"--org: got {org!r}, allowed: letters, digits, dots and dashes, because a folder gets this name"
        )
    if len(set(runs)) != NUM_RUNS or len(runs) != NUM_RUNS:
        raise UserError(
            f"package: got {len(set(runs))} different runs, allowed: {NUM_RUNS}; give {NUM_RUNS} run folders"
        )
    loaded = [_load(run) for run in runs]
    first = loaded[0]
    _require_one_submission(loaded)
    for run in loaded:
        if reason := _no_result(run):
            raise UserError(f"{run.folder}: {reason}; repeat the run, or give another one")
    division = first.folder.recipe.mlperf.division
    description = describe(first.environment, first.folder.cluster, fields, org=org, division=division)
    system = re.sub(r"[^A-Za-z0-9._-]+", "-", description["system_name"])
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]*", system):
        words = f"system_name: got {description['system_name']!r}, allowed: a name that begins with a letter or a digit"
        raise UserError(f"{words}, because a folder gets this name; give --field system_name=NAME")
    tree = destination / org
    if tree.exists():
        raise UserError(f"{tree}: exists already; give another --out, or remove this folder")
    created = next((each for each in reversed([tree, *tree.parents]) if not each.exists()), tree)
    try:
        tree.parent.mkdir(parents=True, exist_ok=True)
        with explain_disk_errors(tree):
            code = _write(tree, system, loaded, description)
        judged = judge_package(tree, system=system, division=division, custom_rcp=custom_rcp)
        findings = (*_submitters(loaded, org), _seeds(loaded), code, *judged)
        note = footnote(RULESET, division, is_score=all(run.record.is_of_imagenet for run in loaded))
        packaged = Packaged(tree, findings, (note, RETIRED))
    except BaseException as error:
        shutil.rmtree(created, ignore_errors=True)
        if isinstance(error, OSError) and not tree.parent.is_dir():
            reason = error.strerror or str(error)
            raise UserError(f"--out: {tree} cannot be created ({reason}); give another folder") from None
        raise
    if not packaged.passed:
        shutil.rmtree(created)
    return packaged


def _load(folder: Path) -> _Run:
    log = folder / RESULT_FILES[RULESET]
    if not log.is_file():
        raise UserError(f"{log}: no such log; give the folders of five runs that have ended")
    return _Run(RunFolder(folder), read_environment(folder), parse_log(log))


def _require_one_submission(runs: Sequence[_Run]) -> None:
    """Raise `UserError` if runs differ in more than seed and paths, in their machines, or not even in their logs."""
    first, seen = {**_submitted(runs[0]), **_machine(runs[0])}, dict[str, RunFolder]()
    for run in runs:
        other = {**_submitted(run), **_machine(run)}
        if differing := ", ".join(sorted(key for key in first if first[key] != other[key])):
            remedy = "give runs of one recipe on one cluster"
            raise UserError(f"{run.folder}: differs from {runs[0].folder} in {differing}; {remedy}")
        same = seen.setdefault(digest_of(run.folder / RESULT_FILES[RULESET]), run.folder)
        if same != run.folder:
            raise UserError(f"{run.folder}: has the same log as {same}; give five different runs")


def _machine(run: _Run) -> dict[str, Any]:
    """Return the processors, GPUs and packages of a run: one submission describes one system."""
    gpus = run.environment.get("gpus") or []
    return {
        "processors": (run.environment.get("cpu"), run.environment.get("cores")),
        "GPUs": [gpu.get("name") for gpu in gpus],
        "packages": run.environment.get("packages"),
    }


def _no_result(run: _Run) -> str:
    """Return why a run is no result of a submission, in words; empty if it is one.

    The rules of the open division let an aborted run pass, and no official tool notices generated images.
    """
    source, summary = run.folder.recipe.data.source, run.folder.summary()
    if source in INVENTED_SOURCES:
        return f"data.source is {source}, so the images are generated"
    if summary.is_rehearsal:
        return "is a rehearsal, whose accuracies are invented"
    if summary.status != "success":
        reason = f" ({summary.failure})" if summary.failure else ""
        return f"{SUMMARY_FILE}: status is {summary.status}{reason}, allowed: success"
    if run.folder.recipe.run.target_top1 is None:
        return "config.yaml has no run.target_top1, so no run can reach it"
    problem = problem_of(run.folder.path)
    return problem.words if problem else ""


def _submitted(run: _Run) -> dict[str, Any]:
    recipe = run.folder.recipe.model_dump(mode="json", exclude={"card": True, "run": {"seed"}})
    return {**recipe, "cluster": run.folder.cluster.model_dump(mode="json", exclude={"paths"})}


def _write(tree: Path, system: str, runs: Sequence[_Run], description: Mapping[str, str]) -> ToolFinding:
    """Write the tree; return the verdict on the copy of the code."""
    results = tree / "results" / system / "resnet"
    results.mkdir(parents=True)
    (tree / "systems").mkdir()
    write_json(tree / "systems" / f"{system}.json", description)
    for number, run in enumerate(runs):
        shutil.copyfile(run.folder / RESULT_FILES[RULESET], results / f"result_{number}.txt")
    return _snapshot(tree / "benchmarks" / "resnet" / "implementations" / system, runs)


def _snapshot(destination: Path, runs: Sequence[_Run]) -> ToolFinding:
    """Copy the tracked files of the runs' commit, and the uncommitted changes, into the tree; return the verdict."""
    states = [run.environment.get("git") or {} for run in runs]
    commits = {str(state.get("commit")) for state in states}
    commit = min(commits) if len(commits) == 1 and re.fullmatch(r"[0-9a-f]{40,64}", min(commits)) else "HEAD"
    done = subprocess.run(["git", "-C", str(ROOT), "archive", commit], capture_output=True, check=False)
    if done.returncode:
        reason = done.stderr.decode(errors="replace").strip()
        words = f"git archive {commit} failed ({reason}); the tree contains no code"
        return ToolFinding("code", passed=False, words=(words,))
    destination.mkdir(parents=True)
    with tarfile.open(fileobj=io.BytesIO(done.stdout)) as archive:
        members = archive.getmembers()
        archive.extraction_filter = getattr(
            tarfile, "data_filter", None
        )  # Python 3.10 and 3.11 got it in a later patch.
        archive.extractall(destination, [each for each in members if not _is_unfriendly(each.name)])
    left_out = [each.name for each in members if each.isfile() and _is_unfriendly(each.name)]
    kept = f", without {', '.join(left_out)}, whose names the repository checker refuses" if left_out else ""
    if commit == "HEAD":
        return ToolFinding("code", passed=False, words=("the runs recorded no common commit; the tree contains HEAD",))
    diffs = {state.get("diff_sha256") for state in states}
    if diffs == {None}:
        return ToolFinding("code", passed=True, words=(f"the tracked files of commit {commit[:12]}{kept}",))
    if len(diffs) > 1 or not states[0].get("diff"):
        words = f"commit {commit[:12]}, but the runs had uncommitted changes that differ, or were too large to record"
        return ToolFinding("code", passed=False, words=(words,))
    (destination / "uncommitted.diff").write_text(str(states[0]["diff"]), encoding="utf-8")
    words = f"commit {commit[:12]}{kept}, and uncommitted.diff with the changes since"
    return ToolFinding("code", passed=True, words=(words,))


def _is_unfriendly(name: str) -> bool:
    """Return whether a file lies at a path that the official repository checker refuses: hidden, or with a space."""
    return any(part.startswith(".") or " " in part for part in Path(name).parts)


def _submitters(runs: Sequence[_Run], org: str) -> list[ToolFinding]:
    """Return a finding if the logs name another submitter than the tree, which no official tool checks."""
    others = {str(run.record.submitter) for run in runs} - {org}
    words = f"the logs name {', '.join(sorted(others))}; set submission.org in the cluster file and run again"
    return [ToolFinding("submitter", passed=None, words=(words,))] if others else []


def _seeds(runs: Sequence[_Run]) -> ToolFinding:
    """Check, as the official tool does in the closed division, that each run logs one seed, and no two the same."""
    seeds = [run.record.seeds for run in runs]
    words = ", ".join("/".join(map(str, each)) or "none" for each in seeds)
    are_distinct = len({each for own in seeds for each in own}) == len(runs) and all(len(each) == 1 for each in seeds)
    if not are_distinct:
        words += ": each run needs one seed of its own; repeat runs with --set run.seed=N"
    return ToolFinding("seeds", are_distinct, (words,))
