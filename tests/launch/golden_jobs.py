"""The jobs whose scripts stand in golden/. ``python -m tests.launch.golden_jobs`` rewrites the scripts for review."""

from pathlib import Path

from configs.load import load_cluster
from configs.rank_variables import binding_environment, rank_environment
from configs.schema import Cluster
from launch.submit.jobspec import IMAGE_PROGRAM, JobSpec
from launch.submit.requirements import require_submittable
from launch.submit.schedulers import SCHEDULERS

GOLDEN = Path(__file__).parent / "golden"
_SMALL = ["cluster.communication.backend=mpi", "cluster.scheduler.wall_time_s=3600", "cluster.launcher=mpirun"]
_SHARED = ["cluster.paths.data=/shared/data", "cluster.paths.runs=/shared/runs"]
_IMAGE = "cluster.container.image=/shared/resnet-records.sif"
_DOCKER = ["cluster.container.runtime=docker", "cluster.container.image=registry.example/resnet-records:0.1.0",
           "cluster.container.mounts=['training:/shared']"]  # fmt: skip

CASES: dict[str, tuple[str, list[str], int]] = {
    "slurm-pyxis.sh": ("dgx-a100", ["cluster.container.runtime=enroot", _IMAGE, "cluster.scheduler.queue=batch",
                                    "cluster.scheduler.account=vision", "cluster.scheduler.requeue=true",
                                    "cluster.scheduler.max_restarts=9",
                                    "cluster.scheduler.resources=[--exclude=bad7, --exclusive]"], 1),
    "slurm-gloo.sh": ("laptop", ["cluster.num_nodes=2", "cluster.launcher=srun", "cluster.scheduler.kind=slurm",
                                 "cluster.scheduler.wall_time_s=600", "cluster.node.cores=8"], 5),
    "slurm-spares.sh": ("dgx-a100", ["cluster.num_nodes=3", "cluster.scheduler.spare_nodes=2",
                                     "cluster.scheduler.max_restarts=1", "cluster.scheduler.check_first=true"], 1),
    "gridengine.sh": ("abci-v100", ["cluster.scheduler.requeue=true", "cluster.scheduler.max_restarts=9",
                                    "cluster.scheduler.setup=['module load openmpi']"], 5),
    "pbs-apptainer.sh": ("abci-v100", ["cluster.scheduler.kind=pbs", "cluster.scheduler.resources=[]",
                                       "cluster.container.runtime=apptainer", _IMAGE,
                                       "cluster.scheduler.requeue=true"], 1),
    "lsf.sh": ("laptop", [*_SMALL, "cluster.scheduler.kind=lsf", "cluster.num_nodes=2", "cluster.scheduler.queue=long",
                          "cluster.scheduler.requeue=true"], 1),
    "kubernetes.yaml": ("a100-node", ["cluster.launcher=mpirun", "cluster.scheduler.kind=kubernetes", *_DOCKER,
                                      "cluster.scheduler.wall_time_s=3600", "cluster.num_nodes=2",
                                      "cluster.scheduler.resources=[rdma/ib=1]"], 1),
    "trainjob.yaml": ("laptop", ["cluster.engine.name=torch", "cluster.launcher=torchrun", "cluster.num_nodes=2",
                                 "cluster.scheduler.kind=trainjob", "cluster.scheduler.wall_time_s=3600",
                                 "cluster.scheduler.training_runtime=resnet-records-torch",
                                 "cluster.scheduler.queue=teams", "cluster.scheduler.resources=[cpu=4, memory=8Gi]",
                                 *_DOCKER], 1),
    "hosts-horovodrun.sh": ("laptop", ["cluster.num_nodes=2", "cluster.launcher=horovodrun",
                                       "cluster.scheduler.max_restarts=9"], 1),
    "hosts-mpirun.sh": ("laptop", ["cluster.num_nodes=2", "cluster.launcher=mpirun",
                                   "cluster.communication.backend=mpi"], 1),
}  # fmt: skip
"""File in golden/ -> cluster, changes to the cluster, number of runs."""


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


def script_of(cluster: Cluster, runs: int = 1) -> str:
    """Return the job script of such a job."""
    spec = job(cluster, runs)
    return spec.scheduler.render(spec)


def golden_text(name: str) -> str:
    """Return the job script of one of the cases."""
    cluster, overrides, runs = CASES[name]
    return script_of(load_cluster(cluster, [*_SHARED, *overrides]), runs)


if __name__ == "__main__":
    for case in CASES:
        (GOLDEN / case).write_text(golden_text(case), encoding="utf-8")
