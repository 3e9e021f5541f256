"""Writes a submission tree (systems, results, benchmarks) from five runs, and has the official tools judge the tree."""

import io
import re
import shutil
import subprocess
import tarfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from configs.errors import UserError
from configs.load import ROOT
from configs.lock import partial_folder
from configs.registry import INVENTED_SOURCES
from logs.disk import digest_of, explain_disk_errors, write_json
from logs.environment import git_command, read_environment
from logs.folder import SUMMARY_FILE, RunFolder
from logs.judge.evidence import problem_of
from logs.judge.official import RULESET, ToolFinding, judge_package
from logs.judge.system import describe, read_fields
from logs.judge.unverified import RETIRED, footnote
from logs.mlperf import RESULT_FILES
from logs.read.parse import parse_log
from logs.read.record import RunRecord

NUM_RUNS = 5
"""Number of result files that a ResNet submission must have. *Source*: the official package checker."""
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")


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


class _Run(NamedTuple):
    folder: RunFolder
    environment: dict[str, Any]
    record: RunRecord


def package(
    runs: Sequence[Path],
    *,
    org: str,
    out: Path | None,
    system_file: Path | None,
    field: Sequence[str],
) -> Packaged:
    """Write a tree from five runs of one recipe, and judge it; remove a tree that fails.

    Args:
        runs: Five run folders, in the order of the result files.
        org: The submitter, after whom the tree is called: letters, digits, dots, dashes.
        out: The folder to write into; it must not contain ``org``. If None, ``runs/packages``.
        system_file: Fields of the system description that the runs have not recorded, or that replace recorded fields.
        field: More of them, as ``NAME=VALUE``.

    Raises:
        UserError: If the runs are not five, differ in recipe, cluster or machine, trained on generated images, missed
            their target, or have files that contradict each other; if fields of the system description are unknown,
            the tree exists, or the disk is full.
    """
    fields, tree = read_fields(system_file, field), (out or ROOT / "runs" / "packages") / org
    if not _NAME.fullmatch(org):
        raise UserError(
            f"--org: got {org!r}, allowed: letters, digits, dots and dashes, because a folder gets this name"
        )
    loaded = _load(runs)
    recipe, cluster = loaded[0].folder.settings
    description = describe(loaded[0].environment, cluster, fields, org=org, division=recipe.mlperf.division)
    system = re.sub(r"[^A-Za-z0-9._-]+", "-", description["system_name"])
    if not _NAME.fullmatch(system):
        words = f"system_name: got {description['system_name']!r}, allowed: a name that begins with a letter or a digit"
        raise UserError(f"{words}, because a folder gets this name; give --field system_name=NAME")
    if tree.exists():
        raise UserError(f"{tree}: exists already; give another --out, or remove this folder")
    created = next((each for each in reversed(tree.parents) if not each.exists()), None)
    is_score = all(run.record.is_of_imagenet for run in loaded)
    notes = (footnote(RULESET, recipe.mlperf.division, is_score=is_score), RETIRED)
    packaged = None
    try:
        # Judged under another name, so that no tree of a command that was killed looks like one that passed.
        with explain_disk_errors(tree), partial_folder(tree.parent, f".{org}.partial-") as folder:
            written = folder / org
            code = _write(written, system, loaded, description)
            judged = judge_package(written, system=system, division=recipe.mlperf.division)
            packaged = Packaged(tree, (*_own_findings(loaded, org), code, *judged), notes)
            if packaged.passed:
                written.rename(tree)
    finally:
        if created and not (packaged and packaged.passed):
            shutil.rmtree(created, ignore_errors=True)
    return packaged


def _load(runs: Sequence[Path]) -> list[_Run]:
    """Return five different runs that one submission can be made of.

    Raises:
        UserError: They differ in more than seed and paths, in their machines, or not even in their logs; or one of them
            is no result.
    """
    if len(set(runs)) != NUM_RUNS or len(runs) != NUM_RUNS:
        raise UserError(
            f"package: got {len(set(runs))} different runs, allowed: {NUM_RUNS}; give {NUM_RUNS} run folders"
        )
    for folder in runs:
        if not (log := folder / RESULT_FILES[RULESET]).is_file():
            raise UserError(f"{log}: no such log; give the folders of five runs that have ended")
    loaded = [
        _Run(RunFolder(folder), read_environment(folder), parse_log(folder / RESULT_FILES[RULESET])) for folder in runs
    ]
    first, seen = _submitted(loaded[0]), dict[str, RunFolder]()
    for run in loaded:
        other = _submitted(run)
        if differing := ", ".join(sorted(key for key in first if first[key] != other[key])):
            remedy = "give runs of one recipe on one cluster"
            raise UserError(f"{run.folder}: differs from {runs[0]} in {differing}; {remedy}")
        same = seen.setdefault(digest_of(run.folder / RESULT_FILES[RULESET]), run.folder)
        if same != run.folder:
            raise UserError(f"{run.folder}: has the same log as {same}; give five different runs")
    for run in loaded:
        if reason := _no_result(run):
            raise UserError(f"{run.folder}: {reason}; repeat the run, or give another one")
    return loaded


def _submitted(run: _Run) -> dict[str, Any]:
    """Return what all runs of a submission share: recipe, cluster, and the one system that it describes."""
    recipe, cluster = run.folder.settings
    gpus = run.environment.get("gpus") or []
    return {
        **recipe.model_dump(mode="json", exclude={"card": True, "run": {"seed"}}),
        "cluster": cluster.model_dump(mode="json", exclude={"paths"}),
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


def _write(tree: Path, system: str, runs: Sequence[_Run], description: Mapping[str, str]) -> ToolFinding:
    """Write the tree; return the verdict on the copy of the code."""
    results = tree / "results" / system / "resnet"
    results.mkdir(parents=True)
    (tree / "systems").mkdir()
    write_json(tree / "systems" / f"{system}.json", description)
    for number, run in enumerate(runs):
        shutil.copyfile(run.folder / RESULT_FILES[RULESET], results / f"result_{number}.txt")
    states = [run.environment.get("git") or {} for run in runs]
    passed, words = _copy_code(tree / "benchmarks" / "resnet" / "implementations" / system, states)
    return ToolFinding("code", passed, (words,))


def _copy_code(destination: Path, states: Sequence[Mapping[str, Any]]) -> tuple[bool, str]:
    """Copy the tracked files of a commit, and the uncommitted changes, into the tree; return the verdict.

    Args:
        destination: The folder to make.
        states: What each run has recorded of its checkout.
    """
    commits = {str(state.get("commit")) for state in states}
    commit = min(commits)
    if len(commits) > 1 or not re.fullmatch(r"[0-9a-f]{40,64}", commit):
        return False, "the runs recorded no common commit; the tree contains no code"
    done = subprocess.run([*git_command(), "archive", commit], capture_output=True, check=False)
    if done.returncode:
        reason = done.stderr.decode(errors="replace").strip()
        return False, f"git archive {commit} failed ({reason}); the tree contains no code"
    destination.mkdir(parents=True)
    with tarfile.open(fileobj=io.BytesIO(done.stdout)) as archive:
        # The official repository checker refuses files that are hidden, or have a space in their path.
        refused = {each for each in archive if re.search(r"(^|/)\.| ", each.name)}
        archive.extraction_filter = getattr(
            tarfile, "data_filter", None
        )  # Python 3.10 and 3.11 got it in a later patch.
        archive.extractall(destination, [each for each in archive if each not in refused])
    diffs = {state.get("diff_sha256") for state in states}
    if diffs == {None}:
        return True, f"the tracked files of commit {commit[:12]}"
    if len(diffs) > 1 or not states[0].get("diff"):
        return (
            False,
            f"commit {commit[:12]}, but the runs had uncommitted changes that differ, or were too large to record",
        )
    (destination / "uncommitted.diff").write_text(str(states[0]["diff"]), encoding="utf-8")
    return True, f"commit {commit[:12]}, and uncommitted.diff with the changes since"


def _own_findings(runs: Sequence[_Run], org: str) -> Iterator[ToolFinding]:
    """Yield a finding if the logs name another submitter than the tree, which no official tool checks, and the seeds'.

    Each run must log one seed, and no two the same, as the official tool asks in the closed division.
    """
    if others := {str(run.record.submitter) for run in runs} - {org}:
        words = f"the logs name {', '.join(sorted(others))}; set submission.org in the cluster file and run again"
        yield ToolFinding("submitter", passed=None, words=(words,))
    seeds = [run.record.seeds for run in runs]
    words = ", ".join("/".join(map(str, each)) or "none" for each in seeds)
    are_distinct = len({each for own in seeds for each in own}) == len(runs) and all(len(each) == 1 for each in seeds)
    if not are_distinct:
        words += ": each run needs one seed of its own; repeat runs with --set run.seed=N"
    yield ToolFinding("seeds", are_distinct, (words,))
