"""The local launcher starts every rank, and leaves no process behind however the ranks end."""

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from configs.load import ROOT, load_cluster
from configs.rank_variables import rank_environment
from launch.start import local
from launch.start.commands import run_under
from launch.start.launcher_signals import forwarded_signals
from launch.start.local import Outcome, can_shape, run_ranks, run_ranks_on_link
from tests.programs import is_running

PID = "echo $$ >{folder}/$RANK.pid;"


def _script(folder: Path, code: str) -> list[str]:
    """Return the command of a rank that writes its number down, and runs some lines of shell."""
    return ["bash", "-c", f"{PID.format(folder=folder)} {code}"]


def _ranks(folder: Path, code: str) -> Outcome:
    return run_ranks(_script(folder, code), 2, {}, kind="shared_memory")


def _running(folder: Path) -> list[str]:
    """Return the numbers of the processes that still run."""
    return list(filter(is_running, [path.read_text().strip() for path in folder.glob("*.pid")]))


@contextmanager
def _signalled(number: int, folder: Path, count: int) -> Iterator[None]:
    """Send this process a signal as soon as ``count`` ranks run, which the block starts."""
    over = threading.Event()

    def send() -> None:
        while not over.wait(0.01):
            if len([path for path in folder.glob("*.pid") if path.read_text()]) == count:
                os.kill(os.getpid(), number)
                return

    thread = threading.Thread(target=send)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


@pytest.mark.parametrize(("end", "status"), [("exit 7", 7), ("kill -9 $$", 137)])
def test_the_first_rank_to_fail_is_named_and_the_others_are_ended_with_all_that_they_started(
    end: str, status: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(local, "GRACE_S", 0.2)
    child = f"sleep 60 & echo $! >{tmp_path}/child$RANK.pid; until [ -e {tmp_path}/child0.pid ]; do sleep 0.01; done"
    assert _ranks(tmp_path, f"{child}; [ $RANK = 0 ] || {end}; wait") == Outcome(status, ((1, status),))
    # A killed process that is no child of this one may take a moment to end.
    patience = time.monotonic() + 10
    while (left := _running(tmp_path)) and time.monotonic() < patience:
        time.sleep(0.01)
    assert not left


def test_a_rank_that_ends_while_the_launcher_looks_for_frozen_ones_is_no_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    look = os.waitid

    def look_late(*words: int) -> os.waitid_result | None:
        time.sleep(0.5)
        return look(*words)

    monkeypatch.setattr(os, "waitid", look_late)
    outcome = _ranks(tmp_path, "sleep 0.$((RANK * 3)); exit 1")
    assert (outcome.exit_status, outcome.frozen) == (1, ())


@pytest.mark.parametrize(
    ("ends", "status"),
    [("75 3", 3), ("3 75", 3), ("75 0", 75), ("1 2", 2), ("0 0", 0), ("3 kill", 137), ("kill 75", 137),
     ("1 134", 1), ("134 kill", 137), ("134 134", 134), ("0 134", 134)],
)  # fmt: skip
def test_a_rank_that_failed_counts_more_than_one_that_was_told_to_stop_or_that_nccl_aborted(
    ends: str, status: int
) -> None:
    command = ["bash", "-c", f"ends=({ends}); end=${{ends[$RANK]}}; [ $end != kill ] || kill -9 $$; exit $end"]
    assert run_ranks(command, 2, {}, kind="shared_memory").exit_status == status


@pytest.mark.parametrize(
    ("ends", "outcome"),
    [("76 76", Outcome(0)), ("76 0", Outcome(76, ((1, 76),))), ("0 0", Outcome(76, ((0, 76), (1, 76))))],
)
def test_a_rank_of_a_run_that_ends_with_0_has_failed_unless_it_is_at_the_end_of_the_run(
    ends: str, outcome: Outcome
) -> None:
    command = ["bash", "-c", f"ends=({ends}); exit ${{ends[$RANK]}}", "-m", "train", "folder"]
    assert run_ranks(command, 2, {}, kind="shared_memory") == outcome


@pytest.mark.parametrize(
    ("number", "ends", "outcome"),
    [
        (signal.SIGTERM, "75 75", Outcome(75, stopped_by=signal.SIGTERM)),
        (signal.SIGTERM, "75 0", Outcome(75, stopped_by=signal.SIGTERM)),
        (signal.SIGUSR1, "0 0", Outcome(0, stopped_by=signal.SIGUSR1)),
        (signal.SIGTERM, "75 1", Outcome(1, stopped_by=signal.SIGTERM)),
        (signal.SIGUSR1, "75 143", Outcome(143, stopped_by=signal.SIGUSR1)),
        (signal.SIGINT, "0 75", Outcome(130, stopped_by=signal.SIGINT)),
        (signal.SIGINT, "143 143", Outcome(130, stopped_by=signal.SIGINT)),
        (signal.SIGINT, "0 0", Outcome(0, stopped_by=signal.SIGINT)),
        (signal.SIGINT, "75 1", Outcome(1, stopped_by=signal.SIGINT)),
    ],
)
def test_ranks_that_keep_their_state_when_told_to_stop_make_the_launchers_status(
    number: signal.Signals, ends: str, outcome: Outcome, tmp_path: Path
) -> None:
    sent = signal.SIGTERM if number == signal.SIGINT else number
    code = f"ends=({ends}); trap 'exit ${{ends[$RANK]}}' {sent:d}; {PID.format(folder=tmp_path)}"
    command = ["bash", "-c", f"{code} while true; do sleep 0.01; done"]
    with _signalled(number, tmp_path, 2):
        assert run_ranks(command, 2, {}, kind="shared_memory") == outcome
    assert not _running(tmp_path)


def test_a_stop_signal_before_the_ranks_can_handle_it_is_not_lost_and_is_a_stop() -> None:
    with forwarded_signals():
        os.kill(os.getpid(), signal.SIGTERM)
        begin = time.monotonic()
        outcome = run_ranks(["sleep", "60"], 2, {})
        assert time.monotonic() - begin < 20
    assert outcome == Outcome(75, stopped_by=signal.SIGTERM)
    os.kill(os.getpid(), signal.SIGTERM)  # A late one does not change how the launcher ends.


@pytest.mark.medium
@pytest.mark.usefixtures("with_mxnet")
def test_the_local_launcher_binds_gpu_ranks_to_their_cores_and_leaves_cpu_ranks_alone(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "version").write_text("NVRM version: Kernel Module  470.57.02  Tue\n", encoding="utf-8")
    monkeypatch.setenv("RANK_DRIVER_FILE", str(tmp_path / "version"))
    core = max(os.sched_getaffinity(0))
    changes = ["cluster.ranks_per_node=2", f"cluster.node.rank_cores=['{core}','{core}']", "cluster.node.cores=2"]
    words = "f'{sorted(os.sched_getaffinity(0))} {os.environ.get(\"MXNET_USE_FUSION\")}\\n'"
    code = f"import os; os.write(1, {words}.encode())"  # In one piece, since two ranks write to the same pipe.
    command = [sys.executable, "-c", code, str(tmp_path)]
    gpu = load_cluster("a100-node", changes)
    assert run_under(gpu, command, rank_environment(gpu)).exit_status == 0
    out, err = capfd.readouterr()
    assert out == f"[{core}] 0\n" * 2
    assert f"by Horovod): local rank 1, cores {core}, memory near" in err
    devices = load_cluster("a100-node", [*changes, "cluster.communication.kind=devices"])
    assert run_under(devices, command, rank_environment(devices)).exit_status == 0
    out, err = capfd.readouterr()
    assert out == f"{sorted(os.sched_getaffinity(0))} 0\n"
    assert "local rank 0, any core, all GPUs, no fusion (driver R470, below R520)" in err
    cpu = load_cluster("laptop", changes)
    assert run_under(cpu, command, rank_environment(cpu)).exit_status == 0
    assert capfd.readouterr() == (f"{sorted(os.sched_getaffinity(0))} None\n" * 2, "")


@pytest.mark.medium
def test_a_signal_reaches_a_gpu_rank_of_the_local_launcher_once(tmp_path: Path) -> None:
    code = f"RANK=${{HOROVOD_RANK:-$RANK}}; trap 'printf x >>{tmp_path}/$RANK.got' TERM; {PID.format(folder=tmp_path)}"
    waits = f"until [ -e {tmp_path}/$RANK.got ]; do sleep 0.01; done; sleep 0.5"
    gpu = load_cluster("a100-node", ["cluster.ranks_per_node=2"])
    with _signalled(signal.SIGINT, tmp_path, 2):
        outcome = run_under(gpu, ["bash", "-c", f"{code} {waits}", str(tmp_path)], rank_environment(gpu))
    assert outcome.stopped_by == signal.SIGINT
    assert [(tmp_path / f"{rank}.got").read_text() for rank in (0, 1)] == ["x", "x"]


@pytest.mark.skipif(not can_shape(), reason="this kernel or user cannot shape a loopback")
@pytest.mark.parametrize(
    ("ranks", "servers", "megabits"),
    [(8, 0, 64), (4, 1, 16), (2, 3, 32)],
)
def test_a_shaped_loopback_passes_what_all_ranks_and_servers_send_at_a_time(
    ranks: int, servers: int, megabits: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks = ["bash", "-c", f"tc qdisc show dev lo >{tmp_path}/told"]
    monkeypatch.setattr(local, "command_of", lambda *_: looks)
    assert run_ranks_on_link([], ranks, {}, bytes_per_s=1e6, servers=servers).exit_status == 0
    told = (tmp_path / "told").read_text(encoding="utf-8")
    assert f"rate {megabits}Mbit" in told  # 1 MB/s for each that sends
    assert "burst 128Kb" in told


@pytest.mark.medium
@pytest.mark.skipif(not can_shape(), reason="this kernel or user cannot shape a loopback")
@pytest.mark.parametrize("is_stopped", [False, True])
def test_ranks_on_a_slow_link_share_a_network_of_their_own_and_end_as_any_others(
    is_stopped: bool, tmp_path: Path
) -> None:
    cluster = load_cluster("laptop", ["cluster.communication.link_bytes_per_s=1e8"])
    asks = "echo $OWN $HOROVOD_GLOO_IFACE $(readlink /proc/self/ns/net) $(tc qdisc show dev lo | grep -o 'rate [^ ]*')"
    end = "exec sleep 60" if is_stopped else "[ $RANK = 0 ] || exit 3"
    code = f"RANK=${{HOROVOD_RANK:-$RANK}}; {asks} >{tmp_path}/$RANK; {PID.format(folder=tmp_path)} {end}"
    with _signalled(signal.SIGTERM, tmp_path, 2 if is_stopped else 3):
        outcome = run_under(cluster, ["bash", "-c", code], {"OWN": "1"})
    assert outcome == (Outcome(75, stopped_by=signal.SIGTERM) if is_stopped else Outcome(3))
    (told,) = {(tmp_path / rank).read_text(encoding="utf-8").strip() for rank in "01"}
    assert told.startswith("1 ")
    assert told.endswith("rate 1600Mbit"), "twice 100 MB/s"
    assert str(Path("/proc/self/ns/net").readlink()) not in told
    assert not _running(tmp_path)


@pytest.mark.parametrize(
    ("sent", "told"),
    [
        ([signal.SIGHUP], signal.SIGTERM),
        *(([number], signal.SIGTERM) for number in (signal.SIGQUIT, signal.SIGUSR2, signal.SIGXCPU)),
        ([signal.SIGUSR1], signal.SIGUSR1),
        ([signal.SIGTERM, signal.SIGINT], signal.SIGINT),
        ([signal.SIGINT, signal.SIGINT], signal.SIGKILL),
        ([], None),
    ],
)
def test_the_last_signal_is_told_and_a_closed_terminal_is_a_stop(sent: list[int], told: int | None) -> None:
    numbers = (
        signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR2, signal.SIGXCPU,
    )  # fmt: skip
    before = [signal.getsignal(number) for number in numbers]
    with forwarded_signals() as outer:
        with forwarded_signals() as inner:
            for number in sent:
                signal.raise_signal(number)
        assert (outer(), inner()) == (told, told)
    after = [signal.getsignal(number) for number in numbers]
    assert after == ([signal.SIG_IGN] * len(numbers) if sent else before)
    with forwarded_signals() as later:
        assert later() is None


def test_under_nohup_a_closed_terminal_stays_ignored() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with forwarded_signals() as last_signal:
            signal.raise_signal(signal.SIGHUP)
            assert last_signal() is None
    finally:
        signal.signal(signal.SIGHUP, before)


@pytest.mark.parametrize(
    ("rank", "server", "outcome"),
    [
        ("exec sleep 60", "exit 3", Outcome(3, lost_server=3)),
        ("exec sleep 60", "kill -9 $$", Outcome(137, lost_server=137)),
        ("exit 5", "exec sleep 60", Outcome(5, ((0, 5),))),
        ("exit 0", "exit 0", Outcome(0)),
        ("exit 0", "trap '' TERM; exec sleep 60", Outcome(0)),
    ],
)
def test_a_server_that_fails_ends_the_ranks_and_none_outlives_them(
    rank: str, server: str, outcome: Outcome, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    there = f"echo $$ >{tmp_path}/$DMLC_ROLE.pid; echo $DMLC_NUM_WORKER $DMLC_NUM_SERVER >{tmp_path}/$DMLC_ROLE"
    all_there = " && ".join(f"[ -s {tmp_path}/{role} ]" for role in ("scheduler", "server", "worker"))
    begin = f"{there}; until {all_there}; do sleep 0.01; done"
    role = f"if [ $DMLC_ROLE = scheduler ]; then exec sleep 60; fi; {server}"
    monkeypatch.setattr(local, "command_of", lambda _program: ["sh", "-c", f"{begin}; {role}"])
    assert run_ranks(["sh", "-c", f"{begin}; {rank}"], 1, {}, servers=1) == outcome
    assert not _running(tmp_path)
    told = {path.name: path.read_text(encoding="utf-8") for path in tmp_path.glob("[!.]*") if "." not in path.name}
    assert told == dict.fromkeys(("scheduler", "server", "worker"), "1 1\n")


@pytest.mark.medium
def test_a_job_script_starts_the_ranks_of_a_kind_and_gets_their_status(tmp_path: Path) -> None:
    command = [sys.executable, "-I", "-m", "launch.start.local", "--kind", "shared_memory", "3"]
    rank = ["sh", "-c", f'echo "$*" >{tmp_path}/$RANK$RANK_MEETING; exit $RANK', "name", "--kind", "x"]
    assert subprocess.run([*command, *rank], cwd=ROOT, check=False).returncode == 2
    found = sorted(path.name for path in tmp_path.iterdir())
    assert [name[:7] for name in found] == ["0ranks-", "1ranks-", "2ranks-"]
    assert {path.read_text(encoding="utf-8") for path in tmp_path.iterdir()} == {"--kind x\n"}
