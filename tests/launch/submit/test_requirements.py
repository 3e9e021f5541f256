"""Which jobs are refused before anything is made: their hosts, their size, and the memory of their GPUs."""

import json
from contextlib import nullcontext

import pytest

from configs.errors import UserError
from configs.load import load_cluster
from configs.programs import Program
from launch.submit import requirements

_GPU = ["cluster.device=gpu", "cluster.node.gpu_memory_bytes=1000000000"]


@pytest.mark.parametrize(
    ("sets", "refusal", "is_asked"),
    [
        (_GPU, "the memory of node.gpu is too small", True),
        (_GPU, None, True),
        (_GPU[:1], "not asked", False),
        (_GPU[1:], "not asked", False),
    ],
)
def test_the_plan_of_this_very_run_says_whether_it_fits_into_the_gpus_memory(
    sets: list[str], refusal: str | None, is_asked: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[tuple[object, ...]] = []

    def command(*words: object) -> list[str]:
        asked.append(words)
        return ["echo", json.dumps({"memory": {"refusal": refusal}})]

    monkeypatch.setattr(requirements, "command_of", command)
    with pytest.raises(UserError) if is_asked and refusal else nullcontext() as raised:
        requirements.require_memory("digits", "laptop", sets, load_cluster("laptop", sets))
    assert raised is None or str(raised.value) == refusal
    words = [word for each in sets for word in ("--set", each)]
    assert asked == ([(Program.PLAN_VERB, "digits", "--cluster", "laptop", "--json", *words)] if is_asked else [])


@pytest.mark.parametrize(
    ("hosts", "sets", "is_allowed"),
    [
        (1, ["num_nodes=1"], True),
        (1, ["num_nodes=2"], False),
        (2, ["num_nodes=2"], True),
        (3, ["num_nodes=2", "scheduler.max_restarts=1"], False),
        (3, ["num_nodes=2", "scheduler.max_restarts=2"], True),
        (2, ["num_nodes=2", "scheduler.kind=slurm", "scheduler.wall_time_s=600"], False),
        (0, ["num_nodes=2", "scheduler.kind=slurm", "scheduler.wall_time_s=600", "launcher=srun"], True),
        (0, ["num_nodes=64", "scheduler.kind=slurm", "scheduler.wall_time_s=600", "launcher=srun"], True),
    ],
)
def test_a_job_gets_its_hosts_from_the_scheduler_or_by_name_with_spares_for_restarts(
    hosts: int, sets: list[str], is_allowed: bool
) -> None:
    cluster = load_cluster("laptop", [f"cluster.{each}" for each in ("launcher=horovodrun", *sets)])
    with nullcontext() if is_allowed else pytest.raises(UserError, match=f"^--hosts: got {hosts} hosts for num_nodes"):
        requirements.require_submittable(cluster, tuple("abc"[:hosts]))


@pytest.mark.parametrize(
    "sets",
    [
        ["num_nodes=80", "communication.backend=mpi"],
        ["container.runtime=enroot", "container.image=a", "communication.backend=mpi"],
    ],
    ids=["many ranks over MPI", "enroot under srun"],
)
def test_what_only_other_launchers_and_backends_cannot_do_is_not_refused(sets: list[str]) -> None:
    place = ["scheduler.kind=slurm", "scheduler.wall_time_s=600", "launcher=srun", *sets]
    requirements.require_submittable(load_cluster("laptop", [f"cluster.{each}" for each in place]), ())
