"""The end of a run: its log is closed and checked, and a few lines say how the run ended."""

import sys
from collections.abc import Mapping
from dataclasses import asdict, replace

from configs.arguments import painted
from configs.errors import REFUSED_STATUS, STOPPED_STATUS
from launch.failure_cause import find_cause, read_failures, was_stopped
from launch.notify import notify
from launch.start.local import Outcome
from logs.folder import SUMMARY_FILE, RunFolder, Summary
from logs.judge.complaints import explain
from logs.judge.compliance import Verdict, write_verdict
from logs.judge.rcp import IMAGENET_SAMPLES, compare_with_reference
from logs.mlperf import RESULT_FILES
from logs.read.parse import parse_log


def finish_run(folder: RunFolder, outcome: Outcome) -> int:
    """Close the log of a run that failed, check the log, and print how the run ended.

    Returns:
        The exit status; see `launch.__main__.main`.
    """
    recipe, cluster = folder.settings
    rows = read_failures(folder)
    if not (folder / SUMMARY_FILE).exists():
        cause = find_cause(folder, outcome, rows)
        folder.close_aborted(cause["message"], failed_rank=cause.get("rank"), failed_step=cause.get("step"))
    summary = _with_reference(folder)
    verdicts = write_verdict(folder.path)
    sys.stdout.write(_report(folder, summary, verdicts))
    has_stopped = bool(outcome.exit_status) and was_stopped(outcome, rows, cluster.world_size)
    is_success = summary.status == "success"
    message = f"{summary.recipe}: {summary.status}" + (f": {summary.failure}" if summary.failure else "")
    notify(folder, "end" if is_success else "stop" if has_stopped else "failure", message)
    if outcome.interrupted_by:
        return 128 + outcome.interrupted_by
    if outcome.exit_status:
        return STOPPED_STATUS if has_stopped else 1
    # The log of a resumed run cannot pass the check, although nothing is wrong with the run.
    is_no_result = summary.resumed_from_step is not None or summary.is_rehearsal
    passed = verdicts[recipe.mlperf.ruleset].passed or is_no_result
    return 0 if is_success and passed else 1


def close_refused(folder: RunFolder, outcome: Outcome) -> int:
    """Close a run that ranks refused to begin or to resume, and say which rank refused and why.

    Returns:
        `REFUSED_STATUS`.
    """
    cause = find_cause(folder, outcome, read_failures(folder))
    folder.close_aborted(cause["message"], failed_rank=cause.get("rank"))
    sys.stderr.write(f"error: {folder.shown}: {cause['message']}\n")
    notify(folder, "failure", f"{folder.recipe.name}: {cause['message']}")
    return REFUSED_STATUS


def _with_reference(folder: RunFolder) -> Summary:
    """Return the summary of a run; with a run on ImageNet that reached its target, compare the reference convergence.

    The comparison is added to the summary's file.
    """
    summary, data = folder.summary(), folder.recipe.data
    is_real = summary.status == "success" and not summary.is_rehearsal
    if is_real and data.source == "folders" and data.train_samples == IMAGENET_SAMPLES:
        found = compare_with_reference([parse_log(folder / RESULT_FILES["4.0.0"])])
        summary = replace(summary, rcp=asdict(found))
        folder.write_summary(summary)
    return summary


def _report(folder: RunFolder, summary: Summary, verdicts: Mapping[str, Verdict]) -> str:
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
    lines += [f"  an attempt {attempt.description}" for attempt in folder.attempts.read()]
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
        judgement = painted("passes", "good", sys.stdout)
        if not verdict.passed:
            judgement = painted("fails", "bad", sys.stdout) + f": {explain(verdict.messages[0])}"
        lines.append(f"  MLPerf training {ruleset} log check: {judgement}")
    return "\n".join([*lines, f"  {folder.shown}", ""])
