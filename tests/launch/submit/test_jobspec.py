"""What a job script says of its job: sizes, resources, the command of a rank, and the folders in its container."""

from dataclasses import replace
from pathlib import Path

import pytest

from configs.load import load_cluster
from launch.submit.jobspec import JobSpec, clock_time
from tests.launch.golden_jobs import job

SLURM = ["launcher=srun", "scheduler.kind=slurm", "scheduler.wall_time_s=600"]
DATA = ["paths.data=/shared/data", "paths.runs=/shared/runs"]


def _spec(*sets: str, place: str = "laptop") -> JobSpec:
    return job(load_cluster(place, [f"cluster.{each}" for each in (*SLURM, *DATA, *sets)]), 1)


def test_resources_have_the_numbers_of_nodes_and_ranks_in_them() -> None:
    words = "scheduler.resources=['a={num_nodes}', 'b={ranks_per_node}', 'c={world_size}', plain]"
    assert _spec("num_nodes=3", "ranks_per_node=4", words).resources == ["a=3", "b=4", "c=12", "plain"]


@pytest.mark.parametrize(
    ("nodes", "ranks", "size"),
    [(1, 1, "1 rank on 1 node"), (1, 2, "2 ranks on 1 node"), (3, 2, "6 ranks on 3 nodes")],
)
def test_a_job_says_its_size_in_words(nodes: int, ranks: int, size: str) -> None:
    assert _spec(f"num_nodes={nodes}", f"ranks_per_node={ranks}").size == size


@pytest.mark.parametrize("runtime", ["apptainer", "singularity"])
@pytest.mark.parametrize("place", ["laptop", "dgx-a100"])
def test_a_rank_enters_its_container_by_itself_with_the_gpus_of_its_node_if_there_are_any(
    runtime: str, place: str
) -> None:
    spec = _spec(f"container.runtime={runtime}", "container.image=a.sif", "container.mounts=['/models:/m:ro']",
                 place=place)  # fmt: skip
    gpu = ["--nv"] if place == "dgx-a100" else []
    image, folders = "/opt/resnet-records", ("/shared/data", "/shared/runs")
    binds = [word for pair in ("/models:/m:ro", *(f"{each}:{each}" for each in folders)) for word in ("--bind", pair)]
    enter = [runtime, "exec", *gpu, *binds, "a.sif"]
    assert spec.rank_command[: len(enter) + 2] == [*enter, f"{image}/launch/rank.sh", f"{image}/.venv/bin/python"]


def test_a_rank_outside_a_container_or_in_one_that_srun_enters_is_started_plainly() -> None:
    assert _spec().rank_command[:2] == ["/shared/resnet-records/launch/rank.sh",
                                        "/shared/resnet-records/.venv/bin/python"]  # fmt: skip
    inside = _spec("container.runtime=enroot", "container.image=a.sqsh").rank_command
    assert inside[:2] == ["/opt/resnet-records/launch/rank.sh", "/opt/resnet-records/.venv/bin/python"]


def test_each_folder_that_a_run_needs_is_mounted_once_unless_a_mount_has_it_already() -> None:
    image = ["container.runtime=enroot", "container.image=a"]
    apart = replace(_spec(*image), run_folders=(Path("/elsewhere/one"), Path("/elsewhere/two")))
    assert apart.mounts == ["/shared/data:/shared/data", "/shared/runs:/shared/runs", "/elsewhere:/elsewhere"]
    given = _spec(*image, "container.mounts=['/disk:/shared/data', '/x:/shared/run']")
    assert given.mounts == ["/disk:/shared/data", "/x:/shared/run", "/shared/runs:/shared/runs"]
    whole = _spec(*image, "container.mounts=['/disk:/shared:ro']")
    assert whole.mounts == ["/disk:/shared:ro"]


def test_the_first_run_folder_has_the_log_of_the_job() -> None:
    spec = replace(_spec(), run_folders=(Path("/a/one"), Path("/a/two")))
    assert (spec.folder, spec.log, spec.wall_time_s) == (Path("/a/one"), Path("/a/one/job.log"), 600)


@pytest.mark.parametrize(
    ("seconds", "clock"),
    [(0, "00:00:00"), (59, "00:00:59"), (60, "00:01:00"), (3599, "00:59:59"), (3600, "01:00:00")],
)
def test_a_duration_is_hours_minutes_and_seconds(seconds: int, clock: str) -> None:
    assert clock_time(seconds) == clock
