"""A rank's environment: the only place that sets MXNET_*, HOROVOD_*, NCCL_* and OMP_* variables.

Every value follows from the cluster file; what is set is written into the run folder's environment.json.
"""

from __future__ import annotations

from configs.schema import Cluster

__all__ = ["rank_environment"]


def rank_environment(cluster: Cluster) -> dict[str, str]:
    """Give the variables that every rank of a run gets on top of the launcher's own."""
    engine, communication = cluster.engine, cluster.communication
    variables = {
        "OMP_NUM_THREADS": str(engine.threads),
        # An allreduce waits for the end of the engine segment that makes its gradient (docs: overlap).
        "MXNET_EXEC_BULK_EXEC_MAX_NODE_TRAIN_BWD": str(engine.backward_bulk_nodes),
        # The optimizer is ours; this only keeps MXNet from looking for a key-value store.
        "MXNET_UPDATE_ON_KVSTORE": "0",
        "HOROVOD_CYCLE_TIME": f"{communication.cycle_time_ms:g}",
        "HOROVOD_GLOO_TIMEOUT_SECONDS": str(communication.timeout_s),
        # Buckets are ours, so Horovod must not wait to fuse them with one another.
        "HOROVOD_FUSION_THRESHOLD": str(communication.bucket_bytes),
        "PYTHONUNBUFFERED": "1",
    }
    if communication.backend == "gloo":
        # Both, or Horovod still calls MPI_Init where it was built with MPI.
        variables |= {"HOROVOD_CONTROLLER": "gloo", "HOROVOD_CPU_OPERATIONS": "gloo"}
    if communication.backend == "mpi":
        variables |= {"HOROVOD_CONTROLLER": "mpi", "HOROVOD_CPU_OPERATIONS": "mpi"}
    return variables | cluster.environment
