"""From a point's identity to its predicted rate, with the factor of its family."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from train.networks.arch import build_network
from train.sim.constants import Calibration, Constants, log_factor
from train.sim.convergence import epochs_to_target
from train.sim.fit.points import Point
from train.sim.step_time import Step, StepModel
from train.sim.time_to_train import IMAGENET, evaluation_time, evaluations_of, run_time

__all__ = ["PointForecast", "Predictor"]

Array = npt.NDArray[np.float64]
BLOCK_EPOCHS = 4
"""Epochs between evaluations in MLPerf's submissions."""


_SWITCH_S = 0.5
"""Between the training and the evaluation program of TensorFlow 1: three TPU points of round 0.6, by least squares."""


@dataclass(frozen=True)
class PointForecast:
    """What is predicted of a point, from its identity alone; ``low`` and ``high`` bound the images/s."""

    point: Point
    images_per_s: float
    low: float
    high: float
    basis: str
    epochs: int
    time_to_train_s: float

    def row(self) -> dict[str, object]:
        """Give it as a row of ``--points --json``."""
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


class Predictor:
    """Rates of points on MLPerf's network; steps of equal machines are timed once."""

    def __init__(self) -> None:
        self.model = StepModel(build_network("resnet50", num_classes=1000, image_size=224))

    def step(self, point: Point, constants: Constants, factor: float) -> Step:
        """Time a point's step with ``factor`` on its compute time."""
        return self.model.step(point.machine, point.batch, constants, point.software, factor)

    def rate(self, point: Point, constants: Constants) -> float:
        """Predict images/s in the sense in which the point's column means it."""
        factor = math.exp(log_factor(point.effects, constants.effects))
        return _rate(point, self.step(point, constants, factor).total_s)

    def forecast(self, point: Point, calibration: Calibration) -> PointForecast:
        """Predict a point's rate with its interval, and its time to train by the reference epochs of its batch."""
        constants = calibration.constants
        factor = math.exp(log_factor(point.effects, constants.effects))
        step_s = self.step(point, constants, factor).total_s
        rate = _rate(point, step_s)
        basis, half = calibration.interval(point.accelerator.chip, point.ranks)
        epochs = epochs_to_target(point.ranks * point.batch, point.round)
        nodes = -(-point.ranks // point.machine.ranks_per_node)
        time = run_time(point.ranks * point.batch / step_s, epochs, nodes, mlperf_round=point.round)
        time_s = time.total_s + evaluations_of(epochs) * _switch_time(point)
        return PointForecast(point, rate, rate * math.exp(-half), rate * math.exp(half), basis, epochs, time_s)

    def log_rates(self, points: Sequence[Point], constants: Constants, log_factors: Array) -> tuple[Array, Array]:
        """Give log images/s of each point, and the share of its step that a factor on compute time scales."""
        known: dict[tuple[object, ...], tuple[float, float]] = {}
        rates, shares = np.empty(len(points)), np.empty(len(points))
        for index, (point, log_one) in enumerate(zip(points, log_factors, strict=True)):
            key = (point.machine, point.batch, point.software, round(float(log_one), 5))
            if key not in known:
                step = self.step(point, constants, math.exp(log_one))
                scaled = step.compute_s + step.straggler_s + step.update_s
                known[key] = step.total_s, scaled / step.total_s
            total_s, shares[index] = known[key]
            rates[index] = math.log(_rate(point, total_s))
        return rates, shares


def _rate(point: Point, step_s: float) -> float:
    rate = point.ranks * point.batch / step_s
    if not point.includes_evaluation:
        return rate
    block = BLOCK_EPOCHS * IMAGENET.images
    return block / (block / rate + evaluation_time(rate, point.round) + _switch_time(point))


def _switch_time(point: Point) -> float:
    return _SWITCH_S if point.includes_evaluation and point.round in ("0.5", "0.6") else 0.0
