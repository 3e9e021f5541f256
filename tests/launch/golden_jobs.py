"""The jobs whose scripts stand in golden/. ``python -m tests.launch.golden_jobs`` rewrites the files for review.

``job.sh`` is the script of the first job. ``differences.diff`` says how the script of each other job differs from the
most similar one before it, apart from the variables of the ranks. The manifests stand there without their scripts.
"""

import difflib
import re
import textwrap
from pathlib import Path

from configs.load import load_cluster
from configs.rank_variables import binding_environment, rank_environment
from configs.schema import Cluster
from launch.submit.jobspec import IMAGE_PROGRAM, JobSpec
from launch.submit.requirements import require_submittable
from launch.submit.schedulers import SCHEDULERS
from launch.submit.script import job_text

GOLDEN = Path(__file__).parent / "golden"
_SHARED = ["paths.data=/shared/data", "paths.runs=/shared/runs"]
_IMAGE = "container.image=/shared/resnet-records.sif"
_POD = ["container.runtime=docker", "container.image=registry.example/resnet-records:0.1.0",
        "container.mounts=['training:/shared']", "scheduler.wall_time_s=3600"]  # fmt: skip
_REQUEUE = "scheduler.requeue=true"

CASES: dict[str, tuple[str, int, list[str]]] = {
    "slurm-gloo": ("laptop", 1, ["num_nodes=2", "launcher=srun", "scheduler.kind=slurm", "scheduler.wall_time_s=600",
                                 "node.cores=8"]),
    "slurm-pyxis": ("dgx-a100", 1, ["container.runtime=enroot", _IMAGE, _REQUEUE, "scheduler.max_restarts=9",
                                    "scheduler.queue=batch", "scheduler.account=vision",
                                    "scheduler.resources=[--exclude=bad7, --exclusive]"]),
    "hosts-mpirun": ("laptop", 1, ["num_nodes=2", "launcher=mpirun", "communication.backend=mpi"]),
    "lsf": ("laptop", 1, ["scheduler.kind=lsf", "num_nodes=2", "launcher=mpirun", "communication.backend=mpi",
                          "scheduler.wall_time_s=3600", "scheduler.queue=long", _REQUEUE]),
    "kubernetes": ("a100-node", 1, ["scheduler.kind=kubernetes", "num_nodes=2", "launcher=mpirun", *_POD,
                                    "scheduler.resources=[rdma/ib=1]"]),
    "trainjob": ("laptop", 1, ["scheduler.kind=trainjob", "num_nodes=2", "launcher=torchrun", "engine.name=torch",
                               "scheduler.training_runtime=resnet-records-torch", "scheduler.queue=teams",
                               "scheduler.resources=[cpu=4, memory=8Gi]", *_POD]),
    "hosts-horovodrun": ("laptop", 1, ["num_nodes=2", "launcher=horovodrun", "scheduler.max_restarts=9"]),
    "slurm-spares": ("dgx-a100", 1, ["num_nodes=3", "scheduler.spare_nodes=2", "scheduler.max_restarts=1",
                                     "scheduler.check_first=true"]),
    "pbs-apptainer": ("abci-v100", 1, ["scheduler.kind=pbs", "scheduler.resources=[]", "container.runtime=apptainer",
                                       _IMAGE, _REQUEUE]),
    "gridengine": ("abci-v100", 5, [_REQUEUE, "scheduler.max_restarts=9", "scheduler.setup=['module load openmpi']"]),
}  # fmt: skip
"""Name -> cluster, number of runs, and what the cluster sets. The whole script of the first one is kept."""


def job(cluster: Cluster, runs: int) -> JobSpec:
    """Return a job of ``runs`` runs whose paths do not depend on this machine."""
    hosts: tuple[str, ...] = ("alpha", "beta") if cluster.scheduler.kind == "none" else ()
    hosts += ("gamma",) if hosts and cluster.scheduler.max_restarts else ()
    folders = tuple(Path(f"/shared/runs/digits-{number}") for number in range(1, runs + 1))
    scheduler = SCHEDULERS[cluster.scheduler.kind]
    program = IMAGE_PROGRAM if scheduler.runs_script_in_image else Path("/shared/resnet-records")
    spec = JobSpec(
        name="digits",
        scheduler=scheduler,
        cluster=cluster,
        run_folders=folders,
        program=program,
        python=program / ".venv/bin/python",
        variables=rank_environment(cluster) | binding_environment(cluster),
        hosts=hosts,
    )
    require_submittable(spec)
    return spec


def job_of(name: str, *sets: str) -> JobSpec:
    """Return the job of one of the cases, whose cluster sets more keys."""
    cluster, runs, given = CASES[name]
    return job(load_cluster(cluster, [f"cluster.{each}" for each in (*_SHARED, *given, *sets)]), runs)


def script_and_manifest(name: str) -> tuple[str, str]:
    """Return the job script of one of the cases, and the manifest around it; empty if there is none."""
    spec = job_of(name)
    text = job_text(spec)
    if text.startswith("#!"):
        return text, ""
    found = re.search(r"^( +)#!/usr/bin/env bash\n(\1.*\n|\n)*", text, re.MULTILINE)
    assert found is not None
    return textwrap.dedent(found[0]), text.replace(found[0], f"{found[1]}(the script)\n")


def golden_texts() -> dict[str, str]:
    """Return the text of each file in golden/."""
    made = {name: script_and_manifest(name) for name in CASES}
    files = {name + ".yaml": manifest for name, (_, manifest) in made.items() if manifest}
    scripts = {
        name: [line for line in script.splitlines() if "export " not in line] for name, (script, _) in made.items()
    }
    (first, whole), *others = scripts.items()
    text, known = [f"How other scripts differ from those before them; that of {first} is job.sh"], {first: whole}
    for name, script in others:
        changes = {other: list(difflib.unified_diff(old, script, n=0, lineterm=""))[2:] for other, old in known.items()}
        near, lines = min(changes.items(), key=lambda change: len(change[1]))
        text += ["", f"=== {name}, from {near}", *("@@" if line.startswith("@@") else line for line in lines)]
        known[name] = script
    return {"job.sh": made[first][0], "differences.diff": "\n".join([*text, ""]), **files}


if __name__ == "__main__":
    for file, content in golden_texts().items():
        (GOLDEN / file).write_text(content, encoding="utf-8")
