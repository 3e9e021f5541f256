"""What a run tells of itself, as verbs in the rule book's order; where it is written is `logs.mlperf`'s affair.

Keys are those of ruleset 4.0.0.
"""

from __future__ import annotations

import contextlib
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib.metadata import PackageNotFoundError, version
from typing import Any, Literal

from configs.schema import Mlperf, Submission

__all__ = ["EventLog", "Kind", "NullLog", "Status"]

Kind = Literal["point", "start", "stop"]
Status = Literal["success", "aborted"]


class EventLog(ABC):
    """A run's events as verbs, in the order that the rule book wants them.

    submission, cache_clear, init_start, seed and hyperparameters, init_stop, run_start; then blocks of epochs, each
    block with one evaluation and its accuracy inside; run_stop. Epochs count from 1. An interval that an exception
    leaves stays open in the log: it did not end, and `run_stop` says that the run was aborted.
    """

    _stopped = False

    @abstractmethod
    def emit(self, kind: Kind, key: str, value: Any = None, **metadata: Any) -> None:
        """Log one event of a key of the rule book, or of our own."""

    @abstractmethod
    def close(self) -> None:
        """End writing; nothing may be logged afterwards."""

    def submission(self, submission: Submission, mlperf: Mlperf) -> None:
        """Say who runs what; comes first, because the checker takes its time limits from the division."""
        self.emit("point", "submission_benchmark", mlperf.benchmark)
        self.emit("point", "submission_org", submission.org)
        self.emit("point", "submission_division", mlperf.division)
        self.emit("point", "submission_status", submission.status)
        self.emit("point", "submission_platform", submission.platform)
        self.emit("point", "submission_poc_name", submission.poc_name)
        if submission.poc_email:
            self.emit("point", "submission_poc_email", submission.poc_email)
        entry = {"hardware": submission.platform, "framework": _framework()}
        self.emit("point", "submission_entry", entry)

    def resumed(self, step: int) -> None:
        """Say, before anything else, that this goes on where an earlier attempt stopped: it cannot be submitted."""
        self.emit("point", "resumed_from_step", step)

    def cache_clear(self) -> None:
        """Say that the data set's pages were dropped from memory; log it after doing so and before `init_start`."""
        self.emit("point", "cache_clear", value=True)

    def init_start(self) -> None:
        """Begin the initialisation, which is not scored."""
        self.emit("start", "init_start")

    def init_stop(self) -> None:
        """End the initialisation."""
        self.emit("stop", "init_stop")

    def run_start(self) -> None:
        """Start the clock; no training byte may have been read."""
        self.emit("start", "run_start")

    def run_stop(self, status: Status) -> None:
        """Stop the clock, exactly once a run."""
        assert not self._stopped, "run_stop is logged exactly once"
        self._stopped = True
        self.emit("stop", "run_stop", status=status)

    def seed(self, seed: int) -> None:
        """Log the seed that every random stream of the run comes from."""
        self.emit("point", "seed", seed)

    def hyperparameters(self, values: Mapping[str, Any]) -> None:
        """Log the hyperparameters of the optimizer and the pipelines that run.

        Args:
            values: Ruleset 4.0.0's key -> value, see `train.schedule.logged_hyperparameters`.
        """
        for key, value in values.items():
            self.emit("point", key, value)

    @contextmanager
    def block(self, first_epoch: int, epoch_count: int) -> Iterator[None]:
        """Enclose the epochs up to an evaluation, and that evaluation."""
        assert first_epoch >= 1
        assert epoch_count >= 1
        self.emit("start", "block_start", first_epoch_num=first_epoch, epoch_count=epoch_count)
        yield
        self.emit("stop", "block_stop", first_epoch_num=first_epoch)

    @contextmanager
    def epoch(self, epoch: int) -> Iterator[None]:
        """Enclose the steps of one epoch."""
        assert epoch >= 1
        self.emit("start", "epoch_start", epoch_num=epoch)
        yield
        self.emit("stop", "epoch_stop", epoch_num=epoch)

    @contextmanager
    def evaluation(self, epoch: int) -> Iterator[None]:
        """Enclose the evaluation after ``epoch``."""
        assert epoch >= 1
        self.emit("start", "eval_start", epoch_num=epoch)
        yield
        self.emit("stop", "eval_stop", epoch_num=epoch)

    def eval_accuracy(self, top1: float, epoch: int) -> None:
        """Log the share (0 to 1) of validation images that the network got right after ``epoch``."""
        assert 0 <= top1 <= 1, top1
        self.emit("point", "eval_accuracy", top1, epoch_num=epoch)


class NullLog(EventLog):
    """The log of every rank but 0: writes nothing, but minds the same order."""

    def emit(self, kind: Kind, key: str, value: Any = None, **metadata: Any) -> None:
        """Write nothing."""

    def close(self) -> None:
        """Nothing is open."""


def _framework() -> str:
    for name in ("mxnet", "mxnet-cu112"):
        with contextlib.suppress(PackageNotFoundError):
            return f"MXNet {version(name)}"
    return "none"
