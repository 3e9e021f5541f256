"""Refuses runs that are no result of a submission: aborted, short of the target, or with files that contradict.

The rules of the open division let an aborted run pass, so no official tool catches one.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from configs.errors import UserError
from configs.schema import Recipe
from logs.folder import CONFIG_FILE, SUMMARY_FILE, Summary, read_summary
from logs.metrics import METRICS_FILE, read_metrics
from logs.mlperf import RESULT_FILES
from logs.read.lines import read_events
from logs.read.parse import parse_log
from logs.read.record import RunRecord

__all__ = [
    "contradiction",
    "disorder",
    "impossible_times",
    "missing_files",
    "require_different_logs",
    "require_result",
    "require_same_machines",
]

_ACCURACY_TOLERANCE = 1e-6
_TIME_TOLERANCE_S = 1.0
"""A summary measures with a clock of its own, so its seconds differ a little from those of the log's events."""
_BACK_S = 0.5
"""A clock that is set right goes back by less."""
_REMEDY = "repeat the run, or give another one"


class _Contradicted(UserError):
    """A file of the run says otherwise than another one."""


def require_result(folder: Path, recipe: Recipe, record: RunRecord) -> None:
    """Raise `UserError` unless a run reached its target, and log, summary and metrics agree.

    Args:
        folder: The run folder.
        recipe: The run's recipe.
        record: Content of the run's log.
    """
    summary = read_summary(folder)
    log = folder / RESULT_FILES["4.0.0"]
    if summary.is_rehearsal:
        _refuse(folder, "is a rehearsal, whose accuracies are invented", "give runs that were trained")
    if record.status != "success":
        _refuse(log, f"run_stop has status {record.status or 'none'}, allowed: success")
    if summary.status != "success":
        reason = f" ({summary.failure})" if summary.failure else ""
        _refuse(folder / SUMMARY_FILE, f"status is {summary.status}{reason}, allowed: success")
    if words := disorder(log):
        _refuse(log, words)
    _require_target(folder, recipe, record, summary)
    _require_agreement(folder, record, summary)
    _require_logged(log, "global_batch_size", record.global_batch_size, recipe.batch.global_size, source="config.yaml")
    if record.seeds not in ((), (recipe.run.seed,)):
        seeds = ", ".join(map(str, record.seeds))
        _refuse(log, f"the log has seed {seeds}, but config.yaml has {recipe.run.seed}")
    if summary.resumed_from_step is None:
        _require_logged(log, "run time in s", record.time_to_train_s, summary.run_s, _TIME_TOLERANCE_S)


def contradiction(folder: Path, record: RunRecord) -> str:
    """Return what the log of a run that claims success says otherwise than its summary or its metrics.

    Args:
        folder: The run folder.
        record: Content of the run's log.

    Returns:
        The contradiction in words; empty if the files agree, or if the run claims no success.
    """
    if not (folder / SUMMARY_FILE).is_file() or record.status is None:
        return ""
    try:
        summary = read_summary(folder)
        if summary.status != record.status:
            return f"run_stop has status {record.status} in the log, but {summary.status} in {SUMMARY_FILE}"
        if summary.status == "success":
            _require_agreement(folder, record, summary)
    except _Contradicted as error:
        return str(error).removesuffix(f"; {_REMEDY}").removeprefix(f"{folder}/")
    except UserError:  # A summary or metrics that cannot be read say nothing.
        return ""
    return ""


def missing_files(folder: Path, record: RunRecord) -> str:
    """Return which files of a run of this program are gone that its log, which has ended, would have to agree with.

    Args:
        folder: The run folder.
        record: Content of one of the run's logs.

    Returns:
        The files in words; empty if none is missing, or if the run goes on or is another submitter's.
    """
    if record.status is None or not (folder / CONFIG_FILE).is_file():
        return ""
    names = [SUMMARY_FILE, *RESULT_FILES.values(), *([METRICS_FILE] if record.status == "success" else [])]
    missing = [name for name in names if not (folder / name).is_file()]
    return f"missing: {', '.join(missing)}; nobody can tell whether the rest was changed" if missing else ""


def disorder(log: Path) -> str:
    """Return what no run of this program can have logged in this order, in words; empty if there is nothing.

    One process writes such a log, so its times do not go back unless the clock was set, and only a run that was resumed
    begins an epoch again.
    """
    last_s, begun = 0.0, set[float]()
    for event in read_events(log):
        if event is None:
            continue
        if event.key == "resumed_from_step":
            begun.clear()
        if event.time_s is not None:
            if event.time_s < last_s - _BACK_S:
                return f"{event.key} is {last_s - event.time_s:,.1f} s earlier than the event before it"
            last_s = event.time_s
        if event.key == "epoch_start" and event.epoch is not None:
            if event.epoch in begun:
                return f"epoch {event.epoch:g} begins twice"
            begun.add(event.epoch)
    return ""


def impossible_times(record: RunRecord) -> str:
    """Return what is wrong with the times of a log that has ended, in words; empty if they can be true."""
    if record.status is None:
        return ""
    if record.began_s is None or record.began_s <= 0:
        return "run_start is missing, or is before 1970"
    if record.time_to_train_s is None:
        return "run_stop is earlier than run_start, or has no time"
    return "" if record.time_to_train_s != 0 else "run_stop is at the time of run_start"


def require_different_logs(folders: Sequence[Path]) -> None:
    """Raise `UserError` if two run folders hold the same log, as two paths of one run do."""
    seen: dict[str, Path] = {}
    for folder in folders:
        digest = hashlib.sha256((folder / RESULT_FILES["4.0.0"]).read_bytes()).hexdigest()
        if digest in seen:
            raise UserError(f"{folder}: has the same log as {seen[digest]}; give five different runs")
        seen[digest] = folder


def require_same_machines(folders: Sequence[Path], environments: Sequence[Mapping[str, Any]]) -> None:
    """Raise `UserError` if runs had other processors, GPUs or packages: one submission describes one system."""
    first = _machine(environments[0])
    for folder, environment in zip(folders[1:], environments[1:], strict=True):
        other = _machine(environment)
        if differing := ", ".join(name for name in first if first[name] != other[name]):
            raise UserError(f"{folder}: ran with other {differing} than {folders[0]}; give runs of one system")


def _machine(environment: Mapping[str, Any]) -> dict[str, Any]:
    gpus = environment.get("gpus") or []
    return {
        "processors": (environment.get("cpu"), environment.get("cores")),
        "GPUs": [gpu.get("name") for gpu in gpus if isinstance(gpu, dict)] if isinstance(gpus, list) else gpus,
        "packages": environment.get("packages"),
    }


def _require_target(folder: Path, recipe: Recipe, record: RunRecord, summary: Summary) -> None:
    target, reached = recipe.run.target_top1, record.final_accuracy
    if target is None:
        _refuse(folder, "config.yaml has no run.target_top1, so no run can reach it", "give runs with a target")
    elif summary.target is None or not math.isclose(target, summary.target, abs_tol=_ACCURACY_TOLERANCE):
        _refuse(folder / SUMMARY_FILE, f"target is {summary.target}, but config.yaml has {target}")
    elif reached is None or reached < target:
        _refuse(folder, f"the last accuracy in the log is {reached}, below the target of {target}")


def _require_agreement(folder: Path, record: RunRecord, summary: Summary) -> None:
    """Raise `UserError` unless both logs, the summary and the metrics have the same accuracies."""
    log = folder / RESULT_FILES["4.0.0"]
    _require_logged(log, "accuracy", record.final_accuracy, _final(summary), _ACCURACY_TOLERANCE)
    _require_evaluations(folder, log, record)
    other = folder / RESULT_FILES["0.6.0"]
    in_other = parse_log(other).final_accuracy if other.is_file() else None
    if in_other is not None:
        _require_logged(log, "accuracy", record.final_accuracy, in_other, _ACCURACY_TOLERANCE, source=other.name)


def _require_evaluations(folder: Path, log: Path, record: RunRecord) -> None:
    """Raise `UserError` unless each logged accuracy is the accuracy in the metrics, epoch by epoch."""
    rows = [row for row in read_metrics(folder / METRICS_FILE) if row.get("kind") == "evaluation"]
    measured = {row.get("epoch"): row.get("top1", row.get("mean_auc")) for row in rows}
    logged = {each.epoch: each.accuracy for each in record.evaluations}
    for epoch in sorted({*measured, *logged}, key=lambda each: (each is None, each)):
        name, pair = f"accuracy after epoch {epoch}", (logged.get(epoch), measured.get(epoch))
        _require_logged(log, name, *pair, _ACCURACY_TOLERANCE, source=METRICS_FILE)


def _require_logged(
    log: Path, name: str, logged: Any, other: Any, tolerance: float = 0.0, *, source: str = SUMMARY_FILE
) -> None:
    """Raise `UserError` unless a number of the log is, up to ``tolerance``, the number in another file."""
    if logged is None and other is None:
        return
    are_numbers = all(isinstance(each, int | float) for each in (logged, other))
    if not are_numbers or not abs(logged - other) <= tolerance:
        in_log, elsewhere = ("missing" if each is None else each for each in (logged, other))
        raise _Contradicted(f"{log}: {name} is {in_log} in the log, but {elsewhere} in {source}; {_REMEDY}")


def _final(summary: Summary) -> float | None:
    return summary.top1 if summary.mean_auc is None else summary.mean_auc


def _refuse(path: Path, words: str, remedy: str = _REMEDY) -> None:
    raise UserError(f"{path}: {words}; {remedy}")
