"""A test that hangs fails at its limit, and the ranks that it started are gone, whatever their session."""

import os
import time
from pathlib import Path

import pytest

from configs.load import ROOT
from tests.programs import python

HANGING = """
import subprocess, sys, time
from pathlib import Path

import pytest

RANK = "import os, pathlib, sys, time; pathlib.Path(sys.argv[1], str(os.getpid())).touch(); time.sleep(600)"


@pytest.mark.timeout(6)
def test_ranks_of_a_launcher():
    words = ["-m", "launch.start.local", "2", sys.executable, "-c", RANK, {folder!r}]
    with subprocess.Popen([sys.executable, *words]):
        while True:
            time.sleep(0.01)


@pytest.mark.timeout(1)
def test_whose_program_catches_the_error():
    try:
        time.sleep(600)
    except BaseException:
        pass


def test_that_fails_and_leaves_a_rank():
    left = subprocess.Popen([sys.executable, "-c", RANK, {folder!r}], start_new_session=True)
    while not Path({folder!r}, str(left.pid)).exists():
        time.sleep(0.01)
    raise AssertionError


def test_that_is_not_disturbed(daemon):
    assert daemon.poll() is None


@pytest.fixture(scope="module", autouse=True)
def daemon():
    with subprocess.Popen(["sleep", "600"]) as process:
        yield process
        process.kill()
"""


@pytest.mark.ranks
def test_the_limit_ends_a_hanging_test_and_every_process_that_it_started(tmp_path: Path) -> None:
    started = tmp_path / "started"
    started.mkdir()
    (tmp_path / "test_hanging.py").write_text(HANGING.format(folder=str(started)), encoding="utf-8")
    (tmp_path / "pytest.ini").write_text("[pytest]\naddopts = -p tests.limits\n", encoding="utf-8")
    begin = time.monotonic()
    words, variables = ["-p", "no:cacheprovider", "test_hanging.py"], os.environ | {"PYTHONPATH": str(ROOT)}
    done = python("-m", "pytest", *words, cwd=tmp_path, env=variables)
    assert "3 failed, 1 passed" in done.stdout, done.stdout
    assert "Failed: Timeout (>6.0s) from pytest-timeout" in done.stdout
    assert "took longer than 1 s, and went on after the limit" in done.stdout
    assert time.monotonic() - begin < 60
    pids = [path.name for path in started.iterdir()]
    assert len(pids) == 3
    assert not any(_runs(pid) for pid in pids)


def _runs(pid: str) -> bool:
    """Tell a process from one that is dead and only not reaped yet, which has no command line any more."""
    path = Path("/proc", pid, "cmdline")
    return path.exists() and path.read_bytes() != b""
