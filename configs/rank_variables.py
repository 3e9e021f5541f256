"""The environment variables of a rank: the only module that sets MXNET_*, HOROVOD_*, NCCL_*, OMP_* and DMLC_*.

Every value follows from the cluster file. A run writes the variables into the environment.json of its folder.
"""

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Literal

from configs.registry import COMMUNICATORS

if TYPE_CHECKING:
    from configs.schema import Cluster


def rank_environment(cluster: "Cluster") -> dict[str, str]:
    """Return the variables that every rank of a run gets besides the launcher's own."""
    variables = {"OMP_NUM_THREADS": str(cluster.engine.threads), **_OF_ENGINE[cluster.engine.name](cluster)}
    if COMMUNICATORS[cluster.communication.kind].rendezvous == "horovod":
        variables |= _horovod_variables(cluster)
    if connecting_library(cluster) == "mpi":
        # Both would rewrite munmap, madvise and others in memory while MPI starts. A thread of the overlapped start-up
        # that is inside such a function crashes. The hooks serve caches of RDMA buffers that MPI moves itself.
        variables |= {"OMPI_MCA_memory": "^patcher", "UCX_MEM_MMAP_HOOK_MODE": "none"}
    if cluster.launcher == "mpirun" and cluster.num_nodes > 1:
        variables |= _lost_host_variables(cluster)
    if cluster.node.hcas:
        # Without the leading =, NCCL takes each name for a prefix, and mlx5_1 also matches mlx5_10.
        variables["NCCL_IB_HCA"] = "=" + ",".join(cluster.node.hcas)
    if cluster.node.interface and cluster.num_nodes > 1:  # The ranks of one node meet without it.
        variables |= interface_variables(cluster.node.interface)
        if cluster.launcher == "mpirun" or connecting_library(cluster) == "mpi":
            variables |= _mpi_interface_variables(cluster)
    return variables | cluster.environment


def _lost_host_variables(cluster: "Cluster") -> dict[str, str]:
    """Return what makes mpirun notice within 30 s, not after 8 minutes, that a host or the network to it is gone.

    It has to come before the watchdog of the ranks: once mpirun has told its daemon on that host to end, it waits for
    an answer as long as TCP repeats the message, a quarter of an hour.
    """
    pause_s = max(1, min(5, cluster.watchdog_s // 8))
    seconds = {"time": 2 * pause_s, "intvl": pause_s, "probes": 4}
    return {f"OMPI_MCA_oob_tcp_keepalive_{name}": str(value) for name, value in seconds.items()}


def _mpi_interface_variables(cluster: "Cluster") -> dict[str, str]:
    """Return what makes Open MPI use the interface of the cluster file, unless its ``environment`` chooses others.

    Open MPI refuses a second choice, of interfaces to leave out.
    """
    layers = [each for each in ("btl", "oob") if f"OMPI_MCA_{each}_tcp_if_exclude" not in cluster.environment]
    return {f"OMPI_MCA_{layer}_tcp_if_include": str(cluster.node.interface) for layer in layers}


def connecting_library(cluster: "Cluster") -> str | None:
    """Return the library that connects the ranks: gloo, mpi or nccl; None where servers or threads do."""
    rendezvous = COMMUNICATORS[cluster.communication.kind].rendezvous
    if rendezvous == "horovod":
        return _controller(cluster)
    return cluster.communication.backend if rendezvous == "torch" else None


def _mxnet_variables(cluster: "Cluster") -> dict[str, str]:
    repeated = {"MXNET_ENFORCE_DETERMINISM": "1", "MXNET_CUDNN_AUTOTUNE_DEFAULT": "0"}
    return {
        **(repeated if cluster.engine.deterministic else {}),
        # An allreduce waits for the end of the engine segment that makes its gradient (./run.sh bench overlap).
        "MXNET_EXEC_BULK_EXEC_MAX_NODE_TRAIN_BWD": str(cluster.engine.backward_bulk_nodes),
        "MXNET_EXEC_BULK_EXEC_MAX_NODE_TRAIN_FWD": str(cluster.engine.forward_bulk_nodes),
        # Our optimizer updates the weights, so MXNet must not look for a key-value store that does.
        "MXNET_UPDATE_ON_KVSTORE": "0",
    }


def _torch_variables(cluster: "Cluster") -> dict[str, str]:
    # cuBLAS sums in the same order each time only with a workspace of fixed size for each stream.
    repeated = {"CUBLAS_WORKSPACE_CONFIG": ":4096:8"} if cluster.engine.deterministic else {}
    return {"MKL_NUM_THREADS": str(cluster.engine.threads), **repeated}


def _horovod_variables(cluster: "Cluster") -> dict[str, str]:
    communication, controller = cluster.communication, _controller(cluster)
    variables = {
        "HOROVOD_CYCLE_TIME": f"{communication.cycle_time_ms:g}",
        "HOROVOD_GLOO_TIMEOUT_SECONDS": str(communication.timeout_s),
        # We fuse gradients into buckets, so Horovod must not wait to fuse several buckets.
        "HOROVOD_FUSION_THRESHOLD": str(communication.bucket_bytes),
        # With only one of these two variables, a Horovod that was built with MPI still calls MPI_Init. GPU tensors are
        # reduced by NCCL, whatever HOROVOD_CPU_OPERATIONS says.
        "HOROVOD_CONTROLLER": controller,
        "HOROVOD_CPU_OPERATIONS": controller,
    }
    if communication.allreduce != "flat":
        variables[f"HOROVOD_{communication.allreduce.upper()}_ALLREDUCE"] = "1"
    return variables


def interface_variables(interface: str) -> dict[str, str]:
    """Return the variables by which Gloo and NCCL use a network interface."""
    # NCCL takes a name without = for a prefix.
    return {"GLOO_SOCKET_IFNAME": interface, "NCCL_SOCKET_IFNAME": f"={interface}"}


_OF_ENGINE: Mapping[str, Callable[["Cluster"], dict[str, str]]] = {
    "mxnet": _mxnet_variables,
    "torch": _torch_variables,
    "timed": lambda _: {},
}


def binding_environment(cluster: "Cluster") -> dict[str, str]:
    """Return the variables by which ``rank.sh`` binds a rank to its share of the node.

    RANK_CORES and RANK_HCAS are lists with one word for each rank of a node. With ``kind: devices``, all ranks are one
    process, which uses the whole node.
    """
    if cluster.communication.kind == "devices":
        return {"RANK_DEVICE": f"{cluster.device}s"}
    tables = {
        "RANK_WORLD_SIZE": str(cluster.world_size),
        "RANK_LOCAL_SIZE": str(cluster.ranks_per_node),
        "RANK_DEVICE": cluster.device,
    }
    if cores := _rank_cores(cluster):
        tables["RANK_CORES"] = " ".join(cores)
        if cluster.device == "gpu" and not cluster.node.rank_cores:
            tables["RANK_CORES_BY"] = "gpu"  # where rank.sh finds out which cores are at a rank's GPU
    if hcas := cluster.node.hcas:
        ranks = cluster.ranks_per_node
        tables["RANK_HCAS"] = " ".join(hcas[rank * len(hcas) // ranks] for rank in range(ranks))
    return tables


def _rank_cores(cluster: "Cluster") -> tuple[str, ...]:
    """Return the cores of each local rank, or nothing if the cluster file does not say how many cores a node has.

    Without ``node.rank_cores``, the ranks get equal blocks of ``node.cores`` in their order.
    """
    share = (cluster.node.cores or 0) // cluster.ranks_per_node
    if cluster.node.rank_cores or not share:
        return cluster.node.rank_cores
    firsts = range(0, share * cluster.ranks_per_node, share)
    return tuple(f"{first}-{first + share - 1}" if share > 1 else str(first) for first in firsts)


def server_environment(
    role: Literal["scheduler", "server", "worker"], port: int, *, workers: int, servers: int
) -> dict[str, str]:
    """Return the variables by which MXNet's parameter servers and the ranks find each other on this machine.

    Args:
        role: The role of the process that gets the variables; a rank is a ``worker``.
        port: Port of the scheduler.
        workers: Number of ranks.
        servers: Number of processes that hold the parameters.
    """
    return {
        "DMLC_ROLE": role,
        "DMLC_PS_ROOT_URI": "127.0.0.1",
        "DMLC_PS_ROOT_PORT": str(port),
        # Without this variable, each process looks for a network card, and finds none on a machine without a network.
        "DMLC_NODE_HOST": "127.0.0.1",
        "DMLC_NUM_WORKER": str(workers),
        "DMLC_NUM_SERVER": str(servers),
    }


def _controller(cluster: "Cluster") -> str:
    """Return the library by which Horovod's ranks meet.

    Ranks that NCCL connects meet by MPI if MPI starts them, because Gloo's rendezvous is good for about 64 ranks.
    """
    if cluster.communication.backend == "nccl":
        return "mpi" if cluster.launcher in ("mpirun", "srun") else "gloo"
    return cluster.communication.backend
