"""The words of launchers' command lines, and by which signal each is told that its ranks should save their state."""

import os
import signal
import sys
from pathlib import Path

import pytest

from configs import registry
from configs.errors import UserError
from configs.load import ROOT, load_cluster
from configs.rank_variables import binding_environment, rank_environment
from launch.start.commands import launcher_command, local_words, require_startable, run_under
from launch.start.launcher import run_launcher
from launch.start.local import Outcome, can_shape
from tests.launch.stand_in import write_program
from tests.programs import run_program

pytestmark = pytest.mark.usefixtures("with_mxnet")

PLACES = ["cluster.num_nodes=3", "cluster.ranks_per_node=4", "cluster.communication.backend=mpi"]


_MPIRUN = "mpirun -np 12 -bind-to none -map-by ppr:4:node -mca pml ob1 -mca btl ^openib -x PATH -x A"
_HOROVODRUN = "python -I -u -m launch.start.horovodrun"
_TORCHRUN = "python -I -u -m torch.distributed.run"
_SRUN = "srun -K1 --export=ALL --nodes=3 --ntasks=12 --ntasks-per-node=4 --distribution=block --cpu-bind=none"
TORCH = ["cluster.engine.name=torch", *PLACES[:2]]


@pytest.mark.parametrize(
    ("launcher", "sets", "words"),
    [
        ("mpirun", PLACES, f"{_MPIRUN} rank"),
        ("mpirun", PLACES[2:],
         "mpirun -np 2 -bind-to none -map-by ppr:2:node -mca pml ob1 -mca btl self,vader -x PATH -x A rank"),
        ("mpirun", TORCH, f"{_MPIRUN} -x MASTER_ADDR -x MASTER_PORT -x TORCHELASTIC_USE_AGENT_STORE rank"),
        ("srun", PLACES, f"{_SRUN} --mpi=pmix rank"),
        ("srun", PLACES[:2], f"{_SRUN} rank"),
        ("srun", [*TORCH, PLACES[2]], f"{_SRUN} --mpi=pmix rank"),
        ("torchrun", TORCH, f"{_TORCHRUN} --nnodes=3 --nproc-per-node=4 --rdzv-conf=timeout=300 --no-python rank"),
        ("torchrun", TORCH[:1], f"{_TORCHRUN} --nnodes=1 --nproc-per-node=2 --standalone --no-python rank"),
        ("horovodrun", PLACES, f"{_HOROVODRUN} -np 12 --mpi rank"),
        ("horovodrun", PLACES[:2], f"{_HOROVODRUN} -np 12 --gloo rank"),
        ("horovodrun", [*PLACES[:2], "cluster.node.interface=ib0"],
         f"{_HOROVODRUN} -np 12 --gloo --network-interfaces=ib0 rank"),
    ],
)  # fmt: skip
def test_a_launcher_starts_a_nodes_ranks_on_each_node(launcher: str, sets: list[str], words: str) -> None:
    cluster = load_cluster("laptop", [*sets, f"cluster.launcher={launcher}"])
    assert launcher_command(cluster, ["rank"], {"A": "1"}, "python") == words.split()


@pytest.mark.parametrize("backend", ["gloo", "mpi"])
def test_ranks_over_torch_distributed_are_told_nothing_of_horovod_and_mpi_not_to_replace_malloc(backend: str) -> None:
    sets = [*TORCH, "cluster.launcher=srun", f"cluster.communication.backend={backend}"]
    variables = rank_environment(load_cluster("laptop", sets))
    assert not [name for name in variables if name.startswith(("HOROVOD_", "MXNET_"))]
    assert variables.get("OMPI_MCA_memory") == ("^patcher" if backend == "mpi" else None)


@pytest.mark.parametrize(("watchdog_s", "noticed_s"), [(10, 6), (20, 12), (600, 30)])
def test_mpirun_notices_a_lost_host_before_the_watchdog_of_the_ranks(watchdog_s: int, noticed_s: int) -> None:
    def kept_alive(*settings: str) -> dict[str, str]:
        cluster = load_cluster("laptop", ["cluster.launcher=mpirun", f"cluster.watchdog_s={watchdog_s}", *settings])
        name = "OMPI_MCA_oob_tcp_keepalive_"
        return {key.removeprefix(name): value for key, value in rank_environment(cluster).items() if name in key}

    found = {key: int(value) for key, value in kept_alive("cluster.num_nodes=2").items()}
    assert found["time"] + found["probes"] * found["intvl"] == noticed_s
    assert kept_alive("cluster.num_nodes=1") == {}


@pytest.mark.parametrize(
    ("place", "sets", "layer", "transports"),
    [
        ("laptop", ["node.hcas=[mlx5_0]"], True, "self,vader"),
        ("abci-v100", ["num_nodes=1"], False, "^openib"),
        ("abci-v100", ["num_nodes=1", "node.hcas=[]"], True, "self,vader"),
    ],
)
def test_mpirun_takes_adapters_for_gpus_shared_memory_on_one_machine_and_else_tcp(
    place: str, sets: list[str], layer: bool, transports: str
) -> None:
    changes = ["launcher=mpirun", *(["communication.backend=mpi"] if place == "laptop" else []), *sets]
    words = launcher_command(load_cluster(place, [f"cluster.{each}" for each in changes]), ["x"], {})
    assert (words[words.index("-map-by") + 2 :][:3] == ["-mca", "pml", "ob1"]) is layer
    assert words[words.index("btl") + 1] == transports


@pytest.mark.parametrize(
    ("sets", "words"),
    [
        ([], ["--kind", "shared_memory", "4"]),
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
        (["cluster.launcher=horovodrun", "cluster.num_nodes=3", "cluster.ranks_per_node=4"],
         ["horovodrun", "all 12 ranks on this machine", "./run.sh submit --hosts A,B", "cluster.num_nodes=1"]),
        ([*PLACES, "cluster.launcher=srun"], ["srun is not on this machine", "--set cluster.launcher=local"]),
        ([*TORCH, "cluster.launcher=torchrun"], ["torchrun", "./run.sh submit", "trainjob", "cluster.num_nodes=1"]),
        (["cluster.launcher=srun", "cluster.communication.kind=devices"],
         ["cluster.launcher: got 'srun', allowed: local with communication.kind: devices"]),
        (["cluster.launcher=mpirun", "cluster.communication.kind=parameter_server"],
         ["cluster.launcher: got 'mpirun', allowed: local with communication.kind: parameter_server"]),
        (["cluster.launcher=mpirun"],
         ["cluster.communication.backend: got 'gloo', allowed: mpi or nccl under mpirun", "launcher: horovodrun"]),
        (["cluster.engine.name=torch", "cluster.launcher=horovodrun"],
         ["cluster.launcher: got 'horovodrun', allowed: local, mpirun, srun, torchrun with "]),
    ],
)  # fmt: skip
def test_a_launcher_that_cannot_start_the_ranks_is_refused_with_a_remedy(
    sets: list[str], words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("LSB_JOBID", raising=False)
    with pytest.raises(UserError) as refusal:
        run_under(load_cluster("laptop", sets), ["true"], {})
    assert all(each in str(refusal.value) for each in words)
    assert "\n" not in str(refusal.value)


def test_a_job_of_lsf_tells_horovodrun_the_other_nodes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shutil.which", lambda *_, **__: "/bin/horovodrun")
    monkeypatch.setenv("LSB_JOBID", "7")
    require_startable(load_cluster("laptop", ["cluster.launcher=horovodrun", "cluster.num_nodes=3"]))


@pytest.mark.parametrize(
    ("end", "status"), [("exit 0", 0), ("exit 3", 3), ("kill -HUP $$", 129), ("kill -KILL $$", 137)]
)
def test_a_launcher_ends_with_its_status_or_128_and_its_signal(end: str, status: int, tmp_path: Path) -> None:
    command = ["bash", "-c", f'test "$A" = 1 || exit 9; {end}', str(tmp_path)]
    assert run_launcher(command, {"A": "1"}, signal.SIGTERM, None) == Outcome(status)


_TIDY = "trap 'exit 75' USR1; trap 'exit 3' TERM; kill -{signal} $PPID; while true; do sleep 0.01; done"
_TOLD = "kill -{signal} $PPID; until test -e {folder}/stop; do sleep 0.01; done; exit 75"


@pytest.mark.parametrize(
    ("program", "stop", "outcome"),
    [
        (_TIDY.format(signal="TERM"), None, Outcome(75, stopped_by=signal.SIGTERM)),
        (_TIDY.format(signal="USR1"), None, Outcome(75, stopped_by=signal.SIGUSR1)),
        (_TIDY.format(signal="INT"), None, Outcome(75, stopped_by=signal.SIGINT)),
        (_TIDY.format(signal="TERM"), "stop", Outcome(75, stopped_by=signal.SIGTERM)),
        (_TIDY.format(signal="TERM"), "folder/that/is/gone", Outcome(75, stopped_by=signal.SIGTERM)),
        (_TOLD.format(signal="TERM", folder="{folder}"), "stop", Outcome(75, stopped_by=signal.SIGTERM)),
    ],
)
def test_a_launcher_is_told_to_stop_by_the_file_if_it_has_one_and_else_or_later_by_its_signal(
    program: str, stop: str | None, outcome: Outcome, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("launch.start.launcher.STOP_S", 60 if "stop" in program else 0.1)
    command = ["bash", "-c", program.format(folder=tmp_path), str(tmp_path)]
    assert run_launcher(command, {}, signal.SIGUSR1, tmp_path / stop if stop else None) == outcome
    assert (tmp_path / "stop").exists() == (stop == "stop")


@pytest.mark.parametrize("ends", ["exit 3", ":"])
def test_a_second_ctrl_c_ends_a_launcher_by_two_of_its_own_and_else_by_a_kill(
    ends: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("launch.start.launcher.KILL_S", 0.1)
    traps = f"trap 'kill -INT $PPID' USR1; trap : TERM; trap 'echo >>{tmp_path}/got; {ends}' INT"
    script = f"{traps}; kill -INT $PPID; while true; do sleep 0.01; done"
    outcome = run_launcher(["bash", "-c", script, str(tmp_path)], {}, signal.SIGUSR1, None)
    assert outcome == Outcome(3 if ends == "exit 3" else 137, interrupted_by=signal.SIGINT)
    assert (tmp_path / "got").read_text(encoding="utf-8") == "\n" * (1 if ends == "exit 3" else 2)


@pytest.mark.usefixtures("typed")
@pytest.mark.parametrize("is_root", [True, False])
def test_a_launcher_reads_nothing_runs_in_a_session_of_its_own_and_as_root_only_if_we_are(
    is_root: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("os.geteuid", lambda: 0 if is_root else 1000)
    asks = "cut -d' ' -f6 /proc/$$/stat; echo $$; env | grep -c ^OMPI_ALLOW_RUN_AS_ROOT"
    script = f"cat >{tmp_path}/read; ({asks}) | tr -d ' ' >{tmp_path}/told"
    assert run_launcher(["bash", "-c", script, str(tmp_path)], {}, signal.SIGTERM, None) == Outcome(0)
    assert (tmp_path / "read").read_text(encoding="utf-8") == ""
    session, process, variables = (tmp_path / "told").read_text(encoding="utf-8").split()
    assert session == process
    assert variables == ("2" if is_root else "0")


_TELLS = """for each; do run=$each; done
env >"$run/variables"
printf '%s\\n' "$@" >"$run/words"
[ -z "$STOP_ME" ] || { trap 'exit 75' USR1; kill -TERM $PPID; while true; do sleep 0.01; done; }
exit 7"""


@pytest.mark.parametrize(
    ("sets", "served", "stopped"),
    [
        (["launcher=srun", "communication.kind=horovod"], {"HOROVOD_GLOO_RENDEZVOUS_PORT"}, False),
        (["launcher=srun", "communication.kind=shared_memory"], {"RANK_MEETING"}, True),
        (["launcher=srun", "communication.kind=horovod", "communication.backend=mpi"], set(), False),
        (["launcher=mpirun", "communication.kind=shared_memory"], {"RANK_MEETING"}, True),
    ],
)
def test_srun_and_mpirun_get_the_ranks_variables_their_rendezvous_and_a_signal_to_stop(
    sets: list[str], served: set[str], stopped: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    launcher = sets[0].partition("=")[2]
    write_program(tmp_path / launcher, _TELLS)
    monkeypatch.setenv("OPENBLAS_CORETYPE", "Haswell")
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    monkeypatch.setenv("STOP_ME", "yes" if stopped else "")
    cluster = load_cluster("laptop", [f"cluster.{each}" for each in sets])
    outcome = run_under(cluster, ["rank", str(tmp_path)], {"OWN": "1"})
    assert outcome == (Outcome(75, stopped_by=signal.SIGTERM) if stopped else Outcome(7))
    words = (tmp_path / "words").read_text(encoding="utf-8").splitlines()
    assert words[-3:] == [f"{ROOT}/launch/rank.sh", "rank", str(tmp_path)]
    if launcher == "mpirun":
        passed = {words[number + 1] for number, word in enumerate(words) if word == "-x"}
        assert passed >= {"OWN", "OPENBLAS_CORETYPE", *served}, "by itself it passes none to other hosts"
    lines = (tmp_path / "variables").read_text(encoding="utf-8").splitlines()
    variables = dict(line.split("=", 1) for line in lines if "=" in line)
    assert variables.items() >= {"OWN": "1", **binding_environment(cluster)}.items()
    assert variables["PATH"].split(os.pathsep)[0] == str(Path(sys.executable).parent), "horovodrun's place"
    assert {name for name in ("HOROVOD_GLOO_RENDEZVOUS_PORT", "RANK_MEETING") if variables.get(name)} == served


def test_a_link_that_cannot_be_shaped_is_refused_with_the_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    can_shape.cache_clear()
    try:
        with pytest.raises(UserError, match=r"communication\.link_bytes_per_s: .*; leave the key out to use the plain"):
            run_under(load_cluster("laptop", ["cluster.communication.link_bytes_per_s=1e6"]), ["true"], {})
    finally:
        can_shape.cache_clear()


@pytest.mark.ranks
def test_a_loopback_that_is_down_is_named_with_its_remedy_before_a_folder_is_made(tmp_path: Path) -> None:
    """A fresh network namespace has it so."""
    kind = f"cluster.communication.kind={registry.communicators_of(registry.installed_engine())[0]}"
    verb = [sys.executable, "-I", "-m", "launch", "train", "digits", "--run-dir", str(tmp_path / "run"), "--set", kind]
    user = ["--user", "--map-root-user"] if os.geteuid() else []
    done = run_program("unshare", "--net", *user, *verb)
    if done.stderr.startswith("unshare: "):
        pytest.skip(done.stderr)
    assert (done.returncode, done.stderr.count("\n")) == (2, 1), done.stderr
    assert done.stderr.startswith("error: 127.0.0.1: Network is unreachable: the loopback interface is down")
    assert done.stderr.endswith(": ip link set lo up\n")
    assert not (tmp_path / "run").exists()


@pytest.mark.ranks
@pytest.mark.skipif(os.geteuid() != 0, reason="another host name needs root")
@pytest.mark.skipif(not registry.has_engine("mxnet"), reason="Horovod's ranks are MXNet's")
@pytest.mark.parametrize(
    ("line", "reason"), [("", "Name or service not known"), ("192.0.2.7 alpha", "no network interface here has its")]
)
def test_a_host_whose_name_leads_nowhere_is_named_before_its_ranks_crash(
    line: str, reason: str, tmp_path: Path
) -> None:
    """Horovod's ranks over Gloo end by SIGSEGV without an address, and by SIGABRT with that of another machine."""
    (tmp_path / "hosts").write_text(f"127.0.0.1 localhost\n{line}\n", encoding="utf-8")
    settings = "--set cluster.communication.kind=horovod --set cluster.communication.backend=gloo"
    verb = f"{sys.executable} -I -m launch train digits --run-dir {tmp_path}/run {settings}"
    script = f"hostname alpha && mount --bind {tmp_path}/hosts /etc/hosts && exec {verb}"
    done = run_program("unshare", "--uts", "--mount", "bash", "-c", script)
    if done.stderr.startswith(("unshare: ", "hostname: ", "mount: ")):
        pytest.skip(done.stderr)
    assert (done.returncode, done.stderr.count("\n")) == (2, 1), done.stderr
    assert done.stderr.startswith(f"error: alpha: {reason}")
    assert done.stderr.endswith(": add the line '127.0.1.1 alpha' to /etc/hosts\n")
    assert not (tmp_path / "run").exists()
