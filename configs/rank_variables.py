"""A rank's environment: the only place that sets MXNET_*, HOROVOD_*, NCCL_*, OMP_* and DMLC_* variables.

Every value follows from the cluster file; what is set is written into the run folder's environment.json.
"""

from __future__ import annotations

from typing import Literal

from configs.schema import Cluster

__all__ = ["binding_environment", "rank_environment", "server_environment"]


def rank_environment(cluster: Cluster) -> dict[str, str]:
    """Give the variables that every rank of a run gets on top of the launcher's own."""
    engine, communication = cluster.engine, cluster.communication
    variables = {
        "OMP_NUM_THREADS": str(engine.threads),
        # An allreduce waits for the end of the engine segment that makes its gradient (docs: overlap).
        "MXNET_EXEC_BULK_EXEC_MAX_NODE_TRAIN_BWD": str(engine.backward_bulk_nodes),
        "MXNET_EXEC_BULK_EXEC_MAX_NODE_TRAIN_FWD": str(engine.forward_bulk_nodes),
        # The optimizer is ours; this only keeps MXNet from looking for a key-value store.
        "MXNET_UPDATE_ON_KVSTORE": "0",
        "HOROVOD_CYCLE_TIME": f"{communication.cycle_time_ms:g}",
        "HOROVOD_GLOO_TIMEOUT_SECONDS": str(communication.timeout_s),
        # Buckets are ours, so Horovod must not wait to fuse them with one another.
        "HOROVOD_FUSION_THRESHOLD": str(communication.bucket_bytes),
    }
    # Both, or Horovod still calls MPI_Init where it was built with MPI. NCCL reduces GPU tensors by itself.
    controller = _controller(cluster)
    variables |= {"HOROVOD_CONTROLLER": controller, "HOROVOD_CPU_OPERATIONS": controller}
    if communication.allreduce != "flat":
        variables[f"HOROVOD_{communication.allreduce.upper()}_ALLREDUCE"] = "1"
    if cluster.node.hcas:
        variables["NCCL_IB_HCA"] = ",".join(cluster.node.hcas)
    return variables | cluster.environment


def binding_environment(cluster: Cluster) -> dict[str, str]:
    """Give what ``rank.sh`` binds ranks by: the world, and tables with a word for each rank of a node."""
    tables = {
        "RANK_WORLD_SIZE": str(cluster.world_size),
        "RANK_LOCAL_SIZE": str(cluster.ranks_per_node),
        "RANK_DEVICE": cluster.device,
    }
    if cores := _rank_cores(cluster):
        tables["RANK_CORES"] = " ".join(cores)
    if hcas := cluster.node.hcas:
        ranks = cluster.ranks_per_node
        tables["RANK_HCAS"] = " ".join(hcas[rank * len(hcas) // ranks] for rank in range(ranks))
    return tables


def _rank_cores(cluster: Cluster) -> tuple[str, ...]:
    """Give each local rank's cores: those the cluster file says, else equal blocks in order, else none."""
    share = (cluster.node.cores or 0) // cluster.ranks_per_node
    if cluster.node.rank_cores or not share:
        return cluster.node.rank_cores
    firsts = range(0, share * cluster.ranks_per_node, share)
    return tuple(f"{first}-{first + share - 1}" if share > 1 else str(first) for first in firsts)


def server_environment(
    role: Literal["scheduler", "server", "worker"], port: int, *, workers: int, servers: int
) -> dict[str, str]:
    """Give the variables by which MXNet's parameter servers and their workers find each other on this machine.

    Args:
        role: What the process is.
        port: Of the scheduler.
        workers: Ranks.
        servers: Processes that hold the keys.
    """
    return {
        "DMLC_ROLE": role,
        "DMLC_PS_ROOT_URI": "127.0.0.1",
        "DMLC_PS_ROOT_PORT": str(port),
        # Without it, each process looks for a network card, and finds none on a machine off the net.
        "DMLC_NODE_HOST": "127.0.0.1",
        "DMLC_NUM_WORKER": str(workers),
        "DMLC_NUM_SERVER": str(servers),
    }


def _controller(cluster: Cluster) -> str:
    """Say who lets the ranks meet: MPI where it started them, since Gloo's rendezvous is good for about 64."""
    if cluster.communication.backend == "nccl":
        return "mpi" if cluster.launcher in ("mpirun", "srun") else "gloo"
    return cluster.communication.backend
