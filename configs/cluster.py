"""The cluster: the place a run happens in, frozen and self-checking. No hyperparameter stands here."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import Field, field_validator, model_validator

from configs.errors import ConfigError
from configs.registry import SCHEDULERS
from configs.section import Section
from configs.variables import require_known

__all__ = [
    "Checkpoint", "Cluster", "Communication", "Container", "Engine", "Fabric", "Node", "Paths", "Scheduler",
    "Submission",
]  # fmt: skip

Words = Annotated[tuple[str, ...], Field(strict=False)]

if TYPE_CHECKING:
    SchedulerKind = str
else:
    # A type checker cannot read names from a table, pydantic can.
    SchedulerKind = Literal[tuple(SCHEDULERS)]


class Engine(Section):
    """How MXNet and DALI use one rank's share of the machine."""

    precision: Literal["float32", "float16"] = "float32"
    layout: Literal["NCHW", "NHWC"] = "NCHW"
    threads: int = Field(1, ge=1, le=512, description="OpenMP threads of a rank's operators.")
    input_threads: int = Field(1, ge=1, le=64, description="DALI threads of a rank.")
    prefetch_depth: int = Field(2, ge=1, le=16, description="Batches that DALI prepares ahead.")
    stick_to_shard: bool = Field(False, description="A rank reads the same shard every epoch, for caches.")
    backward_bulk_nodes: int = Field(
        4, ge=1, le=999, description="Operators the engine runs as one; an allreduce waits for the end of its segment."
    )
    forward_bulk_nodes: int = Field(
        15, ge=1, le=999, description="The same in the forward pass: a segment waits for the weights of all its layers."
    )
    update_groups: int = Field(
        1, ge=1, le=64, description="Groups of layers, last ones first, each updated as soon as its sums are back."
    )
    run_ahead_steps: int = Field(2, ge=1, le=16, description="Steps that Python may queue before it waits.")
    timing: bool = Field(True, description="Measure input wait and exposed communication as the run goes.")


class Communication(Section):
    """What reduces the gradients, and in what portions.

    ``horovod`` is an allreduce by ``backend``; ``parameter_server`` is MXNet's ``dist_sync`` with ``servers`` processes
    of its own, ``parameter_server_async`` its ``dist_async``; ``devices`` makes every rank a device of one process;
    ``none`` is for one rank. All but the asynchronous one take the same steps.
    """

    kind: Literal["horovod", "parameter_server", "parameter_server_async", "devices", "none"] = "horovod"
    servers: int = Field(1, ge=1, le=1024, description="Processes that share the parameter servers' keys.")
    backend: Literal["gloo", "mpi", "nccl"] = "gloo"
    allreduce: Literal["flat", "hierarchical", "torus"] = Field(
        "flat", description="torus: reduce-scatter in the node, allreduce across nodes, all-gather in the node (NCCL)."
    )
    bucket_bytes: int = Field(4 << 20, ge=1, description="Cap of one fused reduction, last layer first.")
    deferred_fraction: float = Field(
        0.0, ge=0, le=0.5, description="Share of the gradients, of late layers, that travels under the next step's "
        "forward, for links that bound a step; brought nothing on two cores. 0: none.",
    )  # fmt: skip
    cycle_time_ms: float = Field(1.0, gt=0, le=1000, description="How often Horovod looks for ready tensors.")
    timeout_s: int = Field(300, ge=1, le=86_400, description="How long ranks wait for each other at start-up.")
    link_bytes_per_s: float | None = Field(
        None,
        ge=1e5,
        le=1e11,
        description="Shape this machine's loopback so that a rank sends no faster; none: as it is.",
    )

    @property
    def is_synchronous(self) -> bool:
        """Whether all ranks stand at the same step with the same weights."""
        return self.kind != "parameter_server_async"


class Checkpoint(Section):
    """When a run's state is kept; always at its end, and when it is told to stop."""

    every_epochs: int | None = Field(1, ge=1, description="At the first evaluation so long after the last; none: not.")
    keep: int = Field(2, ge=1, le=1000, description="Newest ones that stay.")


class Paths(Section):
    """Folders; relative ones are below the program's own folder."""

    data: str = "runs/data"
    runs: str = "runs"
    stage: str | None = Field(
        None, min_length=1, description="A folder on each node's own disk that a run copies its data set to first; may "
        "hold variables, as $SLURM_TMPDIR, and in a container has to be mounted for the copy to outlive it."
    )  # fmt: skip
    keep_stage: bool = Field(True, description="Leave that copy for the next run on the node.")


class Submission(Section):
    """Who runs this, for the log's submission_* events."""

    org: str = Field("unaffiliated", min_length=1)
    platform: str = Field("laptop", min_length=1)
    status: Literal["cloud", "onprem", "preview", "research"] = "research"
    poc_name: str = Field("anonymous", min_length=1)
    poc_email: str = ""


class Node(Section):
    """The hardware of one machine, for planning, prediction and the binding of ranks.

    Rates are effective ones, one direction; unknown values stay out. Only ``cores``, ``rank_cores`` and ``hcas`` change
    what a run does: a rank that a job script starts is bound to its share.
    """

    gpu: str | None = Field(None, description="For example V100-SXM2-16GB.")
    gpu_memory_bytes: int | None = Field(None, ge=1)
    gpu_link_bytes_per_s: float | None = Field(None, gt=0, description="Between GPUs of a node, per GPU.")
    cores: int | None = Field(None, ge=1)
    memory_bytes: int | None = Field(None, ge=1)
    nics: int = Field(0, ge=0, le=64)
    nic_bytes_per_s: float | None = Field(None, gt=0, description="Of one network card.")
    hcas: Words = Field((), description="InfiniBand adapters, in the order of the local ranks that share them.")
    rank_cores: Words = Field((), description="Cores of each local rank (0-7); none: equal blocks of cores.")


class Fabric(Section):
    """The network between machines."""

    nodes_per_rack: int | None = Field(None, ge=1)
    uplink_share: float = Field(1.0, gt=0, le=1, description="Bandwidth between racks over that within one.")


class Scheduler(Section):
    """Who grants the machines; ``./run.sh submit`` renders the job script from it."""

    kind: SchedulerKind = "none"
    queue: str = Field("", description="Partition, queue or namespace.")
    account: str = Field("", description="Project or group that pays.")
    wall_time_s: int | None = Field(None, ge=60, description="Limit of the job.")
    resources: Words = Field(
        (), description="Further requests, as the scheduler spells them: rt_F={num_nodes}, --exclusive, -pe mpi 2."
    )
    notice_s: int = Field(120, ge=0, description="How long before the limit a job is told to save its work.")
    requeue: bool = Field(False, description="A job that was told to save its work is queued again to continue it.")
    setup: Words = Field((), description="Shell lines at a job's start: module load openmpi.")

    @field_validator("resources")
    @classmethod
    def _resources_name_known_values(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        for word in value:
            unknown = set(re.findall(r"{(.*?)}", word)) - {"num_nodes", "ranks_per_node", "world_size"}
            if unknown:
                raise ConfigError("resources", word, "{num_nodes}, {ranks_per_node} or {world_size} in braces")
        return value

    @model_validator(mode="after")
    def _notice_comes_before_the_limit(self) -> Scheduler:
        if self.wall_time_s is not None and self.notice_s >= self.wall_time_s:
            raise ConfigError("notice_s", self.notice_s, f"less than wall_time_s: {self.wall_time_s}")
        return self


class Container(Section):
    """The image that ranks run in, if any."""

    runtime: Literal["none", "docker", "singularity", "apptainer", "enroot"] = "none"
    image: str = ""
    mounts: Words = Field((), description="host:container pairs.")

    @model_validator(mode="after")
    def _runtime_has_an_image(self) -> Container:
        for pair in self.mounts:
            if not re.fullmatch(r"[^:]+:/[^:]*(:ro)?", pair):
                raise ConfigError("mounts", pair, "SOURCE:/TARGET")
        if (self.runtime == "none") != (not self.image):
            raise ConfigError("image", self.image, f"an image with a runtime, none without (runtime: {self.runtime})")
        return self


class Cluster(Section):
    """The place: machines, ranks, launcher, threads, folders, variables."""

    name: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")
    purpose: str = ""
    device: Literal["cpu", "gpu"] = "cpu"
    num_nodes: int = Field(1, ge=1, le=100_000)
    ranks_per_node: int = Field(2, ge=1, le=1024, description="One rank a GPU; on a CPU as many as wanted.")
    launcher: Literal["local", "horovodrun", "mpirun", "srun"] = "local"
    watchdog_s: int = Field(
        600, ge=10, description="A rank without progress for so long ends the run; at start-up communication.timeout_s."
    )
    trace_steps: int = Field(
        0, ge=0, le=1000, description="Steps whose operators go to trace.json; --trace asks for 3."
    )
    node: Node = Node()
    fabric: Fabric = Fabric()
    scheduler: Scheduler = Scheduler()
    container: Container = Container()
    engine: Engine = Engine()
    communication: Communication = Communication()
    checkpoint: Checkpoint = Checkpoint()
    paths: Paths = Paths()
    submission: Submission = Submission()
    environment: dict[str, str] = Field(default_factory=dict, description="Extra variables for every rank.")

    @field_validator("environment", mode="before")
    @classmethod
    def _environment_is_text(cls, value: Any) -> Any:
        if not isinstance(value, dict):
            return value
        for key in value:
            if not re.fullmatch(r"[A-Z][A-Z0-9_]*", str(key)):
                raise ConfigError("environment", key, "names in capitals, digits and underscores")
            require_known(key)
        return {key: item if isinstance(item, str) else str(item) for key, item in value.items()}

    @model_validator(mode="after")
    def _parts_agree(self) -> Cluster:
        if self.device == "cpu" and self.engine.precision == "float16":
            raise ConfigError("engine.precision", "float16", "float32 on a CPU", "set device: gpu, or leave it out")
        if self.device == "cpu" and self.engine.layout == "NHWC":
            raise ConfigError("engine.layout", "NHWC", "NCHW on a CPU", "MXNet's CPU convolutions are NCHW only")
        if self.device == "cpu" and self.communication.backend == "nccl":
            raise ConfigError("communication.backend", "nccl", "gloo or mpi on a CPU")
        if self.communication.allreduce == "torus" and self.communication.backend != "nccl":
            raise ConfigError("communication.allreduce", "torus", "flat or hierarchical without NCCL",
                              "set communication.backend: nccl")  # fmt: skip
        if 0 < len(self.node.rank_cores) < self.ranks_per_node:
            raise ConfigError("node.rank_cores", list(self.node.rank_cores),
                              f"a word for each of a node's {self.ranks_per_node} ranks, or none")  # fmt: skip
        kind = self.communication.kind
        if kind == "none" and self.world_size > 1:
            raise ConfigError("communication.kind", kind, f"for one rank, not {self.world_size}",
                              "set cluster.ranks_per_node=1")  # fmt: skip
        if kind == "devices" and self.num_nodes > 1:
            raise ConfigError("communication.kind", kind, "one machine", "set cluster.num_nodes=1, or kind: horovod")
        if kind == "parameter_server_async" and self.engine.precision == "float16":
            raise ConfigError("communication.kind", kind, "float32 only", "set cluster.engine.precision=float32")
        link = self.communication.link_bytes_per_s
        if link is not None and (self.launcher != "local" or self.device == "gpu"):
            raise ConfigError("communication.link_bytes_per_s", link, "null but for ranks on one machine's CPU",
                              "set launcher: local, or leave it out")  # fmt: skip
        if self.num_nodes > 1 and self.launcher == "local":
            raise ConfigError("launcher", "local", "horovodrun, mpirun or srun for more than one node")
        return self

    @property
    def world_size(self) -> int:
        """Ranks over all nodes."""
        return self.num_nodes * self.ranks_per_node
