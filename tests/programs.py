"""Programs that tests start in this program's folder, and wait for; and those whose main function they call."""

import io
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from configs.load import ROOT


def run_program(*command: str | Path, check: bool = False, **options: Any) -> "subprocess.CompletedProcess[str]":
    """Run a command to its end, and return its exit status and what it printed; the options are `subprocess.run`'s."""
    return subprocess.run(command, check=check, **{"cwd": ROOT, "capture_output": True, "text": True, **options})


def python(*words: str | Path, **options: Any) -> "subprocess.CompletedProcess[str]":
    """Run the interpreter of the tests, see `run_program`."""
    return run_program(sys.executable, *words, **options)


@contextmanager
def control_group(kind: str, limit: str, value: int) -> Iterator[Path]:
    """Make a control group of version 1 while the block runs, for programs to enter."""
    path = Path("/sys/fs/cgroup") / kind / f"tests-{os.getpid()}"
    try:
        path.mkdir()
        (path / limit).write_text(str(value))
    except OSError:
        pytest.skip("making control groups of version 1 needs root and a kernel that has them")
    yield path
    path.rmdir()


def is_running(pid: int | str) -> bool:
    """Return whether a process runs; a zombie does not: a container's init may not reap it."""
    with suppress(FileNotFoundError, ProcessLookupError):
        return Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[0] != "Z"
    return False


class Terminal(io.StringIO):
    """A stream that is a terminal."""

    def isatty(self) -> bool:
        """Return True."""
        return True


class Said:
    """Calls the main function of a program, and returns what it says."""

    def __init__(self, capsys: pytest.CaptureFixture[str]) -> None:
        self._capsys = capsys

    def __call__(self, main: Callable[[list[str]], int], *words: object, status: int = 0) -> Any:
        """Return what the program prints in ``out`` and ``err``; fail unless it returns the status."""
        self._capsys.readouterr()
        assert main([*map(str, words)]) == status
        return self._capsys.readouterr()


@pytest.fixture
def said(capsys: pytest.CaptureFixture[str]) -> Said:
    """See `Said`."""
    return Said(capsys)
