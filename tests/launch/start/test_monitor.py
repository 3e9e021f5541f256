"""The samples of a run's load: what the processes use, and no disk and no process that is gone ends them."""

import signal
import subprocess
import sys
import threading
import time
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest

from configs.load import load_both
from launch import run
from launch.start import monitor
from launch.start.gpu_load import GpuLoad
from launch.start.local import Outcome
from logs.folder import RunFolder

_ONE_CORE = 1.2
"""What a process of one thread uses at most; the kernel counts its time in hundredths of a second."""


def _busy(*named: str) -> subprocess.Popen[str]:
    """Start a process that keeps one core busy for good, and wait until it does."""
    # Reading zeros is work of the kernel, which counts as much as the process's own.
    code = "zeros = open('/dev/zero', 'rb', 0)\nprint(flush=True)\nwhile True: zeros.read(1 << 16)\n"
    child = subprocess.Popen([sys.executable, "-S", "-c", code, *named], stdout=subprocess.PIPE, text=True)
    assert child.stdout is not None
    child.stdout.readline()
    return child


def _use(pid: int, seconds: float) -> None:
    """Wait until a process has used so many seconds of processor time more."""
    process = psutil.Process(pid)
    deadline_s = time.monotonic() + 60
    begin_s = sum(process.cpu_times()[:2])
    while sum(process.cpu_times()[:2]) < begin_s + seconds and time.monotonic() < deadline_s:
        time.sleep(0.02)


@pytest.mark.parametrize(("named", "share"), [((), 0.0), (("train.comm.server",), 1.0)])
def test_processor_time_counts_in_the_sample_in_which_it_was_used_and_a_server_s_apart(
    named: tuple[str, ...], share: float
) -> None:
    processes = monitor._Descendants()
    with _busy(*named) as child:
        _use(child.pid, 0.2)
        first = processes.sample(GpuLoad())
        child.send_signal(signal.SIGSTOP)
        while psutil.Process(child.pid).status() != psutil.STATUS_STOPPED:
            time.sleep(0.01)
        processes.sample(GpuLoad())
        time.sleep(0.05)
        last = processes.sample(GpuLoad())
        resident = [each.memory_info().rss for each in psutil.Process().children(recursive=True)]
        child.kill()
    assert last.memory_bytes == sum(resident) > 0
    assert 0 < first.busy_cores <= _ONE_CORE
    assert first.server_busy_cores == pytest.approx(share * first.busy_cores)
    assert first.rank_busy_cores == pytest.approx((1 - share) * first.busy_cores)
    assert last.busy_cores == 0


def test_the_machine_is_busy_when_its_processors_do_neither_idle_nor_wait_for_disks() -> None:
    def busy() -> float:
        times = psutil.cpu_times()._asdict()
        idle = ("idle", "iowait", "guest", "guest_nice")
        return float(sum(seconds for kind, seconds in times.items() if kind not in idle))

    times_s = [busy()]
    processes = monitor._Descendants()
    begin_s, machine_s = processes._time_s, processes._machine_s
    times_s.append(busy())
    with _busy() as child:
        _use(child.pid, 0.2)
        times_s.append(busy())
        sample = processes.sample(GpuLoad())
        times_s.append(busy())
        child.kill()
    assert times_s[0] - 0.01 <= machine_s <= times_s[1] + 0.01
    used_s = sample.machine_busy_cores * (processes._time_s - begin_s)
    assert times_s[2] - times_s[1] - 0.02 <= used_s <= times_s[3] - times_s[0] + 0.02


@pytest.mark.medium
def test_processor_time_from_before_the_samples_is_none_of_theirs() -> None:
    with _busy() as child:
        _use(child.pid, 0.5)
        processes = monitor._Descendants()
        _use(child.pid, 0.1)
        sample = processes.sample(GpuLoad())
        child.kill()
    assert 0 < sample.busy_cores <= _ONE_CORE


@pytest.mark.medium
def test_a_sampler_that_is_held_up_among_the_processes_counts_no_core_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    processes = monitor._Descendants()
    with _busy() as child:
        listed = processes._root.children

        def held_up(recursive: bool) -> list[psutil.Process]:
            found: list[psutil.Process] = listed(recursive=recursive)
            _use(child.pid, 0.6)
            return found

        _use(child.pid, 0.1)
        processes.sample(GpuLoad())
        _use(child.pid, 0.1)
        monkeypatch.setattr(processes._root, "children", held_up)
        sample = processes.sample(GpuLoad())
        child.kill()
    assert 0 < sample.busy_cores <= _ONE_CORE


@pytest.mark.parametrize(
    ("place", "change", "asked"),
    [
        ("a100-node", "cluster.sample_gpus=true", 8),
        ("dgx-a100", "cluster.num_nodes=3", 8),  # each node is asked for its own
        ("a100-node", "cluster.sample_gpus=false", 0),
        ("laptop", "cluster.sample_gpus=true", 0),
    ],
)
def test_a_cluster_file_can_do_without_samples_of_gpus(
    place: str, change: str, asked: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[int] = []

    def note(_folder: Path, *, gpus: int) -> nullcontext[None]:
        told.append(gpus)
        return nullcontext()

    monkeypatch.setattr(run, "monitored", note)
    monkeypatch.setattr(run, "run_under", lambda *_: Outcome(0))
    folder = RunFolder(tmp_path)
    folder.write_settings(*load_both("digits", place, [change]))
    run._run_ranks(folder, [])
    assert told == [asked]


def test_a_disk_that_is_full_and_a_folder_that_is_gone_end_the_samples_without_a_word(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(monitor, "INTERVAL_S", 0.0)
    (tmp_path / "full").symlink_to("/dev/full")
    for path in (tmp_path / "full", tmp_path / "gone" / "samples"):
        monitor._write_samples(path, threading.Event(), 0)
    monkeypatch.setattr(monitor, "_write_samples", lambda _path, stop, _gpus: stop.wait(20))
    with monitor.monitored(tmp_path, gpus=0):
        (thread,) = [each for each in threading.enumerate() if each.name == "monitor"]
        assert thread.daemon, "a sampler that hangs keeps no launcher alive"


@pytest.mark.parametrize("error", [psutil.NoSuchProcess(1), psutil.AccessDenied(1)], ids=["gone", "of another user"])
def test_processes_that_cannot_be_read_are_left_out_and_those_of_processes_are_counted(
    error: psutil.Error, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Process:
        def __init__(self, *, is_gone: bool) -> None:
            self.is_gone = is_gone

        def oneshot(self) -> nullcontext[None]:
            return nullcontext()

        def cpu_times(self) -> SimpleNamespace:
            if self.is_gone:
                raise error
            return SimpleNamespace(user=0.0, system=0.0)

        def memory_info(self) -> SimpleNamespace:
            return SimpleNamespace(rss=7)

        def cmdline(self) -> list[str]:
            return []

    class Root:
        def children(self, *, recursive: bool = False) -> list[Process]:
            return [Process(is_gone=True), *([Process(is_gone=False)] if recursive else [])]

    monkeypatch.setattr("psutil.Process", Root)
    processes = monitor._Descendants()
    assert len(processes._read) == 1, "a rank of horovodrun is a process of a process"
    assert processes.sample(GpuLoad()).memory_bytes == 7
