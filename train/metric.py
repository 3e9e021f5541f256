"""How a network is judged: a metric gathers batches on each rank and gives one score over all of them.

Top-1 for one class an image, mean ROC-AUC for any number of them. Imports scikit-learn only for the latter.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

import numpy as np

from configs.schema import Loss
from train.comm.communicator import Communicator

__all__ = ["MeanAuc", "Metric", "Score", "Top1", "metric_of", "top1_score"]


@dataclass(frozen=True)
class Score:
    """An evaluation's outcome, the same on every rank.

    Attributes:
        name: What ``value`` is, in words.
        value: From 0 to 1, more is better.
        row: What the metrics row of the evaluation holds.
        basis: What it was taken from, in words.
    """

    name: str
    value: float
    row: dict[str, Any]
    basis: str

    def __str__(self) -> str:
        """Put name and value on one line."""
        return f"{self.name} {self.value:.4f}"


class Metric(Protocol):
    """One evaluation under way on this rank."""

    def add(self, logits: Any, labels: Any, num_valid: int) -> None:
        """Take a batch, of which the first ``num_valid`` images count; queues and returns at once."""

    def score(self, communicator: Communicator) -> Score:
        """Give the score over all ranks' images; waits. Every rank calls it, also one that has no image."""


def metric_of(loss: Loss, rank: int) -> Callable[[], Metric]:
    """Give what begins an evaluation on ``rank`` of a network trained on ``loss``."""
    return partial(MeanAuc, rank) if loss.kind == "sigmoid" else Top1


def top1_score(correct: int, total: int) -> Score:
    """Make the score of ``correct`` right answers out of ``total``."""
    top1 = correct / total
    return Score("top-1", top1, {"top1": top1, "correct": correct, "total": total}, f"{correct} of {total}")


class Top1:
    """Share of images whose most likely class is the right one, from summed integer counts."""

    def __init__(self) -> None:
        self._counts: list[Any] = []
        self._total = 0

    def add(self, logits: Any, labels: Any, num_valid: int) -> None:
        """See `Metric`; logits (batch, classes), labels (batch,)."""
        hits = logits.argmax(axis=-1) == labels
        self._counts.append(hits[:num_valid].sum())
        self._total += num_valid

    def score(self, communicator: Communicator) -> Score:
        """See `Metric`."""
        correct = sum(int(count.asscalar()) for count in self._counts)
        return top1_score(*communicator.sum_integers("evaluation", [correct, self._total]))


class MeanAuc:
    """Mean over the classes of the area under the ROC curve, from every image's scores.

    A class that all images have, or none, has no such curve: its AUC is None, and the mean leaves it out.
    """

    def __init__(self, rank: int) -> None:
        self._rank = rank
        self._parts: list[Any] = []
        self._total = 0

    def add(self, logits: Any, labels: Any, num_valid: int) -> None:
        """See `Metric`; logits and labels (batch, classes)."""
        self._parts.append((logits[:num_valid], labels[:num_valid]))
        self._total += num_valid

    def score(self, communicator: Communicator) -> Score:
        """See `Metric`."""
        logits, labels = self._gather(communicator)
        aucs = [_auc(logits[:, index], labels[:, index]) for index in range(labels.shape[1])]
        known = [auc for auc in aucs if auc is not None]
        if not known:
            raise RuntimeError(f"no class is both present and absent among {len(labels)} evaluation images: no ROC-AUC")
        mean = sum(known) / len(known)
        of = f"{len(known)} classes" if len(known) == len(aucs) else f"{len(known)} of {len(aucs)} classes"
        row = {"mean_auc": mean, "class_auc": aucs, "total": len(labels)}
        return Score("mean ROC-AUC", mean, row, f"{of}, {len(labels)} images")

    def _gather(self, communicator: Communicator) -> tuple[np.ndarray, np.ndarray]:
        """Give all ranks' logits and labels to each: rows of zeros are filled by their rank, and summed."""
        import mxnet as mx  # noqa: PLC0415 (slow)

        counts = communicator.gather("evaluation images", self._total)
        widths = communicator.gather("evaluation classes", self._parts[0][0].shape[1] if self._parts else 0)
        start, width = sum(counts[: self._rank]), max(widths)
        rows = np.zeros((2, sum(counts), width), np.float32)
        for logits, labels in self._parts:
            stop = start + len(logits)
            rows[0, start:stop], rows[1, start:stop] = logits.asnumpy(), labels.asnumpy()
            start = stop
        everything = mx.nd.array(rows)
        communicator.reduce("evaluation scores", [everything])
        gathered: np.ndarray = everything.asnumpy()
        return gathered[0], gathered[1]


def _auc(logits: np.ndarray, labels: np.ndarray) -> float | None:
    """Give one class's AUC; logits order images as their sigmoids do."""
    from sklearn.metrics import roc_auc_score  # noqa: PLC0415 (takes a second)

    return float(roc_auc_score(labels, logits)) if 0 < labels.sum() < len(labels) else None
