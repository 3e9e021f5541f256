"""What a rank used of its machine, in seconds and bytes."""

import subprocess
import sys
import threading
import time
from pathlib import Path

import psutil
import pytest

from logs.usage import read_usage
from train.comm.communicator import SingleProcess
from train.measure.rank_usage import Usage


def _spin(seconds: float) -> None:
    end = time.process_time() + seconds
    while time.process_time() < end:
        pass


@pytest.mark.medium
def test_usage_counts_this_process_and_its_ended_children_since_it_was_made(tmp_path: Path) -> None:
    _spin(0.1)
    usage, begin = Usage(), time.perf_counter()
    _spin(0.3)
    subprocess.run([sys.executable, "-c", "sum(range(3 * 10**6))"], check=True)
    least_s = time.perf_counter() - begin
    usage.write(tmp_path, SingleProcess(), is_writer=True)
    wall_s = time.perf_counter() - begin
    row = {key: values[0] for key, values in read_usage(tmp_path).items()}
    assert least_s - 0.01 <= row["wall_s"] <= wall_s + 0.01
    assert row["cpu_s"] == pytest.approx(0.3, abs=0.09)
    assert 0.02 < row["children_cpu_s"] < wall_s
    # The peak is at least what the process holds now, and no page was counted as a byte or a KiB.
    resident = psutil.Process().memory_info().rss
    assert resident <= row["peak_memory_bytes"] * 1.01
    assert row["peak_memory_bytes"] < 100 * resident


def test_a_rank_that_is_a_thread_leaves_the_counting_to_the_first(tmp_path: Path) -> None:
    def write() -> None:
        Usage().write(tmp_path, SingleProcess(), is_writer=True)

    thread = threading.Thread(target=write)
    thread.start()
    thread.join()
    row = read_usage(tmp_path)
    assert (row["cpu_s"], row["children_cpu_s"], row["peak_memory_bytes"]) == ([0], [0], [0])
    assert row["wall_s"][0] > 0
    (tmp_path / "usage.json").unlink()
    Usage().write(tmp_path, SingleProcess(), is_writer=False)
    assert read_usage(tmp_path) == {}
