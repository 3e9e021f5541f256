"""Ranks that are forked from one process behave as ranks of their own: signals, exit statuses, nothing left behind."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from configs.load import ROOT
from logs.folder import RunFolder
from tests.limits import processes_like

STANDS_FOR_RANK = str(ROOT / "launch/start/forked_rank.py")


def _start(folder: Path, *words: str) -> "subprocess.Popen[str]":
    command = [sys.executable, "-m", "train.rehearse", "digits", "--cluster", "dgx-a100", "--ranks", "2"]
    sets = ["--set", "cluster.ranks_per_node=2", "--set", "run.max_steps=2000", "--set", "run.target_top1=null"]
    return subprocess.Popen([*command, *sets, "--run-dir", str(folder), *words], cwd=ROOT, text=True, stderr=-1)


def _wait_until(condition: Callable[[], bool]) -> None:
    for _ in range(1200):
        if condition():
            return
        time.sleep(0.05)
    pytest.fail("nothing happened for a minute")


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    yield (folder := tmp_path / "run")
    for pid in processes_like(str(folder)):
        os.kill(pid, signal.SIGKILL)


@pytest.mark.ranks
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_a_rank_ends_as_what_stands_for_it_under_the_launcher_is_told(folder: Path, number: signal.Signals) -> None:
    run = _start(folder)
    _wait_until((folder / "startup.json").is_file)
    ranks = processes_like(f"{STANDS_FOR_RANK} .*{folder}")
    assert len(ranks) == 2
    os.kill(max(ranks), number)
    told = run.communicate(timeout=60)[1]
    # A rank that is told to stop saves the state of the run; one that is killed fails, and cannot.
    assert (run.returncode, "resumes" in told) == (75 if number == signal.SIGTERM else 1, False), told
    assert bool(RunFolder(folder).checkpoints.files()) == (number == signal.SIGTERM)
    assert not processes_like(str(folder))


@pytest.mark.ranks
def test_forked_ranks_do_not_outlive_a_launcher_that_is_killed(folder: Path) -> None:
    run = _start(folder)
    _wait_until((folder / "startup.json").is_file)
    (launcher,) = processes_like(f"-m launch .*{folder}")
    os.kill(launcher, signal.SIGKILL)
    _wait_until(lambda: not processes_like(str(folder)))
    run.communicate(timeout=60)


def test_a_rank_starts_by_itself_where_nobody_forks_it() -> None:
    command = [sys.executable, "-c", "import json, os, sys; print(json.dumps([os.getpid(), sys.argv[1:]]))", "folder"]
    words = [sys.executable, "-I", "-S", STANDS_FOR_RANK, "forks-of-nobody", *command]
    process = subprocess.Popen(words, stdout=subprocess.PIPE, text=True)
    assert json.loads(process.communicate(timeout=60)[0]) == [process.pid, ["folder"]]
