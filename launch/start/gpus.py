"""Whether ranks on GPUs can start at all: whether this machine has the GPUs, and this environment CUDA."""

import os
import sys
from pathlib import Path

from configs.errors import UserError
from configs.machine_limits import gpu_shortage
from configs.schema import Cluster
from launch.setup.gpu import NEEDS, search_gpus
from launch.setup.layout import Environment
from launch.setup.state import State


def require_gpus(cluster: Cluster) -> None:
    """Raise if the ranks of a cluster of GPUs would fail one after another as soon as they start.

    The GPUs of this machine are counted only where this machine runs the ranks, and as far as CUDA_VISIBLE_DEVICES lets
    the ranks see them.

    Raises:
        UserError: This machine has fewer GPUs than ranks, or this environment was set up for a CPU.
    """
    if cluster.device == "cpu":
        return
    runs_here = cluster.launcher in ("local", "horovodrun", "torchrun") and cluster.num_nodes == 1
    problem = _shortage_here(cluster) if runs_here else None
    if problem := problem or without_cuda(cluster):
        words, remedy = problem
        raise UserError(f"cluster {cluster.name} is for GPUs: {words}; {remedy}")


def without_cuda(cluster: Cluster) -> tuple[str, str] | None:
    """Return what is wrong and a remedy if a cluster of GPUs meets an environment that set-up made for a CPU."""
    kind = State(Environment(Path(sys.prefix))).kind
    if cluster.device == "cpu" or kind is None or kind.variant != "cpu":
        return None
    return "the environment is for a CPU", f"{NEEDS[cluster.engine.name]['gpu'].command} --gpu"


def _shortage_here(cluster: Cluster) -> tuple[str, str] | None:
    search = search_gpus()
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    found = len(search.gpus) or search.num_amd
    if visible is not None:
        found = min(found, len([word for word in visible.split(",") if word.strip()]))
    problem = gpu_shortage(found, cluster.ranks_per_node)
    if problem is None or not search.problem:
        return problem
    return f"{problem[0]} (nvidia-smi: {search.problem})", problem[1]
