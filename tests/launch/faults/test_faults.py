"""What goes wrong in a run, and when: each fault in each phase ends the run in time, by name, with nothing left behind.

    python -m pytest tests/launch/faults/test_faults.py --faults-table docs/fault-runs.md

tries all of them under every launcher and writes the tables, about half an hour; with ``-k "srun and torch"`` and the
like only the rows of that launcher are made anew. Without the option a few stand for all.
"""

import fcntl
import os
import re
import shutil
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path

import pytest

from tests.launch.faults.disturbed import (
    DAMAGED,
    FULL,
    START_UP_S,
    WAYS,
    Ended,
    Way,
    disturb,
    faults_of,
    require,
    victim_of,
)
from tests.launch.scheduled import slurm
from tests.small_disk import small_disk

pytestmark = [pytest.mark.ranks, pytest.mark.timeout(600)]

Cell = tuple[Way, str, str]
"""How the run is started, the fault, and the phase of the run that the fault comes in."""

CELLS = [(way, fault, phase) for way in WAYS for fault, phase in faults_of(way)]
_BY_NAME = {str(way): way for way in WAYS}
FEW = [
    (_BY_NAME["local 1"], "kill -STOP", "step"),
    (_BY_NAME["mpirun 1"], "kill -9", "step"),
]
"""Other tests kill ranks under the other launchers, fill the disk at a checkpoint, damage images, and send signals."""

LIMIT_S = 30


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "cell" in metafunc.fixturenames:
        cells = CELLS if metafunc.config.getoption("--faults-table") else FEW
        metafunc.parametrize("cell", cells, ids=[f"{way}: {fault} in {phase}" for way, fault, phase in cells])


@pytest.fixture(scope="module")
def two_nodes() -> Iterator[None]:
    with slurm():
        yield


@pytest.mark.slow
def test_a_fault_ends_the_run_in_time_by_name_and_leaves_nothing(
    cell: Cell, tmp_path: Path, packed_digits: Path, request: pytest.FixtureRequest
) -> None:
    way, fault, phase = cell
    require(way)
    if way.in_slurm:
        request.getfixturevalue("two_nodes")
    disk = tmp_path / "disk"
    disk.mkdir()
    if fault == DAMAGED:
        packed_digits = Path(shutil.copytree(packed_digits, tmp_path / "data"))
    size = "size=1200k" if phase == "checkpoint" else "size=8m"  # a checkpoint has 0.7 MB
    with small_disk(disk, size) if fault == FULL else nullcontext():
        ended = disturb(way, disk / "run", packed_digits, fault, phase)
    if page := request.config.getoption("--faults-table"):
        _write_row(Path(page), cell, ended)
    limit_s = LIMIT_S + (START_UP_S if (fault, phase) == ("kill -STOP", "start-up") else 0)
    assert ended.seconds < limit_s * _load_factor()
    _judge(way, fault, phase, ended)
    assert not ended.segments_left


def _write_row(path: Path, cell: Cell, ended: Ended) -> None:
    """Write the row of a fault into the page, which has a table for each way in the order of ``WAYS``."""
    way, fault, phase = cell
    message = ended.summary.get("failure") or next(
        (line for line in ended.errors.splitlines() if "the disk is full" in line), ""
    )
    # Without this machine's folders and host name.
    words = [Path(each.rstrip(":")).name + ":" * each.endswith(":") if "/tmp" in each else each
             for each in str(message).replace("|", "/").replace(os.uname().nodename, "HOST").split()]  # fmt: skip
    after = f"{ended.seconds:.0f} s" if ended.seconds else "at its end"
    with path.open("r+", encoding="utf-8") as page:
        fcntl.flock(page, fcntl.LOCK_EX)  # Several processes may write rows at the same time.
        blocks, place, key = page.read().split("\n## "), 1 + WAYS.index(way), f"| {fault} | {phase} |"
        lines = blocks[place].split("\n")
        (number,) = [number for number, line in enumerate(lines) if line.startswith(key)]
        lines[number] = f"{key} {ended.status} | {after} | {' '.join(words)} |"
        blocks[place] = "\n".join(lines)
        page.seek(0)
        page.truncate()
        page.write("\n## ".join(blocks))


def _judge(way: Way, fault: str, phase: str, ended: Ended) -> None:
    failure = str(ended.summary.get("failure"))
    if (fault, phase) == (FULL, "checkpoint"):
        assert ended.status == 1
        assert "no checkpoint after step" in ended.errors
        assert "network was not saved" in failure
        assert "the disk is full" in failure
        assert "Traceback" not in ended.errors
    elif fault == FULL:
        # horovodrun makes a 1 of any status, with a traceback of its own.
        is_horovodrun = way.launcher == "horovodrun"
        assert ended.status == (2 if phase == "start-up" and not is_horovodrun else 1)
        assert "the disk is full" in ended.errors + failure
        assert is_horovodrun or "Traceback" not in ended.errors
    elif fault == DAMAGED:
        assert ended.status == 1
        named = re.search(r"(train|eval)\.rec: record \d+ at byte \d+.* cannot be decoded", failure)
        crashed = "killed by signal 11" in failure and "./run.sh prepare --verify" in failure
        assert named or (crashed and way.engine == "torch"), failure
        assert "aborted" in ended.last_event
    elif fault == "SIGTERM":
        assert ended.status == 75, failure
        assert ("stopped by SIGTERM" if phase == "start-up" else "stopped, state saved") in failure
        assert "aborted" in ended.last_event
    else:
        victim = victim_of(phase)
        assert ended.status == 1
        assert ended.summary["failed_rank"] == victim, failure
        assert failure.startswith(f"rank {victim} on ")
        assert phase == "start-up" or "step" in failure
        if (way.launcher, fault) == ("local", "kill -STOP"):
            assert "was frozen for" in failure, "the rank goes on, and tells it itself"
        assert "aborted" in ended.last_event


def _load_factor() -> float:
    """Give how many want each core: with other work on the machine, everything takes so much longer."""
    return max(1.0, os.getloadavg()[0] / (os.cpu_count() or 1))
