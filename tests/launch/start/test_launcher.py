"""A launcher that waits for ranks that are gone is killed; one that may still have work to do is not."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

import pytest

from configs.load import ROOT
from launch.start import launcher as launcher_module
from launch.start.launcher import OutlivedLauncher, kill_launcher_of, run_launcher
from launch.start.local import Outcome
from tests.launch.stand_in import write_program

pytestmark = pytest.mark.medium

FAILED = json.dumps({"rank": 1, "status": 137})


@pytest.fixture
def killed_at(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[float]]:
    """Return the function that looks every half second from 100 s on, and returns when the launcher was killed.

    It writes or deletes a report after the look at each of the times that are given.
    """
    clock_s = [100.0]
    monkeypatch.setattr(launcher_module, "time", SimpleNamespace(monotonic=lambda: clock_s[0]))

    def look(reports: dict[float, str | None]) -> list[float]:
        kills: list[float] = []
        watch = OutlivedLauncher(tmp_path, lambda: kills.append(clock_s[0]) or True)  # type: ignore[func-returns-value]
        for clock_s[0] in (100 + 0.5 * number for number in range(50)):
            watch.look()
            if clock_s[0] in reports:
                path, text = tmp_path / "failure_1.json", reports[clock_s[0]]
                path.unlink() if text is None else path.write_text(text, encoding="utf-8")
            if kills:
                break
        return kills

    return look


@pytest.mark.parametrize(
    ("reports", "killed_s"),
    [
        # A run folder may be on a file server: the report is seen a second after the look before it.
        ({100.0: FAILED}, 115.0),
        ({100.0: json.dumps({"rank": 0, "status": 75})}, 115.0),
        ({100.0: FAILED, 110.0: None, 111.0: FAILED}, None),  # the next attempt has 13 s of its own
        ({100.0: json.dumps({"rank": 1, "status": 75})}, None),  # another rank is told to stop
        ({100.0: '{"rank": 1, "sta'}, None),
        ({100.0: "[]"}, None),
    ],
)
def test_a_launcher_that_outlives_a_failed_rank_by_thirteen_seconds_is_killed_and_no_other(
    reports: dict[float, str | None], killed_s: float | None, killed_at: Callable[..., list[float]],
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    assert killed_at(reports) == ([] if killed_s is None else [killed_s])
    told = "the launcher still ran 13 s after a rank had failed, and was killed\n"
    assert capsys.readouterr().err == ("" if killed_s is None else told)


@contextmanager
def _script(folder: Path, code: str) -> Iterator[tuple["subprocess.Popen[bytes]", int]]:
    """Run a script with a launcher of the run folder; yield the script, and the launcher once it is there."""
    launcher = [sys.executable, "-S", "-c", "import time; time.sleep(600)", str(folder)]
    with subprocess.Popen(["bash", "-c", code, "script", *launcher]) as shell:
        programs: dict[str, int] = {}
        end = time.monotonic() + 20
        # Until it has become its program, a child has the command line of the script, which names the folder too.
        while sys.executable not in programs or "bash" in programs:
            assert time.monotonic() < end
            children = Path(f"/proc/{shell.pid}/task/{shell.pid}/children").read_text().split()
            programs = {Path(f"/proc/{each}/cmdline").read_text().split("\0")[0]: int(each) for each in children}
        yield shell, programs[sys.executable]
        shell.wait(20)


def test_what_a_script_has_started_for_a_run_is_killed_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("SLURM_JOB_ID", raising=False)
    # The status of the script tells which of its two programs is the first to end.
    code = 'sleep 60 & other=$!; "$@" & wait -n -p ended; kill $other; [[ $ended = $! ]]'
    with _script(tmp_path, code) as (shell, launcher):
        assert not kill_launcher_of(shell.pid, tmp_path / "other")
        with monkeypatch.context() as as_the_launcher:
            as_the_launcher.setattr("os.getpid", lambda: launcher)
            assert not kill_launcher_of(shell.pid, tmp_path), "who asks is another child of the script"
        assert kill_launcher_of(shell.pid, tmp_path)
        assert shell.wait(20) == 0
    assert not kill_launcher_of(shell.pid, tmp_path), "a script that is gone has no launcher"


@pytest.mark.parametrize(
    ("job_number", "squeue", "killed"),
    [
        ("77", "echo 77.batch 77.extern 77.0 77.1", "77.0 77.1\n"),
        ("77", "echo 77.batch", ""),
        ("77", "echo error >&2; exit 1", ""),
        ("77", "exec sleep 60", ""),
        (None, "echo 77.0", ""),
    ],
)
def test_the_steps_of_a_slurm_job_are_killed_with_srun_and_the_job_is_not(
    job_number: str | None, squeue: str, killed: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, line in (("squeue", squeue), ("scancel", f'echo "$*" >>{tmp_path}/killed')):
        write_program(tmp_path / name, f'echo "$*" >>{tmp_path}/asked-{name}\n{line}')
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    monkeypatch.setenv("SLURM_JOB_ID", job_number or "")
    if "sleep" in squeue:
        monkeypatch.setattr(launcher_module, "ANSWER_S", 0.05)
    with _script(tmp_path, '"$@" & wait $!; exit 5') as (shell, _):
        assert kill_launcher_of(shell.pid, tmp_path)
        assert shell.wait(20) == 5
    if job_number and "sleep" not in squeue:
        asked = (tmp_path / "asked-squeue").read_text(encoding="utf-8")
        assert asked == "--noheader --steps --jobs=77 --format=%i\n"
    assert ((tmp_path / "killed").read_text(encoding="utf-8") if killed else "") == killed
    assert (tmp_path / "killed").exists() == bool(killed), "without a step's number, scancel ends the job itself"


def test_a_launcher_that_this_program_started_is_killed_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launcher_module, "LINGER_S", 0.3)
    (tmp_path / "failure_1.json").write_text(FAILED, encoding="utf-8")
    outcome = run_launcher(["sh", "-c", "sleep 600", str(tmp_path)], {}, signal.SIGTERM, None)
    assert outcome.exit_status == 128 + signal.SIGKILL


def test_a_launcher_that_does_not_heed_a_stop_is_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launcher_module, "STOP_S", 0.2)
    monkeypatch.setattr(launcher_module, "KILL_S", 0.2)
    script = "trap '' TERM USR1 INT; kill -TERM $PPID; while :; do sleep 1; done"
    outcome = run_launcher(["bash", "-c", script, str(tmp_path)], {}, signal.SIGUSR1, None)
    assert outcome == Outcome(128 + signal.SIGKILL, interrupted_by=signal.SIGTERM)


PASSES_ON = """
import signal, sys
from pathlib import Path
from configs.outputs import guard_outputs
from launch.start.launcher import run_launcher
guard_outputs()
script = "for n in $(seq 50); do printf '%s\\r' $n; printf '%s\\n' $n >&2; sleep 0.002; done; exit 7"
outcome = run_launcher(["bash", "-c", script, sys.argv[1]], {}, signal.SIGTERM, None)
Path(sys.argv[1], "status").write_text(str(outcome.exit_status))
"""


@pytest.mark.parametrize("is_read", [True, False])
def test_a_launcher_does_not_notice_whether_anybody_reads_the_pipe_behind_the_run(
    is_read: bool, tmp_path: Path
) -> None:
    receives, sends = os.pipe()
    if not is_read:
        os.close(receives)
    command = [sys.executable, "-c", PASSES_ON, str(tmp_path)]
    with subprocess.Popen(command, cwd=ROOT, stdout=sends, stderr=subprocess.PIPE) as process:
        os.close(sends)
        errors = process.communicate(timeout=60)[1].decode()
    assert (tmp_path / "status").read_text(encoding="utf-8") == "7"
    assert errors == "".join(f"{number}\n" for number in range(1, 51))
    if is_read:
        assert os.read(receives, 1 << 16).decode() == "".join(f"{number}\r" for number in range(1, 51))
        os.close(receives)
