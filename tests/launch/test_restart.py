"""Whether ranks that failed are started again, on which hosts, and what is told of it."""

import json
from collections.abc import Sequence
from pathlib import Path

import pytest

from configs.load import load_both
from launch.restart import ANY_HOST, may_restart
from launch.start.local import Outcome
from logs.checkpoints import SavedState
from logs.folder import RunFolder, Summary

TWO = ["cluster.num_nodes=2", "cluster.launcher=srun", "cluster.scheduler.max_restarts=9"]


def _fail(folder: Path, host: str, hosts: Sequence[str], sets: Sequence[str] = TWO) -> bool:
    """Let a rank on a host fail after a further step; return whether the ranks are started again."""
    run = RunFolder(folder)
    run.write_settings(*load_both("digits", "laptop", [*sets, "cluster.notify=echo $RUN_EVENT, $RUN_MESSAGE >>told"]))
    run.checkpoints.write(len(run.attempts.read()) + 1, SavedState({}, {}), keep=1)
    row = {"rank": 1, "host": host, "step": 3, "message": "broke", "second_hand": False, "status": 1, "time": 1.0}
    (folder / "failure_1.json").write_text(json.dumps(row), encoding="utf-8")
    return may_restart(run, Outcome(1), hosts)


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of a run, in which its command ``notify`` works."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize("domain", ["", ".site"])
def test_each_spare_host_takes_the_place_of_one_host(
    domain: str, run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The ranks report a host by its short name, whatever name of it the user has listed."""
    hosts = [f"{host}{domain}" for host in ("a", "b", "spare1", "spare2")]
    for host in ("a", "b", "spare1", "spare1"):
        assert _fail(run, host, hosts)
    left = [[f"a{domain}"], [f"b{domain}"], [], []]
    assert [each.leaves_out for each in RunFolder(run).attempts.read()] == left
    nothing = ", on the same hosts, although spare1 failed twice: there is no host to replace it"
    told = [f", without a{domain}, which failed", f", without b{domain}, which failed", "", nothing]
    lines = capsys.readouterr().err.splitlines()
    assert [line.partition(" of at most 9")[2] for line in lines] == told


def test_a_scheduler_replaces_every_host_that_failed_twice(run: Path) -> None:
    for host in ("a", "a", "b", "b", "c", "c"):
        assert _fail(run, host, [ANY_HOST])
    assert list(RunFolder(run).attempts.left_out()) == ["a", "b", "c"]


def test_a_restart_is_told_with_its_number_and_its_end_with_the_reason(
    run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sets = [*TWO[:2], "cluster.scheduler.max_restarts=2"]
    assert [_fail(run, "b", [], sets) for _ in range(4)] == [True, True, False, True], "the fourth was begun by hand"
    cause = "rank 1 on b failed at step 3: broke"
    again = "on the same hosts, although b failed twice: there is no host to replace it"
    told = [f"{cause}; restart {number}" for number in ("1 of at most 2", f"2 of at most 2, {again}")]
    told.append(f"{cause}; restart 1 of at most 2, {again}")
    assert (run / "told").read_text(encoding="utf-8").splitlines() == [f"restart, {words}" for words in told]
    last = f"failed: {cause}; no restart: it failed 3 times, and scheduler.max_restarts is 2"
    lines = [f"failed: {words}" for words in told]
    assert capsys.readouterr().err.splitlines() == [*lines[:2], last, lines[2]]


@pytest.mark.parametrize(
    ("outcome", "has_ended", "limit", "status"),
    [
        (Outcome(0), False, 9, 1),
        (Outcome(1), True, 9, 1),
        (Outcome(1), False, 0, 1),
        (Outcome(130, interrupted_by=2), False, 9, 1),
        (Outcome(75), False, 9, 75),
    ],
    ids=["success", "an end of its own", "no restarts", "Ctrl-C", "told to stop"],
)
def test_nothing_is_started_again_and_no_attempt_is_counted_where_nothing_broke(
    outcome: Outcome, has_ended: bool, limit: int, status: int, run: Path
) -> None:
    row = {"rank": 0, "host": "b", "step": 3, "message": "m", "second_hand": False, "status": status, "time": 1.0}
    (run / "failure_0.json").write_text(json.dumps(row), encoding="utf-8")
    if has_ended:
        RunFolder(run).write_summary(Summary("digits", "aborted", steps=9))
    folder = RunFolder(run)
    folder.write_settings(*load_both("digits", "laptop", [f"cluster.scheduler.max_restarts={limit}"]))
    assert not may_restart(folder, outcome)
    assert not folder.attempts.read()


@pytest.mark.parametrize(
    ("bad", "hosts", "found"),
    [
        ("10.0.0.9", ["10.0.0.1", "10.0.0.2", "10.0.0.3"], []),
        ("a", ["a.site", "b.site", "a"], ["a"]),
        ("b.other", ["a.site", "b.site", "c.site"], ["b.site"]),
        ("a", ["a.site", "b.site"], []),
        ("4u18n", ["4u18n.site", "b", "c"], ["4u18n.site"]),
        ("NODE1", ["node1.site", "b", "c"], ["node1.site"]),
    ],
)
def test_a_bad_host_is_found_by_its_whole_address_or_the_first_part_of_its_name(
    bad: str, hosts: list[str], found: list[str], run: Path
) -> None:
    assert [_fail(run, bad, hosts) for _ in range(2)] == [True, True]
    assert list(RunFolder(run).attempts.left_out()) == found


def test_a_disk_that_takes_no_more_does_not_hide_why_the_ranks_failed(
    run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (run / "attempts.jsonl").symlink_to("/dev/full")
    assert not _fail(run, "a", [])
    told = capsys.readouterr().err
    assert all(words in told for words in ("rank 1 on a failed at step 3: broke", "attempts.jsonl", "disk is full"))
