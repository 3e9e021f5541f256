"""A rank's process: whatever it is doing when it is told to stop, it says so."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from configs.load import ROOT

_TOLD_WHILE_IMPORTING = """
import os, signal, sys
from importlib.abc import MetaPathFinder

class Tell(MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if name == "train.engine.build":
            try:
                os.kill(os.getpid(), signal.SIGTERM)
            except BaseException as error:
                raise {raised} from error

sys.meta_path.insert(0, Tell())
from train.__main__ import main
main(sys.argv[1:])
"""


@pytest.mark.ranks
@pytest.mark.parametrize("raised", ["error", "ImportError('initialization failed')"], ids=["Python", "pybind11"])
def test_a_rank_told_to_stop_while_it_imports_says_so(tmp_path: Path, raised: str) -> None:
    command = [sys.executable, "-c", _TOLD_WHILE_IMPORTING.format(raised=raised), str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (75, "")
    row = json.loads((tmp_path / "failure_0.json").read_text())
    assert (row["message"], row["status"], row["second_hand"]) == ("stopped by SIGTERM", 75, True)


@pytest.mark.ranks
def test_a_rank_that_crashes_says_where(tmp_path: Path) -> None:
    program = _TOLD_WHILE_IMPORTING.replace("SIGTERM", "SIGSEGV").format(raised="error")
    done = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path)], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == -signal.SIGSEGV
    assert done.stderr.startswith("Fatal Python error: Segmentation fault")
    assert "train/__main__.py" in done.stderr


_TOLD_AT_THE_END = """
import os, subprocess, sys
import train.session

def run(folder, identity, ledger, signals):
    signals.wait_for_step()
    subprocess.Popen(["bash", "-c", f"while kill -TERM {os.getpid()} 2>/dev/null; do :; done"])
    return 0

train.session.run = run
from train.__main__ import main
sys.exit(main(sys.argv[1:]))
"""


@pytest.mark.ranks
def test_a_rank_whose_run_is_over_ends_as_it_would_have_however_often_it_is_told_to_stop(tmp_path: Path) -> None:
    command = [sys.executable, "-c", _TOLD_AT_THE_END, str(tmp_path)]
    assert subprocess.run(command, cwd=ROOT, check=False).returncode == 0
    assert list(tmp_path.iterdir()) == []


_REFUSED = """
import sys
import train.session
from configs.errors import UserError

def run(folder, identity, ledger, signals):
    {before}
    raise UserError("the disk is full")

train.session.run = run
from train.__main__ import main
sys.exit(main(sys.argv[1:]))
"""


@pytest.mark.ranks
@pytest.mark.parametrize(
    ("before", "status", "told", "reports"),
    [
        ("pass", 2, "error: the disk is full\n", []),
        ("signals.wait_for_step()", 1, "failed: the disk is full\n", ["failure_0.json"]),
    ],
    ids=["before the run", "in the run"],
)
def test_an_error_of_the_user_refuses_a_run_that_has_not_begun_and_fails_one_that_has(
    tmp_path: Path, before: str, status: int, told: str, reports: list[str]
) -> None:
    command = [sys.executable, "-c", _REFUSED.format(before=before), str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (status, told)
    assert [path.name for path in tmp_path.iterdir()] == reports
