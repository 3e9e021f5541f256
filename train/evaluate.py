"""Distributed evaluation: each image once, on whichever rank holds it; what is counted is the metric's affair."""

from __future__ import annotations

from collections.abc import Callable

from data.input.batches import EvaluationSource
from train.comm.communicator import Communicator
from train.engine.mxnet.network import TrainedNetwork
from train.metric import Metric, Score

__all__ = ["Evaluator"]


class Evaluator:
    """Judge the network by all ranks' shards.

    Args:
        network: Its batch-norm statistics are averaged over the ranks before each evaluation, so that every rank
            judges the same model.
        source: This rank's shard; its last batch may be padded.
        communicator: Brings the ranks' parts together.
        metric: Begins one evaluation.
        alive: Told of each batch.
    """

    def __init__(
        self, network: TrainedNetwork, source: EvaluationSource, communicator: Communicator,
        metric: Callable[[], Metric], alive: Callable[[], object],
    ) -> None:  # fmt: skip
        self._network, self._source, self._communicator = network, source, communicator
        self._metric, self._alive = metric, alive

    def __call__(self) -> Score:
        """Give the score over all ranks; waits for the result."""
        self._communicator.exchange(settled=True)
        if statistics := self._network.statistics:
            self._communicator.average("statistics", statistics)
        metric = self._metric()
        for images, labels, num_valid in self._source.batches():
            metric.add(self._network.predict(images).as_in_context(labels.context), labels, num_valid)
            self._alive()
        return metric.score(self._communicator)
