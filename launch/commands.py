"""The command line that starts one process a rank, for each launcher that a cluster file may name."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Mapping, Sequence

from configs.errors import UserError
from configs.schema import Cluster
from launch.local import Outcome, run_ranks

__all__ = ["launcher_command", "run_under"]


def launcher_command(cluster: Cluster, command: Sequence[str], variables: Mapping[str, str]) -> list[str]:
    """Give the command that runs ``command`` once a rank under horovodrun, mpirun or srun.

    mpirun gets the variables by name, since it passes none on to other hosts by itself; ``srun -K1`` ends the step
    when one rank fails, which plain srun does not.
    """
    ranks = str(cluster.world_size)
    meets_by_mpi = variables["HOROVOD_CONTROLLER"] == "mpi"
    if cluster.launcher == "horovodrun":
        return ["horovodrun", "-np", ranks, "--mpi" if meets_by_mpi else "--gloo", *command]
    if cluster.launcher == "mpirun":
        passed = [word for name in ("PATH", "LD_LIBRARY_PATH", *variables) for word in ("-x", name)]
        root = ["--allow-run-as-root"] if os.geteuid() == 0 else []
        # As Horovod starts it: binding is not MPI's affair, and its own InfiniBand transport would fight with NCCL's.
        binding = ["-bind-to", "none", "-map-by", "slot", "-mca", "pml", "ob1", "-mca", "btl", "^openib"]
        return ["mpirun", "-np", ranks, *root, *binding, *passed, *command]
    assert cluster.launcher == "srun"
    return [
        "srun", "-K1", f"--ntasks={ranks}", f"--nodes={cluster.num_nodes}",
        f"--ntasks-per-node={cluster.ranks_per_node}", *(["--mpi=pmix"] if meets_by_mpi else []),
        *command,
    ]  # fmt: skip


def run_under(cluster: Cluster, command: Sequence[str], variables: Mapping[str, str]) -> Outcome:
    """Run ``command`` once a rank under the cluster's launcher and wait for its end.

    Raises:
        UserError: The launcher is not installed here.
    """
    kind = cluster.communication.kind
    if cluster.launcher == "local":
        servers = cluster.communication.servers if kind.startswith("parameter_server") else 0
        return run_ranks(command, 1 if kind == "devices" else cluster.world_size, variables, servers=servers)
    if kind not in ("horovod", "none"):
        raise UserError(
            f"communication.kind: got {kind!r} under {cluster.launcher}, which starts neither servers nor devices; "
            f"set cluster.launcher=local on one machine, or cluster.communication.kind=horovod"
        )
    full = launcher_command(cluster, command, variables)
    if shutil.which(full[0]) is None:
        raise UserError(
            f"launcher: {full[0]} is not on this machine; install it, or --set cluster.launcher=local on one machine"
        )
    code = subprocess.run(full, env={**os.environ, **variables}, check=False).returncode
    status = 128 - code if code < 0 else code
    return Outcome(status)
