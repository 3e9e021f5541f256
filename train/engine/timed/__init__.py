"""The engine of rehearsals: it waits as long as a described GPU computes, and leaves arrays to a real framework."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

if TYPE_CHECKING:
    from configs.schema import Cluster
    from train.engine.protocol import Engine
    from train.rank.identity import Identity

__all__ = ["open_engine"]


def open_engine(cluster: Cluster, identity: Identity) -> Engine:
    """Import the framework whose arrays ``communication.kind`` reduces, and return the engine of waits over it."""
    from configs.registry import ENGINES, installed_engine  # noqa: PLC0415 (while nothing waits)
    from train.engine.protocol import open_engine as open_real  # noqa: PLC0415
    from train.engine.timed.engine import TimedEngine  # noqa: PLC0415

    kind, name = cluster.communication.kind, cluster.engine.name
    others = {other: entry for other, entry in ENGINES.items() if other != name and kind in entry.communicators}
    arrays = installed_engine() if installed_engine() in others else next(iter(others))
    settings = cluster.engine.model_copy(update={"name": arrays})
    arrays_engine = open_real(cluster.model_copy(update={"engine": settings}), identity)
    return cast("Engine", TimedEngine(arrays_engine, cluster, identity))
