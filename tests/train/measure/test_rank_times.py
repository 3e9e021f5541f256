"""What is gathered of each rank: its times of a step, with who is named, and what it used, in seconds and bytes."""

import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import psutil
import pytest

from logs.usage import read_usage
from train.comm.communicator import SingleProcess
from train.measure.rank_times import Usage, gather_ranks, slowest_rank
from train.measure.timing import StepTimes


def test_every_rank_has_a_row_of_medians_gathered_under_names_of_their_own() -> None:
    names: list[str] = []

    class TwoRanks(SingleProcess):
        def gather(self, name: str, value: int) -> list[int]:
            names.append(name)
            return [value, 3 * value]

    own, other = gather_ranks(TwoRanks(), [StepTimes(0.1 + 0.001 * number, 0.02, 0.004) for number in range(101)])
    assert own == {"rank": 0, "compute_median_s": 0.15, "comm_wait_median_s": 0.02, "input_wait_median_s": 0.004}
    assert (other["rank"], other["compute_median_s"], other["comm_wait_median_s"]) == (1, 0.45, 0.06)
    assert len(set(names)) == 3, "two gathers of one name would be one"
    assert gather_ranks(SingleProcess(), []) == []


@pytest.mark.parametrize(
    ("seconds", "slowest", "excess"),
    [
        ((0.10, 0.10, 0.13, 0.11), 2, pytest.approx(0.13 / 0.105 - 1)),
        ((0.1,), None, None),
        ((), None, None),
        ((0.0, 0.0), None, None),  # none computes longer where none computed
    ],
)
def test_the_slowest_rank_is_the_one_that_computes_longest(seconds: Any, slowest: int | None, excess: Any) -> None:
    assert slowest_rank([{"compute_median_s": each} for each in seconds]) == (slowest, excess)


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
