"""The command line that starts one process a rank, for each launcher that a cluster file may name."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Mapping, Sequence

from configs.errors import UserError
from configs.load import ROOT
from configs.schema import Cluster
from launch.env import binding_environment
from launch.local import Outcome, run_ranks, run_ranks_on_link
from launch.rendezvous import serve_rendezvous

__all__ = ["RANK_SCRIPT", "launcher_command", "meets_over_srun", "run_under"]

RANK_SCRIPT = "launch/rank.sh"
"""What starts a rank under any launcher but ours, in the program's folder."""


def launcher_command(cluster: Cluster, command: Sequence[str], variables: Mapping[str, str]) -> list[str]:
    """Give the command that runs ``command`` once a rank under horovodrun, mpirun or srun.

    mpirun gets the variables by name, since it passes none on to other hosts by itself; ``srun -K1`` ends the step
    when one rank fails, which plain srun does not. Neither binds ranks: ``rank.sh`` does.
    """
    ranks, per_node = str(cluster.world_size), str(cluster.ranks_per_node)
    meets_by_mpi = variables["HOROVOD_CONTROLLER"] == "mpi"
    if cluster.launcher == "horovodrun":
        return ["horovodrun", "-np", ranks, "--mpi" if meets_by_mpi else "--gloo", *command]
    if cluster.launcher == "mpirun":
        passed = [word for name in ("PATH", "LD_LIBRARY_PATH", *variables) for word in ("-x", name)]
        # As Horovod starts it, but by node: an allocation counts its slots in whatever unit the site likes. MPI's own
        # InfiniBand transport would fight with NCCL's.
        placing = [
            "-bind-to",
            "none",
            "-map-by",
            f"ppr:{per_node}:node",
            "-mca",
            "pml",
            "ob1",
            "-mca",
            "btl",
            "^openib",
        ]
        return ["mpirun", "-np", ranks, *placing, *passed, *command]
    assert cluster.launcher == "srun"
    return [
        "srun", "-K1", f"--nodes={cluster.num_nodes}", f"--ntasks={ranks}", f"--ntasks-per-node={per_node}",
        "--distribution=block", "--cpu-bind=none", *(["--mpi=pmix"] if meets_by_mpi else []),
        *command,
    ]  # fmt: skip


def meets_over_srun(cluster: Cluster, variables: Mapping[str, str]) -> bool:
    """Tell whether ranks meet over Gloo with nobody but us to serve the rendezvous."""
    return cluster.launcher == "srun" and variables["HOROVOD_CONTROLLER"] == "gloo"


def run_under(cluster: Cluster, command: Sequence[str], variables: Mapping[str, str]) -> Outcome:
    """Run ``command`` once a rank under the cluster's launcher and wait for its end.

    Raises:
        UserError: The launcher is not installed here, or the link cannot be made.
    """
    kind = cluster.communication.kind
    if cluster.launcher == "local":
        servers = cluster.communication.servers if kind.startswith("parameter_server") else 0
        processes, link = 1 if kind == "devices" else cluster.world_size, cluster.communication.link_bytes_per_s
        if link is not None:
            return run_ranks_on_link(command, processes, variables, bytes_per_s=link, servers=servers)
        return run_ranks(command, processes, variables, servers=servers)
    if kind not in ("horovod", "none"):
        raise UserError(
            f"communication.kind: got {kind!r} under {cluster.launcher}, which starts neither servers nor devices; "
            f"set cluster.launcher=local on one machine, or cluster.communication.kind=horovod"
        )
    if shutil.which(cluster.launcher) is None:
        raise UserError(
            f"launcher: {cluster.launcher} is not on this machine; install it, or --set cluster.launcher=local on one "
            f"machine"
        )
    variables = {**variables, **binding_environment(cluster)}
    full = launcher_command(cluster, [str(ROOT / RANK_SCRIPT), *command], variables)
    if not meets_over_srun(cluster, variables):
        return _run(full, variables)
    with serve_rendezvous(cluster.num_nodes, cluster.ranks_per_node) as port:
        return _run(full, {**variables, "HOROVOD_GLOO_RENDEZVOUS_PORT": str(port)})


def _run(command: Sequence[str], variables: Mapping[str, str]) -> Outcome:
    # mpirun refuses root otherwise; the others do not read them.
    root = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"} if os.geteuid() == 0 else {}
    code = subprocess.run(command, env={**os.environ, **variables, **root}, check=False).returncode
    return Outcome(128 - code if code < 0 else code)
