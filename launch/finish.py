"""The end of a run: its log is closed and checked, and a few lines say how the run ended."""

import shlex
import signal
import sys
from contextlib import suppress
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from configs.arguments import counted, in_words, painted
from configs.errors import REFUSED_STATUS, STOPPED_STATUS, UserError
from configs.load import ROOT
from configs.reading import may_pass
from configs.registry import SOURCES_OF_FILES
from launch.failure_cause import Ending
from launch.notify import notify
from launch.start.local import Outcome
from logs.disk import dispensable, read_object
from logs.energy import energy_of, read_attempts
from logs.folder import SUMMARY_FILE, RunFolder, Summary
from logs.judge.compliance import Verdict, asks_for_log, write_verdict
from logs.judge.rcp import compare_with_reference
from logs.mlperf import RESULT_FILES
from logs.read.parse import parse_log
from logs.read.record import IMAGENET_IMAGES


def finish_run(folder: RunFolder, outcome: Outcome) -> int:
    """Close the log of a run that failed, check the log, and print how the run ended.

    A run's own success decides the exit status. The judgement of its MLPerf log belongs to the verdict only if the
    recipe submits, see `logs.judge.compliance.asks_for_log`.

    Returns:
        The exit status; see `launch.__main__.main`.
    """
    from logs.judge.evidence import problem_of  # noqa: PLC0415 (its readers take 20 ms, which no rank waits for here)

    recipe, ending = folder.recipe, Ending.read(folder, outcome)
    # Rank 0 has written the summary of a run that came to its end, whatever happened to a launcher afterwards.
    has_ended = folder.has_summary
    if not has_ended:
        cause = ending.cause
        folder.close_aborted(cause["message"], failed_rank=cause.get("rank"), failed_step=cause.get("step"))
    summary = _completed(folder)
    verdicts = write_verdict(folder.path)
    has_stopped = not has_ended and (outcome.interrupted_by is not None or ending.was_stopped)
    verdict = verdicts[recipe.mlperf.ruleset] if asks_for_log(recipe, summary) else None
    # `./run.sh check` has the same judge, and fails every rehearsal.
    problem = problem_of(folder.path) if summary.status == "success" and not summary.is_rehearsal else None
    passed = summary.status == "success" and (verdict is None or verdict.passed) and problem is None
    if summary.status == "success" and outcome.exit_status:
        sys.stderr.write(f"warning: the launcher ended with status {outcome.exit_status} after the run's success\n")
    sys.stdout.write(_report(folder, summary, verdict, has_stopped=has_stopped))
    if problem is not None:
        sys.stderr.write(f"error: {folder.shown}: {problem.kind}: {problem.words}\n")
    why = summary.failure or ("" if passed or verdict is None else _judgement(verdict))
    outcome_words = why if has_stopped else f"{summary.status}: {why}" if why else summary.status
    message = f"{summary.recipe}: {outcome_words}"
    notify(folder, "end" if passed else "stop" if has_stopped else "failure", message)
    if has_stopped and not outcome.interrupted_by and outcome.stopped_by != signal.SIGINT:
        return STOPPED_STATUS
    if has_stopped:
        return 128 + (outcome.interrupted_by or signal.SIGINT)
    return 0 if passed else 1


def close_refused(folder: RunFolder, outcome: Outcome) -> int:
    """Close a run that ranks refused to begin or to resume, and say which rank refused and why.

    Returns:
        `REFUSED_STATUS`.
    """
    cause = Ending.read(folder, outcome).cause
    folder.close_aborted(cause["message"], failed_rank=cause.get("rank"))
    sys.stderr.write(f"error: {folder.shown}: {cause['message']}\n")
    notify(folder, "failure", f"{folder.recipe.name}: {cause['message']}")
    return REFUSED_STATUS


def tell_trouble(folder: RunFolder, outcome: Outcome, error: Exception) -> int:
    """Tell how a run ended, and then what keeps that from being read or written down; return 1.

    The ranks have run, so the status is not the one of a refusal.

    Raises:
        OSError: The error itself, if it is one of no file, which no disk and no file server causes.
    """
    if isinstance(error, OSError) and error.filename is None and not may_pass(error):
        raise error
    with suppress(UserError, OSError, ImportError):
        ended = read_object(folder / SUMMARY_FILE) if folder.has_summary else {}
        how = ended.get("failure") or ended.get("status") or Ending.read(folder, outcome).cause["message"]
        sys.stderr.write(f"{folder.recipe.name}: {how}\n")
    sys.stderr.write(f"error: {in_words(error)}\n")
    return 1


def _completed(folder: RunFolder) -> Summary:
    """Return the summary of a run with what rank 0 does not know, and add that to the summary's file.

    It is the hosts that the run did without, the energy of all nodes and attempts, and the comparison with the
    reference convergence of a run on ImageNet that reached its target.
    """
    summary, data = folder.summary(), folder.recipe.data
    more: dict[str, Any] = {}
    if left_out := folder.attempts.left_out():
        more["left_out"] = left_out
    images = summary.steps and summary.global_batch_size and summary.steps * summary.global_batch_size
    has_reached = summary.status == "success" and summary.target is not None
    if energy := energy_of(read_attempts(folder.path), images=images, has_reached_target=has_reached):
        more["energy"] = energy
    is_real = summary.status == "success" and not summary.is_rehearsal
    if is_real and data.source in SOURCES_OF_FILES and data.train_samples == IMAGENET_IMAGES:
        more["rcp"] = asdict(compare_with_reference(parse_log(folder / RESULT_FILES["4.0.0"])))
    if more:
        summary = replace(summary, **more)
        with dispensable():  # The summary without it stays.
            folder.write_summary(summary)
    return summary


def _report(folder: RunFolder, summary: Summary, verdict: Verdict | None, *, has_stopped: bool) -> str:
    """Return a few lines on how a run ended."""
    outcome = painted(summary.status_words, "good" if summary.status == "success" else "bad", sys.stdout)
    outcome += f": {summary.failure}" if summary.failure else ""
    lines = [f"{summary.recipe}: {summary.failure if has_stopped else outcome}"]
    lines += [f"  {line}" for line in summary.accuracies]
    if summary.resumed_from_step is not None:
        unfit = "not for submission; " if folder.recipe.mlperf.submits else ""
        lines.append(f"  resumed from step {summary.resumed_from_step}: {unfit}times and rates are of the last part")
    if folder.recipe.mlperf.submits and summary.is_cold is False:
        lines.append("  not for submission: images were in memory as the run began, so that the log has no cache_clear")
    lines += [f"  resumed with {change}" for change in summary.changes or ()]
    lines += [f"  an attempt {attempt.description}" for attempt in folder.attempts.read()]
    if summary.run_s is not None:
        rate = "" if summary.images_per_s is None else f"{summary.images_per_s:,.1f} images/s "
        lines.append(
            f"  {summary.run_s:.1f} s of training, {summary.init_s:.1f} s of start-up, "
            f"{rate}on {counted(summary.world_size or 0, 'rank')}"
        )
    if summary.input_wait_fraction is not None and summary.comm_exposed_fraction is not None:
        lines.append(
            f"  {summary.input_wait_fraction:.1%} of a step waiting for input, "
            f"{summary.comm_exposed_fraction:.1%} waiting for communication"
        )
    if summary.energy is not None:
        lines.append(f"  energy: {summary.energy.words}")
    if verdict is not None:
        convergence = "" if summary.rcp is None else f"; reference convergence: {summary.rcp['words']}"
        lines.append(f"  {_judgement(verdict)}{convergence}")
    # The user trains files of their own, to use the network rather than to submit the run.
    is_of_own_images = folder.recipe.data.source in SOURCES_OF_FILES and not folder.recipe.mlperf.submits
    if has_stopped:
        lines.append(f"  {_how_to_go_on(folder)}")
    elif summary.status == "success" and is_of_own_images and not summary.is_rehearsal:
        lines.append(f"  next: {_door()} predict {shlex.quote(folder.shown)} IMAGE ...")
    lines.append(f"  {folder.shown}")
    if summary.is_saved is False:
        lines.append(f"  the trained network was not saved: free space, or mend the disk; {_how_to_go_on(folder)}")
    return "\n".join([*lines, ""])


def _judgement(verdict: Verdict) -> str:
    """Return what the official checker says of a log, in one line."""
    words = painted("passes", "good", sys.stdout)
    if not verdict.passed:
        words = painted("fails", "bad", sys.stdout) + f": {verdict.messages[0]}"
    return f"MLPerf training {verdict.ruleset} log check: {words}"


def _how_to_go_on(folder: RunFolder) -> str:
    """Return how a stopped run is continued; a run without a checkpoint can only be started anew."""
    if folder.checkpoints.newest_valid()[0] is None:
        return "no state was saved: give the same command again to start anew"
    return f"continue with {_door()} train --resume {shlex.quote(folder.shown)}"


def _door() -> str:
    """Return the command before a verb, as it can be pasted in the current folder."""
    return "./run.sh" if Path.cwd() == ROOT else shlex.quote(str(ROOT / "run.sh"))
