"""The cause of a failed run, from made-up failure reports and outcomes; `test_faults` has real faults."""

import json
import socket
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from configs.load import dump, load_both
from launch.failure_cause import find_cause, was_stopped
from launch.start.local import Outcome
from logs.folder import RunFolder

LOCAL: list[str] = []
MPI = ["cluster.launcher=mpirun", "cluster.communication.backend=mpi"]
HERE = socket.gethostname()


def _cause(path: Path, place: list[str], outcome: Outcome, rows: Sequence[Mapping[str, Any]]) -> Mapping[str, Any]:
    """Return the cause of the failure of a run whose folder has no settings yet."""
    folder = RunFolder(path)
    folder.write_settings(*load_both("digits", "laptop", place))
    return find_cause(folder, outcome, rows)


def _report(rank: int, message: str, *, second_hand: bool, status: int = 1) -> dict[str, Any]:
    return {
        "rank": rank,
        "host": f"node{rank}",
        "step": 7,
        "message": message,
        "second_hand": second_hand,
        "status": status,
        "time": float(rank),
    }


WAITED = {
    **_report(0, "no progress for 10 s, standing in train/comm/communicator.py", second_hand=True),
    "waited": True,
}
KILLED = {**_report(1, "was killed by signal 9", second_hand=True, status=137), "step": None, "killed_by": 9}
ECHO = _report(0, "Horovod has been shut down", second_hand=True)


@pytest.mark.parametrize(
    ("rows", "outcome", "message", "rank"),
    [
        ([ECHO, _report(1, "torn", second_hand=False)], Outcome(1), "rank 1 on node1 failed at step 7: torn", 1),
        (
            [ECHO, {**_report(1, "stood still itself", second_hand=False), "step": None}],
            Outcome(1),
            "rank 1 on node1 failed at or before step 7: stood still itself",
            1,
        ),
        (
            [{**_report(1, "no such file", second_hand=False), "step": None}],
            Outcome(1),
            "rank 1 on node1 failed: no such file",
            1,
        ),
        ([ECHO], Outcome(137, ((1, 137),)), f"rank 1 on {HERE} was killed by signal 9 at or before step 7", 1),
        (
            [ECHO],
            Outcome(1, ((0, 1),)),
            f"rank 1 on {HERE} made no progress and reported nothing at or before step 7",
            1,
        ),
        (
            [ECHO, _report(1, "waits", second_hand=True)],
            Outcome(1, ((0, 1), (1, 1))),
            "every rank waited for another at step 7; rank 0: Horovod has been shut down",
            0,
        ),
        ([ECHO, KILLED], Outcome(137), "rank 1 on node1 was killed by signal 9 at or before step 7", 1),
        ([KILLED], Outcome(137), "rank 1 on node1 was killed by signal 9", 1),
        (
            [{**WAITED, "rank": 0}, _report(1, "stopped by SIGTERM", second_hand=True, status=75)],
            Outcome(1),
            f"rank 1 on {HERE} made no progress and reported nothing at or before step 7",
            1,
        ),
        ([], Outcome(143, stopped_by=15), "stopped by SIGTERM", None),
        ([], Outcome(9), "the launcher ended with status 9", None),
        # Two ranks fail by themselves: the rank with the earlier time is named, wherever the report is in the list.
        (
            [_report(0, "torn", second_hand=False), _report(1, "no such file", second_hand=False)],
            Outcome(1),
            "rank 0 on node0 failed at step 7: torn",
            0,
        ),
        (
            [{**_report(0, "torn", second_hand=False), "time": 5.0}, _report(1, "no such file", second_hand=False)],
            Outcome(1, ((0, 1), (1, 1))),
            "rank 1 on node1 failed at step 7: no such file",
            1,
        ),
        (
            [{**_report(0, "torn", second_hand=False), "time": 5.0}, {**KILLED, "time": 4.0}],
            Outcome(137),
            "rank 1 on node1 was killed by signal 9 at or before step 7",
            1,
        ),
        (
            [{**_report(0, "torn", second_hand=False), "time": 3.0}, {**KILLED, "time": 4.0}],
            Outcome(137),
            "rank 0 on node0 failed at step 7: torn",
            0,
        ),
        ([], Outcome(1, ((1, 137), (0, 1))), f"rank 1 on {HERE} was killed by signal 9", 1),
        ([], Outcome(1, ((1, 129), (0, 1))), f"rank 1 on {HERE} was killed by signal 1", 1),
        ([], Outcome(1, ((1, 192), (0, 1))), f"rank 1 on {HERE} was killed by signal 64", 1),
        ([], Outcome(1, ((1, 193), (0, 1))), f"rank 1 on {HERE} ended with status 193", 1),
        ([], Outcome(1, ((1, 128),)), f"rank 1 on {HERE} ended with status 128", 1),
        # Ranks that wait are at the step of the rank that they wait for, or before it.
        (
            [{**ECHO, "step": 9}, {**_report(2, "waits", second_hand=True), "step": 8}],
            Outcome(1, ((1, 137),)),
            f"rank 1 on {HERE} was killed by signal 9 at or before step 8",
            1,
        ),
    ],
)
def test_the_first_to_fail_is_named(
    tmp_path: Path, rows: list[dict[str, Any]], outcome: Outcome, message: str, rank: int | None
) -> None:
    cause = _cause(tmp_path, LOCAL, outcome, rows)
    assert (cause["message"], cause.get("rank")) == (message, rank)
    assert rank is None or f"rank {rank} on {cause.get('host')}" in message or "every rank waited" in message


@pytest.mark.parametrize(
    ("row", "step"),
    [
        ({**_report(1, "torn", second_hand=False), "step": 9}, 9),
        ({**_report(1, "torn", second_hand=False), "step": None}, 7),
        ({**KILLED, "step": 9}, 7),
    ],
)
def test_a_failure_has_its_own_step_where_the_rank_could_tell_it(
    tmp_path: Path, row: dict[str, Any], step: int
) -> None:
    cause = _cause(tmp_path, LOCAL, Outcome(1), [ECHO, row])
    assert (cause["rank"], cause["host"], cause["step"]) == (1, "node1", step)


@pytest.mark.parametrize(
    ("outcome", "rows", "cause"),
    [
        (Outcome(130, interrupted_by=2), [_report(1, "torn", second_hand=False)], {"message": "stopped by a signal"}),
        (Outcome(130, interrupted_by=2, lost_server=3), [], {"message": "stopped by a signal"}),
        (Outcome(0, lost_server=0), [],
         {"message": "a parameter server ended with status 0 before the ranks did"}),
        (Outcome(75, stopped_by=10), [], {"message": "stopped by SIGUSR1"}),
        (Outcome(75), [_report(0, "told to stop", second_hand=False, status=75)],
         {"step": 7, "message": "told to stop"}),
        (Outcome(1, ((1, 137),)), [ECHO],
         {"rank": 1, "host": HERE, "step": 7,
          "message": f"rank 1 on {HERE} was killed by signal 9 at or before step 7"}),
        (Outcome(9), [], {"message": "the launcher ended with status 9"}),
    ],
)  # fmt: skip
def test_a_cause_names_rank_host_and_step_only_where_a_rank_failed(
    outcome: Outcome, rows: list[dict[str, Any]], cause: dict[str, Any], tmp_path: Path
) -> None:
    assert _cause(tmp_path, LOCAL, outcome, rows) == cause


def test_the_host_of_a_rank_without_a_report_comes_from_the_ledger_or_the_rank_script(tmp_path: Path) -> None:
    assert "rank 1 on an unknown host" in _cause(tmp_path, MPI, Outcome(1, ((0, 1),)), [ECHO])["message"]
    (tmp_path / "ranks.txt").write_text("1 here\n0 there\n", encoding="utf-8")
    assert "rank 1 on here" in _cause(tmp_path, MPI, Outcome(1, ((0, 1),)), [ECHO])["message"]
    (tmp_path / "startup.json").write_text(json.dumps({"hosts": ["a", "b"]}), encoding="utf-8")
    assert "rank 1 on b" in _cause(tmp_path, MPI, Outcome(1, ((0, 1),)), [ECHO])["message"]


@pytest.mark.parametrize("ledger", [None, "{", "{}", "[]", '{"hosts": null}', '{"hosts": []}', '{"hosts": ["a"]}'])
@pytest.mark.parametrize(
    ("told", "host"),
    [(None, "an unknown host"), ("1", "an unknown host"), ("0 a\n", "an unknown host"), ("1 b\n", "b")],
)
def test_damaged_files_do_not_hide_the_failure(ledger: str | None, told: str | None, host: str, tmp_path: Path) -> None:
    for name, text in (("startup.json", ledger), ("ranks.txt", told)):
        if text is not None:
            (tmp_path / name).write_text(text, encoding="utf-8")
    assert f"rank 1 on {host}" in _cause(tmp_path, MPI, Outcome(1, ((0, 1),)), [ECHO])["message"]


def test_the_step_comes_from_the_metrics_if_no_rank_reported_one(tmp_path: Path) -> None:
    (tmp_path / "startup.json").touch()
    cause = _cause(tmp_path, MPI, Outcome(137), [KILLED])
    assert (cause["step"], cause["message"]) == (0, "rank 1 on node1 was killed by signal 9 at or after step 0")
    (tmp_path / "metrics.jsonl").write_text('{"step": 5}\n{"step": 9}\n', encoding="utf-8")
    cause = _cause(tmp_path, MPI, Outcome(137), [KILLED])
    assert (cause["step"], cause["message"]) == (9, "rank 1 on node1 was killed by signal 9 at or after step 9")


def test_a_run_was_stopped_only_if_nobody_failed() -> None:
    stopped = _report(0, "told to stop", second_hand=False, status=75)
    # horovodrun returns 1 for any status of a rank.
    assert was_stopped(Outcome(75), [stopped], 2)
    assert was_stopped(Outcome(1), [stopped], 2)
    assert not was_stopped(Outcome(1), [stopped, _report(1, "torn", second_hand=False)], 2)
    assert not was_stopped(Outcome(75), [], 2)
    assert not was_stopped(Outcome(0, stopped_by=15), [], 2)
    assert not was_stopped(Outcome(0), [stopped], 2)
    assert was_stopped(Outcome(143, stopped_by=15), [], 2)
    assert not was_stopped(Outcome(1, stopped_by=15), [_report(1, "torn", second_hand=False)], 2)
    told_at_start_up = _report(0, "stopped by SIGTERM", second_hand=True, status=75)
    assert was_stopped(Outcome(75), [told_at_start_up], 2)
    assert was_stopped(Outcome(1), [told_at_start_up, {**told_at_start_up, "rank": 1}], 2)
    assert not was_stopped(Outcome(137, ((1, 137),)), [told_at_start_up], 2)


def test_a_data_set_that_was_cut_short_under_the_ranks_is_named(tmp_path: Path) -> None:
    recipe, cluster = load_both("digits", "laptop", [f"cluster.paths.data={tmp_path}"])
    (tmp_path / "config.yaml").write_text(dump(recipe, cluster), encoding="utf-8")
    place = tmp_path / "digits"
    place.mkdir()
    for split, size in (("train", 5), ("eval", 7)):
        (place / f"{split}.rec").write_bytes(bytes(size))
    manifest = {split: {"rec_bytes": 7} for split in ("train", "eval")}
    (place / "manifest.json").write_text(json.dumps(manifest), encoding="utf-8")
    killed = Outcome(135, ((1, 135),))
    assert find_cause(RunFolder(tmp_path), killed, [])["message"] == (
        f"rank 1 on {HERE} was killed by signal 7: {place}/train.rec has 5 bytes, its manifest says 7: the file was "
        "changed while the run read it; pack it again with ./run.sh prepare"
    )
    (place / "train.rec").write_bytes(bytes(7))
    beyond = (
        "it read beyond the end of a file, for example a copy of the data set that was cut short, or /dev/shm is full"
    )
    assert (
        find_cause(RunFolder(tmp_path), killed, [])["message"] == f"rank 1 on {HERE} was killed by signal 7: {beyond}"
    )
    (place / "eval.rec").write_bytes(bytes(9))
    assert (
        f"{place}/eval.rec has 9 bytes, its manifest says 7" in find_cause(RunFolder(tmp_path), killed, [])["message"]
    )
    (place / "manifest.json").write_text("{", encoding="utf-8")
    assert find_cause(RunFolder(tmp_path), killed, [])["message"].endswith(f": {beyond}")
    segmentation = find_cause(RunFolder(tmp_path), Outcome(139, ((1, 139),)), [])["message"]
    assert segmentation == f"rank 1 on {HERE} was killed by signal 11", "nobody knows which DALI it was"


@pytest.mark.parametrize(
    ("source", "dali", "is_told"),
    [("digits", "2.4.0", True), ("digits", "1.34.0", False), ("synthetic", "2.4.0", False)],
)
def test_a_crash_of_dali_2_names_the_command_that_finds_damaged_images(
    source: str, dali: str, is_told: bool, tmp_path: Path
) -> None:
    report = {**KILLED, "message": "was killed by signal 11", "status": 139, "killed_by": 11}
    pair = load_both("digits", "laptop", [f"cluster.paths.data={tmp_path}", f"data.source={source}"])
    (tmp_path / "config.yaml").write_text(dump(*pair), encoding="utf-8")
    packages = {"pip": "2.0", "nvidia-dali-cuda130": dali}
    (tmp_path / "environment.json").write_text(json.dumps({"packages": packages}), encoding="utf-8")
    message = str(find_cause(RunFolder(tmp_path), Outcome(139), [report])["message"])
    assert (f"./run.sh prepare --verify {tmp_path}/digits names" in message) == is_told
    assert message.startswith("rank 1 on node1 was killed by signal 11")
