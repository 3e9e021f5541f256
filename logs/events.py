"""The events of a run as methods, in the order that MLPerf's rules ask for. Keys are those of ruleset 4.0.0.

`logs.mlperf` writes the events to files; this module has no files.
"""

import contextlib
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib.metadata import PackageNotFoundError, version
from typing import Any, Literal

from configs.registry import ENGINES, EngineEntry
from configs.schema import Cluster, Mlperf

Kind = Literal["point", "start", "stop"]
Status = Literal["success", "aborted"]


class EventLog(ABC):
    """A run's log of events, with one method for each kind of event.

    MLPerf's rules ask for this order: submission, cache_clear, init_start, seed and hyperparameters, init_stop,
    run_start; then blocks of epochs, and inside each block one evaluation with its accuracy; run_stop. Epochs count
    from 1. If an exception leaves a block, an epoch or an evaluation, no stop event is logged for it, because it did
    not end; `run_stop` then says that the run was aborted.
    """

    _stopped = False

    @abstractmethod
    def emit(self, kind: Kind, key: str, value: Any = None, **metadata: Any) -> None:
        """Log one event, under a key of MLPerf's rules or a key of our own."""

    @abstractmethod
    def close(self) -> None:
        """Close the log; nothing may be logged afterwards."""

    def submission(self, cluster: Cluster, mlperf: Mlperf) -> None:
        """Log who submits and what runs; comes first, because the checker derives time limits from the division."""
        submission = cluster.submission
        self.emit("point", "submission_benchmark", mlperf.benchmark)
        self.emit("point", "submission_org", submission.org)
        self.emit("point", "submission_division", mlperf.division)
        self.emit("point", "submission_status", submission.status)
        self.emit("point", "submission_platform", submission.platform)
        self.emit("point", "submission_poc_name", submission.poc_name)
        if submission.poc_email:
            self.emit("point", "submission_poc_email", submission.poc_email)
        entry = {"hardware": submission.platform, "framework": _framework(ENGINES[cluster.engine.name])}
        self.emit("point", "submission_entry", entry)

    def rehearsal(self) -> None:
        """Log, before anything else, that nothing is trained and accuracies are invented: no result of any kind."""
        self.emit("point", "rehearsal", value=True)

    def resumed(self, step: int) -> None:
        """Log, before anything else, that an earlier attempt is resumed at ``step``: such a run cannot be submitted."""
        self.emit("point", "resumed_from_step", step)

    def cache_clear(self) -> None:
        """Log that the page cache holds no data of the data set; call after dropping it and before `init_start`."""
        self.emit("point", "cache_clear", value=True)

    def init_start(self) -> None:
        """Log the start of the initialisation, which MLPerf does not time."""
        self.emit("start", "init_start")

    def init_stop(self) -> None:
        """Log the end of the initialisation."""
        self.emit("stop", "init_stop")

    def run_start(self) -> None:
        """Log the start of the timed run; no byte of the training data may have been read before."""
        self.emit("start", "run_start")

    def run_stop(self, status: Status) -> None:
        """Log the end of the timed run, exactly once a run."""
        assert not self._stopped, "run_stop is logged exactly once"
        self._stopped = True
        self.emit("stop", "run_stop", status=status)

    def seed(self, seed: int) -> None:
        """Log the seed from which every random stream of the run is derived."""
        self.emit("point", "seed", seed)

    def hyperparameters(self, values: Mapping[str, Any]) -> None:
        """Log the hyperparameters of the optimizer and the pipelines that run.

        Args:
            values: Key of ruleset 4.0.0 -> value, see `train.schedule.logged_hyperparameters`.
        """
        for key, value in values.items():
            self.emit("point", key, value)

    @contextmanager
    def block(self, first_epoch: int, epoch_count: int) -> Iterator[None]:
        """Log start and stop around the epochs up to an evaluation, and around that evaluation."""
        assert first_epoch >= 1
        assert epoch_count >= 1
        self.emit("start", "block_start", first_epoch_num=first_epoch, epoch_count=epoch_count)
        yield
        self.emit("stop", "block_stop", first_epoch_num=first_epoch)

    @contextmanager
    def epoch(self, epoch: int) -> Iterator[None]:
        """Log start and stop around the steps of one epoch."""
        assert epoch >= 1
        self.emit("start", "epoch_start", epoch_num=epoch)
        yield
        self.emit("stop", "epoch_stop", epoch_num=epoch)

    @contextmanager
    def evaluation(self, epoch: int) -> Iterator[None]:
        """Log start and stop around the evaluation after ``epoch``."""
        assert epoch >= 1
        self.emit("start", "eval_start", epoch_num=epoch)
        yield
        self.emit("stop", "eval_stop", epoch_num=epoch)

    def eval_accuracy(self, top1: float, epoch: int) -> None:
        """Log the top-1 accuracy (0 to 1) on the validation images after ``epoch``."""
        assert 0 <= top1 <= 1, top1
        self.emit("point", "eval_accuracy", top1, epoch_num=epoch)


class NullLog(EventLog):
    """The log of every rank but 0: writes nothing, and makes the same assertions as the log of rank 0."""

    def emit(self, kind: Kind, key: str, value: Any = None, **metadata: Any) -> None:
        """Write nothing."""

    def close(self) -> None:
        """Do nothing, because nothing is open."""


def _framework(engine: EngineEntry) -> str:
    for name in engine.distributions:
        with contextlib.suppress(PackageNotFoundError):
            return f"{engine.title} {version(name)}"
    return "none"
