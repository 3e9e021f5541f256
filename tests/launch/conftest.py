"""What tests of the launcher share: a checkout of its own for each test that changes one."""

import os
import shutil
import signal
from collections.abc import Iterator
from importlib.machinery import ModuleSpec
from pathlib import Path

import pytest

from configs.load import ROOT

_LOCKS = ("requirements.lock", "requirements-py312.lock", "requirements-torch.lock", "requirements-torch-cuda12.lock")
_NEEDED = ("run.sh", "pyproject.toml", *_LOCKS, "configs", "launch")


@pytest.fixture(scope="session", autouse=True)
def _ranks_that_wait_yield() -> Iterator[None]:
    """Let Open MPI's ranks leave their core while they wait, since a machine that runs tests has other work for it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OMPI_MCA_mpi_yield_when_idle", "1")
        yield


@pytest.fixture(autouse=True)
def _signal_handlers() -> Iterator[None]:
    """Put the handlers of signals back: a launcher that was signalled is about to end, and ignores all that follow."""
    numbers = (
        signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR2, signal.SIGXCPU,
    )  # fmt: skip
    before = {number: signal.getsignal(number) for number in numbers}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.fixture
def with_mxnet(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let settings have MXNet's launchers and kinds of communication also where PyTorch alone is installed."""
    monkeypatch.setattr("configs.registry.find_spec", lambda package: ModuleSpec(package, None))


@pytest.fixture
def typed(tmp_path: Path) -> Iterator[None]:
    """Give this process a standard input with a word in it, which pytest takes away: whoever inherits it reads it."""
    (tmp_path / "typed").write_text("yes\n", encoding="utf-8")
    before = os.dup(0)
    with (tmp_path / "typed").open("rb") as file:
        os.dup2(file.fileno(), 0)
    yield
    os.dup2(before, 0)
    os.close(before)


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """Make a checkout without an environment, of the files that set-up reads."""
    return make_tree(tmp_path / "checkout")


def make_tree(folder: Path) -> Path:
    """Make a checkout without an environment, of the files that set-up reads, in a new folder; return the folder."""
    folder.mkdir(parents=True)
    for name in _NEEDED:
        source = ROOT / name
        if source.is_dir():
            shutil.copytree(source, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy2(source, folder / name)
    return folder
