"""Tells why nobody should believe a run folder: files that are missing, damaged, unlike each other, or impossible.

The official checker reads one log. A reviewer has the other files of the run, too.
"""

import math
import os
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from configs.errors import UserError
from configs.load import load_run
from logs.disk import read_object
from logs.environment import ENVIRONMENT_FILE
from logs.folder import CONFIG_FILE, STARTUP_FILE, SUMMARY_FILE, read_summary
from logs.judge.eligible import contradiction, disorder, missing_files
from logs.judge.system import read_environment
from logs.metrics import METRICS_FILE, RANKS_FILE, read_metrics
from logs.mlperf import RESULT_FILES
from logs.read.parse import parse_log
from logs.usage import SAMPLES_FILE, USAGE_FILE, read_samples, read_usage

_Row = Mapping[str, Any]

LONGEST_S = 1e9
"""Times from here on, 30 years, are damage."""
_BACK_S = 0.5
"""A clock that is set right goes back by less."""
_ALLOWED = {
    "step": (0, 1e12),
    "epoch": (1, 1e6),
    "loss": (0, 1e6),
    "lr": (0, 1e6),
    "images_per_s": (0, 1e12),
    "top1": (0, 1),
    "mean_auc": (0, 1),
    "seconds": (0, LONGEST_S),
    "time": (0, 1e11),
}
"""Key of a row of metrics -> (lowest, highest) value. A cross-entropy is not negative, and a network whose loss is a
million has not learnt anything."""


@dataclass(frozen=True)
class Flaw:
    """Why nobody should believe a run folder: ``kind`` in two words, as for a badge, and ``words`` for a user."""

    kind: str
    words: str


def flaw_of(folder: Path) -> Flaw | None:
    """Return the first flaw of a run folder; None if there is none, or if the folder is another submitter's."""
    if damaged := damage(folder):
        return Flaw("damaged files", "; ".join(damaged))
    logs = [folder / name for name in RESULT_FILES.values() if (folder / name).is_file()]
    records = [parse_log(log) for log in logs]
    if not records:
        return None
    # Several processes may have written others' logs.
    orders = [(log.name, disorder(log)) for log in logs] if (folder / CONFIG_FILE).is_file() else []
    found = {
        "missing files": missing_files(folder, records[0]),
        "files disagree": contradiction(folder, records[0]),
        "impossible metrics": _odd(folder, is_success=records[0].status == "success"),
        "log out of order": "; ".join(f"{name}: {words}" for name, words in orders if words),
    }
    return next((Flaw(kind, words) for kind, words in found.items() if words), None)


def damage(folder: Path) -> list[str]:
    """Return a message on each file of a run that is no file, or cannot be read as what it should be."""
    readers: dict[str, Callable[[Path], object]] = {
        CONFIG_FILE: load_run,
        SUMMARY_FILE: lambda path: read_summary(path.parent),
        METRICS_FILE: read_metrics,
        ENVIRONMENT_FILE: lambda path: read_environment(path.parent),
        STARTUP_FILE: read_phases,
        RANKS_FILE: read_ranks,
        USAGE_FILE: lambda path: read_usage(path.parent),
        SAMPLES_FILE: lambda path: read_samples(path.parent),
        **dict.fromkeys(RESULT_FILES.values(), lambda _: None),
    }
    found = []
    for name, read in readers.items():
        if os.path.lexists(folder / name):
            try:
                if not (folder / name).is_file():
                    raise UserError(f"{name}: cannot be read, because it is no file")
                read(folder / name)
            except UserError as error:
                words = str(error).removeprefix(f"{folder}/")
                # A config.yaml that is cut off at the end of a line can be read, but lacks keys.
                found.append(words if words.startswith(name) else f"{name}: {words}")
    return found


def read_phases(path: Path) -> list[dict[str, Any]]:
    """Return the phases in a ``startup.json``.

    Raises:
        UserError: The file cannot be read, or a phase has no name, thread, begin or end.
    """
    return _rows(path, "phases", {"phase", "thread"}, {"begin_s", "end_s"})


def read_ranks(path: Path) -> list[dict[str, Any]]:
    """Return the rows of a ``ranks.json``; a time that was not measured may be missing.

    Raises:
        UserError: The file cannot be read, or a row lacks the rank.
    """
    return _rows(path, "ranks", {"rank"}, set())


def _rows(path: Path, key: str, names: Set[str], times: Set[str]) -> list[dict[str, Any]]:
    rows = read_object(path).get(key)
    for row in rows if isinstance(rows, list) else [{}]:
        is_whole = isinstance(row, dict) and row.keys() >= names | times
        if not is_whole or not all(_is_between(row[each], -LONGEST_S, LONGEST_S) for each in times):
            raise UserError(f"{path}: cannot be read (a row of {key} is damaged); repeat the run, or remove the file")
    return list(rows or ())


def _odd(folder: Path, *, is_success: bool) -> str:
    path = folder / METRICS_FILE
    return odd_metrics(read_metrics(path), is_success=is_success) if path.is_file() else ""


def odd_metrics(rows: Sequence[_Row], *, is_success: bool) -> str:
    """Return what no run of this program can have measured, in words; empty if there is nothing.

    Args:
        rows: Content of ``metrics.jsonl``. A resumed run has dropped the rows that it repeats.
        is_success: Whether the run claims to have reached its target. Any other may have ended with a loss of NaN.
    """
    last: dict[Any, _Row] = {}
    for number, row in enumerate(rows, start=1):
        words = _odd_value(row, is_success=is_success) or _odd_order(row, last.get(row.get("kind")))
        if words:
            return f"{METRICS_FILE}: line {number}: {words}"
        last[row.get("kind")] = row
    return "" if rows or not is_success else f"{METRICS_FILE}: holds no row, but the run has succeeded"


def _odd_value(row: _Row, *, is_success: bool) -> str:
    if row.get("kind") not in ("interval", "evaluation"):
        return f"kind is {row.get('kind')}, allowed: interval, evaluation"
    needed = {"step", "epoch"} | ({"loss"} if row["kind"] == "interval" else set())
    for key, (lowest, highest) in _ALLOWED.items():
        value = row.get(key)
        is_lost = key == "loss" and not is_success and isinstance(value, float) and not math.isfinite(value)
        if (key in needed or value is not None) and not is_lost and not _is_between(value, lowest, highest):
            return f"{key} is {value}, allowed: {lowest:g} to {highest:g}"
    top1, correct, total = (row.get(key, "") for key in ("top1", "correct", "total"))
    is_counted = all(_is_between(each, 0, math.inf) for each in (top1, correct, total))
    if is_counted and not math.isclose(correct, top1 * total, abs_tol=1e-6 * total):
        return f"top1 is {top1}, but {correct} of {total} are correct"
    return ""


def _odd_order(row: _Row, before: _Row | None) -> str:
    """Return what goes back between a row and the row of the same kind before it, in words."""
    if before is None:
        return ""
    if row["step"] <= before["step"]:
        return f"step {row['step']} follows step {before['step']}"
    if row["epoch"] < before["epoch"]:
        return f"epoch {row['epoch']} follows epoch {before['epoch']}"
    back_s = (before.get("time") or 0.0) - (row.get("time") or math.inf)
    return f"the time is {back_s:,.1f} s earlier than in the row before it" if back_s > _BACK_S else ""


def _is_between(value: Any, lowest: float, highest: float) -> bool:
    return isinstance(value, int | float) and lowest <= value <= highest
