"""What goes wrong in a run, and when: each fault in each phase ends the run in time, by name, with nothing left behind.

    python -m pytest tests/launch/test_faults.py --faults-table docs/faults.md

tries all of them and writes the table; without the option a few stand for all.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from configs.load import ROOT
from logs.checkpoints import CHECKPOINT_FOLDER, newest_whole

FAULTS = {"kill -9": signal.SIGKILL, "kill -STOP": signal.SIGSTOP, "SIGTERM": signal.SIGTERM}
PHASES = ("start-up", "step", "evaluation", "checkpoint")
FULL = "full disk"
CELLS = [(fault, phase) for fault in (*FAULTS, FULL) for phase in PHASES]
FEW = [("kill -STOP", "step"), ("SIGTERM", "evaluation"), (FULL, "evaluation"), (FULL, "checkpoint")]
"""Other tests kill a rank in a step, fill the disk at start-up, and tell the launcher to stop."""

BEGIN = {"step": "epoch_start", "evaluation": "eval_start"}
LIMIT_S = 30
STILL_AT_START_UP, START_UP_S = ("kill -STOP", "start-up"), 30
"""Noticed so late there: imports alone may take a third of it."""

TINY = ["model.name=resnet8", "model.image_size=16", "run.eval_every_epochs=2", "run.log_every_steps=2",
        "cluster.watchdog_s=10"]  # fmt: skip


@dataclass(frozen=True)
class Ended:
    """How a disturbed run ended."""

    status: int
    seconds: float
    summary: dict[str, object]
    errors: str
    last_event: str


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "cell" in metafunc.fixturenames:
        cells = CELLS if metafunc.config.getoption("--faults-table") else FEW
        metafunc.parametrize("cell", cells, ids=[" in ".join(cell) for cell in cells])


@pytest.fixture(scope="module")
def table(request: pytest.FixtureRequest) -> Iterator[list[tuple[str, str, Ended]]]:
    """Gather the outcomes; write them if asked for."""
    rows: list[tuple[str, str, Ended]] = []
    yield rows
    path = request.config.getoption("--faults-table")
    if path:
        Path(path).write_text(_document(rows), encoding="utf-8")


@pytest.mark.slow
def test_a_fault_ends_the_run_in_time_by_name_and_leaves_nothing(
    cell: tuple[str, str], tmp_path: Path, table: list[tuple[str, str, Ended]]
) -> None:
    fault, phase = cell
    shared = set(Path("/dev/shm").iterdir())
    disk = tmp_path / "disk"
    disk.mkdir()
    if fault == FULL:
        _mount(disk, "256k" if phase == "checkpoint" else "8m")
    try:
        ended = _disturb(disk / "run", fault, phase)
    finally:
        if fault == FULL:
            subprocess.run(["umount", str(disk)], check=True)
    table.append((fault, phase, ended))
    assert ended.seconds < LIMIT_S + (START_UP_S if cell == STILL_AT_START_UP else 0)
    _judge(fault, phase, ended)
    if "--faults-table" in sys.argv:  # nobody else's runs are on the machine
        assert set(Path("/dev/shm").iterdir()) <= shared


def _judge(fault: str, phase: str, ended: Ended) -> None:
    failure = str(ended.summary.get("failure"))
    if (fault, phase) == (FULL, "checkpoint"):
        assert ended.status == 0, "the run is worth more than its checkpoint"
        assert "no checkpoint after step" in ended.errors
        assert "the disk is full" in ended.errors
    elif fault == FULL:
        assert ended.status == (2 if phase == "start-up" else 1)
        assert "the disk is full" in ended.errors + failure
        assert "Traceback" not in ended.errors
    elif fault == "SIGTERM":
        assert ended.status == 75
        assert ("stopped by SIGTERM" if phase == "start-up" else "told to stop") in failure
        assert "aborted" in ended.last_event
    else:
        victim = _victim(phase)
        assert ended.status == 1
        assert ended.summary["failed_rank"] == victim
        assert failure.startswith(f"rank {victim} on ")
        assert phase == "start-up" or "step" in failure
        assert "aborted" in ended.last_event


def _victim(phase: str) -> int:
    """Rank 0 writes the checkpoints."""
    return 0 if phase == "checkpoint" else 1


def _disturb(folder: Path, fault: str, phase: str) -> Ended:
    """Start a run, wait for the phase, do it harm, and wait for the end."""
    never_ends = (fault, phase) != (FULL, "checkpoint")
    overrides = [*TINY, "run.target_top1=null", f"run.epochs={2000 if never_ends else 4}"]
    if phase == "checkpoint" and never_ends:
        overrides.append("model.name=resnet56")  # 7 MB take long enough to be seen half written
    if (fault, phase) == STILL_AT_START_UP:
        overrides.append(f"cluster.communication.timeout_s={START_UP_S}")
    sets = [word for override in overrides for word in ("--set", override)]
    command = [sys.executable, "-m", "launch", "train", "digits", "--run-dir", str(folder), *sets]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as launcher:
        if never_ends:
            _wait_for(phase, folder, launcher)
            _harm(fault, phase, folder)
        begin = time.monotonic()
        output, errors = launcher.communicate(timeout=120)
    seconds = time.monotonic() - begin
    assert not _ranks(folder), "ranks are left"
    if never_ends and (folder / CHECKPOINT_FOLDER).exists():
        assert newest_whole(folder)[1] == [], "a damaged checkpoint is left"
    log, summary = folder / "result_0.txt", folder / "summary.json"
    events = log.read_text(encoding="utf-8").splitlines() if log.exists() else [""]
    told = json.loads(summary.read_text(encoding="utf-8")) if summary.exists() else {}
    return Ended(launcher.returncode, seconds if never_ends else 0.0, told, errors + output, events[-1])


def _wait_for(phase: str, folder: Path, launcher: subprocess.Popen[str]) -> None:
    deadline = time.monotonic() + 120
    while launcher.poll() is None and time.monotonic() < deadline:
        if _is_in(phase, folder):
            return
        time.sleep(0.0005)
    launcher.terminate()
    pytest.fail(f"the run was never seen in its {phase}")


def _is_in(phase: str, folder: Path) -> bool:
    log = folder / "result_0.txt"
    if phase == "checkpoint":
        return any((folder / CHECKPOINT_FOLDER).glob(".step-*"))
    text = log.read_text(encoding="utf-8") if log.exists() else ""
    if phase == "start-up":
        return '"init_start"' in text and '"init_stop"' not in text
    return f'"{BEGIN[phase]}"' in text.rpartition(":::MLLOG")[2]


def _harm(fault: str, phase: str, folder: Path) -> None:
    if fault == FULL:
        with (folder.parent / "filler").open("wb", buffering=0) as filler:
            for size in (1 << 16, 1 << 12, 1):
                with contextlib.suppress(OSError):
                    while True:
                        filler.write(b"\0" * size)
        return
    number = f"HOROVOD_RANK={_victim(phase)}\0"
    victim = next(pid for pid in _ranks(folder) if number in Path(f"/proc/{pid}/environ").read_text(encoding="utf-8"))
    os.kill(victim, FAULTS[fault])


def _ranks(folder: Path) -> list[int]:
    found = subprocess.run(["pgrep", "-f", f"train {folder}$"], capture_output=True, text=True, check=False)
    return [int(pid) for pid in found.stdout.split()]


def _mount(disk: Path, size: str) -> None:
    if os.geteuid() != 0:
        pytest.skip("mounting a small tmpfs needs root")
    if subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(disk)], check=False).returncode:
        pytest.skip("this machine does not allow mounts")


def _document(rows: list[tuple[str, str, Ended]]) -> str:
    head = [
        "# What goes wrong, and how a run ends", "",
        "Made by `./run.sh test tests/launch/test_faults.py --faults-table docs/faults.md`: digits on two ranks of one",
        "machine under the local launcher. A rank that stands still is noticed after 10 s (`watchdog_s`), at start-up",
        "after 30 s (`communication.timeout_s`): cluster settings. Signals go to rank 1, in a checkpoint to",
        "rank 0, which writes it. Nothing is left: no process, no damaged checkpoint, no shared memory.", "",
        "| fault | in | exit | after | what is said |", "| --- | --- | --- | --- | --- |",
    ]  # fmt: skip
    lines = []
    for fault, phase, ended in rows:
        said = ended.summary.get("failure") or _first_complaint(ended.errors)
        after = f"{ended.seconds:.0f} s" if ended.seconds else "goes on"
        lines.append(f"| {fault} | {phase} | {ended.status} | {after} | {_shortened(str(said))} |")
    return "\n".join([*head, *lines, ""])


def _first_complaint(errors: str) -> str:
    return next((line for line in errors.splitlines() if "the disk is full" in line), "")


def _shortened(text: str) -> str:
    """Leave out the folders of this machine."""
    words = [
        Path(word.rstrip(":")).name + ":" * word.endswith(":") if "/tmp" in word else word for word in text.split()
    ]
    return " ".join(words).replace("|", "/").replace(os.uname().nodename, "HOST")
