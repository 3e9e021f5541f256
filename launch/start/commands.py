"""Run a command once for each rank, under any launcher that a cluster file may name."""

import os
import shutil
import signal
import socket
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from configs.errors import ConfigError, UserError
from configs.load import ROOT
from configs.machine_limits import oom_kills
from configs.programs import Program, command_of
from configs.rank_variables import binding_environment, connecting_library
from configs.registry import COMMUNICATORS, horovod_has_mpi, require_engine
from configs.resume_check import NUMERICS_PREFIXES
from configs.schema import Cluster
from launch.setup.layout import Environment
from launch.setup.state import State
from launch.start.inherited import without_ranks
from launch.start.launcher import run_launcher
from launch.start.launcher_signals import STOP_FILE
from launch.start.local import Outcome, run_ranks, run_ranks_on_link
from launch.start.rendezvous import RENDEZVOUS, rendezvous_of

INHERITED = ("LD_LIBRARY_PATH", *NUMERICS_PREFIXES)
"""Beginnings of the names of variables that mpirun is told to pass on where they are set. By itself it passes none to
other hosts, and ranks whose libraries choose other kernels end with other weights."""

RANK_SCRIPT = "launch/rank.sh"
"""The script in the program's folder that starts a rank under every launcher, except CPU ranks of the local one."""


def launcher_command(
    cluster: Cluster,
    command: Sequence[str],
    variables: Mapping[str, str],
    python: Path | str = sys.executable,
    *,
    hosts: Sequence[str] = (),
) -> list[str]:
    """Return the command line that runs ``command`` once for each rank under horovodrun, mpirun, srun or torchrun.

    mpirun gets the variables by name, since it passes none to other hosts by itself. ``srun -K1`` ends the step when
    one rank fails, which plain srun does not. No launcher binds ranks to cores; ``rank.sh`` does. On several nodes,
    each of them runs the command line of torchrun, and the variables PET_NODE_RANK, PET_MASTER_ADDR and PET_MASTER_PORT
    tell torchrun where the nodes meet.

    Args:
        cluster: The cluster, with its launcher.
        command: The command of a rank.
        variables: The variables that mpirun is to pass on.
        python: The interpreter that runs horovodrun and torchrun.
        hosts: The hosts on which to start the ranks. If empty, the launcher finds the hosts of its job, or starts all
            ranks on this one.
    """
    ranks, per_node = str(cluster.world_size), str(cluster.ranks_per_node)
    by_mpi = connecting_library(cluster) == "mpi"
    if cluster.launcher == "horovodrun":
        words = ["-np", ranks, "--mpi" if by_mpi else "--gloo"]
        is_told = cluster.num_nodes > 1 and cluster.node.interface
        words += [f"--network-interfaces={cluster.node.interface}"] if is_told else []
        hosts = hosts or ["localhost"] * (cluster.num_nodes == 1)
        words += ["-H", ",".join(f"{host}:{per_node}" for host in hosts)] if hosts else []
        return [*command_of(Program.HOROVODRUN, *words, python=python), *command]
    if cluster.launcher == "mpirun":
        rendezvous = rendezvous_of(cluster.communication.kind)
        names = ("PATH", *variables, *(rendezvous.served if rendezvous.is_served(cluster) else ()))
        passed = [word for name in names for word in ("-x", name)]
        # These options are horovodrun's, except for the placement by node: sites count an allocation's slots in
        # different units. MPI's own InfiniBand transport would compete with NCCL's. Where the cluster file names the
        # adapters of GPU nodes, MPI may take UCX over them for Horovod's negotiation, as NVIDIA's submissions let it;
        # ob1 without openib is TCP, and ignores the UCX_NET_DEVICES that rank.sh sets.
        layer = [] if cluster.device == "gpu" and cluster.node.hcas else ["-mca", "pml", "ob1"]
        # The ranks of one machine talk in shared memory, and then need not listen at any address.
        transports = "self,vader" if cluster.num_nodes == 1 and layer else "^openib"
        passed += ["-host", ",".join(f"{host}:{per_node}" for host in hosts)] if hosts else []
        placing = [*f"-bind-to none -map-by ppr:{per_node}:node".split(), *layer, "-mca", "btl", transports]
        return ["mpirun", "-np", ranks, *placing, *passed, *command]
    if cluster.launcher == "torchrun":
        size = [f"--nnodes={cluster.num_nodes}", f"--nproc-per-node={per_node}"]
        # By itself, torchrun waits 900 s for the other nodes.
        patience = f"--rdzv-conf=timeout={cluster.communication.timeout_s}"
        meeting = ["--standalone"] if cluster.num_nodes == 1 else [patience]
        return [str(python), "-I", "-u", "-m", "torch.distributed.run", *size, *meeting, "--no-python", *command]
    assert cluster.launcher == "srun"
    size = [f"--nodes={cluster.num_nodes}", f"--ntasks={ranks}", f"--ntasks-per-node={per_node}"]
    placing = ["--distribution=block", "--cpu-bind=none", *(["--mpi=pmix"] if by_mpi else [])]
    placing += [f"--nodelist={','.join(hosts)}"] if hosts else []
    # SLURM_EXPORT_ENV, which SBATCH_EXPORT and --export=NONE set, would keep the variables from the ranks.
    return ["srun", "-K1", "--export=ALL", *size, *placing, *command]


def inherited(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the variables of an environment that mpirun is told to pass on, see `INHERITED`."""
    return {name: value for name, value in environment.items() if name.startswith(INHERITED)}


def stop_signal_of(launcher: str) -> signal.Signals:
    """Return the signal that makes a launcher's ranks save their state. srun and mpirun end the ranks at a SIGTERM."""
    return signal.SIGUSR1 if launcher in ("srun", "mpirun") else signal.SIGTERM


def run_under(
    cluster: Cluster, command: Sequence[str], variables: Mapping[str, str], *, hosts: Sequence[str] = ()
) -> Outcome:
    """Run ``command`` once for each rank under the cluster's launcher and wait for the end.

    Args:
        cluster: The cluster, with its launcher.
        command: The command of a rank.
        variables: The variables of a rank on top of this process's own.
        hosts: The hosts on which to start the ranks, as many as the cluster has nodes. If empty, those of this job, or
            this machine.

    Raises:
        UserError: The launcher is not installed, cannot start this kind of communication, or would start the ranks of
            several nodes on this one; or the loopback cannot be shaped.
    """
    kills = oom_kills()
    if cluster.launcher == "local":
        outcome = _run_local(cluster, command, variables)
    else:
        require_startable(cluster, has_hosts=bool(hosts))
        variables = {**variables, **binding_environment(cluster)}
        rendezvous = rendezvous_of(cluster.communication.kind)
        server = rendezvous if rendezvous.is_served(cluster) else RENDEZVOUS["none"]
        with server.serve(cluster.num_nodes, cluster.ranks_per_node) as addresses:
            rank, passed = [str(ROOT / RANK_SCRIPT), *command], {**inherited(without_ranks()), **variables}
            full = launcher_command(cluster, rank, passed, hosts=hosts)
            given = {**variables, **addresses, "PATH": _search_path()}
            stop_file = Path(command[-1]) / STOP_FILE if cluster.launcher == "horovodrun" else None
            outcome = run_launcher(full, given, stop_signal_of(cluster.launcher), stop_file)
    return replace(outcome, ran_out_of_memory=oom_kills() > kills)


def _run_local(cluster: Cluster, command: Sequence[str], variables: Mapping[str, str]) -> Outcome:
    """Run the ranks on this machine without a foreign launcher, with parameter servers and a slow link if wanted."""
    kind = cluster.communication.kind
    _require_addresses(cluster)
    processes, servers = _local_numbers(cluster)
    link = cluster.communication.link_bytes_per_s
    if cluster.device == "gpu":
        # The script binds a rank to its cores and its memory, and looks at the driver; a CPU rank uses any core.
        command, variables = [str(ROOT / RANK_SCRIPT), *command], {**variables, **binding_environment(cluster)}
        variables["RANK_GROUP_SIGNALLED"] = "1"
    if link is not None:
        return run_ranks_on_link(command, processes, variables, bytes_per_s=link, kind=kind, servers=servers)
    return run_ranks(command, processes, variables, kind=kind, servers=servers)


def local_words(cluster: Cluster) -> list[str]:
    """Return the arguments of ``launch.start.local`` that start the cluster's processes: servers and ranks."""
    processes, servers = _local_numbers(cluster)
    kind = ["--kind", cluster.communication.kind]
    return [*kind, *(["--servers", str(servers)] if servers else []), str(processes)]


def _local_numbers(cluster: Cluster) -> tuple[int, int]:
    """Return the number of rank processes on this machine and the number of parameter servers."""
    communication = cluster.communication
    servers = communication.servers if communication.kind.startswith("parameter_server") else 0
    return (1 if communication.kind == "devices" else cluster.world_size), servers


def require_launchable(cluster: Cluster, able: Sequence[str] = ()) -> None:
    """Raise if the cluster's launcher cannot start this kind of communication, on any machine.

    Of launchers, those are advised that the run's scheduler takes, which are ``able``; if empty, all.

    Raises:
        ConfigError: The launcher cannot start ranks of this kind, or Horovod's ranks would meet over Gloo under mpirun,
            which serves no rendezvous.
    """
    kind, launcher = cluster.communication.kind, cluster.launcher
    if launcher not in (launchers := COMMUNICATORS[kind].launchers):
        allowed = ", ".join([each for each in launchers if each in able] or launchers)
        remedy = "torchrun starts the ranks of cluster.engine.name=torch" if launcher == "torchrun" else ""
        raise ConfigError("cluster.launcher", launcher, f"{allowed} with communication.kind: {kind}", remedy)
    if launcher == "mpirun" and kind == "horovod" and connecting_library(cluster) == "gloo":
        other = "srun" if cluster.scheduler.kind == "slurm" else "horovodrun"
        remedy = "set cluster.communication.backend=mpi" + f", or set launcher: {other}" * (other in (able or [other]))
        raise ConfigError("cluster.communication.backend", "gloo", "mpi or nccl under mpirun", remedy)


def require_startable(cluster: Cluster, *, has_hosts: bool = False) -> None:
    """Raise if the cluster's launcher cannot start the ranks from this machine.

    Args:
        cluster: The cluster.
        has_hosts: Whether the launcher is told on which hosts to start them.

    Raises:
        UserError: The engine or the launcher is not installed, the launcher cannot start this kind of communication or
            would start the ranks of several nodes on this one, Horovod lacks the MPI by which the ranks meet, the
            environment is for a CPU and the cluster for GPUs, the loopback is down, or this host's name leads nowhere.
    """
    require_engine(cluster.engine.name)
    require_launchable(cluster)
    require_mpi(cluster)
    _require_addresses(cluster)
    # Each rank counts the GPUs that it sees, and refuses to start if there are too few.
    if problem := without_cuda(cluster):
        raise UserError(f"cluster {cluster.name} is for GPUs: {'; '.join(problem)}; without GPUs, --cluster laptop")
    finds_hosts = has_hosts or "LSB_JOBID" in os.environ
    if cluster.launcher == "horovodrun" and cluster.num_nodes > 1 and not finds_hosts:
        raise UserError(
            f"launcher: horovodrun would start all {cluster.world_size} ranks on this machine, since it does not know "
            f"the other nodes; use ./run.sh submit --hosts A,B, or set cluster.num_nodes=1"
        )
    if cluster.launcher == "torchrun" and cluster.num_nodes > 1:
        raise UserError(
            "launcher: torchrun would start the ranks of this machine only; use ./run.sh submit with scheduler.kind: "
            "trainjob, or set cluster.num_nodes=1"
        )
    if cluster.launcher not in ("local", "torchrun") and shutil.which(cluster.launcher, path=_search_path()) is None:
        raise UserError(
            f"launcher: {cluster.launcher} is not on this machine; install it, or use --set cluster.launcher=local on "
            f"one machine"
        )


def require_mpi(cluster: Cluster) -> None:
    """Raise UserError if the ranks are to meet by MPI, which this environment's Horovod was built without."""
    launcher, backend = cluster.launcher, cluster.communication.backend
    by_horovod = COMMUNICATORS[cluster.communication.kind].rendezvous == "horovod"
    if not by_horovod or connecting_library(cluster) != "mpi" or horovod_has_mpi() is not False:
        return
    settings = ["cluster.launcher=horovodrun"] if launcher == "mpirun" or backend == "nccl" else []
    settings += ["cluster.communication.backend=gloo"] if backend == "mpi" else []
    raise UserError(
        f"launcher: {launcher} with communication.backend: {backend} needs a Horovod with MPI, and this one was built "
        f"without; rm -r .venv and ./run.sh setup where mpicxx can compile, or use "
        + " ".join(f"--set {each}" for each in settings)
    )


def without_cuda(cluster: Cluster) -> tuple[str, str] | None:
    """Return what is wrong and a remedy if a cluster of GPUs meets an environment that set-up made for a CPU."""
    kind = State(Environment(Path(sys.prefix))).kind
    if cluster.device == "cpu" or kind is None or kind.variant != "cpu":
        return None
    return "the environment is for a CPU", f"./run.sh setup --engine {cluster.engine.name} --gpu"


def _require_addresses(cluster: Cluster) -> None:
    """Raise UserError if the ranks of one machine cannot meet: the loopback is down, or the host's name leads nowhere.

    A fresh network namespace has the loopback down, as those of some containers and batch systems. Horovod's ranks over
    Gloo listen at the address of the host's own name, and crash if it has none, or that of another network; on several
    nodes, ``rank.sh`` asks each of them.
    """
    # These ranks of the local launcher meet in other ways.
    if cluster.launcher == "local" and cluster.communication.kind in ("shared_memory", "devices", "none"):
        return
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("127.0.0.1", 9))  # sends nothing
        except OSError as error:
            raise UserError(
                f"127.0.0.1: {error.strerror}: the loopback interface is down, by which the ranks of a machine meet; "
                "bring it up: ip link set lo up"
            ) from None
    by_gloo = connecting_library(cluster) == "gloo"
    by_horovod = COMMUNICATORS[cluster.communication.kind].rendezvous == "horovod" and by_gloo
    if not by_horovod or cluster.num_nodes > 1 or cluster.launcher not in ("local", "horovodrun"):
        return
    name, reason = socket.gethostname(), "no network interface here has its address"
    try:
        for family, _, _, _, address in socket.getaddrinfo(name, 0, type=socket.SOCK_STREAM):
            with suppress(OSError):
                socket.create_server(address, family=family).close()
                return
    except OSError as error:
        reason = str(error.strerror)
    raise UserError(
        f"{name}: {reason}; ranks over Gloo need the name of this host: add the line '127.0.1.1 {name}' to /etc/hosts"
    )


def _search_path() -> str:
    """Return PATH with the folder of this Python first, where horovodrun is."""
    return f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', os.defpath)}"
