"""Runs of the digits, begun as a user begins them; and finished ones that many tests read.

A rank's start takes seconds, so a test that needs just any run, or a second one to compare with, takes ``short_run``,
``other_run`` or ``two_epoch_run``. Each runs once, for all processes of pytest-xdist, and nobody may write into its
folder.
"""

import fcntl
import json
import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from configs.registry import has_engine
from tests.programs import python, run_program

SHORT = [
    "run.max_steps=8", "run.target_top1=null", "run.log_every_steps=2", "model.name=resnet8", "model.image_size=16",
]  # fmt: skip
"""Settings of ``short_run``."""

OTHER = [
    *SHORT, "cluster.engine.timing=false", "cluster.engine.update_groups=3", "mlperf.submits=true",
    "cluster.communication.bucket_bytes=65536", "cluster.communication.bucket_fraction=0",
    *["cluster.communication.deferred_fraction=0.4"] * has_engine("mxnet"),
]  # fmt: skip
"""Settings of ``other_run``."""

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
    done = run_program(*command)
    return FinishedRun(folder, done.returncode, done.stdout, done.stderr)


def resume(folder: Path, *words: str, variables: Mapping[str, str] | None = None) -> FinishedRun:
    """Go on with a run and wait for the end.

    Args:
        folder: Of the run.
        words: Further options.
        variables: The environment. If None, that of the tests.
    """
    done = python("-I", "-m", "launch", "train", *words, "--resume", str(folder), env=variables)
    return FinishedRun(folder, done.returncode, done.stdout, done.stderr)


def begin_logs(folder: Path) -> None:
    """Make the files that a run writes as it begins, and that it has wherever it has a checkpoint."""
    for name in ("metrics.jsonl", "result_0.txt", "result_0.mll.txt"):
        (folder / name).touch()


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
def shared_digits(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Pack the digits once for all processes of the tests, to copy from."""
    return made_once(tmp_path_factory, "digits", lambda folder: _pack_digits(folder / "digits")) / "digits"


@pytest.fixture(scope="session")
def generated(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Pack 30 generated images for training and 5 for evaluation, of three classes, once for all processes."""

    def make(folder: Path) -> None:
        from data.prepare import prepare
        from data.sources.catalogue import open_source
        from data.sources.image_source import Settings

        settings = Settings(train=30, eval=5, classes=3, quality=50)
        prepare(open_source("generated", settings), folder / "generated")

    return made_once(tmp_path_factory, "generated", make) / "generated"


@pytest.fixture(scope="session")
def packed_digits(tmp_path_factory: pytest.TempPathFactory, shared_digits: Path) -> Path:
    """Return a folder for ``cluster.paths.data`` with the ``digits``, which no other process of the tests reads.

    Where others read a data set, it cannot be dropped from the page cache, and then a run's log fails the check.
    """
    folder = tmp_path_factory.mktemp("data")
    shutil.copytree(shared_digits, folder / "digits")
    return folder


@pytest.fixture(scope="session")
def short_run(tmp_path_factory: pytest.TempPathFactory, shared_digits: Path) -> FinishedRun:
    """Train eight steps of a small network on two ranks."""
    return _run_once(tmp_path_factory, "short-run", shared_digits, SHORT)


@pytest.fixture(scope="session")
def other_run(tmp_path_factory: pytest.TempPathFactory, shared_digits: Path) -> FinishedRun:
    """Train as ``short_run`` does, with all else otherwise that may not change a bit.

    It is traced and not timed, gradients travel under the next forward, and no page of the images can be dropped.
    """
    with tempfile.TemporaryDirectory(dir="/dev/shm" if Path("/dev/shm").is_dir() else None) as memory:
        return _run_once(tmp_path_factory, "other-run", shared_digits, OTHER, Path(memory), words=("--trace",))


@pytest.fixture(scope="session")
def two_epoch_run(tmp_path_factory: pytest.TempPathFactory, shared_digits: Path) -> FinishedRun:
    """Train a small network on two ranks for two epochs, with an evaluation after each."""
    return _run_once(tmp_path_factory, "two-epoch-run", shared_digits, TWO_EPOCHS)


def _run_once(
    factory: pytest.TempPathFactory, name: str, digits: Path, settings: list[str], data: Path | None = None, **more: Any
) -> FinishedRun:
    def make(folder: Path) -> None:
        place = data or folder / "data"
        shutil.copytree(digits, place / "digits")
        done = train(folder / "run", *settings, f"cluster.paths.data={place}", **more)
        (folder / "finished.json").write_text(json.dumps(done[1:]), encoding="utf-8")

    folder = made_once(factory, name, make)
    return FinishedRun(folder / "run", *json.loads((folder / "finished.json").read_text(encoding="utf-8")))


def made_once(factory: pytest.TempPathFactory, name: str, make: Callable[[Path], None]) -> Path:
    """Return a folder that ``make`` fills in whichever process of the tests asks first; the others wait for it."""
    base = factory.getbasetemp()
    # With xdist, the folder of the tests is above the folders of all workers.
    folder = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / name
    folder.mkdir(exist_ok=True)
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (folder / "is-made").exists():
            make(folder)
            (folder / "is-made").touch()
    return folder
