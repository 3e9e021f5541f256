"""Whatever there is to know of one run, gathered for the report: its log, and if it is ours, the rest of its folder.

A file that is missing or damaged costs its part of the page, never the page.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Set
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from configs.errors import UserError
from configs.load import parse_yaml
from logs.folder import CONFIG_FILE, SUMMARY_FILE
from logs.judge.compliance import RULESETS, VERDICT_FILE, Verdict, find_logs, judge
from logs.judge.rcp import Standing, standing
from logs.metrics import METRICS_FILE, RANKS_FILE, read_metrics
from logs.mlperf import RESULT_FILES
from logs.read.parse import parse_log
from logs.read.record import RunRecord

__all__ = ["Subject", "gather", "summarise"]

STARTUP_FILE = "startup.json"
_RANK_TIMES = {"compute_median_s", "compute_p95_s", "comm_wait_median_s", "input_wait_median_s"}


@dataclass(frozen=True)
class Subject:
    """One run of a report.

    Attributes:
        name: Short and, in one report, unlike any other.
        log: The file that ``record`` is of; None for a run that has not written one.
        intervals: Rows of ``metrics.jsonl``, with ``evaluations`` the other kind.
        ranks: Rows of ``ranks.json``.
        settings: Configuration as flat names.
        problems: What could not be read.
    """

    name: str
    path: Path
    log: Path | None
    record: RunRecord
    intervals: list[dict[str, Any]] = field(default_factory=list)
    startup: list[dict[str, Any]] = field(default_factory=list)
    ranks: list[dict[str, Any]] = field(default_factory=list)
    summary: dict[str, Any] = field(default_factory=dict)
    settings: dict[str, Any] = field(default_factory=dict)
    problems: tuple[str, ...] = ()

    @property
    def target(self) -> float | None:
        """Accuracy that ends the run."""
        told = self.summary.get("target")
        return float(told) if isinstance(told, int | float) else self.record.target

    @cached_property
    def standing(self) -> Standing:
        """The run's epochs against the official reference."""
        return standing([self.record])

    @cached_property
    def verdicts(self) -> list[Verdict]:
        """The official checker's verdicts: those kept in the run's folder, else asked for now."""
        kept = _json(self.path / VERDICT_FILE, []) if self.path.is_dir() else {}
        if kept:
            rows = [row for row in kept.values() if isinstance(row, dict) and {"ruleset", "passed"} <= row.keys()]
            return [Verdict(str(r["ruleset"]), bool(r["passed"]), tuple(map(str, r.get("messages", ())))) for r in rows]
        if self.log is None or self.record.ruleset not in RULESETS:
            return []
        return [judge(self.log, self.record.ruleset)]


def gather(path: Path, name: str | None = None) -> Subject:
    """Read a run folder or a log.

    Raises:
        UserError: There is no such file, or the folder is no run's.
    """
    if path.is_file():
        record = parse_log(path)
        return Subject(name or path.stem, path, path, record, settings=_logged(record))
    if not path.is_dir():
        raise UserError(f"{path}: no such file or folder; give run folders or logs")
    problems: list[str] = []
    log = _main_log(path)
    if log is None and not (path / CONFIG_FILE).is_file():
        raise UserError(f"{path}: neither result_*.txt nor {CONFIG_FILE} in it; give a run folder or a log")
    record = parse_log(log) if log else RunRecord(path)
    rows: list[dict[str, Any]] = []
    if (path / METRICS_FILE).is_file():
        try:
            rows = read_metrics(path / METRICS_FILE)
        except UserError as error:
            problems.append(str(error))
    return Subject(
        name=name or path.resolve().name,
        path=path,
        log=log,
        record=record,
        intervals=[row for row in rows if row.get("kind") == "interval"],
        startup=_rows(_json(path / STARTUP_FILE, problems).get("phases"), {"phase", "thread"}, {"begin_s", "end_s"}),
        ranks=_rows(_json(path / RANKS_FILE, problems).get("ranks"), {"rank"}, _RANK_TIMES),
        summary=_json(path / SUMMARY_FILE, problems),
        settings=_settings(path / CONFIG_FILE, problems) or _logged(record),
        problems=tuple(problems),
    )


def summarise(subject: Subject) -> dict[str, Any]:
    """Give the figures of one log for ``--json``; None where it does not say."""
    record = subject.record
    return {
        "log": str(subject.log or subject.path),
        "submitter": record.submitter,
        "benchmark": record.benchmark,
        "ruleset": record.ruleset,
        "division": record.division,
        "platform": record.platform,
        "status": record.status,
        "global_batch_size": record.global_batch_size,
        "epochs": record.epochs,
        "final_accuracy": record.final_accuracy,
        "init_s": record.init_s,
        "time_to_train_s": record.time_to_train_s,
        "median_epoch_s": record.median_epoch_s and round(record.median_epoch_s, 6),
        "evaluations": len(record.evaluations) if record.ruleset else None,
        "images_per_s": record.images_per_s and round(record.images_per_s, 3),
        "seeds": list(record.seeds),
        "curve": [
            {"epoch": each.epoch, "at_s": each.at_s, "accuracy": each.accuracy, "seconds": each.seconds}
            for each in record.evaluations
        ],
        "unreadable_records": record.unreadable,
    }


def _main_log(folder: Path) -> Path | None:
    for name in RESULT_FILES.values():
        if (folder / name).is_file():
            return folder / name
    if not any(folder.glob("result_*.txt")):
        return None
    return find_logs(folder)[0][0]


def _json(path: Path, problems: list[str]) -> dict[str, Any]:
    """Read a JSON object; an empty one if it is not there, or is something else."""
    try:
        tree = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, RecursionError) as error:
        problems.append(f"{path.name}: cannot be read ({error})")
        return {}
    return tree if isinstance(tree, dict) else {}


def _settings(path: Path, problems: list[str]) -> dict[str, Any]:
    if not path.is_file():
        return {}
    try:
        tree = parse_yaml(path.read_text(encoding="utf-8"), path.name)
    except (OSError, UnicodeDecodeError, UserError) as error:
        problems.append(f"{path.name}: cannot be read ({error})")
        return {}
    return dict(_flat(tree)) if isinstance(tree, dict) else {}


def _logged(record: RunRecord) -> dict[str, Any]:
    """Take the settings of a foreign run from what its log says."""
    batch = {"global_batch_size": record.global_batch_size, "seed": ", ".join(map(str, record.seeds)) or None}
    return batch | record.settings


def _flat(tree: Mapping[str, Any], prefix: str = "") -> list[tuple[str, Any]]:
    rows: list[tuple[str, Any]] = []
    for key, value in tree.items():
        if isinstance(value, dict) and value:
            rows += _flat(value, f"{prefix}{key}.")
        elif not f"{prefix}{key}".startswith("recipe.card."):
            rows.append((f"{prefix}{key}", value))
    return rows


def _rows(table: Any, names: Set[str], times: Set[str]) -> list[dict[str, Any]]:
    """Keep the rows of a file's table that have these keys, the times as numbers."""
    return [
        row
        for row in (table if isinstance(table, list) else [])
        if isinstance(row, dict) and (names | times) <= row.keys()
        if all(isinstance(row[key], int | float) for key in times)
    ]
