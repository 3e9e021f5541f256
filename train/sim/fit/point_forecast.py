"""Predictions for public points: the rate with its interval, and the time to train."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from train.sim.constants import Calibration, Constants, Interval
from train.sim.convergence import epochs_to_target
from train.sim.fit.points import Point
from train.sim.startup_time import predict_init
from train.sim.step_time import StepTime, step_model
from train.sim.time_to_train import IMAGENET, evaluation_time, evaluations_of, run_time

Array = npt.NDArray[np.float64]
_CLASSES = {"densenet121": 14}
"""Classes of a network's data set if it is not ImageNet; DenseNet's published rates are those of CheXNet."""
_BLOCK_EPOCHS = 4
"""Epochs between evaluations in MLPerf's submissions."""


_SWITCH_S = 0.5
"""Time that each evaluation adds because TensorFlow 1 on TPUs switches between the training and the evaluation program;
least squares over three TPU points of round 0.6."""


@dataclass(frozen=True)
class PointForecast:
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
    def low(self) -> float:
        """Lower end of the rate's interval."""
        return self.images_per_s * math.exp(-self.interval.rate)

    @property
    def high(self) -> float:
        """Upper end of the rate's interval."""
        return self.images_per_s * math.exp(self.interval.rate)

    def row(self) -> dict[str, object]:
        """Return the row that ``--points --json`` prints."""
        return {
            "mlperf_round": self.point.round,
            "submitter": self.point.submitter,
            "system": self.point.system,
            "accelerator": self.point.accelerator.name,
            "n_acc": self.point.ranks,
            "batch_per_acc": self.point.batch,
            "predicted_img_per_s": round(self.images_per_s, 1),
            "low": round(self.low, 1),
            "high": round(self.high, 1),
            "interval_from": self.interval.basis,
            "predicted_epochs": self.epochs,
            "predicted_time_to_train_s": round(self.time_to_train_s, 1),
            "time_low_s": round(self.time_to_train_s * math.exp(-self.interval.time), 1),
            "time_high_s": round(self.time_to_train_s * math.exp(self.interval.time), 1),
            "predicted_init_s": round(self.init_s, 1),
        }


class PointPredictor:
    """Predicts points."""

    def step_time(self, point: Point, constants: Constants) -> StepTime:
        """Return the time of a point's step."""
        model = step_model(point.network, _CLASSES.get(point.network, 1000))
        return model.time_step(point.machine, point.batch, constants, point.software)

    def rate(self, point: Point, constants: Constants) -> float:
        """Return images/s, with evaluations included if the measured rate of the point includes them."""
        return _rate(point, self.step_time(point, constants).total_s)

    def forecast(self, point: Point, calibration: Calibration) -> PointForecast:
        """Return a point's rate and its time to train, by the reference epochs of its batch, with intervals."""
        step_s = self.step_time(point, calibration.constants).total_s
        rate = _rate(point, step_s)
        accelerator = point.accelerator
        interval = calibration.interval(
            accelerator.chip, point.ranks, has_compiler=bool(accelerator.compiler), lacks=point.lacks
        )
        epochs = epochs_to_target(point.ranks * point.batch, point.round)
        run = run_time(point.ranks * point.batch / step_s, epochs, point.machine.nodes, mlperf_round=point.round)
        return PointForecast(
            point=point,
            images_per_s=rate,
            interval=interval,
            epochs=epochs,
            time_to_train_s=run.total_s + evaluations_of(epochs) * _switch_time(point),
            init_s=predict_init(point.ranks, point.round, has_compiler=bool(accelerator.compiler)),
        )

    def log_rates(self, points: Sequence[Point], constants: Constants) -> Array:
        """Return log images/s of each point."""
        known: dict[tuple[object, ...], float] = {}
        rates = np.empty(len(points))
        for index, point in enumerate(points):
            # Equal machines with equal software are timed once.
            key = (point.machine, point.batch, point.software)
            if key not in known:
                known[key] = self.step_time(point, constants).total_s
            rates[index] = math.log(_rate(point, known[key]))
        return rates


def _rate(point: Point, step_s: float) -> float:
    rate = point.ranks * point.batch / step_s
    if not point.includes_evaluation:
        return rate
    block = _BLOCK_EPOCHS * IMAGENET.images
    return block / (block / rate + evaluation_time(rate, point.round) + _switch_time(point))


def _switch_time(point: Point) -> float:
    return _SWITCH_S if point.includes_evaluation and point.round in ("0.5", "0.6") else 0.0
