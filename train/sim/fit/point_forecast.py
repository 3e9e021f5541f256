"""Predictions for public points: the rate with its interval, and the time to train."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from train.networks.arch import build_network
from train.sim.constants import Calibration, Constants, log_compute_factor
from train.sim.convergence import epochs_to_target
from train.sim.fit.points import Point
from train.sim.step_time import StepModel, StepTime
from train.sim.time_to_train import IMAGENET, evaluation_time, evaluations_of, run_time

__all__ = ["PointForecast", "PointPredictor"]

Array = npt.NDArray[np.float64]
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
        low: Lower end of the rate's interval.
        high: Upper end of the rate's interval.
        basis: Which held-out points gave the interval, see `train.sim.constants.Calibration`.
        epochs: Epochs to the target, by the global batch and the round.
        time_to_train_s: From run_start to run_stop.
    """

    point: Point
    images_per_s: float
    low: float
    high: float
    basis: str
    epochs: int
    time_to_train_s: float

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
            "interval_from": self.basis,
            "predicted_epochs": self.epochs,
            "predicted_time_to_train_s": round(self.time_to_train_s, 1),
        }


class PointPredictor:
    """Predicts points with MLPerf's network."""

    def __init__(self) -> None:
        self.model = StepModel(build_network("resnet50", num_classes=1000, image_size=224))

    def step_time(self, point: Point, constants: Constants, factor: float) -> StepTime:
        """Return the time of a point's step with ``factor`` on the compute time."""
        return self.model.time_step(point.machine, point.batch, constants, point.software, factor)

    def rate(self, point: Point, constants: Constants) -> float:
        """Return images/s, with evaluations included if the measured rate of the point includes them."""
        factor = math.exp(log_compute_factor(point.effects, constants.effects))
        return _rate(point, self.step_time(point, constants, factor).total_s)

    def forecast(self, point: Point, calibration: Calibration) -> PointForecast:
        """Return a point's rate with its interval, and its time to train with the reference epochs of its batch."""
        constants = calibration.constants
        factor = math.exp(log_compute_factor(point.effects, constants.effects))
        step_s = self.step_time(point, constants, factor).total_s
        rate = _rate(point, step_s)
        basis, half_width = calibration.interval(point.accelerator.chip, point.ranks)
        epochs = epochs_to_target(point.ranks * point.batch, point.round)
        run = run_time(point.ranks * point.batch / step_s, epochs, point.machine.nodes, mlperf_round=point.round)
        return PointForecast(
            point=point,
            images_per_s=rate,
            low=rate * math.exp(-half_width),
            high=rate * math.exp(half_width),
            basis=basis,
            epochs=epochs,
            time_to_train_s=run.total_s + evaluations_of(epochs) * _switch_time(point),
        )

    def log_rates(self, points: Sequence[Point], constants: Constants, log_factors: Array) -> tuple[Array, Array]:
        """Return log images/s of each point, and the share of its step that a factor on compute time scales.

        Args:
            points: The points.
            constants: Physical constants; the effects in them are not used.
            log_factors: Logarithm of the factor on compute time of each point, which takes the place of the effects.
        """
        known: dict[tuple[object, ...], tuple[float, float]] = {}
        rates, shares = np.empty(len(points)), np.empty(len(points))
        for index, (point, log_factor) in enumerate(zip(points, log_factors, strict=True)):
            # Equal machines with equal software are timed once.
            key = (point.machine, point.batch, point.software, round(float(log_factor), 5))
            if key not in known:
                step = self.step_time(point, constants, math.exp(log_factor))
                scaled = step.compute_s + step.straggler_s + step.update_s
                known[key] = step.total_s, scaled / step.total_s
            total_s, shares[index] = known[key]
            rates[index] = math.log(_rate(point, total_s))
        return rates, shares


def _rate(point: Point, step_s: float) -> float:
    rate = point.ranks * point.batch / step_s
    if not point.includes_evaluation:
        return rate
    block = _BLOCK_EPOCHS * IMAGENET.images
    return block / (block / rate + evaluation_time(rate, point.round) + _switch_time(point))


def _switch_time(point: Point) -> float:
    return _SWITCH_S if point.includes_evaluation and point.round in ("0.5", "0.6") else 0.0
