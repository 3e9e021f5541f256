"""Values of a cluster of GPUs for which there is a faster one. Pure; `train.plan.slow_settings` has the factors.

``train`` names them without a forecast, so that it starts without the simulator.
"""

from configs.registry import ENGINES
from configs.schema import Cluster


def better_values(cluster: Cluster) -> dict[str, str]:
    """Return the better value of each key that has a slow one. CPUs, and engines that only wait, have no such keys."""
    better: dict[str, str] = {}
    if cluster.device == "cpu" or not ENGINES[cluster.engine.name].computes:
        return better
    if cluster.engine.precision == "float32":
        better["engine.precision"] = "float16"
    if cluster.engine.layout == "NCHW":
        better["engine.layout"] = "NHWC"
    communication = cluster.communication
    # Horovod sums the tensors of GPUs by NCCL, whatever library connects the ranks.
    if communication.kind == "torch_distributed" and communication.backend == "gloo" and cluster.world_size > 1:
        better["communication.backend"] = "nccl"
    return better


def value_of(cluster: Cluster, key: str) -> str:
    """Return a value of one of the cluster's blocks, as text."""
    block, _, name = key.partition(".")
    return str(getattr(getattr(cluster, block), name))


def slow_values(cluster: Cluster) -> list[str]:
    """Return a line for each value for which there is a faster one."""
    return [
        f"cluster.{key}={value_of(cluster, key)} usually makes steps longer than {value}; ./run.sh plan says by which "
        f"factor; set cluster.{key}={value}"
        for key, value in better_values(cluster).items()
    ]
