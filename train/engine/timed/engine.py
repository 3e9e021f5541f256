"""Waits behind `train.engine.protocol.Engine`; arrays are those of a real framework.

A rank needs hardly any processor, so one machine can hold many.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from configs.optimizers import OptimizerBlock
from configs.schema import Cluster, Recipe
from train.comm.shares import Shares
from train.engine.protocol import Array, Engine, Optimizer, TrainableNetwork
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
        self._rehearsal = rehearsal
        self._device = Device(rehearsal.slowness(identity.rank) / rehearsal.speed, rehearsal.noise)
        # Beside the device's own work, as a GPU copies.
        self._paths = {part: Device(1 / rehearsal.speed, rehearsal.noise) for part in ("copy", "link")}

    def __getattr__(self, verb: str) -> Any:
        return getattr(self._arrays, verb)

    def build_network(self, table: Network, recipe: Recipe, *, accumulate: bool) -> TrainableNetwork:
        """Return the network of waits for a table of layers."""
        assert not accumulate, "a rehearsal has one micro-batch a step"
        return TimedNetwork(self._arrays, table, recipe, self._cluster, self._device, self._identity)

    def from_host(self, values: np.ndarray) -> Array:
        """Return an array of the real framework; images, which alone have two axes, take the time of a copy."""
        if values.ndim > 1:
            own = self._rehearsal.slowness(self._identity.rank, "copy")
            self._paths["copy"].work(own * self._rehearsal.waits.copy_s)
        return self._arrays.from_host(values)

    def swap(self, array: Array, partner: int | None) -> Array:
        """Take the time of a swap over the slower one of two links, see `train.comm.communicator.Communicator`."""
        if partner is not None:
            slower = max(self._rehearsal.slowness(rank, "link") for rank in (self._identity.rank, partner))
            self._paths["link"].work(slower * self._rehearsal.waits.swap_s)
        return array

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
