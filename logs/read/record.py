"""The content of a log as one object. This module reads and writes no file."""

from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any, Literal

IMAGE_BENCHMARK = "resnet"
IMAGENET_IMAGES = 1_281_167
"""Training images of the benchmark ``resnet``, for logs that do not say how many images they train on."""
_UNLIKE = 0.01
"""A number of training images that is further from ImageNet's is not ImageNet's."""


def elapsed(begin: float | None, end: float | None) -> float | None:
    """Return the seconds from ``begin`` to ``end``; None if either is None, or ``end`` is earlier.

    The result is rounded to a microsecond, because Unix times in double precision are no more exact.
    """
    return round(end - begin, 6) if begin is not None and end is not None and end >= begin else None


def as_integer(number: float) -> int | float:
    """Return a whole number as an integer (35.0 as 35), and any other unchanged."""
    return int(number) if number == int(number) else number


@dataclass(frozen=True)
class EpochSpan:
    """A range of one or more epochs.

    Attributes:
        first_epoch: The first epoch of the range; epochs count from 1.
        begin_s: Seconds from run_start to the begin of the range; ``end_s`` likewise.
        epochs: Number of epochs in the range.
    """

    first_epoch: int | float
    begin_s: float
    end_s: float
    epochs: float = 1


@dataclass(frozen=True)
class Pause:
    """The time between the end of an attempt at a run and the run_start of the next one, with its initialisation.

    Attributes:
        begin_s: Unix time at which it begins; ``end_s`` likewise, which is earlier where the clock was set back.
    """

    begin_s: float
    end_s: float


@dataclass(frozen=True)
class Evaluation:
    """One evaluation.

    Attributes:
        epoch: Number of epochs trained before the evaluation.
        at_s: Seconds since run_start, without pauses.
        accuracy: Top-1 accuracy (0 to 1); None if the logged value is not a number.
        seconds: Duration; None if the log does not contain it.
    """

    epoch: int | float | None
    at_s: float | None
    accuracy: float | None
    seconds: float | None


@dataclass(frozen=True)
class RunRecord:
    """The content of a log. A number that the log does not contain is None. Epochs count from 1, in every log.

    Attributes:
        source: The log file.
        ruleset: Follows from the line format. Rulesets 0.7.0 to 4.0.0 share one format, so there the date decides.
        status: The status of run_stop. v0.5 logs no status, so there it follows from the target.
        target: The accuracy that ends the run.
        began_s: Unix time of run_start.
        init_s: Seconds from the first init_start to init_stop.
        attempts: Number of times that the run was started; more than 1 if it was stopped and resumed.
        time_to_train_s: Seconds from run_start to run_stop; None without run_stop.
        elapsed_s: Seconds from run_start to the last event.
        epoch_spans: The epochs; if the marks do not cover the run, the stretches between evaluations.
        last_epoch: The last epoch that has ended, by the log's marks.
        steps: Steps of the whole run, as the summary of a run folder has them; a log alone tells none.
        settings: Logged hyperparameters, key -> value.
        unreadable: Number of records that could not be read.
    """

    source: Path
    ruleset: str | None = None
    submitter: str | None = None
    benchmark: str | None = None
    division: str | None = None
    platform: str | None = None
    status: Literal["success", "aborted"] | None = None
    global_batch_size: int | None = None
    train_samples: int | None = None
    target: float | None = None
    seeds: tuple[int | str, ...] = ()
    began_s: float | None = None
    init_s: float | None = None
    attempts: int = 1
    pauses: tuple[Pause, ...] = ()
    time_to_train_s: float | None = None
    elapsed_s: float | None = None
    evaluations: tuple[Evaluation, ...] = ()
    epoch_spans: tuple[EpochSpan, ...] = ()
    last_epoch: int | float | None = None
    steps: float | None = None
    settings: dict[str, Any] = field(default_factory=dict)
    unreadable: int = 0

    def since_start(self, time_s: float) -> float | None:
        """Return the seconds from run_start to a Unix time, without pauses; a time within one counts as its begin.

        A time before run_start comes after a pause in which the clock was set back that far.
        """
        if self.began_s is None:
            return None
        paused_s = sum(
            min(time_s, each.end_s) - each.begin_s
            for each in self.pauses
            if time_s > each.begin_s or each.end_s <= time_s < self.began_s
        )
        return time_s - self.began_s - paused_s

    def epochs_of(self, steps: float) -> float | None:
        """Return how many epochs so many steps are; None if the log has no batch size or no number of images."""
        size, images = self.global_batch_size, self.images_per_epoch
        return steps * size / images if size and images else None

    @property
    def epochs(self) -> int | float | None:
        """Epochs trained before the last evaluation; without evaluations, number of the last epoch that ended."""
        evaluated = [each.epoch for each in self.evaluations if each.epoch is not None]
        return max(evaluated) if evaluated else self.last_epoch

    @property
    def final_accuracy(self) -> float | None:
        """The last logged accuracy that is a number."""
        return next((each.accuracy for each in reversed(self.evaluations) if each.accuracy is not None), None)

    @property
    def median_epoch_s(self) -> float | None:
        """Median seconds of an epoch, without evaluations where the log marks these."""
        lengths = [(span.end_s - span.begin_s) / span.epochs for span in self.epoch_spans]
        return median(lengths) if lengths else None

    @property
    def is_of_images(self) -> bool:
        """Whether the log is of image classification, and not of another benchmark of MLPerf."""
        return self.benchmark in (None, IMAGE_BENCHMARK)

    @property
    def images_per_epoch(self) -> int | None:
        """Training images as the log has them; those of ImageNet for a log of ``resnet`` that does not say."""
        if not self.is_of_images:
            return None
        return self.train_samples or (IMAGENET_IMAGES if self.benchmark == IMAGE_BENCHMARK else None)

    @property
    def is_of_imagenet(self) -> bool:
        """Whether the log is of ImageNet: of the benchmark ``resnet``, and not with another number of images."""
        is_like = self.train_samples is None or abs(self.train_samples / IMAGENET_IMAGES - 1) <= _UNLIKE
        return self.benchmark == IMAGE_BENCHMARK and is_like

    @property
    def images_per_s(self) -> float | None:
        """Mean training images a second over all ranks from run_start to run_stop, with evaluations and pauses.

        Without run_stop, the rate is that up to the last evaluation. `no_rate_because` has the reason for None.
        """
        if self.no_rate_because:
            return None
        images = float(self.epochs or 0) * (self.images_per_epoch or 0)
        if self.steps and self.global_batch_size:  # run.max_steps may have cut the last epoch short
            images = min(images, self.steps * self.global_batch_size)
        return images / (self._rate_s or 1.0)

    @property
    def no_rate_because(self) -> str:
        """Why the log has no images/s, in words; empty if it has."""
        if not self.is_of_images:
            return f"the log is of the benchmark {self.benchmark}, which trains on no images"
        is_known = self.images_per_epoch and self.epochs and self._rate_s
        return "" if is_known else "the log lacks train_samples, an epoch that has ended, or the times of begin and end"

    @property
    def _rate_s(self) -> float | None:
        if self.time_to_train_s is not None:
            return self.time_to_train_s
        return self.evaluations[-1].at_s if self.evaluations else self.elapsed_s
