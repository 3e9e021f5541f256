"""Real Grid Engine jobs on this one machine."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from configs.registry import has_engine
from tests.launch.scheduled import SLOW_STEPS, ask, asleep_alone, grid_engine, has_begun, submit, wait_until
from tests.runs import read_summary

pytestmark = [pytest.mark.scheduler, pytest.mark.slow, pytest.mark.timeout(600), pytest.mark.xdist_group("gridengine")]

_ASK_EVERY_S = 2
"""To start qacct takes longer than to look for a file."""

CLUSTER = """
name: one-node
ranks_per_node: 2
launcher: local
scheduler: {kind: gridengine, wall_time_s: 600, requeue: true, resources: ["-pe mpi {world_size}"]}
node: {cores: 1}
communication: {bucket_bytes: 262144}
"""


@pytest.fixture(scope="module", autouse=True)
def one_node() -> Iterator[None]:
    with grid_engine():
        yield


def test_a_job_whose_ranks_refuse_has_failed_and_names_the_first(tmp_path: Path, packed_digits: Path) -> None:
    folder = tmp_path / "run"
    (tmp_path / "stage").touch()
    stage = f"cluster.paths.stage={tmp_path}/stage"
    digits = ["data.source=digits", "data.eval_samples=599", f"cluster.paths.data={packed_digits}", stage]
    launcher = "horovodrun" if has_engine("mxnet") else "local"
    if launcher == "horovodrun":
        digits.append("cluster.communication.kind=horovod")  # it starts no other
    job = submit(CLUSTER.replace("launcher: local", f"launcher: {launcher}"), folder, overrides=digits)
    wait_until(lambda: "exit_status" in ask("qacct", "-j", job), folder / "job.log", _ASK_EVERY_S)
    log = (folder / "job.log").read_text(encoding="utf-8")
    assert "exit_status  2 " in ask("qacct", "-j", job), log
    summary = read_summary(folder)
    assert summary["status"] == "aborted"
    assert re.match(rf"rank {summary['failed_rank']} on \S+ refused to start: {tmp_path}/stage: ", summary["failure"])
    assert f"error: {folder}: {summary['failure']}" in log


def test_a_job_near_its_limit_is_stopped_and_continues_where_it_was(tmp_path: Path) -> None:
    folder, time_is_up = tmp_path / "run", tmp_path / "time-is-up"
    # In place of the time before the notice, the first attempt waits for a file, and the second one for ever.
    sleep = f"sleep() {{ until rm {time_is_up} 2>/dev/null; do command sleep 0.1; done; }}"
    cluster = asleep_alone(CLUSTER).replace("requeue: true", f"requeue: true, setup: ['{sleep}']")
    job = submit(cluster, folder, "--rehearse", overrides=[*SLOW_STEPS, "run.epochs=3"])
    wait_until(lambda: has_begun(folder), folder / "job.log")
    time_is_up.touch()
    wait_until(lambda: "exit_status  0 " in ask("qacct", "-j", job), folder / "job.log", _ASK_EVERY_S)
    found = read_summary(folder)
    assert (found["status"], found["steps"]) == ("success", 36)
    assert 0 < found["resumed_from_step"] <= found["steps"]
    log = (folder / "job.log").read_text(encoding="utf-8")
    assert log.count(f"job {job} of {folder} on localhost") == 2
    assert "stopped before its end" in log
