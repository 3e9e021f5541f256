"""Runs of the digits, begun as a user begins them; and finished ones that many tests read.

A rank's start takes seconds, so a test that needs just any run, or a second one to compare with, takes ``short_run``
or ``two_epoch_run``. Each runs once, for all processes of pytest-xdist, and nobody may write into its folder.
"""

from __future__ import annotations

import fcntl
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from configs.load import ROOT

SHORT = ["run.max_steps=8", "run.target_top1=null", "run.log_every_steps=2", "model.name=resnet8"]
"""Settings of ``short_run``."""

TWO_EPOCHS = [
    "model.name=resnet8", "model.image_size=16", "run.epochs=2", "run.eval_every_epochs=1", "run.eval_first_epoch=1",
    "run.target_top1=null", "run.log_every_steps=3", "schedule.warmup_epochs=1",
]  # fmt: skip
"""Settings of ``two_epoch_run``, 38 steps."""


class FinishedRun(NamedTuple):
    """A run that has ended, and how.

    Attributes:
        folder: Of the run.
        status: The launcher's exit status.
        output: What it printed.
        errors: What it printed to the standard error.
    """

    folder: Path
    status: int
    output: str
    errors: str


def train_command(folder: Path, *overrides: str, recipe: str = "digits", words: tuple[str, ...] = ()) -> list[str]:
    """Return the command line that trains into ``folder``; ``words`` are further options."""
    sets = [word for override in overrides for word in ("--set", override)]
    return [sys.executable, "-I", "-m", "launch", "train", recipe, "--run-dir", str(folder), *sets, *words]


def train(folder: Path, *overrides: str, recipe: str = "digits", words: tuple[str, ...] = ()) -> FinishedRun:
    """Train into ``folder`` and wait for the end."""
    command = train_command(folder, *overrides, recipe=recipe, words=words)
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    return FinishedRun(folder, done.returncode, done.stdout, done.stderr)


def read_summary(folder: Path) -> Any:
    """Return how a run ended, as it wrote it down."""
    return json.loads((folder / "summary.json").read_text(encoding="utf-8"))


def _pack_digits(folder: Path) -> None:
    # Imported here, so that a test that needs no data set does not wait for it.
    from data.prepare import prepare
    from data.sources.catalogue import open_source
    from data.sources.image_source import Settings

    prepare(open_source("digits", Settings()), folder)


@pytest.fixture(scope="session")
def packed_digits(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Pack the digits as ``digits`` into a folder for ``cluster.paths.data``, which no other process of tests reads.

    Where others read a data set, it cannot be dropped from the page cache, and then a run's log fails the check.
    """
    folder = tmp_path_factory.mktemp("data")
    _pack_digits(folder / "digits")
    return folder


@pytest.fixture(scope="session")
def short_run(tmp_path_factory: pytest.TempPathFactory) -> FinishedRun:
    """Train eight steps of a small network on two ranks."""
    return _run_once(tmp_path_factory.getbasetemp(), "short-run", SHORT)


@pytest.fixture(scope="session")
def two_epoch_run(tmp_path_factory: pytest.TempPathFactory) -> FinishedRun:
    """Train a small network on two ranks for two epochs, with an evaluation after each."""
    return _run_once(tmp_path_factory.getbasetemp(), "two-epoch-run", TWO_EPOCHS)


def _run_once(folder: Path, name: str, settings: list[str]) -> FinishedRun:
    """Train, in whichever process of the tests asks first; the others wait and read what it kept."""
    if "PYTEST_XDIST_WORKER" in os.environ:
        folder = folder.parent  # above the folders of all workers
    run, kept = folder / name / "run", folder / name / "finished.json"
    run.parent.mkdir(exist_ok=True)
    with (run.parent / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not kept.exists():
            _pack_digits(run.parent / "data" / "digits")
            done = train(run, *settings, f"cluster.paths.data={run.parent}/data")
            kept.write_text(json.dumps(done[1:]), encoding="utf-8")
    return FinishedRun(run, *json.loads(kept.read_text(encoding="utf-8")))
