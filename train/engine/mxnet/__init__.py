"""The home of MXNet: network, optimizers, array verbs, export. Importing this package does not import MXNet."""

from __future__ import annotations

from typing import TYPE_CHECKING

from configs.schema import Cluster
from train.rank.identity import Identity

if TYPE_CHECKING:
    from train.engine.mxnet.engine import MxnetEngine


def open_engine(cluster: Cluster, identity: Identity) -> MxnetEngine:
    """Import MXNet, if it is not imported yet, and return it on this rank's device."""
    from train.engine.mxnet.mxnet_import import import_mxnet  # noqa: PLC0415 (MXNet is imported by the first user)

    import_mxnet()
    from train.engine.mxnet.engine import MxnetEngine  # noqa: PLC0415 (imports MXNet)

    return MxnetEngine(cluster, identity)
