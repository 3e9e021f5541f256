"""The lines that a job script has for one kind of job and leaves out for another, and how its words are quoted."""

import shlex

import pytest

from configs.load import load_cluster
from launch.submit.scheduler import render
from launch.submit.script import _quote, _wrapped
from tests.launch.golden_jobs import job

GE = ["scheduler.kind=gridengine", "launcher=mpirun", "communication.backend=mpi"]
SLURM = ["scheduler.kind=slurm", "launcher=srun"]
HOSTS = ["launcher=horovodrun", "num_nodes=2"]


def _script(*sets: str) -> str:
    limit = [] if sets[: len(HOSTS)] == tuple(HOSTS) else ["scheduler.wall_time_s=600"]
    paths = ["paths.data=/shared/data", "paths.runs=/shared/runs"]
    return render(job(load_cluster("laptop", [f"cluster.{each}" for each in (*paths, *limit, *sets)]), 1))


@pytest.mark.parametrize(
    ("sets", "sleep"),
    [
        ([*GE, "scheduler.notice_s=120"], "  sleep 480 &"),
        ([*GE, "scheduler.notice_s=1"], "  sleep 599 &"),
        ([*GE, "scheduler.notice_s=0"], None),
        ([*SLURM, "scheduler.notice_s=120"], None),
        ([*HOSTS, "scheduler.notice_s=120"], None),
    ],
)
def test_a_timer_announces_a_limit_that_the_scheduler_does_not(sets: list[str], sleep: str | None) -> None:
    lines = _script(*sets).splitlines()
    assert [line for line in lines if line.startswith("  sleep ")] == ([sleep] if sleep else [])
    assert ("readonly timer=$!" in lines) == bool(sleep)


@pytest.mark.parametrize("requeue", ["true", "false"])
def test_a_job_is_queued_again_near_its_limit_only_if_it_may_be(requeue: str) -> None:
    script = _script(*GE, f"scheduler.requeue={requeue}", "scheduler.max_restarts=0")
    found = [word in script for word in ("--near-limit", "limit_is_near=0", "limit_is_near=1", "|| exit 99")]
    assert found == [requeue == "true"] * 4


@pytest.mark.parametrize(
    ("sets", "moves"),
    [
        ([*SLURM, "scheduler.requeue=true", "scheduler.max_restarts=2"], True),
        ([*SLURM, "scheduler.requeue=true", "scheduler.max_restarts=1"], False),
        ([*SLURM, "scheduler.requeue=false", "scheduler.max_restarts=2"], False),
        ([*GE, "scheduler.requeue=true", "scheduler.max_restarts=2"], True),
        (["scheduler.kind=pbs", *GE[1:], "scheduler.requeue=true", "scheduler.max_restarts=2"], False),
        ([*HOSTS, "scheduler.max_restarts=2"], True),
        ([*HOSTS, "scheduler.max_restarts=0"], False),
    ],
)
def test_a_job_goes_on_without_bad_hosts_where_a_second_failure_can_be_and_others_can_be_had(
    sets: list[str], moves: bool
) -> None:
    script = _script(*sets)
    assert ("# 80: a host failed twice" in script) is moves
    assert ("      --hosts " in script) is moves


@pytest.mark.parametrize(
    ("sets", "checks"),
    [
        ([*SLURM, "scheduler.check_first=true"], True),
        ([*SLURM, "scheduler.check_first=false"], False),
        ([*GE, "scheduler.check_first=true"], True),
        ([GE[0], "launcher=local", "scheduler.check_first=true"], True),
        ([GE[0], "launcher=horovodrun", "scheduler.check_first=true"], False),
        ([*SLURM, "scheduler.check_first=true", "container.runtime=apptainer", "container.image=a.sif"], False),
    ],
)
def test_nodes_are_examined_first_where_the_doctor_can_start_ranks(sets: list[str], checks: bool) -> None:
    assert ("launch.doctor doctor --recipe" in _script(*sets)) is checks


@pytest.mark.parametrize(
    ("sets", "served"),
    [
        ([*SLURM, "communication.kind=horovod", "communication.backend=gloo"], "launch.start.rendezvous 1 2"),
        ([*SLURM, "communication.kind=horovod", "communication.backend=mpi"], None),
        ([*SLURM, "engine.name=torch", "num_nodes=3", "ranks_per_node=4"], "launch.start.store 3 4"),
    ],
)
def test_ranks_are_served_by_the_program_of_their_meeting(sets: list[str], served: str | None) -> None:
    script = _script(*sets)
    assert (f' exec "$python" -I -m {served}; }}' in script) == bool(served)
    assert ("coproc" in script) == ('kill "$server"' in script) == bool(served)


def test_mpirun_alone_may_run_as_root_and_passes_on_what_chooses_kernels() -> None:
    for sets, is_mpirun in ((GE, True), (SLURM, False), (HOSTS, False)):
        script = _script(*sets)
        assert ("OMPI_ALLOW_RUN_AS_ROOT=1" in script) is is_mpirun
        assert ('"${inherited[@]}"' in script) is is_mpirun


@pytest.mark.parametrize(("cores", "share"), [(8, 4), (3, 1), (1, 1)])
def test_srun_gives_a_rank_its_share_of_the_cores_and_at_least_one(cores: int, share: int) -> None:
    launcher = _script(*SLURM, f"node.cores={cores}").partition("launcher=(")[2].partition("\n)")[0].split()
    assert [word for word in launcher if word.startswith("--cpus-per-task")] == [f"--cpus-per-task={share}"]


def test_variables_are_exported_in_order_and_quoted() -> None:
    given = ["environment.OMPI_MCA_b='two words'", "environment.OMPI_MCA_a=a,b"]
    lines = [line for line in _script(*SLURM, *given).splitlines() if line.startswith("export ")]
    assert lines == sorted(lines)
    assert {"export OMPI_MCA_a='a,b'", "export OMPI_MCA_b='two words'"} <= set(lines)


@pytest.mark.parametrize(
    ("word", "quoted"),
    [("plain", "plain"), ("a b", "'a b'"), ("a,b", "'a,b'"), ("=a", "'=a'"), ("a=b", "a=b"), ("a,'b", "'a,'\"'\"'b'")],
)
def test_a_word_is_quoted_if_the_shell_or_shellcheck_would_misread_it(word: str, quoted: str) -> None:
    assert _quote(word) == quoted
    assert shlex.split(quoted) == [word]


def test_the_lines_of_an_array_are_as_long_as_they_may_be_and_no_variable_is_parted_from_its_option() -> None:
    whole, more = ["a" * 37, "b" * 38], ["a" * 37, "b" * 39]
    assert _wrapped("x", whole) == ["readonly x=(", f"  {whole[0]} {whole[1]}", ")"]
    assert _wrapped("x", more) == ["readonly x=(", f"  {more[0]}", f"  {more[1]}", ")"]
    assert _wrapped("x", ["a" * 70, "-x", "NAME_OF_A_VARIABLE", "b"]) == [
        "readonly x=(", f"  {'a' * 70} -x NAME_OF_A_VARIABLE", "  b", ")"
    ]  # fmt: skip
