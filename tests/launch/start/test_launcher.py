"""A launcher that waits for ranks that are gone is killed; one that may still have work to do is not."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest

from configs.load import ROOT
from launch.start import launcher as launcher_module
from launch.start.launcher import OutlivedLauncher, kill_launcher_of, run_launcher
from launch.start.local import Outcome

REPORT = {"rank": 1, "status": 137}
NO_END = {
    "another rank is told to stop": json.dumps({"rank": 1, "status": 75}),
    "a report that is being written": '{"rank": 1, "sta',
    "a report of something else": "[]",
}


@pytest.fixture(autouse=True)
def fast(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launcher_module, "LINGER_S", 0.3)
    monkeypatch.setattr(launcher_module, "_LOOK_S", 0.0)


@pytest.fixture
def launcher() -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen(["sleep", "600"]) as process:
        yield process
        process.kill()


def report(folder: Path, text: str = json.dumps(REPORT), rank: int = 1) -> None:
    (folder / f"failure_{rank}.json").write_text(text, encoding="utf-8")


def _kill(launcher: subprocess.Popen[bytes]) -> bool:
    launcher.kill()
    return True


def _look(folder: Path, launcher: subprocess.Popen[bytes], seconds: float) -> int | None:
    """Look for so long as a launcher's parent does; return the launcher's status."""
    watch = OutlivedLauncher(folder, partial(_kill, launcher))
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
    assert time.monotonic() - begin > launcher_module.LINGER_S
    assert "after a rank had failed, and was killed" in capsys.readouterr().err


@pytest.mark.medium
@pytest.mark.parametrize("text", NO_END.values(), ids=NO_END)
def test_a_launcher_whose_ranks_may_go_on_is_left_alone(
    text: str, launcher: subprocess.Popen[bytes], tmp_path: Path
) -> None:
    report(tmp_path, text)
    assert _look(tmp_path, launcher, 3 * launcher_module.LINGER_S) is None


def test_the_time_begins_anew_with_the_next_attempt(tmp_path: Path) -> None:
    kills: list[str] = []

    def kill() -> bool:
        kills.append("the launcher")
        return True

    watch = OutlivedLauncher(tmp_path, kill)
    report(tmp_path)
    watch.look()
    (tmp_path / "failure_1.json").unlink()  # as before a restart
    watch.look()
    time.sleep(launcher_module.LINGER_S)
    report(tmp_path)
    watch.look()
    watch.look()
    assert kills == []


def _children_of(process: int) -> list[str]:
    numbers = Path(f"/proc/{process}/task/{process}/children").read_text().split()
    return [Path(f"/proc/{each}/cmdline").read_text() for each in numbers]


def test_what_a_script_has_started_for_a_run_is_killed_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("SLURM_JOB_ID", raising=False)
    # The status of the script tells which of its two programs is the first to end.
    script = 'sleep 60 & other=$!; "$@" & wait -n -p ended; kill $other; [[ $ended = $! ]]'
    launcher = [sys.executable, "-c", "import time; time.sleep(60)", str(tmp_path)]
    with subprocess.Popen(["bash", "-c", script, "script", *launcher]) as shell:
        end = time.monotonic() + 20
        # Until it has become its program, a child has the command line of the script, which names the folder too;
        # while it becomes it, it has none.
        while sorted(each.split("\0")[0] for each in _children_of(shell.pid)) != sorted(["sleep", sys.executable]):
            assert time.monotonic() < end
            time.sleep(0.01)
        assert not kill_launcher_of(shell.pid, tmp_path / "other")
        numbers = Path(f"/proc/{shell.pid}/task/{shell.pid}/children").read_text().split()
        (found,) = [int(each) for each in numbers if str(tmp_path) in Path(f"/proc/{each}/cmdline").read_text()]
        with monkeypatch.context() as as_the_launcher:
            as_the_launcher.setattr("os.getpid", lambda: found)
            assert not kill_launcher_of(shell.pid, tmp_path), "who asks is another child of the script"
        while not kill_launcher_of(shell.pid, tmp_path):
            assert time.monotonic() < end
            time.sleep(0.01)
        assert shell.wait(20) == 0
    assert not kill_launcher_of(shell.pid, tmp_path), "a script that is gone has no launcher"


@pytest.mark.parametrize(
    ("job_number", "squeue", "killed"),
    [
        ("77", "echo 77.batch 77.extern 77.0 77.1", "77.0 77.1\n"),
        ("77", "echo 77.batch", ""),
        ("77", "echo error >&2; exit 1", ""),
        (None, "echo 77.0", ""),
    ],
)
def test_the_steps_of_a_slurm_job_are_killed_with_srun_and_the_job_is_not(
    job_number: str | None, squeue: str, killed: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, line in (("squeue", squeue), ("scancel", f'echo "$*" >>{tmp_path}/killed')):
        (tmp_path / name).write_text(f'#!/bin/sh\necho "{name} $*" >>{tmp_path}/asked\n{line}\n', encoding="utf-8")
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    monkeypatch.delenv("SLURM_JOB_ID", raising=False)
    if job_number:
        monkeypatch.setenv("SLURM_JOB_ID", job_number)
    launcher = [sys.executable, "-c", "import time; time.sleep(600)", str(tmp_path)]
    with subprocess.Popen(["bash", "-c", '"$@" & wait $!', "script", *launcher]) as shell:
        end = time.monotonic() + 20
        while not kill_launcher_of(shell.pid, tmp_path):
            assert time.monotonic() < end
            time.sleep(0.01)
        shell.wait(20)
    asked = (tmp_path / "asked").read_text(encoding="utf-8") if job_number else ""
    assert asked.startswith("squeue --noheader --steps --jobs=77 --format=%i\n" if job_number else "")
    assert ((tmp_path / "killed").read_text(encoding="utf-8") if killed else "") == killed
    assert (tmp_path / "killed").exists() == bool(killed), "without a step's number, scancel ends the job itself"


def test_a_slurm_that_does_not_answer_keeps_no_launcher_alive(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "squeue").write_text("#!/bin/sh\nexec sleep 60\n", encoding="utf-8")
    (tmp_path / "squeue").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    monkeypatch.setattr(launcher_module, "_PATIENCE_S", 0.05)
    launcher = [sys.executable, "-c", "import time; time.sleep(600)", str(tmp_path)]
    with subprocess.Popen(["bash", "-c", '"$@" & wait $!; exit 5', "script", *launcher]) as shell:
        end = time.monotonic() + 20
        while not kill_launcher_of(shell.pid, tmp_path):
            assert time.monotonic() < end
            time.sleep(0.01)
        assert shell.wait(20) == 5


def test_a_launcher_that_this_program_started_is_killed_too(tmp_path: Path) -> None:
    report(tmp_path)
    command = ["sh", "-c", "sleep 600", str(tmp_path)]
    outcome = run_launcher(command, {}, signal.SIGTERM, None)
    assert outcome.exit_status == 128 + signal.SIGKILL


def test_a_run_folder_on_a_file_server_is_looked_at_once_in_a_while(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock_s = [100.0]
    looks: list[float] = []

    class Folder:
        def glob(self, pattern: str) -> list[Path]:
            assert pattern == "failure_*.json"
            looks.append(clock_s[0])
            return []

    monkeypatch.setattr(launcher_module, "_LOOK_S", 1.0)
    monkeypatch.setattr(launcher_module, "time", SimpleNamespace(monotonic=lambda: clock_s[0]))
    watch = OutlivedLauncher(Folder(), lambda: True)  # type: ignore[arg-type]
    for now_s in (100.0, 100.5, 100.9, 101.0, 101.9, 103.0):
        clock_s[0] = now_s
        watch.look()
    assert looks == [100.0, 101.0, 103.0]


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
script = "for n in $(seq 200); do printf '%s\\r' $n; printf '%s\\n' $n >&2; sleep 0.002; done; exit 7"
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
    assert errors == "".join(f"{number}\n" for number in range(1, 201))
    if is_read:
        assert os.read(receives, 1 << 16).decode() == "".join(f"{number}\r" for number in range(1, 201))
        os.close(receives)
