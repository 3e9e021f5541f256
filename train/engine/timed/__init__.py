"""The engine of rehearsals: it waits as long as a described GPU computes, and leaves arrays to a real framework."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

if TYPE_CHECKING:
    from configs.schema import Cluster
    from train.engine.protocol import Engine
    from train.rank.identity import Identity


def open_engine(cluster: Cluster, identity: Identity) -> Engine:
    """Import the framework whose arrays ``communication.kind`` reduces, and return the engine of waits over it."""
    from configs.registry import COMMUNICATORS, ENGINES, installed_engine  # noqa: PLC0415 (while nothing waits)
    from train.engine.protocol import open_engine as open_real  # noqa: PLC0415
    from train.engine.timed.engine import TimedEngine  # noqa: PLC0415

    able = [name for name in COMMUNICATORS[cluster.communication.kind].engines if ENGINES[name].computes]
    arrays = installed_engine() if installed_engine() in able else able[0]
    settings = cluster.engine.model_copy(update={"name": arrays})
    arrays_engine = open_real(cluster.model_copy(update={"engine": settings}), identity)
    return cast("Engine", TimedEngine(arrays_engine, cluster, identity))
