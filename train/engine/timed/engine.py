"""Waits behind `train.engine.protocol.Engine`; arrays are those of a real framework.

A rank needs hardly any processor, so one machine can hold many.
"""

from collections.abc import Sequence
from typing import Any

from configs.optimizers import OptimizerBlock
from configs.schema import Cluster, Recipe
from train.comm.shares import Shares
from train.engine.protocol import Engine, Optimizer, TrainableNetwork
from train.engine.timed.device import Device
from train.engine.timed.network import TimedNetwork, TimedOptimizer
from train.networks.arch import Network
from train.rank.identity import Identity


class TimedEngine:
    """See `train.engine.protocol.Engine`; every verb that is not here is the real framework's.

    Args:
        arrays: The real framework, which has the arrays.
        cluster: Has the rehearsal's times, sizes and faults.
        identity: This rank.
    """

    def __init__(self, arrays: Engine, cluster: Cluster, identity: Identity) -> None:
        rehearsal = cluster.rehearsal
        assert rehearsal is not None
        self._arrays, self._cluster, self._identity = arrays, cluster, identity
        self._update_s = rehearsal.waits.update_s
        self._device = Device(rehearsal.slow_ranks.get(str(identity.rank), 1.0) / rehearsal.speed)

    def __getattr__(self, verb: str) -> Any:
        return getattr(self._arrays, verb)

    def build_network(self, table: Network, recipe: Recipe, *, accumulate: bool) -> TrainableNetwork:
        """Return the network of waits for a table of layers."""
        assert not accumulate, "a rehearsal has one micro-batch a step"
        return TimedNetwork(self._arrays, table, recipe, self._cluster, self._device, self._identity)

    def fused_optimizer(
        self,
        config: OptimizerBlock,
        network: TrainableNetwork,
        *,
        rescale: float,
        arrivals: Sequence[int],
        shares: Shares,
    ) -> Optimizer:
        """Return the optimizer that waits for the sums, and then for the update."""
        assert isinstance(network, TimedNetwork)
        return TimedOptimizer(self._arrays, config, network, self._device, self._update_s)
