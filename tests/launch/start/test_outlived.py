"""A launcher that waits for ranks that are gone is killed; one that may still have work to do is not."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from launch.start import commands, outlived
from launch.start.outlived import OutlivedLauncher, launchers_of
from launch.submit import job

REPORT = {"rank": 1, "status": 137}
NO_END = {
    "another rank is told to stop": json.dumps({"rank": 1, "status": 75}),
    "a report that is being written": '{"rank": 1, "sta',
    "a report of something else": "[]",
}


@pytest.fixture(autouse=True)
def fast(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outlived, "LINGER_S", 0.3)
    monkeypatch.setattr(outlived, "_LOOK_S", 0.0)


@pytest.fixture
def launcher() -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen(["sleep", "600"]) as process:
        yield process
        process.kill()


def report(folder: Path, text: str = json.dumps(REPORT), rank: int = 1) -> None:
    (folder / f"failure_{rank}.json").write_text(text, encoding="utf-8")


def _look(folder: Path, launcher: subprocess.Popen[bytes], seconds: float) -> int | None:
    """Look for so long as a launcher's parent does; return the launcher's status."""
    watch = OutlivedLauncher(folder, lambda: [launcher.pid])
    end = time.monotonic() + seconds
    while time.monotonic() < end and launcher.poll() is None:
        watch.look()
        time.sleep(0.01)
    return launcher.poll()


@pytest.mark.parametrize("text", [json.dumps(REPORT), json.dumps({"rank": 0, "status": 75})])
def test_a_launcher_that_outlives_its_ranks_is_killed(
    text: str, launcher: subprocess.Popen[bytes], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    report(tmp_path, text)
    begin = time.monotonic()
    assert _look(tmp_path, launcher, 30) == -signal.SIGKILL
    assert time.monotonic() - begin > outlived.LINGER_S
    assert "after a rank had failed, and was killed" in capsys.readouterr().err


@pytest.mark.parametrize("text", NO_END.values(), ids=NO_END)
def test_a_launcher_whose_ranks_may_go_on_is_left_alone(
    text: str, launcher: subprocess.Popen[bytes], tmp_path: Path
) -> None:
    report(tmp_path, text)
    assert _look(tmp_path, launcher, 3 * outlived.LINGER_S) is None


def test_the_time_begins_anew_with_the_next_attempt(launcher: subprocess.Popen[bytes], tmp_path: Path) -> None:
    watch = OutlivedLauncher(tmp_path, lambda: [launcher.pid])
    report(tmp_path)
    watch.look()
    (tmp_path / "failure_1.json").unlink()  # as before a restart
    watch.look()
    time.sleep(outlived.LINGER_S)
    report(tmp_path)
    watch.look()
    watch.look()
    assert launcher.poll() is None


def test_the_launcher_of_a_script_is_its_child_with_the_run_folder(tmp_path: Path) -> None:
    # One of the two programs has the folder among its words.
    script = 'sleep 600 & tail -f /dev/null "$0" & wait'
    with subprocess.Popen(["bash", "-c", script, str(tmp_path)]) as shell:
        end = time.monotonic() + 20
        while not (found := launchers_of(shell.pid, tmp_path)) and time.monotonic() < end:
            time.sleep(0.01)
        assert len(found) == 1
        assert launchers_of(shell.pid, tmp_path / "other") == []
        subprocess.run(["pkill", "-KILL", "-P", str(shell.pid)], check=True)
    assert launchers_of(shell.pid, tmp_path) == [], "of a script that is gone"


def test_the_launcher_of_a_job_script_is_killed_while_the_claim_is_held(
    launcher: subprocess.Popen[bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(job, "launchers_of", lambda _script, _folder: [launcher.pid])
    monkeypatch.setattr(signal, "signal", lambda *_: None)  # the tests keep their handlers
    reading, writing = os.pipe()
    report(tmp_path)

    def script() -> None:
        launcher.wait()
        os.close(writing)

    threading.Thread(target=script, daemon=True).start()
    with os.fdopen(reading) as stdin:
        monkeypatch.setattr(sys, "stdin", stdin)
        job.hold(tmp_path)
    assert launcher.returncode == -signal.SIGKILL


def test_run_kills_a_launcher_too(tmp_path: Path) -> None:
    report(tmp_path)
    command = ["sh", "-c", "sleep 600", str(tmp_path)]
    outcome = commands._run(command, {}, signal.SIGTERM, None)
    assert outcome.exit_status == 128 + signal.SIGKILL
