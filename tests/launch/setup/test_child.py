"""A command of set-up: its output, what a terminal shows of it, why it failed, and its end with all its processes."""

import itertools
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from configs.load import ROOT
from launch.setup import child
from launch.setup.child import Command, StageError, Stopwatch, explain
from launch.setup.packages import remedy


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


def _run(script: str, folder: Path, lock: int, watch: Stopwatch | None = None) -> None:
    command = Command(["sh", "-c", script], log=folder / "log", environment=dict(os.environ), lock=lock)
    try:
        command.wait(watch or _Watch())
    finally:
        command.stop()


_THEN = "then run ./run.sh again: it continues where it stopped"
_DISK = f"the disk is full; free some space, {_THEN}"
_MEMORY = "the compiler ran out of memory; close programs, or compile one file at a time: MAKEFLAGS=-j1 ./run.sh setup"
_CERTIFICATE = f"the package index's certificate is not trusted; point PIP_CERT at your site's certificates, {_THEN}"
_UNREACHED = (
    f"the package index could not be reached; check network, proxy and pip's settings (pip config list), {_THEN}; "
    "without a network take the wheels from a folder (docs/offline.md)"
)
_MPI = f"MPI was found, but programs cannot be compiled with it: {remedy('mpi')}; or take mpicxx off the PATH"
_CUDA = "the CUDA toolkit is not complete; install CUDA 11.8 with its headers and set CUDA_HOME"


@pytest.mark.parametrize(
    ("output", "cause"),
    [
        ("as: write error: No space left on device\nmake: *** Error 1", _DISK),
        ("c++: fatal error: Killed signal terminated program cc1plus", _MEMORY),
        ("ssl.SSLError: bad", _CERTIFICATE),
        ("NewConnectionError: Temporary failure in name resolution", _UNREACHED),
        ("mkdir: cannot create: Permission denied",
         f"a file could not be written; take ownership of this folder (chown -R), {_THEN}"),
        ("-- Could NOT find MPI (missing: MPI_CXX)", _MPI),
        ('CMake Error:\n Imported target "MPI::MPI_CXX" includes non-existent path', _MPI),
        ("fatal error: cuda_runtime.h: No such file", _CUDA),
        ("libcuda.so.1: cannot open shared object",
         "no NVIDIA driver library; install the driver, or the CUDA toolkit with its stubs"),
        ("Illegal instruction (core dumped)",
         "this CPU lacks AVX, FMA or F16C, which Horovod is built with; use a newer machine"),
        ("x.cc:3:10: fatal error: zlib.h: No such file or directory",
         "the header zlib.h is missing; install the package that has it"),
        ("#error -- unsupported GNU version!",
         "the compiler is too new for this CUDA; set CXX to an older one (g++-11)"),
        ("  a.cc:1: error: expected ';'\n  make[2]: *** [x.o] Error 1\n  gmake: *** [all] Error 2\n"
         "  subprocess.CalledProcessError: Command 'cmake' returned 2: error\n  ERROR: Failed building wheel for x\n"
         "  Building wheel for x (setup.py): finished with status 'error'\n"
         "ERROR: Failed to build one or more wheels\n", "a.cc:1: error: expected ';'"),
        ("  Preparing editable metadata (pyproject.toml): finished with status 'error'\n  RuntimeError: no home\n"
         "  note: This error originates from a subprocess, and is likely not a problem with pip.\n"
         "error: metadata-generation-failed\n! Encountered error while generating package metadata.\n",
         "RuntimeError: no home"),
        ("c++ -c /b/error.cc\n  /b/common.h:3:18: error: no such 'name'\n/b/a.h:9: error: cascade\nmaking error.cc.o\n"
         "  error: subprocess-exited-with-error\n  full command: python -u -c '\n  exec(compile('\"'\"''\n"
         "  # This is <pip-setuptools-caller> -- a caller\n  print(\n    \"ERROR: Can not execute `setup.py`\"\n  )\n"
         "  '' % ('/x/setup.py',), \"<pip-setuptools-caller>\", \"exec\"))' bdist_wheel\n",
         "common.h:3:18: error: no such 'name'"),
        ("cmake: Error: no ninja\n  full command: python -c '\n  exec(compile('\"'\"''\n  # <pip-setuptools-caller>\n"
         "    \"ERROR: Can not execute `setup.py`\"\n  '' % ('s.py',), \"<pip-setuptools-caller>\", \"exec\"))' x\n",
         "cmake: Error: no ninja"),
        ("one\nERROR: Failed to build x\nlast", "ERROR: Failed to build x"),
        ("one\nlast" + "t" * 300, "last" + "t" * 196),
        ("\n", "the command printed nothing"),
    ],
)  # fmt: skip
def test_a_failure_is_explained_in_one_line(output: str, cause: str) -> None:
    assert explain(output, {}) == cause


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
    assert str(failure.value) == f"{cause}\n       all of the output: {tmp_path}/log"


@pytest.mark.usefixtures("typed")
def test_a_command_holds_the_lock_reads_nothing_and_adds_to_its_log(tmp_path: Path, lock: int) -> None:
    _run(f"test /proc/self/fd/{lock} -ef '{tmp_path}/lock' && cat && echo one", tmp_path, lock)
    _run("echo two >&2", tmp_path, lock)
    assert (tmp_path / "log").read_text(encoding="utf-8") == "one\ntwo\n"


@pytest.mark.parametrize(("script", "is_over"), [("echo made; echo ready; sleep 60", False), ("exit 3", True)])
def test_waiting_for_a_word_of_a_command_ends_with_the_word_or_the_command(
    script: str, is_over: bool, tmp_path: Path, lock: int
) -> None:
    command = Command(["sh", "-c", script], log=tmp_path / "log", environment=dict(os.environ), lock=lock)
    try:
        command.wait(_Watch(), until="made\nready")
        assert ("ready" in (tmp_path / "log").read_text(encoding="utf-8")) != is_over
        if is_over:
            with pytest.raises(StageError):
                command.wait(_Watch())
    finally:
        command.stop()


def _is_alive(pid: str) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def _wait_for_the_end_of(pids: list[str]) -> None:
    end_s = time.monotonic() + 30  # they sleep for 60 s; a killed process may take a while until it is dead
    while any(map(_is_alive, pids)):
        assert time.monotonic() < end_s
        time.sleep(0.01)


def test_what_a_command_left_running_is_ended_with_it(tmp_path: Path, lock: int) -> None:
    _run(f"sleep 60 & echo $! >{tmp_path}/pid", tmp_path, lock)
    _wait_for_the_end_of((tmp_path / "pid").read_text(encoding="utf-8").split())


def test_a_command_may_tidy_up_before_it_ends(tmp_path: Path, lock: int) -> None:
    script = f"trap 'sleep 0.1; touch {tmp_path}/tidy; exit' TERM; echo ready; while :; do sleep 0.02; done"
    command = Command(["sh", "-c", script], log=tmp_path / "log", environment=dict(os.environ), lock=lock)
    command.wait(_Watch(), until="ready")
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
    stopped = subprocess.Popen([sys.executable, "-c", code], stderr=subprocess.DEVNULL)
    while not (pids.exists() and len(pids.read_text().split()) == 2):
        assert stopped.poll() is None
        time.sleep(0.02)
    stopped.send_signal(signal.SIGINT)
    stopped.wait()
    _wait_for_the_end_of(pids.read_text().split())


def test_a_line_of_a_log_has_title_and_seconds_alone(capsys: pytest.CaptureFixture[str]) -> None:
    watch = Stopwatch("[1/2] title: more")
    watch.tick("not on a terminal")
    watch.end("not done, ")
    assert capsys.readouterr().err == "setup: [1/2] title: more ... not done, 0 s\n"


def test_a_terminal_gets_a_line_at_most_twice_a_second_and_never_a_longer_one(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    now = itertools.count(100.0, 0.125)
    monkeypatch.setattr(child, "time", SimpleNamespace(monotonic=lambda: next(now)))
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", "40")
    watch = Stopwatch("[1/2] title: more")
    for number in range(9):
        watch.tick(f"{number} " + 60 * "x")
    first, *drawn = capsys.readouterr().err.split("\r\x1b[K")
    assert first == "setup: [1/2] title: more ..."
    assert [line[:30] for line in drawn] == [f"setup: [1/2] title ... {s} s  {n} " for s, n in ((0, 0), (1, 4), (1, 8))]
    assert {len(line) for line in drawn} == {39}
    watch.end()
    assert capsys.readouterr().err == "\r\x1b[Ksetup: [1/2] title: more ... 1 s\n"
