"""A rank's process: whatever it is doing when it is told to stop, it says so."""

import json
import logging
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import train.__main__ as program
from configs.errors import UserError
from configs.load import ROOT, load_both
from configs.registry import has_engine
from launch.run import open_run
from tests.programs import python
from train import session
from train.comm.machine_ranks import PeerLost
from train.rank.identity import Identity
from train.rank.signals import RunStopped, Stopped, StopSignals

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
    done = python("-c", _TOLD_WHILE_IMPORTING.format(raised=raised), str(tmp_path))
    assert (done.returncode, done.stderr) == (75, "")
    row = json.loads((tmp_path / "failure_0.json").read_text())
    assert (row["message"], row["status"], row["second_hand"]) == ("stopped by SIGTERM", 75, True)


@pytest.mark.ranks
def test_a_rank_that_crashes_says_where(tmp_path: Path) -> None:
    program = _TOLD_WHILE_IMPORTING.replace("SIGTERM", "SIGSEGV").format(raised="error")
    done = python("-c", program, str(tmp_path))
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


_WITHOUT_TORCH = """
import sys
sys.modules["torch"] = None  # as if it were not installed
from train.__main__ import main
sys.exit(main(sys.argv[1:]))
"""


@pytest.mark.ranks
def test_a_rank_whose_image_lacks_the_engine_of_the_run_refuses_and_says_which_one_is_there(tmp_path: Path) -> None:
    recipe, cluster = load_both("digits", "laptop", ["cluster.engine.name=torch", "cluster.ranks_per_node=1"])
    open_run(recipe, cluster, tmp_path / "run")
    done = python("-c", _WITHOUT_TORCH, str(tmp_path / "run"))
    found = "mxnet" if has_engine("mxnet") else "none"
    assert done.returncode == 2, done.stderr
    assert done.stderr.startswith(f"error: engine.name: got 'torch', allowed: {found} in this environment; ")


@pytest.fixture
def ended(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Any]]:
    """Run a rank's main in this process: its end is an exception; return the limit of the end and its status."""
    told: list[Any] = []
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1)}

    def leave(status: int) -> None:
        told.append(status)
        raise SystemExit(status)

    monkeypatch.setattr(os, "_exit", leave)
    monkeypatch.setattr(logging, "shutdown", lambda: None)
    monkeypatch.setattr(program, "faulthandler", SimpleNamespace(enable=list))
    monkeypatch.setattr(program, "end_within", told.append)
    monkeypatch.setattr(program, "die_with_parent", lambda: None)
    monkeypatch.setenv("HOROVOD_RANK", "1")
    monkeypatch.setenv("HOROVOD_SIZE", "4")
    monkeypatch.setenv("HOROVOD_LOCAL_RANK", "1")
    yield told
    for number, handler in before.items():
        signal.signal(number, handler)


def _end(folder: Path, monkeypatch: pytest.MonkeyPatch, error: BaseException, *, begun: bool = False) -> dict[str, Any]:
    """Run a rank whose session raises an error; return its failure report, empty if there is none."""

    def run(_folder: Path, _identity: Identity, _ledger: Any, signals: StopSignals) -> int:
        if begun:
            signals.wait_for_step()
        raise error

    monkeypatch.setattr(session, "run", run)
    with pytest.raises(SystemExit):
        program.main([str(folder)])
    reports = list(folder.glob("failure_*"))
    return json.loads(reports[0].read_text(encoding="utf-8")) if reports else {}


@pytest.mark.parametrize(
    ("error", "begun", "status"),
    [
        (UserError("no such key"), False, 2),
        (UserError("the disk is full"), True, 1),
        (RunStopped(40), True, 75),
        (Stopped(signal.SIGTERM), False, 75),
        (Stopped(signal.SIGINT), True, 130),
        (OSError("record 7 is torn"), True, 1),
    ],
    ids=["user", "full disk", "stopped", "notice", "Ctrl-C", "failed"],
)
def test_each_way_to_end_has_its_status_and_its_report(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ended: list[Any], error: BaseException, begun: bool, status: int
) -> None:
    row = _end(tmp_path, monkeypatch, error, begun=begun)
    assert ended == [10, status], "the end itself has a limit"
    has_report = not isinstance(error, RunStopped)
    assert row.get("status") == (status if has_report else None)
    assert not row or (row["rank"], row["message"]) == (1, str(error))


def test_rank_0_alone_reports_that_a_run_was_told_to_stop_and_the_first_of_a_host_what_its_user_did(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ended: list[Any], capsys: pytest.CaptureFixture[str]
) -> None:
    _end(tmp_path, monkeypatch, UserError("no such key"))
    assert capsys.readouterr().err == ""
    monkeypatch.setenv("HOROVOD_LOCAL_RANK", "0")
    _end(tmp_path, monkeypatch, UserError("no such key"))
    assert capsys.readouterr().err == "error: no such key\n"
    (folder := tmp_path / "resumed").mkdir()
    (folder / "resume-from").touch()
    assert _end(folder, monkeypatch, UserError("no such key"))["message"] == "no such key"
    assert capsys.readouterr().err == "", "the launcher tells it"
    monkeypatch.setenv("HOROVOD_RANK", "0")
    row = _end(tmp_path, monkeypatch, RunStopped(40), begun=True)
    assert (row["rank"], row["step"], row["status"]) == (0, 40, 75)
    assert ended[1::2] == [2, 2, 2, 75]


@pytest.mark.usefixtures("ended")
@pytest.mark.parametrize(
    ("error", "level", "words"),
    [(PeerLost("rank 2"), "WARNING", "ends, because another rank failed"), (OSError("torn"), "ERROR", "failed: torn")],
)
def test_a_rank_that_fails_with_another_one_blames_nobody(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    error: Exception,
    level: str,
    words: str,
) -> None:
    row = _end(tmp_path, monkeypatch, error)
    assert [(each.levelname, each.message) for each in caplog.records] == [(level, words)]
    assert row["second_hand"] == (level == "WARNING")
