"""One run from the config to the verdict: folder, data set, ranks, and how the run ended.

Data sets are packed and ranks are started as commands, because launch imports neither data nor train.
"""

import os
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from datetime import datetime
from pathlib import Path

from configs.arguments import painted
from configs.errors import STOPPED_STATUS, UserError
from configs.load import ROOT, dump, resolve_path
from configs.plan import plan_run
from configs.programs import Program, command_of
from configs.rank_variables import rank_environment
from configs.registry import BUILT_IN_SOURCES, packing_words
from configs.schema import Cluster, Recipe
from launch.failure_cause import find_cause, read_failures, was_stopped
from launch.notify import notify
from launch.restart import may_restart
from launch.resume import prepare_attempt, prepared_folder
from launch.start.commands import require_startable, run_under
from launch.start.launcher_signals import forwarded_signals
from launch.start.local import Outcome
from launch.start.monitor import monitored
from logs.attempts import read_attempts
from logs.claims import CLAIMS_FOLDER, has_lost
from logs.disk import write_text
from logs.environment import ENVIRONMENT_FILE, write_environment
from logs.folder import (
    CONFIG_FILE,
    SUMMARY_FILE,
    Summary,
    close_aborted,
    create_run_folder,
    default_run_name,
    read_summary,
    write_summary,
)
from logs.judge.complaints import explain
from logs.judge.compliance import Verdict, write_verdict
from logs.judge.rcp import IMAGENET_SAMPLES, compare_with_reference
from logs.mlperf import RESULT_FILES
from logs.read.parse import parse_log
from logs.redaction import has_secret, may_hold_secret

REFUSED = 2
"""Exit status of ranks that refused to begin, because the config, the data set or the number of ranks is wrong."""


def launch_run(recipe: Recipe, cluster: Cluster, run_folder: Path | None, *, must_resume: bool = False) -> int:
    """Run ``recipe`` on ``cluster``.

    Args:
        recipe: What is trained.
        cluster: Where it is trained.
        run_folder: The folder to write to; an unfinished run of the same recipe in it is resumed. If None, a new folder
            below the cluster's folder of runs.
        must_resume: Whether to refuse a folder without a run that can be resumed.

    Returns:
        The exit status; see `launch.__main__.main`.

    Raises:
        UserError: Nothing was started: the batch cannot be divided, the folder is taken, or data cannot be packed.
    """
    require_startable(cluster)
    folder = run_folder or new_folder(recipe, cluster)
    _check_and_pack(recipe, cluster)
    # From here on a signal must not end this process alone: the run would go on, or the claim and the log stay open.
    with forwarded_signals(), prepared_folder(folder, recipe, cluster, must_resume=must_resume) as begun_from:
        checkpoint = begun_from
        _write_config(folder, recipe, cluster)
        outcome = _run_ranks(folder, recipe, cluster)
        while not has_lost(folder, os.getpid()) and outcome.exit_status != REFUSED:
            if not may_restart(folder, cluster, outcome):
                break
            checkpoint = prepare_attempt(folder)
            outcome = _run_ranks(folder, recipe, cluster)
        if has_lost(folder, os.getpid()):
            sys.stderr.write(f"error: {short_path(folder)}: the folder has another owner now, and is left to it\n")
            return 1
        if outcome.exit_status != REFUSED:
            try:
                return finish_run(folder, recipe, cluster, outcome)
            except UserError as error:  # For example a full disk. The ranks have run, so the status is not 2.
                sys.stderr.write(f"error: {error}\n")
                return 1
        if checkpoint or read_attempts(folder):
            close_aborted(folder, "the ranks refused to resume")
        else:
            _remove_refused(folder)
        return REFUSED


def _run_ranks(folder: Path, recipe: Recipe, cluster: Cluster) -> Outcome:
    """Record where the run takes place, start the ranks, and wait for their end."""
    variables = rank_environment(cluster)
    record_environment(folder, variables)
    sys.stderr.write(f"{recipe.name} on {cluster.name}: {cluster.world_size} ranks, {short_path(folder)}\n")
    command = command_of(Program.RANK, str(folder.absolute()))
    gpus = cluster.ranks_per_node if cluster.device == "gpu" and cluster.sample_gpus else 0
    with monitored(folder, gpus=gpus):
        return run_under(cluster, command, variables)


def new_folder(recipe: Recipe, cluster: Cluster) -> Path:
    """Return the folder for a run that begins now, below the cluster's folder of runs; nothing is made."""
    runs = resolve_path(cluster.paths.runs)
    return runs / default_run_name(recipe.name, datetime.now().astimezone(), runs)


def open_run(recipe: Recipe, cluster: Cluster, folder: Path) -> None:
    """Make a run folder with the run's config, and pack the data set if the program can make it by itself.

    Raises:
        UserError: The batch cannot be divided, the folder exists, or data cannot be packed.
    """
    _check_and_pack(recipe, cluster)
    create_run_folder(folder)
    _write_config(folder, recipe, cluster)


def _check_and_pack(recipe: Recipe, cluster: Cluster) -> None:
    plan_run(recipe, cluster.world_size)
    if recipe.data.source in BUILT_IN_SOURCES:
        _pack_built_in(recipe, resolve_path(cluster.paths.data) / recipe.data.name)


def _write_config(folder: Path, recipe: Recipe, cluster: Cluster) -> None:
    """Write the config; if it may hold a secret, which the ranks or ``notify`` need, only the owner can read it."""
    text = dump(recipe, cluster)
    is_private = has_secret(cluster.environment) or may_hold_secret(text)
    write_text(folder / CONFIG_FILE, text, is_private=is_private)


def record_environment(folder: Path, variables: Mapping[str, str]) -> None:
    """Write into the run folder what this machine is and which variables the ranks get.

    A resumed run may continue on another kind of CPU or with another number of threads. That changes the last bits of
    the results, so it is reported in one line and recorded in the run folder.
    """
    changes = write_environment(folder, variables)
    if changes:
        sys.stderr.write(
            f"warning: {short_path(folder)}: the run is resumed with {'; '.join(changes)}: the results will differ in "
            f"their last bits from those of a run without a change; {ENVIRONMENT_FILE} keeps both\n"
        )


def _pack_built_in(recipe: Recipe, destination: Path) -> None:
    """Pack a data set that needs nothing from the user, unless it is packed already."""
    if (destination / "manifest.json").is_file():
        return
    data, classes = recipe.data, recipe.model.num_classes
    pack(
        packing_words(data.source, str(destination), train=data.train_samples, eval=data.eval_samples, classes=classes)
    )


def pack(words: Sequence[str]) -> None:
    """Pack a data set.

    Args:
        words: The arguments of ``./run.sh prepare``, with the source and the destination first.

    Raises:
        UserError: The data set cannot be packed.
    """
    if subprocess.run(command_of(Program.PREPARE_VERB, "prepare", *words), cwd=ROOT, check=False).returncode:
        raise UserError(f"{words[1]}: the data set could not be packed, for the reason given above")


def finish_run(folder: Path, recipe: Recipe, cluster: Cluster, outcome: Outcome) -> int:
    """Close the log of a run that failed, check the log, and print how the run ended.

    Returns:
        The exit status; see `launch.__main__.main`.
    """
    rows = read_failures(folder)
    if not (folder / SUMMARY_FILE).exists():
        cause = find_cause(folder, cluster, outcome, rows)
        close_aborted(folder, cause["message"], failed_rank=cause.get("rank"), failed_step=cause.get("step"))
    summary = _with_reference(folder, recipe)
    verdicts = write_verdict(folder)
    sys.stdout.write(_report(folder, summary, verdicts))
    has_stopped = bool(outcome.exit_status) and was_stopped(outcome, rows, cluster.world_size)
    words = f"{summary.recipe}: {summary.status}" + (f": {summary.failure}" if summary.failure else "")
    is_success = summary.status == "success"
    notify(cluster, folder, "end" if is_success else "stop" if has_stopped else "failure", words)
    if outcome.interrupted_by:
        return 128 + outcome.interrupted_by
    if outcome.exit_status:
        return STOPPED_STATUS if has_stopped else 1
    # The log of a resumed run cannot pass the check, although nothing is wrong with the run.
    is_no_result = summary.resumed_from_step is not None or summary.is_rehearsal
    passed = verdicts[recipe.mlperf.ruleset].passed or is_no_result
    return 0 if is_success and passed else 1


def _remove_refused(folder: Path) -> None:
    """Delete the files of a run that the ranks refused to begin, so that the same command can be given again."""
    for path in folder.iterdir():
        if path.is_file():
            path.unlink()
    shutil.rmtree(folder / CLAIMS_FOLDER)
    if not any(folder.iterdir()):
        folder.rmdir()


def _with_reference(folder: Path, recipe: Recipe) -> Summary:
    """Return the summary of a run; with a run on ImageNet that reached its target, compare the reference convergence.

    The comparison is added to the summary's file.
    """
    summary, data = read_summary(folder), recipe.data
    is_real = summary.status == "success" and not summary.is_rehearsal
    if is_real and data.source == "folders" and data.train_samples == IMAGENET_SAMPLES:
        found = compare_with_reference([parse_log(folder / RESULT_FILES["4.0.0"])])
        summary = replace(summary, rcp=asdict(found))
        write_summary(folder, summary)
    return summary


def _report(folder: Path, summary: Summary, verdicts: Mapping[str, Verdict]) -> str:
    """Return a few lines on how a run ended."""
    rehearsed = " (rehearsal: nothing was trained, accuracies are invented)" if summary.is_rehearsal else ""
    outcome = painted(summary.status, "good" if summary.status == "success" else "bad", sys.stdout)
    lines = [f"{summary.recipe}: {outcome}{rehearsed}" + (f": {summary.failure}" if summary.failure else "")]
    if summary.top1 is not None:
        target = "" if summary.target is None else f" (target {summary.target:g})"
        lines.append(f"  top-1 {summary.top1:.4f}{target} after epoch {summary.epochs}, step {summary.steps}")
    if summary.mean_auc is not None:
        lines.append(f"  mean ROC-AUC {summary.mean_auc:.4f} after epoch {summary.epochs}, step {summary.steps}")
    if summary.resumed_from_step is not None:
        lines.append(
            f"  resumed from step {summary.resumed_from_step}: not for submission; times and rates are of the last part"
        )
    lines += [f"  resumed with {change}" for change in summary.changes or ()]
    lines += [f"  an attempt {attempt.words}" for attempt in read_attempts(folder)]
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
    for ruleset, verdict in verdicts.items() if not summary.is_rehearsal else ():
        words = painted("passes", "good", sys.stdout)
        if not verdict.passed:
            words = painted("fails", "bad", sys.stdout) + f": {explain(verdict.messages[0])}"
        lines.append(f"  MLPerf training {ruleset} log check: {words}")
    return "\n".join([*lines, f"  {short_path(folder)}", ""])


def short_path(path: Path) -> str:
    """Return a path relative to the current folder if it lies below it, else as it is."""
    return str(path.relative_to(Path.cwd())) if path.is_relative_to(Path.cwd()) else str(path)
