"""`./run.sh train` under horovodrun and mpirun, for real: two ranks, the same network as the local launcher's."""

import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from configs.errors import STOPPED_STATUS
from configs.load import ROOT
from tests.launch.scheduled import SYNTHETIC, has_begun, wait_until
from tests.limits import processes_like
from tests.runs import read_summary, train_command

pytestmark = [pytest.mark.ranks, pytest.mark.slow]

_GONE_S = 10
"""Longest time that ranks outlive a launcher that was killed."""

_PATH = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"


def _require(launcher: str) -> None:
    if launcher != "local" and shutil.which(launcher, path=_PATH) is None:
        pytest.skip(f"{launcher} is not installed here")


@pytest.mark.parametrize(
    ("launcher", "ranks", "number", "status"),
    [
        ("local", 1, signal.SIGKILL, -signal.SIGKILL),
        ("horovodrun", 1, signal.SIGHUP, STOPPED_STATUS),
        ("mpirun", 2, signal.SIGHUP, STOPPED_STATUS),
    ],
)
def test_a_killed_launcher_or_a_closed_terminal_takes_every_rank_with_it(
    launcher: str, ranks: int, number: int, status: int, tmp_path: Path
) -> None:
    """A rank of horovodrun hears of the signal by a file, and one of the local launcher of its death by itself."""
    _require(launcher)
    folder = tmp_path / "run"
    settings = [f"cluster.launcher={launcher}", "cluster.communication.kind=shared_memory"]
    settings.append(f"cluster.ranks_per_node={ranks}")
    command = train_command(folder, *SYNTHETIC, "run.epochs=500", *settings)
    process = _start(command, tmp_path)
    wait_until(lambda: has_begun(folder), tmp_path / "output")
    process.send_signal(number)
    _require_an_end(process, status, tmp_path)
    if number == signal.SIGHUP:
        assert "stopped, state saved after step" in read_summary(folder)["failure"]


@pytest.mark.parametrize("launcher", ["horovodrun", "mpirun"])
def test_the_launcher_of_another_program_takes_its_ranks_with_it_when_ours_is_killed(
    launcher: str, tmp_path: Path
) -> None:
    """A shell stands for each rank."""
    _require(launcher)
    words = ["--set", f"cluster.launcher={launcher}", "--set", "cluster.communication.kind=shared_memory"]
    code = f"touch {tmp_path}/$$.begun; while true; do sleep 1; done"
    command = [sys.executable, "-I", "-m", "launch.start.ranks", *words, "--", "sh", "-c", code]
    process = _start(command, tmp_path)
    wait_until(lambda: len(list(tmp_path.glob("*.begun"))) == 2, tmp_path / "output")
    process.kill()
    _require_an_end(process, -signal.SIGKILL, tmp_path)


def _start(command: list[str], folder: Path) -> "subprocess.Popen[bytes]":
    with (folder / "output").open("wb") as output:
        return subprocess.Popen(command, cwd=ROOT, stdout=output, stderr=output)


def _require_an_end(process: "subprocess.Popen[bytes]", status: int, folder: Path) -> None:
    """Check the launcher's status, and that no process with the folder in its command line is left soon after."""
    since = time.monotonic()
    assert process.wait(timeout=30) == status, (folder / "output").read_text(encoding="utf-8")
    wait_until(lambda: not processes_like(f"{folder}/"), folder / "output")
    assert status == STOPPED_STATUS or time.monotonic() - since < _GONE_S
