"""The samples of a run's load: what the processes use, and no disk and no process that is gone ends them."""

import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import psutil
import pytest

from configs.load import load_both
from launch import run
from launch.start import monitor
from launch.start.local import Outcome
from launch.start.monitor import monitored
from logs.folder import RunFolder
from logs.usage import SAMPLES_FILE, Sample, read_samples

_ONE_CORE = 1.2
"""What a process of one thread uses at most; the kernel counts its time in hundredths of a second."""


@pytest.fixture(autouse=True)
def _often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(monitor, "INTERVAL_S", 0.1)


def _busy(*named: str) -> subprocess.Popen[str]:
    """Start a process that keeps one core busy for good, and wait until it has used some time."""
    # Reading zeros is work of the kernel, which counts as much as the process's own.
    code = "zeros = open('/dev/zero', 'rb', 0)\nwhile True: zeros.read(1 << 16)\n"
    child = subprocess.Popen([sys.executable, "-S", "-c", code, *named], text=True)
    _use(child, 0.2)
    return child


def _use(child: subprocess.Popen[str], seconds: float) -> None:
    """Wait until a process has used so many seconds of processor time more."""
    used_s = _used_s(child)
    _wait(lambda: _used_s(child) >= used_s + seconds)


def _used_s(child: subprocess.Popen[str]) -> float:
    return float(sum(psutil.Process(child.pid).cpu_times()[:2]))


def _wait(is_so: Callable[[], bool]) -> None:
    give_up_s = time.monotonic() + 60
    while not is_so():
        assert time.monotonic() < give_up_s
        time.sleep(0.01)


def _resident_bytes(but: int | None = None) -> int:
    """Return the memory of all processes below this one; an earlier test may have left multiprocessing's tracker."""
    return sum(each.memory_info().rss for each in psutil.Process().children(recursive=True) if each.pid != but)


def _samples(folder: Path, number: int) -> list[Sample]:
    """Wait for so many samples more; return them."""
    before = len(read_samples(folder))
    _wait(lambda: len(read_samples(folder)) >= before + number)
    return read_samples(folder)[before:]


@pytest.mark.medium
@pytest.mark.parametrize(("named", "share"), [((), 0.0), (("train.comm.server",), 1.0)])
def test_processor_time_counts_in_the_sample_in_which_it_was_used_and_a_server_s_apart(
    named: tuple[str, ...], share: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The child has used time before, and the sampler is held up among the processes, as on a busy machine."""
    listed = psutil.Process.children

    def held_up(process: psutil.Process, recursive: bool = False) -> list[psutil.Process]:
        found: list[psutil.Process] = listed(process, recursive=recursive)
        _use(child, 0.1)
        return found

    with _busy(*named) as child:
        with monkeypatch.context() as patch, monitored(tmp_path, gpus=0):
            patch.setattr(psutil.Process, "children", held_up)
            _, *while_busy = _samples(tmp_path, 4)
            patch.undo()
            child.send_signal(signal.SIGSTOP)
            _wait(lambda: psutil.Process(child.pid).status() == psutil.STATUS_STOPPED)
            *_, last = _samples(tmp_path, 3)
        resident = _resident_bytes()
        child.kill()
    assert all(0 < each.busy_cores <= _ONE_CORE for each in while_busy)
    for each in while_busy:
        assert each.server_busy_cores == pytest.approx(share * each.busy_cores)
        assert each.rank_busy_cores == pytest.approx((1 - share) * each.busy_cores)
    assert (last.busy_cores, last.memory_bytes) == (0, resident)


def test_the_machine_is_busy_when_its_processors_do_neither_idle_nor_wait_for_disks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two processors are busy, one of them with a virtual machine, whose time Linux counts twice."""
    times = psutil.cpu_times()

    def cpu_times() -> Any:
        now = time.monotonic()
        shares = {"user": 2 * now, "idle": 5 * now, "iowait": 7 * now, "guest": now}
        return times._replace(**{**dict.fromkeys(times._fields, 0.0), **shares})

    monkeypatch.setattr(psutil, "cpu_times", cpu_times)
    with monitored(tmp_path, gpus=0):
        (found,) = _samples(tmp_path, 1)[:1]
    assert found.machine_busy_cores == pytest.approx(2, rel=0.2)


@pytest.mark.parametrize("error", [psutil.NoSuchProcess(1), psutil.AccessDenied(1)], ids=["gone", "of another user"])
def test_processes_that_cannot_be_read_are_left_out_and_those_of_processes_are_counted(
    error: psutil.Error, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A rank of horovodrun is a process of a process."""
    with subprocess.Popen(["bash", "-c", "sleep 60 & wait"]) as shell:
        _wait(lambda: [each.name() for each in psutil.Process(shell.pid).children()] == ["sleep"])
        (rank,) = psutil.Process(shell.pid).children()
        asked = psutil.Process.cmdline

        def cmdline(process: psutil.Process) -> Any:
            if process.pid == shell.pid:
                raise error
            return asked(process)

        monkeypatch.setattr(psutil.Process, "cmdline", cmdline)
        with monitored(tmp_path, gpus=0):
            (found,) = _samples(tmp_path, 1)[:1]
        assert found.memory_bytes == _resident_bytes(but=shell.pid)
        rank.kill()


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
    monkeypatch.setattr(run, "monitored", lambda _, gpus: told.append(gpus) or nullcontext())  # type: ignore[func-returns-value]
    monkeypatch.setattr(run, "run_under", lambda *_: Outcome(0))
    folder = RunFolder(tmp_path)
    folder.write_settings(*load_both("digits", place, [change]))
    run._run_ranks(folder, [])
    assert told == [asked]


def test_a_disk_that_is_full_and_a_folder_that_is_gone_end_the_samples_without_a_word(tmp_path: Path) -> None:
    (tmp_path / SAMPLES_FILE).symlink_to("/dev/full")
    for folder in (tmp_path, tmp_path / "gone"):
        with monitored(folder, gpus=0):
            found = [each for each in threading.enumerate() if each.name == "monitor"]
            assert all(each.daemon for each in found), "a sampler that hangs keeps no launcher alive"
            for thread in found:
                thread.join(60)
