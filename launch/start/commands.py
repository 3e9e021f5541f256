"""The command line that starts one process a rank, for each launcher that a cluster file may name."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from configs.errors import UserError
from configs.load import ROOT
from configs.rank_variables import binding_environment
from configs.schema import Cluster
from launch.start.local import Outcome, forwarded_signals, run_ranks, run_ranks_on_link
from launch.start.rendezvous import serve_rendezvous

__all__ = ["RANK_SCRIPT", "launcher_command", "meets_over_srun", "notice_of", "run_under"]

_POLL_S = 0.05
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


def notice_of(launcher: str) -> signal.Signals:
    """Give the signal by which a launcher tells its ranks to save their work: most end them at a SIGTERM."""
    return signal.SIGUSR1 if launcher in ("srun", "mpirun") else signal.SIGTERM


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
    if cluster.communication.needs_local_launcher:
        raise UserError(
            f"communication.kind: got {kind!r} under {cluster.launcher}, which starts neither servers nor devices; "
            f"set cluster.launcher=local on one machine, or cluster.communication.kind=horovod"
        )
    if cluster.launcher == "horovodrun" and cluster.num_nodes > 1 and "LSB_JOBID" not in os.environ:
        raise UserError(
            f"launcher: horovodrun would start all {cluster.world_size} ranks on this machine, since nobody tells it "
            f"others; use ./run.sh submit --hosts A,B, or set cluster.num_nodes=1"
        )
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', os.defpath)}"
    if shutil.which(cluster.launcher, path=path) is None:
        raise UserError(
            f"launcher: {cluster.launcher} is not on this machine; install it, or --set cluster.launcher=local on one "
            f"machine"
        )
    variables = {**variables, **binding_environment(cluster)}
    full = launcher_command(cluster, [str(ROOT / RANK_SCRIPT), *command], variables)
    variables["PATH"] = path  # horovodrun lies beside this Python
    if not meets_over_srun(cluster, variables):
        return _run(cluster.launcher, full, variables)
    with serve_rendezvous(cluster.num_nodes, cluster.ranks_per_node) as port:
        return _run(cluster.launcher, full, {**variables, "HOROVOD_GLOO_RENDEZVOUS_PORT": str(port)})


def _run(launcher: str, command: Sequence[str], variables: Mapping[str, str]) -> Outcome:
    """Run a launcher; what tells this process to stop is passed on as what that one hands to its ranks."""
    # mpirun refuses root otherwise; the others do not read them.
    root = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"} if os.geteuid() == 0 else {}
    with forwarded_signals() as signals:
        process = subprocess.Popen(
            command, env={**os.environ, **variables, **root}, stdin=subprocess.DEVNULL,
            # A group of its own, so that Ctrl-C reaches it once, through us.
            start_new_session=True,
        )  # fmt: skip
        told = None
        while process.poll() is None:
            if signals() not in (None, told):
                told = signals()
                process.send_signal(signal.SIGTERM if told == signal.SIGINT else notice_of(launcher))
            time.sleep(_POLL_S)
    status = 128 - process.returncode if process.returncode < 0 else process.returncode
    return Outcome(status, interrupted_by=told if told == signal.SIGINT else None)
