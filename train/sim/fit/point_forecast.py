"""Predictions for public points: the rate with its interval, and the time to train."""

from functools import lru_cache
from typing import NamedTuple

from train.sim.constants import Calibration, Constants, Interval, bounds
from train.sim.fit.points import Point
from train.sim.hardware import Machine
from train.sim.software import Software
from train.sim.step_time import step_model
from train.sim.time_to_train import (
    IMAGENET,
    epochs_to_target,
    era_of,
    evaluation_time,
    evaluations_of,
    predict_init,
    run_time,
)

_CLASSES = {"densenet121": 14}
"""Classes of a network's data set if it is not ImageNet; DenseNet's published rates are those of CheXNet."""
_BLOCK_EPOCHS = 4
"""Epochs between evaluations in MLPerf's submissions."""


class PointForecast(NamedTuple):
    """What is predicted for a point, without a look at what was measured.

    Attributes:
        point: The point.
        images_per_s: Rate over all ranks.
        interval: How far off the rate and the time may be.
        epochs: Epochs to the target, by the global batch and the round.
        time_to_train_s: From run_start to run_stop.
        init_s: From init_start to run_start.
    """

    point: Point
    images_per_s: float
    interval: Interval
    epochs: int
    time_to_train_s: float
    init_s: float

    @property
    def rate_bounds(self) -> tuple[float, float]:
        """Ends of the interval of images/s."""
        return bounds(self.images_per_s, self.interval.rate)

    def row(self) -> dict[str, object]:
        """Return the row that ``--points --json`` prints."""
        (low, high), (time_low_s, time_high_s) = self.rate_bounds, bounds(self.time_to_train_s, self.interval.time)
        return {
            "mlperf_round": self.point.round,
            "submitter": self.point.submitter,
            "system": self.point.system,
            "accelerator": self.point.accelerator.name,
            "n_acc": self.point.ranks,
            "batch_per_acc": self.point.batch,
            "predicted_img_per_s": round(self.images_per_s, 1),
            "low": round(low, 1),
            "high": round(high, 1),
            "interval_from": self.interval.basis,
            "predicted_epochs": self.epochs,
            "predicted_time_to_train_s": round(self.time_to_train_s, 1),
            "time_low_s": round(time_low_s, 1),
            "time_high_s": round(time_high_s, 1),
            "predicted_init_s": round(self.init_s, 1),
        }


def forecast_point(point: Point, calibration: Calibration) -> PointForecast:
    """Return a point's rate and its time to train, by the reference epochs of its batch, with intervals."""
    step_s, machine = _step_s(point, calibration.constants), point.machine
    epochs = epochs_to_target(point.ranks * point.batch, point.round)
    run = run_time(point.ranks * point.batch / step_s, epochs, machine.nodes, mlperf_round=point.round)
    return PointForecast(
        point=point,
        images_per_s=_rate(point, step_s),
        interval=calibration.interval(machine, point.lacks),
        epochs=epochs,
        time_to_train_s=run.total_s + evaluations_of(epochs) * _switch_time(point),
        init_s=predict_init(point.ranks, point.round, has_compiler=bool(point.accelerator.compiler)),
    )


def point_rate(point: Point, constants: Constants) -> float:
    """Return images/s, with evaluations included if the measured rate of the point includes them."""
    return _rate(point, _step_s(point, constants))


def _step_s(point: Point, constants: Constants) -> float:
    return _timed(point.network, point.machine, point.batch, point.software, constants)


@lru_cache(maxsize=1024)
def _timed(network: str, machine: Machine, batch: float, software: Software, constants: Constants) -> float:
    """Return the seconds of a step. Many points are equal machines with equal software, which are timed once."""
    model = step_model(network, num_classes=_CLASSES.get(network, 1000))
    return model.time_step(machine, batch, constants, software).total_s


def _rate(point: Point, step_s: float) -> float:
    rate = point.ranks * point.batch / step_s
    if not point.includes_evaluation:
        return rate
    block = _BLOCK_EPOCHS * IMAGENET.images
    return block / (block / rate + evaluation_time(rate, point.round) + _switch_time(point))


def _switch_time(point: Point) -> float:
    return era_of(point.round).switch_s if point.includes_evaluation else 0.0
