"""Distributed evaluation: each image once, on the rank that holds it, judged by a metric over all ranks.

The metric is top-1 for one class an image, and mean ROC-AUC for several labels an image.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np

from configs.ideas.part import LogitsOf, Part
from configs.schema import Loss
from data.input.batches import EvaluationSource
from train.comm.communicator import Communicator
from train.engine.protocol import Array, Engine, TrainableNetwork

MOST_CONFUSED = 50
"""Of more classes, a table of every class against every other could no longer be read."""
_LOSS_UNIT = 1e-6
_MOST_LOSS = 1e9
"""A rank's summed loss from which on it counts as infinite: 9,000 ranks' sums in millionths still fit into 63 bits."""


@dataclass
class Evaluator:
    """Evaluate the network on the shards of all ranks.

    Attributes:
        network: The network. Its batch-norm statistics, and those that ideas evaluate in their place, are averaged over
            the ranks before each evaluation, so that every rank evaluates the same model.
        source: This rank's shard; the last batch may be padded.
        communicator: Averages the statistics and combines the ranks' results.
        new_metric: Returns the metric of one evaluation, see `metric_of`.
        on_batch: Called after each batch.
        parts: What the recipe's ideas compute.
        predict: Returns logits by the weights that the network has then. If None, the network's `inference` does.
    """

    network: TrainableNetwork
    source: EvaluationSource
    communicator: Communicator
    new_metric: Callable[[], Metric]
    on_batch: Callable[[], object]
    parts: Sequence[Part] = ()
    predict: LogitsOf | None = None
    _last: Metric | None = field(default=None, init=False)

    def __call__(self) -> Score:
        """Return the score over all ranks; waits for the result."""
        self.communicator.exchange(settled=True)
        if statistics := self.network.statistics:
            self.communicator.average("statistics", statistics)
        for number, part in enumerate(self.parts):
            if evaluated := [*part.evaluated_statistics.values()]:
                self.communicator.average(f"evaluated statistics {number}", evaluated)
        metric = self.new_metric()
        with ExitStack() as entered:
            for part in self.parts:
                entered.enter_context(part.weights())
            predict = self.predict or self.network.inference()
            for part in self.parts:
                predict = part.logits(predict)
            for images, labels, num_valid in self.source.batches():
                metric.add(predict(images), labels, num_valid)
                self.on_batch()
        self._last = metric
        return metric.score(self.communicator)

    def by_class(self, num_classes: int) -> dict[str, Any] | None:
        """Return the counts of the last evaluation by class, see `Top1`; None without an evaluation."""
        return None if self._last is None else self._last.by_class(self.communicator, num_classes)


@dataclass(frozen=True)
class Score:
    """The result of an evaluation, the same on every rank.

    Attributes:
        name: Name of the metric, for messages.
        value: From 0 to 1; more is better.
        row: Fields of the evaluation's row in the metrics file.
        basis: The counts behind the value, in words.
    """

    name: str
    value: float
    row: dict[str, Any]
    basis: str

    def __str__(self) -> str:
        """Return name and value in one line."""
        return f"{self.name} {self.value:.4f}"


def metric_of(engine: Engine, loss: Loss) -> Callable[[], Metric]:
    """Return the function that begins an evaluation of a network trained on ``loss``."""
    return partial(MeanAuc if loss.has_label_vectors else Top1, engine)


class Top1:
    """Share of images whose most likely class is the right one, from integer counts summed over the ranks.

    The loss travels in the same sum, as a whole number of millionths: sums of integers are exact in any order, so that
    all ranks have the same loss.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._queued: list[Array] = []
        self._rows = np.zeros((0, 3), np.float32)

    def add(self, logits: Array, labels: Array, num_valid: int) -> None:
        """Add a batch of which the first ``num_valid`` images count; queues and returns at once.

        Logits have shape (batch, classes), labels (batch,).

        An image's row has the class of its label, the class of its largest logit, and the logarithm of the probability
        that the network gives to the label: minus the cross-entropy without label smoothing.
        """
        engine = self._engine
        labels, logits = engine.to_float32(labels), engine.to_float32(logits)
        likelihoods = engine.pick(engine.log_softmax(logits), labels)
        self._queued.append(engine.stack((labels, engine.argmax(logits), likelihoods), axis=-1)[:num_valid])

    def score(self, communicator: Communicator) -> Score:
        """Return the score over all ranks' images; waits. Every rank must call it, also a rank without images."""
        self._rows = np.concatenate([self._rows, *map(self._engine.to_host, self._queued)])
        self._queued.clear()
        labels, found, log_likelihoods = self._rows.T
        loss = -float(log_likelihoods.sum(dtype=np.float64))
        is_countable = bool(loss < _MOST_LOSS)  # false for NaN too
        own = [int((labels == found).sum()), len(labels), round(loss / _LOSS_UNIT) if is_countable else 0]
        correct, total, units, diverged = communicator.sum_integers("evaluation", [*own, int(not is_countable)])
        mean_loss, top1 = math.inf if diverged else units * _LOSS_UNIT / total, correct / total
        row = {"top1": top1, "correct": correct, "total": total, "eval_loss": mean_loss}
        return Score("top-1", top1, row, f"{correct} of {total}")

    def by_class(self, communicator: Communicator, num_classes: int) -> dict[str, Any]:
        """Return counts over all ranks' images by class, after `score`.

        It needs a collective of its own, so a run calls it once, after the timed part.

        Returns:
            By class, ``images`` of the class, those ``predicted`` to be of the class, and ``correct``: those that are
            both. Of at most `MOST_CONFUSED` classes also ``confusion``: a row for each class of a label, with a column
            for each class predicted.
        """
        labels, found = self._rows[:, :2].T.astype(np.int64)
        each = {"images": labels, "predicted": found, "correct": labels[labels == found]}
        counts = {key: np.bincount(some, minlength=num_classes).tolist() for key, some in each.items()}
        counted = {key: communicator.sum_integers(key, own) for key, own in counts.items()}
        if num_classes > MOST_CONFUSED:
            return counted
        pairs = np.bincount(labels * num_classes + found, minlength=num_classes**2).tolist()
        table = np.reshape(communicator.sum_integers("confusion", pairs), (num_classes, num_classes))
        return {**counted, "confusion": table.tolist()}


class MeanAuc:
    """Mean over the classes of the area under the ROC curve, from the logits of every image.

    A class that all images have, or none, has no ROC curve: its AUC is None, and the mean leaves it out.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._parts: list[tuple[Array, Array, int]] = []

    def add(self, logits: Array, labels: Array, num_valid: int) -> None:
        """See `Top1`; logits and labels have shape (batch, classes)."""
        self._parts.append((logits, labels, num_valid))

    def score(self, communicator: Communicator) -> Score:
        """See `Top1`.

        Raises:
            RuntimeError: No class is both present and absent among the images.
        """
        logits, labels = self._gather(communicator)
        aucs = [_auc(logits[:, index], labels[:, index]) for index in range(labels.shape[1])]
        known = [auc for auc in aucs if auc is not None]
        if not known:
            raise RuntimeError(f"no class is both present and absent among {len(labels)} evaluation images: no ROC-AUC")
        mean = sum(known) / len(known)
        of = f"{len(known)} classes" if len(known) == len(aucs) else f"{len(known)} of {len(aucs)} classes"
        # The mean over the classes, as in training; of a logit x and a label y it is log(1 + exp(x)) - x y.
        loss = float((np.logaddexp(0, logits, dtype=np.float64) - logits * labels).mean())
        row = {"mean_auc": mean, "class_auc": aucs, "total": len(labels), "eval_loss": loss}
        return Score("mean ROC-AUC", mean, row, f"{of}, {len(labels)} images")

    def by_class(self, communicator: Communicator, num_classes: int) -> None:
        """Return nothing: an image has several labels."""

    def _gather(self, communicator: Communicator) -> tuple[np.ndarray, np.ndarray]:
        """Return logits and labels of all images."""
        own = [
            np.stack([self._engine.to_host(each)[:num_valid] for each in pair], axis=1).astype(np.float32)
            for *pair, num_valid in self._parts
        ]
        width = max(communicator.gather("evaluation classes", own[0].shape[-1] if own else 0))
        rows = communicator.gather_bytes("evaluation scores", b"".join(each.tobytes() for each in own))
        table = np.frombuffer(b"".join(rows), np.float32).reshape(-1, 2, width)
        return table[:, 0], table[:, 1]


Metric = Top1 | MeanAuc
"""One evaluation under way on this rank."""


def _auc(logits: np.ndarray, labels: np.ndarray) -> float | None:
    """Return one class's AUC, or None if all images or none have the label; logits order images as their sigmoids do.

    The AUC is the share of the pairs of an image with and an image without the label that the logits order rightly; a
    pair of equal logits counts half. Mann and Whitney's sum of ranks counts the pairs. scikit-learn gives the same
    number, but takes more than a second to be imported, in the timed part of a run.
    """
    num_with = int(labels.sum())
    num_without = len(labels) - num_with
    if not num_with or not num_without:
        return None
    _, places, counts = np.unique(logits, return_inverse=True, return_counts=True)
    ranks = np.cumsum(counts) - (counts - 1) / 2
    return float(ranks[places][labels > 0].sum() - num_with * (num_with + 1) / 2) / (num_with * num_without)
