"""The words of launchers' command lines, and by which signal each is told that its ranks should save their state."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from configs.errors import ConfigError, UserError
from configs.load import load_cluster
from configs.rank_variables import rank_environment
from launch.start import link
from launch.start.commands import (
    _run,
    inherited,
    launcher_command,
    local_words,
    require_launchable,
    require_startable,
    stop_signal_of,
)
from launch.start.link import shaped
from launch.start.local import Outcome

PLACES = ["cluster.num_nodes=3", "cluster.ranks_per_node=4", "cluster.communication.backend=mpi"]


_MPIRUN = "mpirun -np 12 -bind-to none -map-by ppr:4:node -mca pml ob1 -mca btl ^openib -x PATH -x A"
_HOROVODRUN = "python -I -u -m launch.start.horovodrun"
_SRUN = "srun -K1 --nodes=3 --ntasks=12 --ntasks-per-node=4 --distribution=block --cpu-bind=none"
TORCH = ["cluster.engine.name=torch", "cluster.num_nodes=3", "cluster.ranks_per_node=4"]


@pytest.mark.parametrize(
    ("launcher", "sets", "words"),
    [
        ("mpirun", PLACES, f"{_MPIRUN} rank"),
        (
            "mpirun",
            [PLACES[2]],
            "mpirun -np 2 -bind-to none -map-by ppr:2:node -mca pml ob1 -mca btl self,vader -x PATH -x A rank",
        ),
        ("mpirun", TORCH, f"{_MPIRUN} -x MASTER_ADDR -x MASTER_PORT -x TORCHELASTIC_USE_AGENT_STORE rank"),
        ("srun", PLACES, f"{_SRUN} --mpi=pmix rank"),
        ("srun", PLACES[:2], f"{_SRUN} rank"),
        ("srun", TORCH, f"{_SRUN} rank"),
        ("horovodrun", PLACES, f"{_HOROVODRUN} -np 12 --mpi rank"),
        ("horovodrun", PLACES[:2], f"{_HOROVODRUN} -np 12 --gloo rank"),
    ],
)
def test_a_launcher_starts_a_nodes_ranks_on_each_node(launcher: str, sets: list[str], words: str) -> None:
    cluster = load_cluster("laptop", [*sets, f"cluster.launcher={launcher}"])
    assert launcher_command(cluster, ["rank"], {"A": "1"}, "python") == words.split()


def test_variables_that_choose_libraries_and_kernels_go_to_every_host() -> None:
    passed = {
        "LD_LIBRARY_PATH": "/site",
        "OPENBLAS_CORETYPE": "Haswell",
        "DNNL_MAX_CPU_ISA": "AVX2",
        "MKL_CBWR": "AVX2",
    }
    assert inherited({"HOME": "/home/a", "NOT_MKL_": "1", **passed, "SSH_AUTH_SOCK": "/tmp/s"}) == passed


@pytest.mark.parametrize(
    ("launcher", "number"),
    [("srun", signal.SIGUSR1), ("mpirun", signal.SIGUSR1), ("horovodrun", signal.SIGTERM), ("local", signal.SIGTERM)],
)
def test_launchers_that_end_their_ranks_at_a_sigterm_get_another_signal(launcher: str, number: signal.Signals) -> None:
    assert stop_signal_of(launcher) == number


def test_a_shaped_loopback_has_the_rate_of_all_that_send_at_a_time_in_bits() -> None:
    words = shaped(1e6, senders=2)
    assert words[:2] == ["unshare", "--net"]
    assert ("--map-root-user" in words) == (os.geteuid() != 0)
    assert words[-4:] == [
        "bash",
        "-c",
        "ip link set lo up && tc qdisc add dev lo root tbf rate 16000000bit burst 131072 latency 400ms || exit 71\n"
        'exec "$@"',
        "link",
    ]


def test_ranks_over_torch_distributed_are_told_where_their_store_is_and_nothing_of_horovod() -> None:
    cluster = load_cluster("laptop", [*TORCH, "cluster.launcher=mpirun"])
    variables = rank_environment(cluster)
    assert not [name for name in variables if name.startswith(("HOROVOD_", "MXNET_"))]
    words = launcher_command(cluster, ["rank"], variables)
    passed = {words[n + 1] for n, word in enumerate(words) if word == "-x"}
    assert passed >= {"MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_USE_AGENT_STORE", "OMP_NUM_THREADS"}
    assert "--mpi=pmix" not in launcher_command(load_cluster("laptop", [*TORCH, "cluster.launcher=srun"]), [], {})
    cluster = load_cluster("laptop", [*TORCH, "cluster.launcher=srun", "cluster.communication.backend=mpi"])
    assert "--mpi=pmix" in launcher_command(cluster, [], {})
    assert rank_environment(cluster)["OMPI_MCA_memory"] == "^patcher"


@pytest.mark.parametrize(("watchdog_s", "noticed_s"), [(10, 6), (20, 12), (600, 30)])
def test_mpirun_notices_a_lost_host_before_the_watchdog_of_the_ranks(watchdog_s: int, noticed_s: int) -> None:
    def kept_alive(*settings: str) -> dict[str, str]:
        cluster = load_cluster("laptop", ["cluster.launcher=mpirun", f"cluster.watchdog_s={watchdog_s}", *settings])
        name = "OMPI_MCA_oob_tcp_keepalive_"
        return {key.removeprefix(name): value for key, value in rank_environment(cluster).items() if name in key}

    found = {key: int(value) for key, value in kept_alive("cluster.num_nodes=2").items()}
    assert found["time"] + found["probes"] * found["intvl"] == noticed_s
    assert kept_alive("cluster.num_nodes=1") == {}


def test_a_launcher_that_cannot_start_a_kind_is_refused_with_those_that_can() -> None:
    cluster = load_cluster("laptop", ["cluster.engine.name=torch", "cluster.launcher=horovodrun"])
    with pytest.raises(ConfigError) as refusal:
        require_launchable(cluster)
    words = (
        "cluster.launcher: got 'horovodrun', allowed: local, mpirun, srun with communication.kind: torch_distributed"
    )
    assert words in str(refusal.value)


@pytest.mark.parametrize(
    ("sets", "words"),
    [
        ([], ["--kind", "shared_memory", "4"]),
        (["backend=gloo"], ["--kind", "horovod", "4"]),
        (["kind=devices"], ["--kind", "devices", "1"]),
        (["kind=parameter_server", "servers=3"], ["--kind", "parameter_server", "--servers", "3", "4"]),
        (["kind=parameter_server_async", "servers=2"], ["--kind", "parameter_server_async", "--servers", "2", "4"]),
    ],
)
def test_the_local_launcher_is_told_how_many_processes_and_servers_to_start(sets: list[str], words: list[str]) -> None:
    overrides = ["cluster.ranks_per_node=4", *(f"cluster.communication.{each}" for each in sets)]
    assert local_words(load_cluster("laptop", overrides)) == words


@pytest.mark.parametrize(
    ("sets", "words"),
    [
        (
            ["cluster.launcher=horovodrun", "cluster.num_nodes=3", "cluster.ranks_per_node=4"],
            "launcher: horovodrun would start all 12 ranks on this machine, since it does not know the other nodes; "
            "use ./run.sh submit --hosts A,B, or set cluster.num_nodes=1",
        ),
        (
            [*PLACES, "cluster.launcher=srun"],
            "launcher: srun is not on this machine; install it, or use --set cluster.launcher=local on one machine",
        ),
        (
            ["cluster.launcher=srun", "cluster.communication.kind=devices"],
            "communication.kind: got 'devices' under srun, which starts neither servers nor devices; set "
            "cluster.launcher=local on one machine, or cluster.communication.kind=horovod",
        ),
        (
            ["cluster.launcher=mpirun"],
            "cluster.communication.backend: got 'gloo', allowed: mpi or nccl under mpirun; set "
            "cluster.communication.backend=mpi, or set launcher: horovodrun",
        ),
    ],
)
def test_a_launcher_that_cannot_start_the_ranks_is_refused_with_a_remedy(
    sets: list[str], words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("launch.start.commands._search_path", lambda: str(tmp_path))
    monkeypatch.setattr("launch.start.commands.require_engine", lambda _name: None)
    monkeypatch.delenv("LSB_JOBID", raising=False)
    with pytest.raises(UserError) as refusal:
        require_startable(load_cluster("laptop", sets))
    assert str(refusal.value) == words


def test_a_job_of_lsf_tells_horovodrun_the_other_nodes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("launch.start.commands.require_engine", lambda _name: None)
    monkeypatch.setattr("shutil.which", lambda *_, **__: "/bin/horovodrun")
    monkeypatch.setenv("LSB_JOBID", "7")
    require_startable(load_cluster("laptop", ["cluster.launcher=horovodrun", "cluster.num_nodes=3"]))


def test_a_link_that_cannot_be_shaped_is_refused_with_the_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(link, "can_shape", lambda: False)
    with pytest.raises(UserError, match=r"communication\.link_bytes_per_s: .*; leave the key out to use the plain"):
        link.require_link()
    monkeypatch.setattr(link, "can_shape", lambda: True)
    link.require_link()


@pytest.mark.parametrize(
    ("end", "status"), [("exit 0", 0), ("exit 3", 3), ("kill -HUP $$", 129), ("kill -KILL $$", 137)]
)
def test_a_launcher_ends_with_its_status_or_128_and_its_signal(end: str, status: int, tmp_path: Path) -> None:
    command = ["bash", "-c", f'test "$A" = 1 || exit 9; {end}', str(tmp_path)]
    assert _run(command, {"A": "1"}, signal.SIGTERM, None) == Outcome(status)


_TIDY = "trap 'exit 75' USR1; trap 'exit 3' TERM; kill -{signal} $PPID; while true; do sleep 0.01; done"
_TOLD = "kill -TERM $PPID; until test -e {folder}/stop; do sleep 0.01; done; exit 75"


@pytest.mark.parametrize(
    ("program", "has_file", "outcome"),
    [
        (_TIDY.format(signal="TERM"), False, Outcome(75, stopped_by=signal.SIGTERM)),
        (_TIDY.format(signal="USR1"), False, Outcome(75, stopped_by=signal.SIGUSR1)),
        (_TIDY.format(signal="HUP"), False, Outcome(75, stopped_by=signal.SIGTERM)),
        (_TIDY.format(signal="INT"), True, Outcome(3, interrupted_by=signal.SIGINT)),
        (_TIDY.format(signal="TERM"), True, Outcome(75, stopped_by=signal.SIGTERM)),
        (_TOLD, True, Outcome(75, stopped_by=signal.SIGTERM)),
    ],
)
def test_a_launcher_is_told_to_stop_by_the_file_if_it_has_one_and_else_or_later_by_its_signal(
    program: str, has_file: bool, outcome: Outcome, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("launch.start.commands.STOP_S", 60 if program == _TOLD else 0.1)
    command = ["bash", "-c", program.format(folder=tmp_path), str(tmp_path)]
    assert _run(command, {}, signal.SIGUSR1, tmp_path / "stop" if has_file else None) == outcome
    assert (tmp_path / "stop").exists() == (has_file and outcome.interrupted_by is None)
