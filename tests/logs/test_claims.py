"""Claims on run folders: one owner, whatever the node; a dead owner's claim is taken over with a word."""

import fcntl
import json
import os
import queue
import re
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from configs.errors import UserError
from configs.load import ROOT
from logs import claims
from logs.claims import Claim, Claims


def _as_of_another_node(claim: Claim, *, age_s: float) -> None:
    """Change a claim into one of another node, which gave its last heartbeat some time ago."""
    claim.path.write_text(json.dumps({**claim.record(), "host": "beta", "boot": "another"}), encoding="utf-8")
    os.utime(claim.path, (time.time() - age_s,) * 2)


def _of_a_dead_process(folder: Path) -> Claim:
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE) as owner:
        claim = Claims(folder).take(pid=owner.pid)
        assert Claims(folder).holder()
        owner.kill()
    return claim


def _holder(folder: Path) -> str:
    return Claims(folder).holder() or ""


class Clock:
    """Time that passes only while somebody sleeps."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, then: Callable[[float], None] = lambda _: None) -> None:
        self.now_s, self.waits, self.then = 0.0, list[float](), then
        clocks = SimpleNamespace(monotonic=lambda: self.now_s, sleep=self.sleep, time=time.time)
        monkeypatch.setattr(claims, "time", clocks)

    def sleep(self, seconds: float) -> None:
        self.now_s += seconds
        self.waits.append(seconds)
        self.then(self.now_s)


def test_a_living_owner_is_named_and_a_released_claim_keeps_its_owner_and_frees_the_folder(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    claim = Claims(tmp_path).take()
    with pytest.raises(UserError, match=rf"a run is active in it: .* on .*, process {os.getpid()}, since .*; wait"):
        Claims(tmp_path).take()
    assert Claims(tmp_path).owned_by(os.getpid()) == claim
    owner = claim.record()
    claim.release()
    assert claim.record() == {**owner, "ended": claim.record()["ended"]}
    assert (Claims(tmp_path).holder(), Claims(tmp_path).owned_by(os.getpid())) == (None, None)
    assert Claims(tmp_path).take().path.name == "2.json"
    assert capsys.readouterr().err == "", "nothing is taken over from an owner that has ended"


def test_an_owner_on_this_node_that_has_ended_is_succeeded_at_once_with_a_word(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    claim = _of_a_dead_process(tmp_path)
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE) as owner:
        Claims(tmp_path).take(pid=owner.pid)
        assert f"process {claim.record()['pid']}, since" in capsys.readouterr().err
        assert Claims(tmp_path).holder() is not None
        owner.kill()
        os.waitid(os.P_PID, owner.pid, os.WEXITED | os.WNOWAIT)  # it has ended, and stays a zombie
        assert Claims(tmp_path).holder() is None


def test_the_claim_of_another_node_lasts_as_long_as_its_signs_of_life(tmp_path: Path) -> None:
    claim = Claims(tmp_path).take()
    ahead = f"s in the future; if it has ended, touch {claim.path}, and try again 60 s later"
    for age_s, words in ((-10, "heartbeat 0 s ago"), (-1e5, ahead), (claims.STALE_S - 10, "last heartbeat 5")):
        _as_of_another_node(claim, age_s=age_s)
        assert "on beta, process" in _holder(tmp_path)
        assert words in _holder(tmp_path)
    _as_of_another_node(claim, age_s=claims.STALE_S + 10)
    assert Claims(tmp_path).holder() is None
    assert not claim.is_lost()
    Claims(tmp_path).take()
    assert claim.is_lost()


def test_a_copy_of_a_folder_in_which_a_run_goes_on_is_soon_free_and_the_folder_is_not(tmp_path: Path) -> None:
    original, copy = tmp_path / "original", tmp_path / "copy"
    original.mkdir()
    claim = Claims(original).take()
    with Claims(original).held(print):
        shutil.copytree(original, copy)
        assert f"process {os.getpid()}" in _holder(copy)
        for file in (claim.path, copy / "claims" / "1.json"):
            os.utime(file, (time.time() - claims.STALE_S - 10,) * 2)
        assert _holder(copy) == ""
        assert f"process {os.getpid()}" in _holder(original), "its owner may be frozen"


@pytest.mark.medium
def test_ranks_that_outlive_their_launcher_keep_the_folder(tmp_path: Path) -> None:
    claim = _of_a_dead_process(tmp_path)
    code = (
        f"import sys, pathlib; from logs.claims import Claims\n"
        f"with Claims(pathlib.Path({str(tmp_path)!r})).held(print): print(1, flush=True), sys.stdin.read()"
    )
    rank = subprocess.Popen([sys.executable, "-c", code], cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert rank.stdout is not None
    assert rank.stdout.readline() == b"1\n"
    assert _holder(tmp_path).endswith(", whose ranks are still ending")
    _as_of_another_node(claim, age_s=claims.STALE_S + 10)
    assert "on beta, " in _holder(tmp_path), "the lock is seen from other nodes too"
    assert "whose ranks" not in _holder(tmp_path)
    rank.communicate(b"")
    assert Claims(tmp_path).holder() is None


def test_the_owner_gives_signs_of_life_and_learns_once_that_it_was_succeeded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(claims, "BEAT_S", 0.01)
    claim, lost = Claims(tmp_path).take(), queue.Queue[str]()
    _as_of_another_node(claim, age_s=1000)
    with Claims(tmp_path).held(lost.put):
        while claim.path.stat().st_mtime < time.time() - 100:
            time.sleep(0.01)
        written = tmp_path / "written"
        written.write_text('{"ended": "now"}', encoding="utf-8")
        written.rename(claim.path.with_name("2.json"))  # The owner may look at any moment.
        words = f"{tmp_path}: taken over by another run, because its heartbeat had stopped"
        assert lost.get(timeout=20) == words
        for thread in threading.enumerate():
            if thread.name == "claim":
                thread.join(20)
                assert not thread.is_alive()
    assert lost.empty()


def test_of_two_takers_that_find_a_folder_free_one_gets_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_folder, others = Path.mkdir, list[Claim]()

    def another_comes_first(path: Path, **options: bool) -> None:
        make_folder(path, **options)
        if not others:
            others.append(Claim(path / "other"))
            others.append(Claims(tmp_path).take())

    monkeypatch.setattr(Path, "mkdir", another_comes_first)
    words = "a run is active in it: another launcher has claimed it just now; wait for its end, or give another folder"
    with pytest.raises(UserError, match=rf"^{tmp_path}: {words}$"):
        Claims(tmp_path).take()
    assert Claims(tmp_path).newest() == others[-1]


def test_a_taker_waits_for_a_lost_node_until_its_claim_is_stale(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    claim = Claims(tmp_path).take()
    _as_of_another_node(claim, age_s=claims.STALE_S - 11)

    def look_11_s_later(now_s: float) -> None:
        if now_s > 11:
            os.utime(claim.path, (time.time() - claims.STALE_S - 1,) * 2)

    clock = Clock(monkeypatch, look_11_s_later)
    assert Claims(tmp_path).take(patience_s=80).path.name == "2.json"
    assert clock.waits == [claims.BEAT_S] * 3
    told = capsys.readouterr().err.splitlines()
    assert re.fullmatch(rf"{tmp_path}: claimed by .* on beta.*; waits for up to 80 s for its end", told[0])
    assert re.fullmatch(rf"{tmp_path}: takes over from .* on beta, .*, which is gone", told[1])


@pytest.mark.parametrize(("job", "is_taken"), [("7", True), ("8", False)])
def test_the_last_ranks_of_the_own_job_are_waited_for_though_they_give_signs_of_life(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], job: str, is_taken: bool
) -> None:
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    claim, ranks = _of_a_dead_process(tmp_path), ExitStack()
    ranks.enter_context(Claims(tmp_path).held(print))

    def live_for_6_s(now_s: float) -> None:
        os.utime(claim.path, (2e9 + now_s,) * 2)
        if now_s >= 6:
            ranks.close()

    monkeypatch.setenv("SLURM_JOB_ID", job)
    clock = Clock(monkeypatch, live_for_6_s)
    with ranks:
        if is_taken:
            assert Claims(tmp_path).take(patience_s=20).path.name == "2.json"
        else:
            with pytest.raises(UserError, match=r"active in it: .* whose ranks are still ending; wait for"):
                Claims(tmp_path).take(patience_s=20)
    assert clock.waits == [2.0] * (3 if is_taken else 1)
    assert capsys.readouterr().err.count("whose ranks are still ending; waits for up to 20 s for its end\n") == 1


def test_without_locks_and_in_spite_of_a_server_that_fails_once_the_signs_of_life_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_locks(*_: object) -> None:
        raise OSError("no locks available")

    failed, touched, touch = threading.Event(), threading.Event(), os.utime

    def touch_the_second_time(path: Path) -> None:
        if not failed.is_set():
            failed.set()
            raise OSError("the server does not answer")
        touch(path)
        touched.set()

    Claims(tmp_path).take()
    monkeypatch.setattr(fcntl, "flock", no_locks)
    monkeypatch.setattr(claims, "BEAT_S", 0.001)
    monkeypatch.setattr(os, "utime", touch_the_second_time)
    with Claims(tmp_path).held(print):
        assert touched.wait(20)


@pytest.mark.parametrize("variable", ["SLURM_JOB_ID", "PBS_JOBID", "LSB_JOBID", "JOB_ID"])
def test_a_claim_names_its_job_and_a_job_knows_whether_it_ended_its_claim(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, variable: str
) -> None:
    for name in ("SLURM_JOB_ID", "PBS_JOBID", "LSB_JOBID", "JOB_ID"):
        monkeypatch.setenv(name, "")  # An empty variable names no job.
    folder = Claims(tmp_path)
    assert (folder.were_lost_by_this_job(), folder.ended_by_this_job()) == (False, None)
    claim = folder.take()
    assert ", job" not in _holder(tmp_path)
    claim.release()
    monkeypatch.setenv(variable, "71")
    claim = folder.take()
    assert ", job 71, process" in _holder(tmp_path)
    assert (folder.were_lost_by_this_job(), folder.ended_by_this_job()) == (True, None)
    monkeypatch.setenv(variable, "72")
    assert not folder.were_lost_by_this_job()
    monkeypatch.setenv(variable, "71")
    claim.release()
    assert not folder.were_lost_by_this_job()
    ended = folder.ended_by_this_job()
    assert ended is not None
    assert ended.isoformat() == claim.record()["since"]
    monkeypatch.setenv(variable, "72")
    assert folder.ended_by_this_job() is None


def test_the_newest_claim_is_that_of_the_highest_number_and_other_files_are_none(tmp_path: Path) -> None:
    first = Claims(tmp_path).take()
    first.release()
    for number in (9, 10):
        (tmp_path / "claims" / f"{number}.json").write_text('{"ended": "then"}', encoding="utf-8")
    (tmp_path / "claims" / "note.json").write_text("{}", encoding="utf-8")
    owned = Claims(tmp_path).take()
    assert owned.path.name == "11.json"
    assert Claims(tmp_path).owned_by(os.getpid()) == owned
    again = Claim(owned.path.with_name("12.json"))
    again.path.write_bytes(owned.path.read_bytes())
    assert Claims(tmp_path).owned_by(os.getpid()) == again
    assert Claims(tmp_path).owned_by(1) is None
    assert (first.is_lost(), owned.is_lost(), again.is_lost()) == (True, True, False)


def test_a_claim_whose_folder_is_gone_is_not_lost_and_needs_no_end(tmp_path: Path) -> None:
    claim = Claims(tmp_path).take()
    claim.path.unlink()
    assert not claim.is_lost()
    claim.release()
    assert not claim.path.exists()
    with pytest.raises(UserError, match=r"gone/claims/1\.json: cannot be written: No such file or directory"):
        Claims(tmp_path / "gone").take()


@pytest.mark.parametrize("content", [b"", b'{"pid": ', b"\xff", b"7", b"[" * 9**6, b'{"host": []}', "folder", "pipe"])
def test_a_claim_that_names_no_owner_lasts_until_it_is_stale(tmp_path: Path, content: bytes | str) -> None:
    path = Claims(tmp_path).take().path
    if isinstance(content, bytes):
        path.write_bytes(content)
    else:
        path.unlink()
        path.mkdir() if content == "folder" else os.mkfifo(path)
    assert _holder(tmp_path) == "an owner whose name is not written yet, or damaged, last heartbeat 0 s ago"
    assert [path.name for path in (tmp_path / "claims").iterdir()] == ["1.json"]
    assert Claims(tmp_path).owned_by(os.getpid()) is None
    os.utime(path, (time.time() - claims.STALE_S - 10,) * 2)
    assert Claims(tmp_path).take().path.name == "2.json"


@pytest.mark.parametrize("told", [{"pid": "x"}, {"pid": "1\0"}, {"pid": None}, {"pid": 0.5}, {"process_start": "x"}])
def test_a_claim_of_this_machine_whose_process_is_none_is_free_at_once(tmp_path: Path, told: dict[str, Any]) -> None:
    claim = Claims(tmp_path).take()
    claim.path.write_text(json.dumps({**claim.record(), **told}), encoding="utf-8")
    assert Claims(tmp_path).holder() is None
    assert Claims(tmp_path).take().path.name == "2.json"


@pytest.mark.parametrize("how", ["moved or deleted", "emptied or unmounted"])
def test_an_owner_whose_folder_is_gone_learns_it_once(
    how: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(claims, "BEAT_S", 0.01)
    folder, lost = tmp_path / "run", queue.Queue[str]()
    folder.mkdir()
    Claims(folder).take()
    with Claims(folder).held(lost.put):
        time.sleep(0.1)
        assert lost.empty()
        shutil.rmtree(folder)
        if how != "moved or deleted":
            (folder / "checkpoints").mkdir(parents=True)  # The run itself makes this folder anew.
        assert lost.get(timeout=20).startswith(f"{folder}: was {how} during the run, which ends; ")
    assert lost.empty()


def test_an_owner_whose_folder_is_deleted_and_begun_anew_by_another_run_has_lost_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(claims, "BEAT_S", 0.01)
    claim, lost = Claims(tmp_path).take(), queue.Queue[str]()
    with Claims(tmp_path).held(lost.put), subprocess.Popen(["cat"], stdin=subprocess.PIPE) as other:
        shutil.rmtree(claim.path.parent)
        anew = Claims(tmp_path).take(pid=other.pid)
        assert (anew.path, anew.is_lost(), claim.is_lost()) == (claim.path, False, True)
        assert f"taken over by {_holder(tmp_path).partition(' ')[0]}" in lost.get(timeout=20)


def test_a_user_without_a_name_is_a_number(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in ("LOGNAME", "USER", "LNAME", "USERNAME"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setattr("pwd.getpwuid", {}.__getitem__)
    Claims(tmp_path).take()
    assert _holder(tmp_path).startswith(f"{os.getuid()} on ")
