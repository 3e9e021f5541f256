"""Refuses runs that are no result of a submission: aborted, short of the target, or with files that contradict.

The rules of the open division let an aborted run pass, so no official tool catches one.
"""

import hashlib
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

from configs.errors import UserError
from configs.load import load_run
from configs.schema import Recipe
from logs.environment import ENVIRONMENT_FILE
from logs.folder import CONFIG_FILE, SUMMARY_FILE, Summary, read_summary
from logs.metrics import METRICS_FILE, read_metrics
from logs.mlperf import RESULT_FILES
from logs.read.lines import read_events
from logs.read.parse import parse_log
from logs.read.record import RunRecord

_ACCURACY_TOLERANCE = 1e-6
_TIME_TOLERANCE_S = 1.0
"""A summary measures with a clock of its own, so its seconds differ a little from those of the log's events."""
_BACK_S = 0.5
"""A clock that is set right goes back by less."""
_ONCE = {"init_stop", "run_start", "run_stop", "epoch_start", "epoch_stop", "eval_start", "eval_stop", "eval_accuracy"}
"""Events of which an attempt has one, or one of each epoch."""
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
    if recipe.run.target_top1 is None:
        _refuse(folder, "config.yaml has no run.target_top1, so no run can reach it", "give runs with a target")
    _require_agreement(folder, record, summary)


def contradiction(folder: Path, record: RunRecord) -> str:
    """Return what the log of a run that claims success says otherwise than its summary or its metrics.

    Args:
        folder: The run folder.
        record: Content of the run's log.

    Returns:
        The contradiction in words; empty if the files agree, or if the run claims no success.
    """
    if not (folder / SUMMARY_FILE).is_file():
        return ""
    try:
        summary = read_summary(folder)
        if record.status is None and summary.status == "success":
            return f"run_stop is missing in the log, but {SUMMARY_FILE} has status success"
        if record.status not in (None, summary.status):
            return f"run_stop has status {record.status} in the log, but {summary.status} in {SUMMARY_FILE}"
        if summary.status == "success" and not summary.is_rehearsal:
            _require_agreement(folder, record, summary)
    except _Contradicted as error:
        return str(error).removesuffix(f"; {_REMEDY}").removeprefix(f"{folder}/")
    except UserError:  # A file that cannot be read says nothing.
        return ""
    return ""


def is_own(folder: Path) -> bool:
    """Return whether a folder is that of a run of this program, though files of it may be missing."""
    return any(os.path.lexists(folder / name) for name in (CONFIG_FILE, SUMMARY_FILE, METRICS_FILE))


def missing_files(folder: Path, record: RunRecord) -> str:
    """Return which files of a run of this program are gone that its log, which has ended, would have to agree with.

    Args:
        folder: The run folder.
        record: Content of one of the run's logs.

    Returns:
        The files in words; empty if none is missing, or if the run goes on or is another submitter's.
    """
    if record.status is None or not is_own(folder):
        return ""
    names = [CONFIG_FILE, SUMMARY_FILE, *RESULT_FILES.values()]
    names += [METRICS_FILE, ENVIRONMENT_FILE] if record.status == "success" else []
    missing = [name for name in names if not (folder / name).is_file()]
    return f"missing: {', '.join(missing)}; nobody can tell whether the rest was changed" if missing else ""


def disorder(log: Path) -> str:
    """Return what no run of this program can have logged in this order, in words; empty if there is nothing.

    One process writes such a log, so its times do not go back unless the clock was set, and only a run that was resumed
    begins, evaluates or ends again. An attempt from which a run was resumed may have ended twice, by the word of the
    launcher and of a rank that outlived the launcher.
    """
    last_s, logged, is_resumed, found = 0.0, set[tuple[str, float | None]](), False, ""
    for event in read_events(log):
        if event is None:
            continue
        if event.key == "resumed_from_step":
            logged.clear()
            is_resumed, found = True, ""
        if event.time_s is not None:
            if event.time_s < last_s - _BACK_S:
                return f"{event.key} is {last_s - event.time_s:,.1f} s earlier than the event before it"
            last_s = event.time_s
        mark, start = (event.key, event.epoch), event.key.replace("_stop", "_start")
        of_epoch = "" if event.epoch is None else f" of epoch {event.epoch:g}"
        if mark in logged:
            found = found or f"{event.key}{of_epoch} is logged twice"
        elif start in _ONCE and start != event.key and (start, event.epoch) not in logged and not is_resumed:
            found = found or f"{event.key}{of_epoch} has no {start} before it"
        if event.key in _ONCE:
            logged.add(mark)
    return found


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


def _require_agreement(folder: Path, record: RunRecord, summary: Summary) -> None:
    """Raise `UserError` unless both logs, configuration, summary and metrics of a success tell of one run."""
    log = folder / RESULT_FILES["4.0.0"]
    _require_configured(folder, record, summary)
    _require_logged(log, "accuracy", record.final_accuracy, _final(summary), _ACCURACY_TOLERANCE)
    _require_logged(log, "the last epoch", record.epochs, summary.epochs)
    if summary.resumed_from_step is None:
        _require_logged(log, "run time in s", record.time_to_train_s, summary.run_s, _TIME_TOLERANCE_S)
    rows = read_metrics(folder / METRICS_FILE)
    _require_evaluations(log, record, [row for row in rows if row.get("kind") == "evaluation"])
    steps = [row["step"] for row in rows if row.get("kind") == "interval" and isinstance(row.get("step"), int)]
    if summary.steps is not None and summary.steps != max(steps, default=-1) + 1:
        _contradict(folder / SUMMARY_FILE, f"steps is {summary.steps}, but {METRICS_FILE} has another last step")
    _require_other_log(folder / RESULT_FILES["0.6.0"], log, record)


def _require_configured(folder: Path, record: RunRecord, summary: Summary) -> None:
    """Raise `UserError` unless log and summary have the seed, the batch, the ranks and the target of config.yaml."""
    recipe, cluster = load_run(folder / CONFIG_FILE)
    log, target, reached = folder / RESULT_FILES["4.0.0"], recipe.run.target_top1, record.final_accuracy
    told = {
        "recipe": (summary.recipe, recipe.name),
        "target": (summary.target, target),
        "seed": (summary.seed, recipe.run.seed),
        "global_batch_size": (summary.global_batch_size, recipe.batch.global_size),
        "world_size": (summary.world_size, cluster.world_size),
    }
    for name, (value, configured) in told.items():
        if value not in (None, configured) or (name == "target" and value is None and configured is not None):
            _contradict(folder / SUMMARY_FILE, f"{name} is {value}, but {CONFIG_FILE} has {configured}")
    _require_logged(log, "global_batch_size", record.global_batch_size, recipe.batch.global_size, source=CONFIG_FILE)
    if record.seeds not in ((), (recipe.run.seed,)):
        seeds = ", ".join(map(str, record.seeds))
        _contradict(log, f"the log has seed {seeds}, but {CONFIG_FILE} has {recipe.run.seed}")
    if target is not None and (reached is None or reached < target):
        _contradict(log, f"the last accuracy in the log is {reached}, below the target of {target}")


def _require_evaluations(log: Path, record: RunRecord, rows: Sequence[Mapping[str, Any]]) -> None:
    """Raise `UserError` unless each logged accuracy is the accuracy in the metrics, epoch by epoch."""
    measured = {str(row.get("epoch")): row.get("top1", row.get("mean_auc")) for row in rows}
    logged = {str(each.epoch): each.accuracy for each in record.evaluations}
    for epoch in {**logged, **measured}:
        name, pair = f"accuracy after epoch {epoch}", (logged.get(epoch), measured.get(epoch))
        _require_logged(log, name, *pair, _ACCURACY_TOLERANCE, source=METRICS_FILE)


def _require_other_log(other: Path, log: Path, record: RunRecord) -> None:
    """Raise `UserError` unless the log of the other dialect tells of the same run."""
    if not other.is_file():
        return
    old = parse_log(other)
    for name in ("status", "seeds", "global_batch_size", "epochs", "train_samples", "eval_samples"):
        here, there = getattr(record, name), getattr(old, name)
        if here != there:
            _contradict(log, f"{name} is {here} in the log, but {there or 'missing'} in {other.name}")
    for key in sorted(record.settings.keys() & old.settings.keys()):
        if record.settings[key] != old.settings[key]:
            _contradict(log, f"{key} is {record.settings[key]} in the log, but {old.settings[key]} in {other.name}")
    _require_logged(log, "the time of run_start", record.began_s, old.began_s, _TIME_TOLERANCE_S, source=other.name)
    _require_logged(log, "accuracy", record.final_accuracy, old.final_accuracy, _ACCURACY_TOLERANCE, source=other.name)


def _require_logged(
    log: Path, name: str, logged: Any, other: Any, tolerance: float = 0.0, *, source: str = SUMMARY_FILE
) -> None:
    """Raise `UserError` unless a number of the log is, up to ``tolerance``, the number in another file."""
    if logged is None and other is None:
        return
    are_numbers = all(isinstance(each, int | float) for each in (logged, other))
    if not are_numbers or not abs(logged - other) <= tolerance:
        in_log, elsewhere = ("missing" if each is None else each for each in (logged, other))
        _contradict(log, f"{name} is {in_log} in the log, but {elsewhere} in {source}")


def _final(summary: Summary) -> float | None:
    return summary.top1 if summary.mean_auc is None else summary.mean_auc


def _contradict(path: Path, words: str) -> NoReturn:
    raise _Contradicted(f"{path}: {words}; {_REMEDY}")


def _refuse(path: Path, words: str, remedy: str = _REMEDY) -> None:
    raise UserError(f"{path}: {words}; {remedy}")
