"""One run from config to verdict: folder, data set, ranks, and the truth about how it ended.

Never imports `train` or `data`: it runs them as commands, as a job script does.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import asdict, replace
from datetime import datetime
from pathlib import Path
from typing import Any

from configs.errors import UserError
from configs.load import ROOT, dump, resolve_path
from configs.plan import plan_run
from configs.schema import Cluster, Recipe
from launch.commands import run_under
from launch.env import rank_environment
from launch.local import Outcome
from launch.monitor import monitored
from logs.compliance import Verdict, write_verdict
from logs.folder import (
    CONFIG_FILE,
    SUMMARY_FILE,
    Summary,
    close_aborted,
    create,
    default_name,
    environment,
    read_summary,
    write_json,
    write_summary,
)
from logs.mlperf import RESULT_FILES
from logs.parse import parse_log
from logs.rcp import IMAGENET_SAMPLES, standing

__all__ = ["BUILT_IN", "REFUSED", "finish_run", "launch_run", "new_folder", "open_run", "record_environment", "shown"]

REFUSED = 2
"""Exit status of ranks that refused to begin: config, data set or world do not fit."""

BUILT_IN = ("digits", "generated")
"""Sources that need nothing from the user, so that the program packs them itself."""


def launch_run(recipe: Recipe, cluster: Cluster, run_folder: Path | None) -> int:
    """Run ``recipe`` on ``cluster``; give the exit status.

    Args:
        recipe: The maths.
        cluster: The place.
        run_folder: Where to write; none: a new folder below the cluster's runs.

    Raises:
        UserError: Nothing was started: the batch does not divide, the folder exists, data cannot be prepared.
    """
    folder = run_folder or new_folder(recipe, cluster)
    open_run(recipe, cluster, folder)
    variables = rank_environment(cluster)
    record_environment(folder, variables)
    sys.stderr.write(f"{recipe.name} on {cluster.name}: {cluster.world_size} ranks, {shown(folder)}\n")
    # -I: a train.py or a PYTHONPATH of the caller's must not come before ours; -u, since -I ignores the variable.
    command = [sys.executable, "-I", "-u", "-m", "train", str(folder.absolute())]
    with monitored(folder, has_gpu=cluster.device == "gpu"):
        outcome = run_under(cluster, command, variables)
    if outcome.exit_status == REFUSED:
        _remove_refused(folder)
        return REFUSED
    return finish_run(folder, recipe, outcome)


def new_folder(recipe: Recipe, cluster: Cluster) -> Path:
    """Name a folder for a run that begins now, below the cluster's runs; makes nothing."""
    runs = resolve_path(cluster.paths.runs)
    return runs / default_name(recipe.name, datetime.now().astimezone(), runs)


def open_run(recipe: Recipe, cluster: Cluster, folder: Path) -> None:
    """Make the folder of a run with its config, and its data set if that is built in.

    Raises:
        UserError: The batch does not divide, the folder exists, data cannot be prepared.
    """
    plan_run(recipe, cluster.world_size)
    if recipe.data.source in BUILT_IN:
        _prepare(recipe, resolve_path(cluster.paths.data) / recipe.data.name)
    create(folder)
    (folder / CONFIG_FILE).write_text(dump(recipe, cluster), encoding="utf-8")


def record_environment(folder: Path, variables: Mapping[str, str]) -> None:
    """Write what this machine is, and the ranks' variables, into the run's folder."""
    surroundings = environment()
    write_json(folder / "environment.json", surroundings | {"variables": surroundings["variables"] | dict(variables)})


def _prepare(recipe: Recipe, destination: Path) -> None:
    """Pack a built-in data set where it is not packed yet."""
    if (destination / "manifest.json").is_file():
        return
    command = [sys.executable, "-m", "data", "prepare", recipe.data.source, str(destination)]
    if recipe.data.source == "generated":
        command += ["--train", str(recipe.data.train_samples), "--eval", str(recipe.data.eval_samples)]
        command += ["--classes", str(recipe.model.num_classes)]
    if subprocess.run(command, cwd=ROOT, check=False).returncode:
        raise UserError(f"{destination}: the data set could not be packed (see above)")


def finish_run(folder: Path, recipe: Recipe, outcome: Outcome) -> int:
    """Close the log of a run that failed, judge it, say how it went; give the exit status."""
    if not (folder / SUMMARY_FILE).exists():
        cause = _cause(folder, outcome)
        close_aborted(folder, cause["message"], failed_rank=cause.get("rank"), failed_step=cause.get("step"))
    summary = _with_reference(folder, recipe)
    verdicts = write_verdict(folder)
    sys.stdout.write(_report(folder, summary, verdicts))
    if outcome.interrupted_by:
        return 128 + outcome.interrupted_by
    passed = summary.status == "success" and verdicts[recipe.mlperf.ruleset].passed
    return 0 if passed and not outcome.exit_status else 1


def _remove_refused(folder: Path) -> None:
    """Take away the folder of a run that never began, so that the same command can be given again."""
    for path in folder.iterdir():
        path.unlink()
    folder.rmdir()


def _cause(folder: Path, outcome: Outcome) -> dict[str, Any]:
    """Find out why a run failed: the first failure at first hand, else what the launcher saw."""
    if outcome.interrupted_by:
        return {"message": "stopped by a signal"}
    if outcome.lost_server is not None:
        return {"message": f"a parameter server ended with status {outcome.lost_server} before the ranks did"}
    rows: list[dict[str, Any]] = [
        json.loads(path.read_text(encoding="utf-8")) for path in sorted(folder.glob("failure_*.json"))
    ]
    first_hand = [row for row in rows if not row["second_hand"]]
    if first_hand:
        row = min(first_hand, key=lambda each: each["time"])
        at = "" if row["step"] is None else f" at step {row['step']}"
        return {**row, "message": f"rank {row['rank']} on {row['host']} failed{at}: {row['message']}"}
    told = {row["rank"]: row["step"] for row in rows}
    # A rank that wrote nothing died without a word; the others were told by Horovod.
    silent = [(rank, status) for rank, status in outcome.failed if rank not in told]
    if not silent:
        return {"message": f"the launcher ended with status {outcome.exit_status}"}
    rank, status = silent[0]
    how = f"was killed by signal {status - 128}" if status > 128 else f"ended with status {status}"  # noqa: PLR2004
    step = min((step for step in told.values() if step is not None), default=None)
    at = "" if step is None else f" at or before step {step}"
    return {"rank": rank, "step": step, "message": f"rank {rank} {how}{at}"}


def _with_reference(folder: Path, recipe: Recipe) -> Summary:
    """Keep in the summary of a run on ImageNet that reached its target how it compares with the reference."""
    summary, data = read_summary(folder), recipe.data
    if summary.status == "success" and data.source == "folders" and data.train_samples == IMAGENET_SAMPLES:
        found = standing([parse_log(folder / RESULT_FILES["4.0.0"])])
        summary = replace(summary, rcp=asdict(found))
        write_summary(folder, summary)
    return summary


def _report(folder: Path, summary: Summary, verdicts: Mapping[str, Verdict]) -> str:
    """Say in a few lines how a run ended, for people."""
    lines = [f"{summary.recipe}: {summary.status}" + (f": {summary.failure}" if summary.failure else "")]
    if summary.top1 is not None:
        target = "" if summary.target is None else f" (target {summary.target:g})"
        lines.append(f"  top-1 {summary.top1:.4f}{target} after epoch {summary.epochs}, step {summary.steps}")
    if summary.mean_auc is not None:
        lines.append(f"  mean ROC-AUC {summary.mean_auc:.4f} after epoch {summary.epochs}, step {summary.steps}")
    if summary.run_s is not None:
        lines.append(
            f"  {summary.run_s:.1f} s of training, {summary.init_s:.1f} s of start-up, "
            f"{summary.images_per_s:,.1f} images/s on {summary.world_size} ranks"
        )
    if summary.input_wait_fraction is not None and summary.comm_exposed_fraction is not None:
        lines.append(
            f"  waiting for input {summary.input_wait_fraction:.1%} of a step, "
            f"communication exposed {summary.comm_exposed_fraction:.1%}"
        )
    if summary.rcp is not None:
        lines.append(f"  reference convergence: {summary.rcp['words']}")
    for ruleset, verdict in verdicts.items():
        words = "passes" if verdict.passed else f"fails: {verdict.messages[0]}"
        lines.append(f"  MLPerf training {ruleset} log check: {words}")
    return "\n".join([*lines, f"  {shown(folder)}", ""])


def shown(folder: Path) -> str:
    """Write a path as briefly as it is clear."""
    return str(folder.relative_to(Path.cwd())) if folder.is_relative_to(Path.cwd()) else str(folder)
