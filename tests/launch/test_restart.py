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


def _fail(folder: Path, host: str, hosts: Sequence[str], sets: Sequence[str] = TWO, *, rank: int = 1) -> bool:
    """Let a rank, two of which are on each host, fail after a further step; return whether the ranks start again."""
    run = RunFolder(folder)
    run.write_settings(*load_both("digits", "laptop", [*sets, "cluster.notify=echo $RUN_EVENT, $RUN_MESSAGE >>told"]))
    run.checkpoints.write(len(run.attempts.read()) + 1, SavedState({}, {}), keep=1)
    row = {"rank": rank, "host": host, "step": 3, "message": "broke", "second_hand": False, "status": 1, "time": 1.0}
    (folder / "failure_1.json").write_text(json.dumps(row), encoding="utf-8")
    return may_restart(run, Outcome(1), hosts)


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of a run, in which its command ``notify`` works."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize("form", ["{}", "{}.site", "10.0.0.{}"])
def test_each_spare_host_takes_the_place_of_one_host(form: str, run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The job lists a host by name or by address, and its ranks report it by a name of their own."""
    first, second, spare, last = hosts = [form.format(number) for number in (1, 2, 3, 4)]
    for rank, *ran in ((1, first, second), (0, second, spare), (2, spare, last), (3, spare, last)):
        assert _fail(run, "own-name", [*ran, *hosts], rank=rank)
    assert [each.leaves_out for each in RunFolder(run).attempts.read()] == [[first], [second], [], []]
    told = [f", without {first}, which failed", f", without {second}, which failed", "", ""]
    lines = capsys.readouterr().err.splitlines()
    assert [line.partition(" of at most 9")[2] for line in lines] == told


@pytest.mark.medium
def test_a_scheduler_replaces_every_host_that_failed_twice(run: Path) -> None:
    """It knows them by the names of the job, and not by those that the ranks report."""
    for host in ("a", "a", "b", "b", "c", "c"):
        assert _fail(run, "own-name", [ANY_HOST, host, "other"], rank=1)
    assert list(RunFolder(run).attempts.left_out()) == ["a", "b", "c"]


def test_a_restart_is_told_with_its_number_and_its_end_with_the_reason(
    run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sets = [*TWO[:2], "cluster.scheduler.max_restarts=2"]
    assert [_fail(run, "b", [], sets) for _ in range(4)] == [True, True, False, True], "the fourth was begun by hand"
    cause = "rank 1 on b failed at step 3: broke"
    told = [f"{cause}; restart {number} of at most 2" for number in (1, 2, 1)]
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


def test_a_disk_that_takes_no_more_does_not_hide_why_the_ranks_failed(
    run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (run / "attempts.jsonl").symlink_to("/dev/full")
    assert not _fail(run, "a", [])
    told = capsys.readouterr().err
    assert all(words in told for words in ("rank 1 on a failed at step 3: broke", "attempts.jsonl", "disk is full"))
