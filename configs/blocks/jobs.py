"""The cluster file's blocks for what surrounds a run: folders, checkpoints, scheduler, container, submitter."""

from __future__ import annotations

import re
from typing import Annotated, Literal

from pydantic import Field

from configs.errors import ConfigError
from configs.section import Section

Texts = Annotated[tuple[str, ...], Field(strict=False)]

SchedulerKind = Literal[
    "none",
    "slurm",
    "gridengine",
    "pbs",
    "lsf",
    "kubernetes",
    "trainjob",
]
"""The keys of `launch.submit.schedulers.SCHEDULERS`."""


class Checkpoint(Section):
    """When a run's state is kept. It is always kept at the end of a run, and when a run is told to stop."""

    every_epochs: int | None = Field(1, ge=1)
    """Epochs between two checkpoints; a checkpoint follows the first evaluation after them. If null, only the end of a
    run and a stop signal write one."""
    keep: int = Field(2, ge=1, le=1000, json_schema_extra={"unit": "checkpoints"})
    """How many of the newest checkpoints stay on disk; older ones are deleted."""
    best: bool = False
    """Whether the checkpoint after the evaluation with the highest top-1 so far stays, too, as
    checkpoints/best-step-STEP.ckpt (mean ROC-AUC where images have several labels). Each better evaluation writes one.
    ./run.sh export, predict and --from take it. A resumed run that has one goes on with it."""

    @property
    def kinds(self) -> tuple[str, ...]:
        """What the end of a run leaves, in words; each may be a file of its own."""
        return ("the trained network", "the best checkpoint (checkpoint.best)")[: 1 + self.best]


class Paths(Section):
    """Folders. A relative path starts at the program's own folder."""

    data: str = "runs/data"
    """Folder that holds the packed data sets, one folder each."""
    runs: str = "runs"
    """Folder that holds the run folders."""
    stage: str | None = Field(None, min_length=1)
    """Folder on each node's own disk to which a run copies its data set first. It may contain variables, such as
    $SLURM_TMPDIR. In a container, mount it so that the copy outlives the run. If null, nothing is copied."""
    keep_stage: bool = True
    """Whether the copy in paths.stage stays for the next run on the node. If false, the last run that uses the copy
    deletes it."""


class Submission(Section):
    """Who runs this, for the submission events of the MLPerf log."""

    org: str = Field("unaffiliated", min_length=1)
    """Name of the submitting organisation (submission_org)."""
    platform: str = Field("laptop", min_length=1)
    """Name of the machine in results tables (submission_platform)."""
    status: Literal["cloud", "onprem", "preview", "research"] = "research"
    """MLPerf's category for the availability of the machine (submission_status)."""
    poc_name: str = Field("anonymous", min_length=1)
    """Name of the person to ask about the run (submission_poc_name)."""
    poc_email: str = ""
    """E-mail address of that person (submission_poc_email). If empty, the log has no such event."""


class Scheduler(Section):
    """The program that grants machines. ``./run.sh submit`` renders a job script for it."""

    kind: SchedulerKind = "none"
    """The scheduler. none: there are no jobs; submit then starts the ranks on a list of hosts (--hosts). On Kubernetes,
    kubernetes writes an MPIJob of the MPI operator, and trainjob writes a TrainJob of Kubeflow Trainer."""
    queue: str = ""
    """Partition (Slurm), queue or namespace (Kubernetes) of the job. If empty, the site's default."""
    training_runtime: str = ""
    """Name of the ClusterTrainingRuntime of Kubeflow Trainer that a TrainJob refers to: one with the policy torch for
    launcher torchrun, with the policy mpi for mpirun. docs/kubeflow-runtimes.yaml has both."""
    account: str = ""
    """Project or group to which the job is charged; on Kubernetes the queue of Kueue in which the job waits. If empty,
    the job names none."""
    wall_time_s: int | None = Field(None, ge=60)
    """Time after which the scheduler ends the job. Every scheduler but none requires it."""
    resources: Texts = ()
    """Further resource requests in the scheduler's own syntax: rt_F={num_nodes}, --exclusive, -pe mpi 2. Braces may
    hold num_nodes, ranks_per_node and world_size."""
    notice_s: int = Field(120, ge=0)
    """How long before the end of its wall time a job is told to save its state and to stop. Raise it if a checkpoint
    takes longer; 0 gives no notice."""
    requeue: bool = False
    """Whether a job that saved its state at the end of its wall time is queued again, to continue."""
    max_restarts: int = Field(0, ge=0, le=1000, json_schema_extra={"unit": "restarts"})
    """How often the ranks are restarted from the last checkpoint after a crash, a lost rank or a hang. After two
    attempts in a row without a new checkpoint the run is not restarted. With spare nodes, the run goes on without a
    node that failed; else Slurm and Grid Engine replace one that failed twice, with requeue. train --max-restarts N
    sets this key."""
    max_requeues: int = Field(100, ge=0, le=100_000, json_schema_extra={"unit": "requeues"})
    """How often a job is queued again, with requeue. After two attempts in a row without a new checkpoint it is not."""
    check_first: bool = False
    """Whether a job checks its nodes before it trains, as ./run.sh doctor --step does, and ends if a check fails. The
    check takes less than two minutes. Jobs in containers skip it, except on Kubernetes."""
    spare_nodes: int = Field(0, ge=0, le=1000, json_schema_extra={"unit": "nodes"})
    """Nodes that the job asks for beyond num_nodes. With check_first, the run leaves out nodes that are slow or fail
    the check; with max_restarts, a spare node takes the place of one that failed. Hosts of submit --hosts beyond
    num_nodes are spare nodes too."""
    setup: Texts = ()
    """Shell lines at the beginning of the job script, for example module load openmpi."""

    def _require_agreement(self) -> None:
        for key in ("queue", "account"):  # The scheduler would pass over what follows the space.
            self.refuse(" " in self.at(key), key, "one name without spaces")
        for key in ("queue", "account", "resources"):
            # A line break would begin a directive, or a command, of its own in the job script.
            self.refuse(not "".join(self.at(key)).isprintable(), key, "one line without control characters")
        try:
            "\n".join(self.resources).format(num_nodes=1, ranks_per_node=1, world_size=1)
        except (ValueError, LookupError, AttributeError):
            allowed = "{num_nodes}, {ranks_per_node} or {world_size} in braces"
            raise ConfigError("resources", self.resources, allowed, "double braces that are the scheduler's") from None
        is_too_early = self.wall_time_s is not None and self.notice_s >= self.wall_time_s
        self.refuse(is_too_early, "notice_s", f"less than wall_time_s: {self.wall_time_s}")


class Container(Section):
    """The container image that the ranks of a job run in."""

    runtime: Literal["none", "docker", "singularity", "apptainer", "charliecloud", "enroot"] = "none"
    """Program that runs the image. none: ranks run on the node itself."""
    image: str = ""
    """Name, file or folder of the image: required with a runtime, refused without. In the folder of an image,
    charliecloud makes the folders that mounts need; a SquashFS file (.sqfs) has to have them."""
    mounts: Texts = ()
    """Folders of the node to mount in the container, as SOURCE:/TARGET or SOURCE:/TARGET:ro. The folders of the data
    and of the run are mounted under their own names unless they are listed."""

    def _require_agreement(self) -> None:
        for pair in self.mounts:
            if not re.fullmatch(r"[^:]+:/[^:]*(:ro)?", pair):
                raise ConfigError("mounts", pair, "SOURCE:/TARGET")
            if self.runtime == "charliecloud" and pair.endswith(":ro"):
                raise ConfigError("mounts", pair, "SOURCE:/TARGET with runtime: charliecloud")
        allowed = f"an image with a runtime, none without (runtime: {self.runtime})"
        self.refuse((self.runtime == "none") != (not self.image), "image", allowed)
