"""The home of PyTorch: network, optimizers, array verbs, export. Importing this package does not import PyTorch."""

from __future__ import annotations

from typing import TYPE_CHECKING

from configs.schema import Cluster
from train.rank.identity import Identity

if TYPE_CHECKING:
    from train.engine.torch.engine import TorchEngine


def open_engine(cluster: Cluster, identity: Identity) -> TorchEngine:
    """Import PyTorch, if it is not imported yet, and return it on this rank's device."""
    from train.engine.torch.engine import TorchEngine  # noqa: PLC0415 (imports PyTorch)

    return TorchEngine(cluster, identity)
