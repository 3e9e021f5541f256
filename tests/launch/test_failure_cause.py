"""The cause of a failed run, from made-up failure reports and outcomes; `test_faults` has real faults."""

import errno
import json
import resource
import signal
import socket
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from configs.load import load_both
from launch.failure_cause import Ending
from launch.start.local import Outcome
from logs.folder import RunFolder
from tests.failing_reads import failing_reads
from tests.programs import python

HERE = socket.gethostname()
MPI = ["cluster.launcher=mpirun", "cluster.communication.backend=mpi"]
SRUN = ["cluster.launcher=srun"]


def _folder(path: Path, *sets: str) -> RunFolder:
    """Return the folder of a run, by default under the local launcher."""
    folder = RunFolder(path)
    folder.write_settings(*load_both("digits", "laptop", [f"cluster.paths.data={path}", *sets]))
    return folder


def _report(rank: int, message: str, *, second_hand: bool = False, status: int = 1, **others: Any) -> dict[str, Any]:
    row = {"rank": rank, "host": f"node{rank}", "step": 7, "message": message, "second_hand": second_hand}
    return row | {"status": status, "time": float(rank)} | others


TORN = _report(1, "torn")
WAITED = _report(0, "no progress for 10 s, in train/comm/communicator.py", second_hand=True, waited=True)
KILLED = _report(1, "was killed by signal 9", second_hand=True, status=137, step=None, killed_by=9)
ABORTED = _report(0, "was killed by signal 6", second_hand=True, status=134, step=None, killed_by=6)
UNLIKE = _report(0, "the weights differ", suspects=[1])
ECHO = _report(0, "Horovod has been shut down", second_hand=True)
TOLD_TO_STOP = _report(0, "told to stop", status=75)
REFUSED = _report(1, "no such file", status=2, step=None)
STOPPED_AT_START = _report(0, "stopped by SIGTERM", second_hand=True, status=75)


@pytest.mark.parametrize(
    ("rows", "outcome", "rank", "message"),
    [
        ([ECHO, TORN], Outcome(1), 1, "rank 1 on node1 failed at step 7: torn"),
        ([ECHO, TORN | {"step": None}], Outcome(1), 1, "rank 1 on node1 failed at or before step 7: torn"),
        ([TORN | {"step": None}], Outcome(1), 1, "rank 1 on node1 failed: torn"),
        ([ECHO, KILLED], Outcome(137), 1, "rank 1 on node1 was killed by signal 9 at or before step 7"),
        ([], Outcome(142, ((0, 142), (1, 142))), 0,
         f"rank 0 on {HERE} was ended by SIGALRM, by which its watchdog ends a rank that stands still"),
        # Two ranks fail by themselves: the rank with the earlier time is named, wherever the report is in the list.
        ([_report(0, "torn"), TORN], Outcome(1), 0, "rank 0 on node0 failed at step 7: torn"),
        ([_report(0, "torn", time=5.0), TORN], Outcome(1, ((0, 1), (1, 1))), 1,
         "rank 1 on node1 failed at step 7: torn"),
        # Another machine's script has counted the kills there; this machine's count is the launcher's.
        ([KILLED | {"ran_out_of_memory": "/job, limit 400 MB"}], Outcome(137), 1,
         "rank 1 on node1 was killed by signal 9: the kernel killed it because memory ran out (/job, limit 400 MB); "
         "raise the limit, start fewer ranks, or take smaller batches; ./run.sh plan lists the memory"),
        ([KILLED], Outcome(137, ran_out_of_memory=True), 1,
         "rank 1 on node1 was killed by signal 9: the kernel killed it because memory ran out; raise the limit, start "
         "fewer ranks, or take smaller batches; ./run.sh plan lists the memory"),
        ([KILLED | {"killed_by": 15, "message": "was killed by signal 15"}], Outcome(143, ran_out_of_memory=True), 1,
         "rank 1 on node1 was killed by signal 15"),
        ([_report(0, "torn", time=3.0), KILLED | {"time": 4.0}], Outcome(137), 0,
         "rank 0 on node0 failed at step 7: torn"),
        ([STOPPED_AT_START, REFUSED], Outcome(75), 1, "rank 1 on node1 refused to start: no such file"),
        ([STOPPED_AT_START], Outcome(75), 1, f"rank 1 on {HERE} ended and reported nothing at or before step 7"),
        # The launcher alone knows what became of a rank without a report.
        ([ECHO], Outcome(137, ((1, 137),)), 1, f"rank 1 on {HERE} was killed by signal 9 at or before step 7"),
        ([], Outcome(1, ((1, 137), (0, 1))), 1, f"rank 1 on {HERE} was killed by signal 9"),
        ([], Outcome(1, ((0, 1), (1, 192))), 1, f"rank 1 on {HERE} was killed by signal 64"),
        ([ECHO], Outcome(76, ((1, 76),)), 1,
         f"rank 1 on {HERE} ended with status 0 before the run was over at or before step 7"),
        ([], Outcome(1, ((1, 128),)), 1, f"rank 1 on {HERE} ended with status 128"),
        ([], Outcome(1, ((1, 152), (0, 1))), 1,
         f"rank 1 on {HERE} was killed by signal 24: perhaps its processor time was used up; raise the limit "
         "(ulimit -t)"),
        ([TORN | {"message": "can't start new thread"}], Outcome(1), 1,
         "rank 1 on node1 failed at step 7: can't start new thread; raise the limit on processes and threads "
         "(ulimit -u, or pids.max of the control group)"),
        # NCCL aborts ranks whose peers have ended.
        ([], Outcome(137, ((0, 134), (1, 137))), 1, f"rank 1 on {HERE} was killed by signal 9"),
        ([], Outcome(134, ((1, 134),)), 1,
         f"rank 1 on {HERE} was killed by signal 6: perhaps a library gave up, which prints why"),
        ([ABORTED, TORN], Outcome(134), 1, "rank 1 on node1 failed at step 7: torn"),
        ([ABORTED], Outcome(134), 0,
         "rank 0 on node0 was killed by signal 6: perhaps a library gave up, which prints why"),
        # Ranks that wait are at the step of the rank that they wait for, or before it.
        ([ECHO | {"step": 9}, _report(2, "waits", second_hand=True, step=8)], Outcome(1, ((1, 137),)), 1,
         f"rank 1 on {HERE} was killed by signal 9 at or before step 8"),
        ([ECHO], Outcome(1, ((0, 1),)), 1,
         f"rank 1 on {HERE} made no progress and reported nothing at or before step 7"),
        ([WAITED, STOPPED_AT_START | {"rank": 1}], Outcome(1), 1,
         f"rank 1 on {HERE} made no progress and reported nothing at or before step 7"),
        # Ranks that wait for a rank without being behind it hear of its end; the rank itself seems to wait as well.
        ([ECHO | {"step": 9}, WAITED | {"rank": 1}], Outcome(1), 1,
         "rank 1 on node0 made no progress at step 7, while all others waited at later steps: no progress for 10 s, in "
         "train/comm/communicator.py"),
        # A comparison fails on all ranks, and whichever reports first.
        ([UNLIKE, UNLIKE | {"rank": 1}], Outcome(1), 1, "rank 1 on node0 failed at step 7: the weights differ"),
        ([UNLIKE], Outcome(1), 1, f"rank 1 on {HERE} failed at step 7: the weights differ"),
    ],
)  # fmt: skip
def test_the_first_to_fail_is_named_with_host_and_step(
    tmp_path: Path, rows: list[dict[str, Any]], outcome: Outcome, rank: int, message: str
) -> None:
    cause = Ending(_folder(tmp_path), outcome, rows).cause
    assert (cause["message"], cause["rank"]) == (message, rank)
    assert f"rank {rank} on {cause['host']}" in message
    step = message.partition(" step ")[2][:1]
    assert cause["step"] == (int(step) if step else None)


@pytest.mark.parametrize(
    ("outcome", "rows", "cause"),
    [
        (Outcome(130, interrupted_by=2), [TORN], {"message": "ended at once by a second Ctrl-C"}),
        (Outcome(138, interrupted_by=10), [TORN],
         {"message": "told to stop by SIGUSR1, but the state was not saved within 60 s"}),
        (Outcome(130, stopped_by=2), [], {"message": "stopped by Ctrl-C"}),
        (Outcome(130, stopped_by=2), [STOPPED_AT_START | {"step": None}], {"message": "stopped by Ctrl-C"}),
        (Outcome(1, lost_server=0), [], {"message": "a parameter server ended with status 0 before the ranks did"}),
        (Outcome(75, stopped_by=10), [], {"message": "stopped by SIGUSR1"}),
        (Outcome(75), [TOLD_TO_STOP], {"step": 7, "message": "told to stop"}),
        (Outcome(2), [], {"message": "the ranks refused to start"}),
        (Outcome(9), [], {"message": "the launcher ended with status 9"}),
        (Outcome(1), [ECHO, ECHO | {"rank": 1, "time": 1.0}],
         {"step": 7, "message": "every rank waited for another at step 7; rank 0: Horovod has been shut down"}),
        # Of two ranks that differ, nobody knows which is right; nor does a loss blame one that is infinite on all.
        (Outcome(1), [UNLIKE | {"suspects": []}],
         {"step": 7, "message": "the ranks failed at step 7: the weights differ"}),
        (Outcome(1), [UNLIKE | {"suspects": [0, 1]}],
         {"step": 7, "message": "the ranks failed at step 7: the weights differ"}),
        (Outcome(205), [],
         {"message": "the launcher ended with status 205; mpirun has lost a host, or the network to it"}),
    ],
)  # fmt: skip
def test_no_rank_is_named_where_none_failed(
    outcome: Outcome, rows: list[dict[str, Any]], cause: dict[str, Any], tmp_path: Path
) -> None:
    assert Ending(_folder(tmp_path), outcome, rows).cause == cause


@pytest.mark.parametrize(
    ("launcher", "status", "where"),
    [(MPI, 1, "; mpirun's own lines say why"), (MPI, 137, ""), (SRUN, 137, "; srun's own lines say why")],
)
def test_a_launcher_whose_ranks_tell_nothing_is_named_unless_a_signal_ended_it(
    launcher: list[str], status: int, where: str, tmp_path: Path
) -> None:
    told = Ending(_folder(tmp_path, *launcher), Outcome(status), []).cause["message"]
    assert told == f"the launcher ended with status {status}{where}"


def test_a_rank_that_crashed_below_a_limit_on_memory_is_told_by_it(tmp_path: Path) -> None:
    before = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (1 << 44, before[1]))
    try:
        told = Ending(_folder(tmp_path, *MPI), Outcome(139), [KILLED | {"killed_by": 11, "status": 139}]).cause
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)
    assert "raise the limit (ulimit -v)" in told["message"]
    assert "data set" not in told["message"]


def test_the_host_of_a_rank_without_a_report_comes_from_the_rank_script(tmp_path: Path) -> None:
    ending = Ending(_folder(tmp_path, *MPI), Outcome(1, ((0, 1),)), [ECHO])
    for text, host in (("", "an unknown host"), ("1", "an unknown host"), ("0 a\n", "an unknown host"), ("1 b\n", "b")):
        (tmp_path / "ranks.txt").write_text(text, encoding="utf-8")
        assert f"rank 1 on {host} " in replace(ending).cause["message"], text


def test_the_step_comes_from_the_metrics_if_no_rank_reported_one(tmp_path: Path) -> None:
    folder = _folder(tmp_path, *MPI)
    (tmp_path / "startup.json").touch()
    for rows, step in (("", 0), ('{"step": 5}\n{"step": 9}\n', 9)):
        (tmp_path / "metrics.jsonl").write_text(rows, encoding="utf-8")
        cause = Ending(folder, Outcome(137), [KILLED]).cause
        message = f"rank 1 on node1 was killed by signal 9 at or after step {step}"
        assert (cause["step"], cause["message"]) == (step, message)


@pytest.mark.parametrize(
    ("outcome", "rows", "expected"),
    [
        (Outcome(75), [TOLD_TO_STOP], True),
        (Outcome(1), [TOLD_TO_STOP], True),  # horovodrun returns 1 for any status of a rank
        (Outcome(1), [TOLD_TO_STOP, TORN], False),
        (Outcome(0), [TOLD_TO_STOP], False),
        (Outcome(143, stopped_by=15), [], True),
        (Outcome(1, stopped_by=15), [TORN], False),
        # srun ends the other ranks when one fails, and returns the largest status: here the failed rank has no report.
        (Outcome(75), [STOPPED_AT_START, REFUSED], False),
        (Outcome(1), [TOLD_TO_STOP, ECHO | {"rank": 1}], True),
        (Outcome(1, stopped_by=15), [STOPPED_AT_START, ECHO | {"rank": 1, "step": None}], True),
        (Outcome(1, stopped_by=15), [ECHO], False),
        (Outcome(137, stopped_by=15), [STOPPED_AT_START, KILLED], False),
        (Outcome(2, stopped_by=15), [], False),
        (Outcome(1), [STOPPED_AT_START, STOPPED_AT_START | {"rank": 1}], True),
        (Outcome(137, ((1, 137),)), [STOPPED_AT_START], False),
    ],
)
def test_a_run_was_stopped_only_if_nobody_failed(
    outcome: Outcome, rows: list[dict[str, Any]], expected: bool, tmp_path: Path
) -> None:
    assert Ending(_folder(tmp_path), outcome, rows).was_stopped == expected


@pytest.mark.parametrize("number", [signal.SIGBUS, signal.SIGSEGV])
def test_a_crash_while_images_are_read_names_the_command_that_finds_what_is_damaged(
    number: int, tmp_path: Path
) -> None:
    killed = f"rank 1 on {HERE} was killed by signal {number:d}"
    for source, command in (("digits", f"./run.sh prepare --verify {tmp_path}/digits"), ("synthetic", "")):
        folder = _folder(tmp_path, f"data.source={source}")
        message = Ending(folder, Outcome(128 + number, ((1, 128 + number),)), []).cause["message"]
        assert message == killed if not command else message.startswith(killed) and command in message


@pytest.mark.medium
def test_reports_count_although_the_run_s_folder_cannot_be_listed_nor_one_of_them_read(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    folder = _folder(tmp_path / "run")
    (tmp_path / "run" / "failure_1.json").write_text(json.dumps(TORN), encoding="utf-8")
    (tmp_path / "run" / "failure_0.json").write_text(json.dumps(_report(0, "first")), encoding="utf-8")
    read = (
        "import sys; from pathlib import Path; from launch.failure_cause import Ending, Outcome, RunFolder; "
        "print(Ending.read(RunFolder(Path(sys.argv[1])), Outcome(1)).cause['rank'])"
    )
    for call, name, rank in (("opendir", "", "0"), ("open", "failure_0.json", "1")):
        variables = failing_reads(tmp_path, call, folder.path / name, errno.EIO, once=False)
        done = python("-c", read, str(folder.path), env=variables)
        assert done.stdout.split() == [rank], done.stderr
