"""Distributed top-1 from summed integer counts: each image once, on whichever rank holds it."""

from __future__ import annotations

from typing import Any

from data.source import EvaluationSource
from train.comm import Communicator
from train.model import TrainedNetwork

__all__ = ["Evaluator"]


class Evaluator:
    """Count correct answers over all ranks' shards.

    Args:
        network: Its batch-norm statistics are averaged over the ranks before each evaluation, so that every rank
            judges the same model.
        source: This rank's shard; its last batch may be padded.
        communicator: Sums the counts.
    """

    def __init__(self, network: TrainedNetwork, source: EvaluationSource, communicator: Communicator) -> None:
        self._network, self._source, self._communicator = network, source, communicator

    def __call__(self) -> tuple[int, int]:
        """Give (correct, total) over all ranks; waits for the result."""
        self._communicator.exchange(settled=True)
        self._communicator.average("statistics", self._network.statistics)
        total = 0
        counts: list[Any] = []
        for images, labels, num_valid in self._source.batches():
            hits = self._network.predict(images).argmax(axis=-1).as_in_context(labels.context) == labels
            counts.append(hits[:num_valid].sum())
            total += num_valid
        correct = sum(int(count.asscalar()) for count in counts)
        correct, total = self._communicator.sum_integers("evaluation", [correct, total])
        return correct, total
