"""A command of set-up while it starts and runs: signals, the line on the terminal, and output in any bytes."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from launch.setup import child
from launch.setup.child import Command, Stopwatch, run_logged
from tests.launch.setup.test_setup import _is_alive

INTERRUPTS = {signal.SIGINT, signal.SIGTERM, signal.SIGHUP}


class _Watch(Stopwatch):
    """Keeps what a terminal would show."""

    def __init__(self) -> None:
        super().__init__("a stage")
        self.lines: list[str] = []

    def tick(self, line: str) -> None:
        self.lines.append(line)


@pytest.fixture
def lock(tmp_path: Path) -> Iterator[int]:
    with (tmp_path / "lock").open("w") as file:
        yield file.fileno()


def _command(script: str, folder: Path, lock: int) -> Command:
    return Command(["sh", "-c", script], log=folder / "log", environment=dict(os.environ), lock=lock)


def _blocked() -> set[int]:
    return set(signal.pthread_sigmask(signal.SIG_BLOCK, ()))


def test_no_signal_comes_between_a_command_and_who_knows_it_and_the_command_gets_them_all(
    tmp_path: Path, lock: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[set[int]] = []
    start = subprocess.Popen

    def note(*words: Any, **options: Any) -> subprocess.Popen[bytes]:
        seen.append(_blocked())
        return start(*words, **options)

    monkeypatch.setattr(subprocess, "Popen", note)
    # Not by a shell, which may unblock signals.
    words = ["grep", "SigBlk", "/proc/self/status"]
    command = Command(words, log=tmp_path / "log", environment=dict(os.environ), lock=lock)
    command.start()
    command.wait(_Watch())
    command.stop()
    assert seen == [INTERRUPTS]
    assert _blocked() == set()
    assert int((tmp_path / "log").read_text(encoding="utf-8").split()[1], 16) == 0


def test_a_command_that_cannot_start_leaves_signals_as_they_were(tmp_path: Path, lock: int) -> None:
    command = Command(["/no/such/program"], log=tmp_path / "log", environment={}, lock=lock)
    with pytest.raises(FileNotFoundError):
        command.start()
    command.stop()
    assert _blocked() == set()


def test_the_last_line_that_tells_something_stays_until_there_is_another(
    tmp_path: Path, lock: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(child, "_REDRAW_S", 0.01)
    go = tmp_path / "go"
    watch = _Watch()
    command = _command(f"echo one; while [ ! -e {go} ]; do sleep 0.01; done; printf 'two\\377\\n\\n'", tmp_path, lock)

    def tick(line: str) -> None:
        watch.lines.append(line)
        if watch.lines.count("one") == 3 or len(watch.lines) == 100:
            go.touch()

    monkeypatch.setattr(watch, "tick", tick)
    command.start()
    try:
        command.wait(watch)
    finally:
        command.stop()
    assert list(dict.fromkeys(line for line in watch.lines if line)) == ["one", "two\N{REPLACEMENT CHARACTER}"]
    assert "" not in watch.lines[watch.lines.index("one") :]


def test_a_word_is_waited_for_in_output_of_any_bytes(
    tmp_path: Path, lock: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(child, "_POLL_S", 0.001)
    watch, command = _Watch(), _command("printf '\\377 made ready\\n'; exec sleep 60", tmp_path, lock)
    command.start()
    try:
        command.wait_for("ready", watch)
    finally:
        command.stop()
    assert watch.lines[-1] == "\N{REPLACEMENT CHARACTER} made ready"


def test_the_line_of_a_terminal_ends_with_the_whole_title(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    watch = Stopwatch("[1/2] title: more")
    assert capsys.readouterr().err == "setup: [1/2] title: more ..."
    watch.end()
    assert capsys.readouterr().err == "\r\x1b[Ksetup: [1/2] title: more ... 0 s\n"
    watch.end("not done, ")
    assert capsys.readouterr().err == "\r\x1b[Ksetup: [1/2] title: more ... not done, 0 s\n"


def test_what_a_command_left_running_is_ended_with_it(tmp_path: Path, lock: int) -> None:
    command = ["sh", "-c", f"sleep 60 & echo $! >{tmp_path}/pid"]
    run_logged(command, log=tmp_path / "log", environment=dict(os.environ), watch=_Watch(), lock=lock)
    pid, end_s = (tmp_path / "pid").read_text(encoding="utf-8").strip(), time.monotonic() + 5
    while _is_alive(pid):
        assert time.monotonic() < end_s
        time.sleep(0.01)
