"""A submission tree from five runs: systems, results, benchmarks; and what the official tools say of it."""

from __future__ import annotations

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
from configs.load import ROOT, load_run
from configs.schema import Cluster, Recipe
from logs.disk import explain_disk_errors, write_json
from logs.folder import CONFIG_FILE
from logs.judge.official import Finding, judge_package
from logs.judge.system import describe, read_environment
from logs.mlperf import RESULT_FILES
from logs.read.parse import parse_log
from logs.read.record import RunRecord

__all__ = ["NUM_RUNS", "Packaged", "package"]

NUM_RUNS = 5
"""Result files of a ResNet submission, exactly. *Source*: the official package checker."""
_RULESET = "4.0.0"


@dataclass(frozen=True)
class Packaged:
    """A tree that was written and judged."""

    folder: Path
    findings: tuple[Finding, ...]

    @property
    def passed(self) -> bool:
        """Tell whether every check that applies passed."""
        return all(finding.passed is not False for finding in self.findings)


@dataclass(frozen=True)
class _Run:
    folder: Path
    recipe: Recipe
    cluster: Cluster
    environment: dict[str, Any]
    record: RunRecord


def package(
    runs: Sequence[Path], org: str, destination: Path, *, fields: Mapping[str, str], custom_rcp: Path | None = None
) -> Packaged:
    """Write ``destination``/``org`` from five runs of one recipe and have it judged.

    Args:
        runs: Five run folders; order is that of the result files.
        org: The submitter: letters, digits, dots, dashes.
        destination: Folder to write into; ``org`` must not exist in it.
        fields: Of the system description, beyond what the runs recorded.
        custom_rcp: Reference points of one's own, see `logs.judge.rcp.custom_rcps`.

    Raises:
        UserError: Not five runs, of different recipes or places, on made-up images, fields unknown, the tree exists, or
            the disk is full.
    """
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]*", org):
        raise UserError(f"--org: got {org!r}, allowed: letters, digits, dots and dashes; it names a folder")
    if len(set(runs)) != NUM_RUNS or len(runs) != NUM_RUNS:
        raise UserError(
            f"package: got {len(set(runs))} runs, allowed: {NUM_RUNS} different ones; give {NUM_RUNS} folders"
        )
    loaded = [_load(run) for run in runs]
    first = loaded[0]
    _require_same(loaded)
    _require_real(first)
    division = first.recipe.mlperf.division
    description = describe(
        first.environment, first.cluster, fields, org=org, division=division, ruleset=_RULESET
    )  # fmt: skip
    system = re.sub(r"[^A-Za-z0-9._-]+", "-", description["system_name"])
    tree = destination / org
    if tree.exists():
        raise UserError(f"{tree}: exists already; give another --out, or remove it")
    with explain_disk_errors(tree):
        try:
            code = _write(tree, system, loaded, description)
        except BaseException:
            shutil.rmtree(tree, ignore_errors=True)
            raise
    findings = judge_package(tree, system=system, division=division, ruleset=_RULESET, custom_rcp=custom_rcp)
    return Packaged(tree, (*_submitters(loaded, org), _seeds(loaded), code, *findings))


def _load(folder: Path) -> _Run:
    log = folder / RESULT_FILES[_RULESET]
    if not log.is_file():
        raise UserError(f"{log}: no such log; give the folders of five runs that have ended")
    recipe, cluster = load_run(folder / CONFIG_FILE)
    return _Run(folder, recipe, cluster, read_environment(folder), parse_log(log))


def _require_same(runs: Sequence[_Run]) -> None:
    """Refuse runs that differ in more than seed and place on disk: they are not one submission."""
    first = _submitted(runs[0])
    for run in runs[1:]:
        other = _submitted(run)
        if differing := sorted(key for key in first if first[key] != other[key]):
            names = f"{', '.join(differing)}; give runs of one recipe and place"
            raise UserError(f"{run.folder}: differs from {runs[0].folder} in {names}")


def _require_real(run: _Run) -> None:
    """Refuse runs that were a rehearsal, which no official tool would notice."""
    source = run.recipe.data.source
    if source in ("synthetic", "generated"):
        remedy = "such a run rehearses and is no result; give runs on real images"
        raise UserError(f"{run.folder}: data.source is {source}: {remedy}")


def _submitted(run: _Run) -> dict[str, Any]:
    recipe = run.recipe.model_dump(mode="json", exclude={"card": True, "run": {"seed"}})
    return {**recipe, "cluster": run.cluster.model_dump(mode="json", exclude={"paths"})}


def _write(tree: Path, system: str, runs: Sequence[_Run], description: Mapping[str, str]) -> Finding:
    """Write the tree; give what was found of the code."""
    results = tree / "results" / system / "resnet"
    results.mkdir(parents=True)
    (tree / "systems").mkdir()
    write_json(tree / "systems" / f"{system}.json", description)
    for number, run in enumerate(runs):
        shutil.copyfile(run.folder / RESULT_FILES[_RULESET], results / f"result_{number}.txt")
    return _snapshot(tree / "benchmarks" / "resnet" / "implementations" / system, runs)


def _snapshot(destination: Path, runs: Sequence[_Run]) -> Finding:
    """Put the tracked files of the runs' commit beside the results, and what was changed since."""
    states = [run.environment.get("git") or {} for run in runs]
    commits = {str(state.get("commit")) for state in states}
    commit = min(commits) if len(commits) == 1 and re.fullmatch(r"[0-9a-f]{40,64}", min(commits)) else "HEAD"
    done = subprocess.run(["git", "-C", str(ROOT), "archive", commit], capture_output=True, check=False)
    if done.returncode:
        reason = done.stderr.decode(errors="replace").strip()
        return Finding("code", passed=False, words=(f"git archive {commit} failed ({reason}); the tree has no code",))
    destination.mkdir(parents=True)
    with tarfile.open(fileobj=io.BytesIO(done.stdout)) as archive:
        archive.extractall(destination)
    if commit == "HEAD":
        return Finding("code", passed=False, words=("the runs recorded no common commit; HEAD was packed",))
    diffs = {state.get("diff_sha256") for state in states}
    if diffs == {None}:
        return Finding("code", passed=True, words=(f"tracked files of commit {commit[:12]}",))
    if len(diffs) > 1 or not states[0].get("diff"):
        words = f"commit {commit[:12]}, but the runs had uncommitted changes that differ or are too large to pack"
        return Finding("code", passed=False, words=(words,))
    (destination / "uncommitted.diff").write_text(str(states[0]["diff"]), encoding="utf-8")
    return Finding("code", passed=True, words=(f"commit {commit[:12]} and its uncommitted.diff",))


def _submitters(runs: Sequence[_Run], org: str) -> list[Finding]:
    """Say where the logs name another submitter than the tree, which no official tool looks at."""
    others = {str(run.record.submitter) for run in runs} - {org}
    words = f"the logs say {', '.join(sorted(others))}; set submission.org in the cluster file and run again"
    return [Finding("submitter", passed=None, words=(words,))] if others else []


def _seeds(runs: Sequence[_Run]) -> Finding:
    """Check what the official seed check does, in both divisions: each run has one seed, another one each."""
    seeds = [run.record.seeds for run in runs]
    told = ", ".join("/".join(map(str, each)) or "none" for each in seeds)
    distinct = len({each for own in seeds for each in own}) == len(runs) and all(len(each) == 1 for each in seeds)
    words = told if distinct else f"{told}: each run needs one seed of its own; run again with --set run.seed=..."
    return Finding("seeds", distinct, (words,))
