"""Runs under limits of their user or job: each ends in bounded time, and its last line names the limit to raise."""

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from configs.load import ROOT
from tests.runs import train_command

pytestmark = [pytest.mark.ranks, pytest.mark.medium]


@pytest.fixture
def group() -> Iterator[Path]:
    """Make a control group of version 1 that holds twelve processes and threads."""
    path = Path("/sys/fs/cgroup/pids") / f"runs-{os.getpid()}"
    try:
        path.mkdir()
        (path / "pids.max").write_text("12")
    except OSError:
        pytest.skip("making control groups of version 1 needs root and a kernel that has them")
    yield path
    path.rmdir()


def _errors(limit: str, folder: Path, *overrides: str) -> str:
    command = ["bash", "-c", f'{limit} && exec "$@"', "-", *train_command(folder / "run", *overrides)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=90)
    assert done.returncode == 1
    assert "Traceback" not in done.stderr
    return done.stderr + done.stdout


def test_a_limit_on_the_memory_of_a_process_is_named(tmp_path: Path) -> None:
    assert "raise the limit on the memory of a process (ulimit -v)" in _errors("ulimit -v 1500000", tmp_path)


@pytest.mark.parametrize("limit", ["ulimit -t 4", "ulimit -S -t 4"], ids=["hard", "soft"])
def test_a_limit_on_processor_time_is_named(limit: str, tmp_path: Path) -> None:
    told = _errors(limit, tmp_path, "run.epochs=200", "run.target_top1=0.9999")
    assert "perhaps its processor time was used up; raise the limit (ulimit -t)" in told


def test_a_limit_on_threads_is_named_and_not_taken_for_damaged_images(group: Path, tmp_path: Path) -> None:
    told = _errors(f"echo $$ >{group}/cgroup.procs", tmp_path)
    assert "raise the limit on processes and threads (ulimit -u, or pids.max of the control group)" in told
    assert "damaged" not in told


def test_a_limit_on_open_files_that_the_launcher_meets_is_one_line(tmp_path: Path) -> None:
    command = ["bash", "-c", 'ulimit -n 8 && exec "$@"', "-", *train_command(tmp_path / "run")]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=90)
    assert (done.returncode, "Traceback" in done.stderr) == (2, False)
    assert done.stderr.endswith("error: this process may open no more files; raise the limit (ulimit -n)\n")
