"""Reads everything that the report shows of one run: the log, and of a run of this program the other files.

If a file is missing or damaged, only the part of the page that needs this file is missing.
"""

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any, TypeVar

from configs.errors import UserError
from configs.rules import TARGET_TOP1
from logs.attempts import Attempt, Attempts
from logs.claims import Claims
from logs.classes import ClassResults, read_classes
from logs.disk import read_as, read_object
from logs.energy import RunEnergy
from logs.environment import read_environment
from logs.folder import CONFIG_FILE, REHEARSAL_FILE, STARTUP_FILE, SUMMARY_FILE, RunFolder, read_settings
from logs.judge.compliance import RULESETS, Verdict, judge, read_verdicts
from logs.judge.evidence import Problem, problem_of
from logs.judge.rcp import ReferenceComparison, compare_with_reference
from logs.metrics import METRICS_FILE, RANKS_FILE, read_metrics
from logs.mlperf import RESULT_FILES
from logs.read.files import NO_EVENT
from logs.read.lines import to_number
from logs.read.parse import parse_log
from logs.read.record import RunRecord
from logs.slow_ranks import SLOW_RANKS
from logs.usage import RankTimes, Sample, Startup, read_samples

Point = tuple[Any, Any, Any]
"""(epoch, seconds since run_start, value), as a log has them: anything may be missing or of a wrong type."""

_Content = TypeVar("_Content")


class NoRun(UserError):
    """A path that leads to no run: a folder without a log or settings, or a file without an event of training."""


@dataclass(frozen=True)
class ReportedRun:
    """One run of a report.

    Attributes:
        name: A short name, unique in the report.
        path: The run folder or the log file.
        log: The log file; None if the run has written none.
        record: Content of the log.
        intervals: Rows of kind ``interval`` in ``metrics.jsonl``.
        evaluations: Rows of kind ``evaluation`` there.
        comparisons: Rows of kind ``slow_ranks`` there.
        classes: Content of ``classes.json``; None before the run's end, and of older runs.
        startup: Content of ``startup.json``.
        environment: Content of ``environment.json``.
        ranks: Rows of ``ranks.json``.
        samples: Rows of ``utilisation.jsonl``.
        summary: Content of ``summary.json``.
        energy: The summary's energy.
        settings: Configuration, dotted key -> value; for a log without a run folder, the logged hyperparameters.
        restarts: The attempts that ended before the run did.
        is_held: Whether a process trains in the run folder now, as far as can be read.
        problem: Why the files of the run folder do not support its result; None if they do.
    """

    name: str
    path: Path
    log: Path | None
    record: RunRecord
    intervals: list[dict[str, Any]] = field(default_factory=list)
    evaluations: list[dict[str, Any]] = field(default_factory=list)
    comparisons: list[dict[str, Any]] = field(default_factory=list)
    classes: ClassResults | None = None
    startup: Startup = field(default_factory=Startup)
    environment: dict[str, Any] = field(default_factory=dict)
    ranks: Sequence[RankTimes] = ()
    samples: list[Sample] = field(default_factory=list)
    summary: dict[str, Any] = field(default_factory=dict)
    energy: RunEnergy | None = None
    settings: dict[str, Any] = field(default_factory=dict)
    restarts: Sequence[Attempt] = ()
    is_held: bool = False
    problem: Problem | None = None

    @property
    def target(self) -> float | None:
        """The accuracy that ends the run; for another submitter's closed log, the accuracy that the rules ask for."""
        target = self.summary.get("target")
        if isinstance(target, int | float):
            return float(target)
        is_by_rule = not self.path.is_dir() and self.record.is_of_imagenet and self.record.division == "closed"
        return TARGET_TOP1 if self.record.target is None and is_by_rule else self.record.target

    @property
    def metric(self) -> str:
        """What the accuracies of the run are."""
        if not self.record.is_of_images:
            return f"quality of {self.record.benchmark}"
        return "Mean ROC-AUC" if self.settings.get("recipe.loss.kind") == "sigmoid" else "Top-1 accuracy"

    @property
    def is_rehearsal(self) -> bool:
        """Whether ranks waited instead of computing, so that the accuracies are invented."""
        return bool(self.summary.get("is_rehearsal")) or "cluster.rehearsal.shrink" in self.settings

    @cached_property
    def predictions(self) -> list[str]:
        """A rehearsal's times beside the predicted ones, in clauses; none if this is no rehearsal that has ended."""
        file = self.path / REHEARSAL_FILE
        return file.read_text(encoding="utf-8", errors="replace").splitlines() if file.is_file() else []

    @cached_property
    def comparison(self) -> ReferenceComparison:
        """How the run's epochs compare with MLPerf's reference."""
        return compare_with_reference(self.record)

    @cached_property
    def verdicts(self) -> list[Verdict]:
        """The official checker's verdicts on the logs as they are now.

        A verdict in the run folder counts only for the log that it judged; the checker judges any other log now.
        """
        is_folder = self.path.is_dir()
        found = {verdict.ruleset: verdict for verdict in read_verdicts(self.path)} if is_folder else {}
        logs = {ruleset: self.path / name for ruleset, name in RESULT_FILES.items()} if is_folder else {}
        judged = {ruleset: log for ruleset, log in logs.items() if ruleset not in found and log.is_file()}
        if self.log is not None and self.log not in logs.values() and self.record.ruleset in RULESETS:
            judged[str(self.record.ruleset)] = self.log
        found |= {ruleset: judge(log, ruleset) for ruleset, log in judged.items()}
        return [found[ruleset] for ruleset in sorted(found, reverse=True)]

    @cached_property
    def curves(self) -> dict[str, list[Point]]:
        """The curves of a run on images: name -> points.

        A row of an interval is placed by the images seen, because the row's epoch is a whole number and stands still
        within an epoch. Images/s are those of the metrics, else of the log's epochs.
        """
        record = self.record
        if not record.is_of_images:
            return {}
        steps = [to_number(row.get("step")) for row in self.intervals]
        epochs = [None if step is None else record.epochs_of(step + 1) for step in steps]
        rows = [
            (epoch or row.get("epoch"), self._since_start(row), row)
            for epoch, row in zip(epochs, self.intervals, strict=True)
        ]
        loss, rate, images = (
            [(epoch, at, row.get(key)) for epoch, at, row in rows] for key in ("loss", "lr", "images_per_s")
        )
        in_epoch = record.images_per_epoch
        by_epoch = [
            (span.first_epoch + span.epochs - 1, span.end_s, in_epoch * span.epochs / (span.end_s - span.begin_s))
            for span in record.epoch_spans
            if in_epoch and span.end_s > span.begin_s
        ]
        return {
            "accuracy": [(each.epoch, each.at_s, each.accuracy) for each in record.evaluations],
            "loss": loss,
            "validation_loss": [
                (row.get("epoch"), self._since_start(row), value)
                for row in self.evaluations
                if (value := to_number(row.get("eval_loss"))) is not None
            ],
            "learning_rate": rate,
            "images_per_s": images or by_epoch,
            "evaluation_s": [(each.epoch, each.at_s, each.seconds) for each in record.evaluations],
        }

    def _since_start(self, row: dict[str, Any]) -> float | None:
        """Return the seconds from run_start to a row of the metrics."""
        when = to_number(row.get("time"))
        return None if when is None else self.record.since_start(when)


def gather_run(path: Path, name: str | None = None) -> ReportedRun:
    """Read a run folder or a log.

    Args:
        path: A run folder or a log file.
        name: The run's name in the report. If None, the name of the folder, or of the file without its suffix.

    Raises:
        NoRun: The path leads to no run.
        UserError: If there is no such file or folder, or it cannot be read.
    """
    if path.is_file():
        record = parse_log(path)
        if record.ruleset is None:
            raise NoRun(f"{path}: {NO_EVENT}")
        return ReportedRun(name or path.stem, path, path, record, settings=_logged(record))
    if not path.is_dir():
        raise UserError(f"{path}: is no file or folder; give run folders or logs")
    # The log of ruleset 4.0.0, otherwise any log in the folder.
    logs = [*(path / name for name in RESULT_FILES.values()), *sorted(path.glob("result_*.txt"))]
    log = next((each for each in logs if each.is_file()), None)
    if log is None and not (path / CONFIG_FILE).is_file():
        raise NoRun(f"{path}: contains neither result_*.txt nor {CONFIG_FILE}; give a run folder or a log")
    record = parse_log(log) if log else RunRecord(path)
    rows: list[dict[str, Any]] = _or(read_metrics, path / METRICS_FILE, [])
    summary: dict[str, Any] = _or(read_object, path / SUMMARY_FILE, {})
    return ReportedRun(
        name=name or path.resolve().name,
        path=path,
        log=log,
        record=replace(record, steps=to_number(summary.get("steps"))),
        intervals=[row for row in rows if row.get("kind") == "interval"],
        evaluations=[row for row in rows if row.get("kind") == "evaluation"],
        comparisons=[row for row in rows if row.get("kind") == SLOW_RANKS],
        classes=_or(read_classes, path, None),
        startup=_or(partial(read_as, Startup), path / STARTUP_FILE, Startup()),
        environment=_or(read_environment, path, {}),
        ranks=_or(lambda file: read_as(dict[str, list[RankTimes]], file).get("ranks", []), path / RANKS_FILE, []),
        samples=_or(read_samples, path, []),
        summary=summary,
        energy=_or(lambda folder: RunFolder(folder).summary().energy, path, None),
        settings=_or(read_settings, path / CONFIG_FILE, {}) or _logged(record),
        restarts=_or(lambda folder: Attempts(folder).read(), path, []),
        is_held=_or(lambda folder: Claims(folder).holder() is not None, path, False),
        problem=problem_of(path),
    )


def summarise(run: ReportedRun) -> dict[str, Any]:
    """Return the figures of one log for ``--json``; a figure that the log does not contain is None."""
    record = run.record
    names = ("submitter", "benchmark", "ruleset", "division", "platform", "status", "global_batch_size", "epochs")
    return {
        "log": str(run.log or run.path),
        **{name: getattr(record, name) for name in (*names, "final_accuracy", "init_s", "time_to_train_s")},
        "is_rehearsal": run.is_rehearsal,
        "median_epoch_s": record.median_epoch_s and round(record.median_epoch_s, 6),
        "evaluations": len(record.evaluations) if record.ruleset else None,
        "images_per_s": record.images_per_s and round(record.images_per_s, 3),
        "no_images_per_s_because": record.no_rate_because or None,
        "energy": run.energy and asdict(run.energy),
        "seeds": list(record.seeds),
        "curve": [asdict(each) for each in record.evaluations],
        "unreadable_records": record.unreadable,
    }


def _or(read: Callable[[Path], _Content], path: Path, empty: _Content) -> _Content:
    """Return the content of a file; ``empty`` if it is missing or damaged, which `problem_of` tells."""
    try:
        return read(path)
    except (OSError, ValueError, UserError):
        return empty


def _logged(record: RunRecord) -> dict[str, Any]:
    """Return the settings of a run without a run folder, from the log."""
    batch = {"global_batch_size": record.global_batch_size, "seed": ", ".join(map(str, record.seeds)) or None}
    return batch | record.settings
