"""What a failing rank leaves behind: whose fault it was, where, and with which status."""

import errno
import json
import signal
import time
from pathlib import Path
from typing import Any

import pytest

from configs.errors import UserError
from logs.disk import explain_disk_errors
from train.comm.communicator import RendezvousTimeout
from train.comm.machine_ranks import PeerLost
from train.engine.init import RanksDiffer, require_equal
from train.loop import RunFailed
from train.rank.failure import is_second_hand, record_failure
from train.rank.identity import Identity
from train.rank.signals import RunStopped, Stopped
from train.rank.watchdog import StoodStill

THIRD = Identity(rank=3, world_size=8, local_rank=1, local_size=2, host="node1", launcher="Horovod")


def _recorded(folder: Path, error: BaseException, status: int = 1) -> dict[str, Any]:
    """Let the rank record a failure, and return its report."""
    record_failure(folder, THIRD, error, status)
    row: dict[str, Any] = json.loads((folder / "failure_3.json").read_text(encoding="utf-8"))
    return row


@pytest.mark.parametrize(
    ("error", "second_hand"),
    [
        (OSError("record 7 is torn"), False),
        (RuntimeError("Horovod has been shut down. This was caused by an exception on one of the ranks"), True),
        (RuntimeError("[/gloo/transport/tcp/pair.cc:598] Connection closed by peer [127.0.0.1]:2"), True),
        (RuntimeError("Read error [127.0.0.1]:2: Connection reset by peer"), True),
        (RuntimeError("ncclRemoteError: remote process exited or there was a network error"), True),
        (UserError("train.rec: cannot be read: Connection reset by peer"), False),
        (RendezvousTimeout(300), True),
        (RuntimeError('Traceback (most recent call last):\n  File "Read error [127.0.0.1]", line 53995'), True),
        (PeerLost("rank 2"), True),
        (RuntimeError("[/gloo/transport/tcp/pair.cc:598] timed out"), True),
        (StoodStill("no progress", 5, waits=True), True),
        (StoodStill("no progress", 5, waits=False), False),
        (Stopped(signal.SIGTERM), True),
        (RunStopped(40), False),
    ],
)
def test_only_what_another_rank_caused_is_second_hand(error: BaseException, second_hand: bool) -> None:
    assert is_second_hand(error) is second_hand


def test_a_file_server_that_resets_its_connection_in_mid_run_is_no_other_rank(tmp_path: Path) -> None:
    with pytest.raises(UserError) as caught, explain_disk_errors(tmp_path / "result_0.txt"):
        raise ConnectionResetError(errno.ECONNRESET, "Connection reset by peer")
    with pytest.raises(RunFailed) as failed:
        raise RunFailed(9, caught.value) from caught.value
    assert _recorded(tmp_path, failed.value)["second_hand"] is False


def test_the_traceback_of_a_library_is_cut_to_its_last_line(tmp_path: Path) -> None:
    text = 'MXNetError: Traceback (most recent call last):\n  File "../engine.cc", line 51\nMXNetError: no Engine X'
    assert _recorded(tmp_path, RuntimeError(text))["message"] == "MXNetError: no Engine X"


def test_a_failure_is_on_the_disk_in_one_line_with_rank_host_step_and_status(tmp_path: Path) -> None:
    before = time.time()
    row = _recorded(tmp_path, StoodStill("no progress\n for 10 s,   standing", 41, waits=True))
    assert before <= row.pop("time") <= time.time()
    assert row == {
        "rank": 3, "host": "node1", "step": 41, "message": "no progress for 10 s, standing", "second_hand": True,
        "waited": True, "status": 1, "suspects": None,
    }  # fmt: skip
    assert _recorded(tmp_path, OSError("x" * 5000), 75)["step"] == 41, "the first report stays"
    (tmp_path / "failure_3.json").unlink()
    row = _recorded(tmp_path, OSError("x" * 5000), 75)
    assert (row["step"], len(row["message"]), row["waited"], row["status"]) == (None, 2000, False, 75)


@pytest.mark.parametrize(("checksums", "odd"), [([7, 7, 9, 7], [2]), ([7, 9], []), ([7, 9, 7, 9], [])])
def test_a_failed_comparison_reports_the_ranks_that_differ_from_most(
    checksums: list[int], odd: list[int], tmp_path: Path
) -> None:
    with pytest.raises(RanksDiffer) as caught:
        require_equal(checksums, "after the run")
    assert _recorded(tmp_path, RunFailed(9, caught.value))["suspects"] == odd


@pytest.mark.parametrize(
    ("error", "remedy"),
    [
        (OSError("/site/libstdc++.so.6: file too short"), "(ulimit -v, ulimit -d)"),
        (ImportError("libdali.so: failed to map segment from shared object"), "(ulimit -v, ulimit -d)"),
        (ImportError("No module named 'yaml'"), "put it back, or rm -r .venv and ./run.sh setup anew"),
    ],
)
def test_a_library_that_does_not_load_is_reported_with_the_remedy(
    error: Exception, remedy: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(tmp_path / "site")
    message = _recorded(tmp_path, error)["message"]
    assert message.endswith(remedy)
    assert (f"{tmp_path}/site is gone" in message) is ("yaml" in message)


def test_a_folder_that_is_gone_raises_nothing(tmp_path: Path) -> None:
    record_failure(tmp_path / "gone", THIRD, OSError("x"))
