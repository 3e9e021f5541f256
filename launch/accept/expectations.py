"""What is expected of a machine beside its own nodes: the simulator, the cluster file, and an earlier acceptance."""

import json
from collections.abc import Sequence
from pathlib import Path

from configs.errors import UserError
from configs.schema import Cluster
from launch.accept.document import FORMAT, Figures
from logs.disk import checked, read_object
from train.sim.conditions import predict_allreduce


def predicted_allreduces_s(cluster: Cluster, sizes: Sequence[int]) -> list[float]:
    """Return the simulator's time of an allreduce of each size; none if it does not know the machine."""
    try:
        return [predict_allreduce(cluster, size) for size in sizes]
    except UserError:
        return []


def read_baseline(path: Path, cluster: Cluster) -> Figures:
    """Return the figures of an earlier acceptance.

    Raises:
        UserError: The file is none, or of another machine.
    """
    document = read_object(path)
    if document.get("format") != FORMAT or "figures" not in document:
        raise UserError(f"--baseline: {path} is no accept.json of this program; make one with --save-baseline")
    if document.get("cluster") != cluster.name:
        raise UserError(
            f"--baseline: {path} is of the cluster {document.get('cluster')!r}, got {cluster.name!r}; give one of this "
            "machine"
        )
    return checked(Figures, json.dumps(document["figures"]), str(path))
