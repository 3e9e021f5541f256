"""Runs under limits of their user or job: what does not fit is refused, else the end of a run names the limit."""

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from configs.load import ROOT
from tests.programs import control_group, run_program
from tests.runs import train_command

INSIDE = ["bash", "-c", 'echo $$ >"$0"/cgroup.procs && exec "$@"']
TAKE_ALL = "held = []\nwhile True: held.append(bytearray(b'1') * (4 << 20))"


@pytest.fixture
def group() -> Iterator[Path]:
    """Make a control group for memory, with a limit that nobody reaches."""
    with control_group("memory", "memory.limit_in_bytes", 1 << 40) as path:
        yield path


def _limit(group: Path, size_bytes: int) -> None:
    (group / "memory.limit_in_bytes").write_text(str(size_bytes))


@pytest.mark.medium
def test_a_run_that_its_control_group_cannot_hold_is_refused_before_ranks_start(group: Path, tmp_path: Path) -> None:
    _limit(group, 150 << 20)
    done = run_program(*INSIDE, str(group), *train_command(tmp_path / "run"))
    assert done.returncode == 2
    assert f"and the control group {group} (limit 0.16 GB) has 0.1" in done.stderr
    assert not (tmp_path / "run").exists()


@pytest.mark.ranks
@pytest.mark.slow
def test_the_doctor_tells_the_memory_of_its_group_and_that_the_kernel_killed_its_ranks(
    group: Path, tmp_path: Path
) -> None:
    _limit(group, 150 << 20)
    command = [*INSIDE, str(group), sys.executable, "-m", "launch.doctor", "--recipe", "digits"]
    done = run_program(*command, "--set", f"cluster.paths.runs={tmp_path}")
    assert done.returncode == 1
    assert re.search(rf"GB free \({group} has 0\.16 GB\), 0\.[57] GB needed for 2 ranks", done.stdout)
    assert f"the kernel killed it because memory ran out ({group}, limit 0.16 GB); raise the limit" in done.stdout


KILLED = "import os; os.kill(os.getpid(), 9)"


@pytest.mark.medium
@pytest.mark.parametrize("code", [TAKE_ALL, KILLED])
def test_the_script_around_a_rank_tells_the_kernel_s_kill_from_anybody_else_s(
    group: Path, tmp_path: Path, code: str
) -> None:
    _limit(group, 100 << 20)
    (tmp_path / "config.yaml").touch()
    script = [str(ROOT / "launch/supervise_rank.sh"), "3", "alpha", sys.executable, "-c", code, str(tmp_path)]
    done = subprocess.run([*INSIDE, str(group), *script], stderr=subprocess.DEVNULL, check=False)
    assert done.returncode == 137
    report = json.loads((tmp_path / "failure_3.json").read_text(encoding="utf-8"))
    assert (report["rank"], report["host"], report["killed_by"]) == (3, "alpha", 9)
    assert report.get("ran_out_of_memory") == (f"{group}, limit 104 MB" if code == TAKE_ALL else None)


def _told(limit: str, folder: Path) -> tuple[int, str]:
    """Run under a limit; return the exit status and what is told."""
    settings = ("run.epochs=200", "run.target_top1=0.9999", "cluster.ranks_per_node=1")
    command = train_command(folder / "run", *settings)
    done = run_program("bash", "-c", f'{limit} && exec "$@"', "-", *command, timeout=90)
    assert "Traceback" not in done.stderr
    return done.returncode, done.stderr + done.stdout


@pytest.mark.ranks
@pytest.mark.medium
@pytest.mark.parametrize(
    ("limit", "status", "words"),
    [
        ("ulimit -v 1500000", 1, "limits on memory (ulimit -v, ulimit -d)\n"),
        ("ulimit -t 3", 1, "perhaps its processor time was used up; raise the limit (ulimit -t)"),
        ("ulimit -n 8", 2, "error: this process may open no more files; raise the limit (ulimit -n)\n"),
    ],
)
def test_a_limit_of_the_user_is_named(limit: str, status: int, words: str, tmp_path: Path) -> None:
    found, told = _told(limit, tmp_path)
    assert found == status
    assert words in told


@pytest.mark.ranks
@pytest.mark.medium
def test_a_limit_on_threads_is_named_and_not_taken_for_damaged_images(tmp_path: Path) -> None:
    with control_group("pids", "pids.max", 12) as group:
        status, told = _told(f"echo $$ >{group}/cgroup.procs", tmp_path)
    assert (status, "damaged" in told) == (1, False)
    assert "raise the limit on processes and threads (ulimit -u, or pids.max of the control group)" in told
