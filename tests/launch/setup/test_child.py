"""A command of set-up: its output, why it failed, and its end with all its processes."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from configs.load import ROOT
from launch.setup.child import Command, StageError, explain
from tests.programs import is_running


@pytest.fixture
def lock(tmp_path: Path) -> Iterator[int]:
    with (tmp_path / "lock").open("w") as file:
        yield file.fileno()


def _command(script: str, folder: Path, lock: int) -> Command:
    return Command(["sh", "-c", script], log=folder / "log", environment=dict(os.environ), lock=lock)


def _run(script: str, folder: Path, lock: int) -> None:
    command = _command(script, folder, lock)
    try:
        print("setup", file=sys.stderr, flush=True)
        command.wait()
    finally:
        command.stop()


@pytest.mark.parametrize(
    ("output", "told"),
    [
        ("  error: subprocess-exited-with-error\n  /b/a.cc:1: error: expected ';'\n  make[2]: *** [x.o] Error 1\n"
         "subprocess.CalledProcessError: Command 'cmake' returned 2: error\n  ERROR: Failed building wheel for x\n",
         "/b/a.cc:1: error: expected ';'"),
        ("c++ -c /b/error.cc\n  /b/common.h:3:18: error: no such 'name'\n/b/a.h:9: error: cascade\nmaking error.cc.o\n"
         "  error: subprocess-exited-with-error\n    \"ERROR: Can not execute `setup.py`\"\n",
         "/b/common.h:3:18: error: no such 'name'"),
        ("  Preparing editable metadata (pyproject.toml): finished with status 'error'\n  RuntimeError: no home\n"
         "error: metadata-generation-failed\n", "RuntimeError: no home"),
        ("ERROR: Exception:\nTraceback (most recent call last):\n    raise ReadTimeoutError(self._pool, None)\n"
         "urllib3.ReadTimeoutError: Read timed out.\n", "urllib3.ReadTimeoutError: Read timed out."),
        ("one\nlast", "last"),
        ("\n", "the command printed nothing"),
    ],
)  # fmt: skip
def test_the_first_error_is_told_because_others_follow_from_it(output: str, told: str) -> None:
    assert explain(output) == told


@pytest.mark.parametrize(
    ("script", "cause"),
    [
        ("echo one; echo 'error: two' >&2; printf '\\377'; exit 3", "error: two"),
        ("kill -9 $$", "the command was killed by SIGKILL; run ./run.sh again: it continues where it stopped"),
    ],
)
def test_a_failure_names_its_cause_and_the_log(script: str, cause: str, tmp_path: Path, lock: int) -> None:
    with pytest.raises(StageError) as failure:
        _run(script, tmp_path, lock)
    told, log = str(failure.value).splitlines()
    assert told.startswith(cause)
    assert log == f"       all of the output: {tmp_path}/log"


@pytest.mark.usefixtures("typed")
def test_a_command_holds_the_lock_reads_nothing_and_adds_to_its_log(tmp_path: Path, lock: int) -> None:
    _run(f"test /proc/self/fd/{lock} -ef '{tmp_path}/lock' && cat && echo one", tmp_path, lock)
    _run("echo two >&2", tmp_path, lock)
    assert (tmp_path / "log").read_text(encoding="utf-8") == "one\ntwo\n"


def test_a_command_may_tidy_up_before_it_ends(tmp_path: Path, lock: int) -> None:
    script = f"trap 'sleep 0.1; touch {tmp_path}/tidy; exit' TERM; echo ready; while :; do sleep 0.02; done"
    command = _command(script, tmp_path, lock)
    command.wait(until="ready")
    command.stop()
    assert (tmp_path / "tidy").exists()
    command.stop()


@pytest.mark.ranks
def test_a_stopped_set_up_leaves_no_process_behind_not_even_one_that_ignores_its_end(tmp_path: Path) -> None:
    pids = tmp_path / "pids"
    script = f"trap '' TERM; sleep 900 & echo $! >{pids}; echo $$ >>{pids}; wait; sleep 900"
    code = (
        f"import sys; sys.path.insert(0, {str(ROOT)!r}); from pathlib import Path; "
        "from tests.launch.setup.test_child import _run; "
        f"_run({script!r}, Path({str(tmp_path)!r}), open({str(tmp_path / 'lock')!r}, 'w').fileno())"
    )
    with subprocess.Popen([sys.executable, "-c", code], stderr=subprocess.PIPE) as stopped:
        assert stopped.stderr is not None
        assert stopped.stderr.read(5) == b"setup", "it waits for the command now"
        while not (pids.exists() and len(pids.read_text().split()) == 2):
            assert stopped.poll() is None
            time.sleep(0.02)
        stopped.send_signal(signal.SIGINT)
    end_s = time.monotonic() + 30  # they sleep for longer; a killed process may take a while until it is dead
    while any(map(is_running, pids.read_text().split())):
        assert time.monotonic() < end_s
        time.sleep(0.01)
