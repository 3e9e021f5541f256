"""Claims on run folders: one owner, whatever the node; a dead owner's claim is taken over with a word."""

import json
import os
import queue
import subprocess
import sys
import threading
import time
from contextlib import ExitStack
from pathlib import Path
from types import SimpleNamespace

import pytest

from configs.errors import UserError
from configs.load import ROOT
from logs import claims
from logs.claims import has_lost, holder, is_lost, kept, release, take


def _as_of_another_node(claim: Path, *, age_s: float) -> None:
    """Change a claim into one of another node, which gave its last sign of life some time ago."""
    record = json.loads(claim.read_text(encoding="utf-8"))
    claim.write_text(json.dumps({**record, "host": "beta", "boot": "another"}), encoding="utf-8")
    os.utime(claim, (time.time() - age_s,) * 2)


def test_a_living_owner_is_named_and_a_claim_that_was_released_is_free(tmp_path: Path) -> None:
    claim = take(tmp_path)
    with pytest.raises(UserError, match=rf"a run is going on in it: .* on .*, process {os.getpid()}, since .*; wait"):
        take(tmp_path)
    release(claim)
    assert holder(tmp_path) is None
    assert take(tmp_path).name == "2.json"


def test_a_dead_owner_on_this_node_is_succeeded_at_once_with_a_word(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with subprocess.Popen(["sleep", "60"]) as owner:
        take(tmp_path, pid=owner.pid)
        assert holder(tmp_path)
        owner.kill()
    take(tmp_path)
    assert f"process {owner.pid}, since" in capsys.readouterr().err


def test_the_claim_of_another_node_lasts_as_long_as_its_signs_of_life(tmp_path: Path) -> None:
    claim = take(tmp_path)
    _as_of_another_node(claim, age_s=claims.STALE_S - 10)
    assert "on beta, process" in (holder(tmp_path) or "")
    assert "last sign of life 5" in (holder(tmp_path) or "")
    _as_of_another_node(claim, age_s=claims.STALE_S + 10)
    assert holder(tmp_path) is None
    assert has_lost(tmp_path, os.getpid()) is False
    take(tmp_path)
    assert is_lost(claim)


def test_ranks_that_outlive_their_launcher_keep_the_folder(tmp_path: Path) -> None:
    with subprocess.Popen(["sleep", "60"]) as owner:
        claim = take(tmp_path, pid=owner.pid)
        owner.kill()
    code = (
        f"import sys, pathlib; from logs.claims import kept\n"
        f"with kept(pathlib.Path({str(tmp_path)!r}), print): print(1, flush=True), sys.stdin.read()"
    )
    rank = subprocess.Popen([sys.executable, "-c", code], cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert rank.stdout is not None
    assert rank.stdout.readline() == b"1\n"
    assert "whose ranks are still ending" in (holder(tmp_path) or "")
    _as_of_another_node(claim, age_s=claims.STALE_S + 10)
    assert holder(tmp_path), "the lock is seen from other nodes too"
    rank.communicate(b"")
    assert holder(tmp_path) is None


def test_the_owner_gives_signs_of_life_and_learns_that_it_was_succeeded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(claims, "BEAT_S", 0.01)
    claim, lost = take(tmp_path), queue.Queue[str]()
    _as_of_another_node(claim, age_s=1000)
    with kept(tmp_path, lost.put):
        while claim.stat().st_mtime < time.time() - 100:
            time.sleep(0.01)
        (tmp_path / "claims" / "2.json").write_text("{}", encoding="utf-8")
        assert "taken over by an owner that has not written its name yet" in lost.get(timeout=5)


def test_of_many_takers_that_find_a_folder_free_one_gets_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    taken, refused = [], []
    judge, together = claims._holder_of, threading.Barrier(8)

    def judge_together(path: Path | None) -> str | None:
        words = judge(path)
        together.wait(10)
        return words

    monkeypatch.setattr(claims, "_holder_of", judge_together)

    def one() -> None:
        try:
            taken.append(take(tmp_path))
        except UserError as error:
            refused.append(error)

    threads = [threading.Thread(target=one) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (len(taken), len(refused)) == (1, 7)
    words = f"{tmp_path}: a run is going on in it: another launcher has claimed it just now; wait for its end, or "
    assert {str(each) for each in refused} == {f"{words}give another folder"}


def test_a_taker_with_patience_waits_for_the_end_of_the_owner(tmp_path: Path) -> None:
    claim = take(tmp_path)
    timer = threading.Timer(0.3, release, [claim])
    timer.start()
    assert take(tmp_path, patience_s=5).name == "2.json"
    timer.join()


def test_a_taker_with_patience_refuses_when_the_owner_gives_a_sign_of_life(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(claims, "BEAT_S", 0.02)
    take(tmp_path)
    begin = time.monotonic()
    with kept(tmp_path, print), pytest.raises(UserError, match="a run is going on in it"):
        take(tmp_path, patience_s=60)
    assert time.monotonic() - begin < 20


def test_after_the_block_that_keeps_a_claim_comes_no_sign_of_life(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun = threading.Event()

    def look_slowly(_: Path) -> None:
        begun.set()
        time.sleep(0.2)

    monkeypatch.setattr(claims, "BEAT_S", 0.001)
    monkeypatch.setattr(claims, "is_lost", look_slowly)
    take(tmp_path)
    with kept(tmp_path, print):
        assert begun.wait(20)
    assert not any(thread.name == "claim" for thread in threading.enumerate())


def test_an_owner_that_has_ended_and_that_nobody_has_waited_for_is_gone(tmp_path: Path) -> None:
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE) as owner:
        take(tmp_path, pid=owner.pid)
        assert holder(tmp_path) is not None
        owner.kill()
        os.waitid(os.P_PID, owner.pid, os.WEXITED | os.WNOWAIT)  # it has ended, and stays a zombie
        assert holder(tmp_path) is None


@pytest.mark.parametrize("variable", ["SLURM_JOB_ID", "PBS_JOBID", "LSB_JOBID", "JOB_ID"])
def test_a_claim_names_its_job_by_the_variable_of_each_scheduler(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, variable: str
) -> None:
    for name in claims._JOB_VARIABLES:
        monkeypatch.delenv(name, raising=False)
    take(tmp_path)
    assert ", job" not in (holder(tmp_path) or ", job")
    release(tmp_path / "claims" / "1.json")
    monkeypatch.setenv(variable, "71")
    claim = take(tmp_path)
    assert ", job 71, process" in (holder(tmp_path) or "")
    assert claims.was_lost_by_this_job(tmp_path)
    monkeypatch.setenv(variable, "72")
    assert not claims.was_lost_by_this_job(tmp_path)
    monkeypatch.setenv(variable, "71")
    release(claim)
    assert not claims.was_lost_by_this_job(tmp_path)


def test_the_newest_claim_is_that_of_the_highest_number_and_other_files_are_none(tmp_path: Path) -> None:
    first = take(tmp_path)
    release(first)
    (first.parent / "10.json").write_text('{"ended": "then"}', encoding="utf-8")
    (first.parent / "note.json").write_text("{}", encoding="utf-8")
    assert take(tmp_path).name == "11.json"
    owned = first.with_name("11.json")
    assert claims.owned_by(tmp_path, os.getpid()) == owned
    owned.with_name("12.json").write_bytes(owned.read_bytes())
    assert claims.owned_by(tmp_path, os.getpid()) == owned.with_name("12.json")
    assert claims.owned_by(tmp_path, 1) is None


def test_an_ended_claim_keeps_its_owner_and_is_nobodys(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    claim = take(tmp_path)
    assert claims.owned_by(tmp_path, os.getpid()) == claim
    owner = json.loads(claim.read_text(encoding="utf-8"))
    release(claim)
    ended = json.loads(claim.read_text(encoding="utf-8"))
    assert ended == {**owner, "ended": ended["ended"]}
    assert claims.owned_by(tmp_path, os.getpid()) is None
    take(tmp_path)
    assert capsys.readouterr().err == "", "nothing is taken over from an owner that has ended"


def test_a_claim_whose_folder_is_gone_needs_no_end(tmp_path: Path) -> None:
    claim = take(tmp_path)
    claim.unlink()
    release(claim)
    assert not claim.exists()


def test_claims_are_ordered_as_numbers(tmp_path: Path) -> None:
    for _ in range(10):
        release(claim := take(tmp_path))
    assert claim.name == "10.json"
    assert take(tmp_path).name == "11.json"


def test_a_sign_of_life_in_the_future_was_just_now(tmp_path: Path) -> None:
    _as_of_another_node(take(tmp_path), age_s=-100)
    assert "last sign of life 0 s ago" in (holder(tmp_path) or "")


def test_a_job_knows_the_claim_that_it_made_and_whether_it_ended_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SLURM_JOB_ID", "")  # An empty variable names no job.
    monkeypatch.setenv("PBS_JOBID", "7")
    claim = take(tmp_path)
    assert claims.was_lost_by_this_job(tmp_path)
    assert claims.ended_by_this_job(tmp_path) is None
    release(claim)
    assert not claims.was_lost_by_this_job(tmp_path)
    ended = claims.ended_by_this_job(tmp_path)
    assert ended is not None
    assert ended.isoformat() == json.loads(claim.read_text(encoding="utf-8"))["since"]
    monkeypatch.setenv("PBS_JOBID", "8")
    assert claims.ended_by_this_job(tmp_path) is None


@pytest.mark.parametrize(("job", "is_taken"), [("7", True), ("8", False)])
def test_the_last_ranks_of_the_own_job_are_waited_for_though_they_give_signs_of_life(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], job: str, is_taken: bool
) -> None:
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE) as launcher:
        claim = take(tmp_path, pid=launcher.pid)
        launcher.kill()
    ranks, waits = ExitStack(), list[float]()
    ranks.enter_context(kept(tmp_path, print))

    def wait(seconds: float) -> None:
        waits.append(seconds)
        os.utime(claim, (2e9 + len(waits),) * 2)
        if len(waits) == 3:
            ranks.close()

    monkeypatch.setenv("SLURM_JOB_ID", job)
    monkeypatch.setattr(claims, "time", SimpleNamespace(monotonic=time.monotonic, sleep=wait, time=time.time))
    with ranks:
        if is_taken:
            assert take(tmp_path, patience_s=20).name == "2.json"
        else:
            with pytest.raises(UserError, match=r"going on in it: .* whose ranks are still ending; wait for"):
                take(tmp_path, patience_s=20)
    assert waits == [2.0] * (3 if is_taken else 1)
    assert capsys.readouterr().err.count("whose ranks are still ending; waits for up to 20 s for its end\n") == 1
