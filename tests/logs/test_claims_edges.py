"""Claims at their edges: patience that ends, folders that are gone, disks that refuse, owners without a name."""

import fcntl
import getpass
import json
import os
import re
import subprocess
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from types import SimpleNamespace

import pytest

from configs.errors import UserError
from logs import claims
from logs.claims import has_lost, holder, is_lost, kept, owned_by, release, take
from tests.logs.test_claims import _as_of_another_node


def _of_a_dead_process(folder: Path) -> Path:
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE) as owner:
        claim = take(folder, pid=owner.pid)
        owner.kill()
    return claim


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


def test_a_taker_waits_for_a_lost_node_until_its_claim_is_stale(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    claim, last_s = take(tmp_path), time.time() - claims.STALE_S + 11
    _as_of_another_node(claim, age_s=time.time() - last_s)

    def look_11_s_later(now_s: float) -> None:
        if now_s > 11:
            monkeypatch.setattr(claims, "_age_s", lambda _: claims.STALE_S + 1)

    clock = Clock(monkeypatch, look_11_s_later)
    assert take(tmp_path, patience_s=80).name == "2.json"
    assert clock.waits == [claims.BEAT_S] * 3
    told = capsys.readouterr().err.splitlines()
    assert re.fullmatch(rf"{tmp_path}: claimed by .* on beta.*; waits for up to 80 s for its end", told[0])
    assert re.fullmatch(rf"{tmp_path}: takes over from .* on beta, .*, which is gone", told[1])


def test_patience_ends_where_the_owner_neither_ends_nor_is_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    take(tmp_path)
    clock = Clock(monkeypatch)
    with pytest.raises(UserError) as caught:
        take(tmp_path, patience_s=32)
    assert str(caught.value) == (
        f"{tmp_path}: a run is going on in it: {holder(tmp_path)}; wait for its end, or give another folder"
    )
    assert 32 < sum(clock.waits) < 32 + 2 * 3.2


def test_a_folder_that_is_gone_is_told_in_one_line(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"gone/claims/1\.json: cannot be written: the folder is missing"):
        take(tmp_path / "gone")


def test_a_full_disk_hinders_no_release(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    claim = take(tmp_path)

    def refuse(*_: object) -> None:
        raise UserError("the disk is full")

    monkeypatch.setattr(claims, "write_json", refuse)
    release(claim)
    assert owned_by(tmp_path, os.getpid()) == claim


def test_a_claim_is_lost_to_a_newer_one_alone(tmp_path: Path) -> None:
    claim = take(tmp_path)
    assert not is_lost(claim)
    assert not has_lost(tmp_path, os.getpid())
    claim.with_name("2.json").write_text(json.dumps({"pid": 1}), encoding="utf-8")
    assert is_lost(claim)
    assert has_lost(tmp_path, os.getpid())
    assert not has_lost(tmp_path, os.getppid())
    for path in claim.parent.iterdir():
        path.unlink()
    assert not is_lost(claim)


def test_a_folder_without_a_claim_is_nobodys_and_is_kept_by_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    assert (holder(tmp_path), owned_by(tmp_path, os.getpid())) == (None, None)
    assert (claims.was_lost_by_this_job(tmp_path), claims.ended_by_this_job(tmp_path)) == (False, None)
    with kept(tmp_path, print):
        assert not any(thread.name == "claim" for thread in threading.enumerate())
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("content", ["", "[]", '{"pid": ', "{}"])
def test_an_owner_that_is_still_writing_holds_the_folder(tmp_path: Path, content: str) -> None:
    (tmp_path / "claims").mkdir()
    (tmp_path / "claims" / "1.json").write_text(content, encoding="utf-8")
    assert holder(tmp_path) == "an owner that has not written its name yet, last sign of life 0 s ago"
    assert [path.name for path in (tmp_path / "claims").iterdir()] == ["1.json"]


def test_launcher_and_rank_hold_a_claim_together_and_the_last_of_them_frees_it(tmp_path: Path) -> None:
    claim = _of_a_dead_process(tmp_path)
    with ExitStack() as launcher, ExitStack() as rank:
        for each in (launcher, rank):
            each.enter_context(kept(tmp_path, print))
        launcher.close()
        assert (holder(tmp_path) or "").endswith(", whose ranks are still ending")
        _as_of_another_node(claim, age_s=claims.STALE_S + 10)
        assert " on beta, " in (holder(tmp_path) or "")
        assert "whose ranks" not in (holder(tmp_path) or "")
    assert holder(tmp_path) is None


def test_without_locks_and_in_spite_of_a_server_that_fails_once_the_signs_of_life_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_locks(*_: object) -> None:
        raise OSError("no locks available")

    claim, failed, touched, touch = take(tmp_path), threading.Event(), threading.Event(), os.utime

    def touch_the_second_time(path: Path) -> None:
        if not failed.is_set():
            failed.set()
            raise OSError("the server does not answer")
        touch(path)
        touched.set()

    monkeypatch.setattr(fcntl, "flock", no_locks)
    monkeypatch.setattr(claims, "BEAT_S", 0.001)
    monkeypatch.setattr(os, "utime", touch_the_second_time)
    with kept(tmp_path, print):
        assert touched.wait(20)
    assert not is_lost(claim)


def test_a_loss_is_told_once_with_the_folder_and_the_new_owner(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(claims, "BEAT_S", 0.001)
    claim, told, is_told = take(tmp_path), list[str](), threading.Event()
    after = claim.with_name("2.json")
    after.write_text(json.dumps({"ended": "now"}), encoding="utf-8")
    claim.rename(claim.with_name("3.json"))  # the newest when the block begins

    def tell(words: str) -> None:
        told.append(words)
        is_told.set()

    with kept(tmp_path, tell):
        after.rename(after.with_name("4.json"))
        assert is_told.wait(20)
        for beats in [thread for thread in threading.enumerate() if thread.name == "claim"]:
            beats.join(20)
            assert not beats.is_alive()
    assert told == [f"{tmp_path}: taken over by another run, because there was no sign of life"]


@pytest.mark.parametrize("error", [KeyError, OSError])
def test_a_user_without_a_name_is_a_number(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: type[Exception]
) -> None:
    def nobody() -> str:
        raise error

    monkeypatch.setattr(getpass, "getuser", nobody)
    take(tmp_path)
    assert (holder(tmp_path) or "").startswith(f"{os.getuid()} on ")


def test_where_no_file_can_be_made_an_age_is_that_by_the_own_clock(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _as_of_another_node(take(tmp_path), age_s=claims.STALE_S - 5)

    def refuse(*_: object) -> None:
        raise OSError("read-only")

    monkeypatch.setattr(Path, "touch", refuse)
    assert re.search(r", last sign of life 5\d s ago$", holder(tmp_path) or "")
