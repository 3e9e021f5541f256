"""The cluster file: the machines that a run uses and how it uses them. A cluster holds no hyperparameter."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import Field, field_validator, model_validator

from configs.blocks.execution import Communication, EngineSettings
from configs.blocks.jobs import Checkpoint, Container, Paths, Scheduler, Submission
from configs.blocks.machines import Fabric, Node
from configs.blocks.rehearsal import Rehearsal
from configs.errors import ConfigError
from configs.registry import ENGINES, MOST_BFLOAT16_SUMMANDS, communicators_of, gradient_precision, installed_engine
from configs.section import Section

_OF_LIBRARIES = {"backend", "allreduce", "cycle_time_ms", "link_bytes_per_s"}
"""Keys of ``communication`` that mean an allreduce by a library, over a network."""

_FAST_ENGINE = {"precision": "float16", "layout": "NHWC", "decoder": "whole"}
_FAST_COMMUNICATION = {"backend": "nccl", "bucket_bytes": 16 << 20}
"""Defaults of PyTorch on a GPU. float32 in the layout NCHW with sums by Gloo would be three to five times slower.
float16, not bfloat16, because PyTorch 2.13 takes cuDNN's batch norm for float16 only."""

_INPUT_THREADS, _MOST_INPUT_THREADS, _OTHER_CORES = 4, 8, 2
"""DALI threads of a GPU whose cores are unknown, the most that are taken by default, and the cores that are left to the
rank's own thread and to NCCL's."""

_VARIABLE_NAME = r"(?:[A-Z][A-Z0-9_]*|OMPI_MCA_[a-z0-9_]+)"


class Cluster(Section):
    """The machines that a run uses: nodes, ranks, launcher, threads, folders, variables."""

    name: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")
    """Name of the cluster: letters, digits, dots, dashes and underscores. Shipped files are named after it."""
    purpose: str = ""
    """Purpose of the cluster file, for its readers; nothing else uses it."""
    device: Literal["cpu", "gpu"] = "cpu"
    """Whether ranks compute on the CPU, or on one GPU each."""
    num_nodes: int = Field(1, ge=1, le=100_000, json_schema_extra={"unit": "nodes"})
    """Machines of a run. The world size is num_nodes times ranks_per_node."""
    ranks_per_node: int = Field(2, ge=1, le=1024, json_schema_extra={"unit": "ranks"})
    """Training processes on each node: one per GPU, or any number on a CPU."""
    launcher: Literal["local", "horovodrun", "mpirun", "srun", "torchrun"] = "local"
    """Program that starts the ranks. local is this program itself and starts ranks on its own machine only. torchrun is
    PyTorch's: on several nodes, the pods of a TrainJob each run one (scheduler trainjob)."""
    watchdog_s: int = Field(600, ge=10)
    """Time without progress after which a rank ends the run. It applies from the first step on; before that,
    communication.timeout_s applies. A rank that is frozen within steps ends the run sooner."""
    trace_steps: int = Field(0, ge=0, le=1000)
    """Steps whose operators are recorded in trace.json. 0 records none; train --trace records 3."""
    sample_gpus: bool = True
    """Whether a run asks NVML, a library of NVIDIA's driver, once a second how busy the GPUs are, for
    utilisation.jsonl, and for their energy. If false, the samples hold cores and memory only, and no energy of a run on
    GPUs is known."""
    notify: str = ""
    """Shell command that runs when a run ends, fails, is stopped or restarts its ranks. Its variables are RUN_EVENT
    (end, failure, stop, restart), RUN_MESSAGE and RUN_FOLDER. If empty, no command runs."""
    health: str | None = Field(None, min_length=1)
    """File to which ./run.sh doctor --step adds a line for each check, with the nodes that were slow. A node that was
    slow in two jobs is named. If null, health.jsonl in paths.runs."""
    trackers: Annotated[tuple[Literal["tensorboard", "wandb", "mlflow"], ...], Field(strict=False)] = ()
    """Live trackers that ./run.sh train sends a run's numbers to at each evaluation, if their packages are installed:
    tensorboard (event files in the run folder: tensorboard --logdir RUN), wandb (Weights & Biases, also with
    WANDB_MODE=offline), mlflow. For a job, use ./run.sh watch RUN --track NAME."""
    node: Node = Node()
    fabric: Fabric = Fabric()
    scheduler: Scheduler = Scheduler()
    container: Container = Container()
    engine: EngineSettings = EngineSettings()
    communication: Communication = Communication()
    checkpoint: Checkpoint = Checkpoint()
    paths: Paths = Paths()
    submission: Submission = Submission()
    rehearsal: Rehearsal | None = None
    """Sleeps that replace compute in a rehearsal; ./run.sh rehearse writes this block. null in every other run."""
    environment: dict[str, str] = Field(
        default_factory=dict,
        json_schema_extra={
            "additionalProperties": {"type": ["string", "number", "boolean", "null"]},
            "propertyNames": {"pattern": f"^{_VARIABLE_NAME}$"},
        },
    )
    """Environment variables of every rank, in addition to those that follow from other keys. A variable given here
    takes precedence."""

    @field_validator("environment", mode="before")
    @classmethod
    def _require_names_of_variables(cls, value: Any) -> Any:
        for key in value if isinstance(value, dict) else ():
            if not re.fullmatch(_VARIABLE_NAME, str(key)):
                allowed = "names in capitals, digits and underscores, or OMPI_MCA_parameter"
                raise ConfigError("environment", key, allowed)
        return value

    @model_validator(mode="before")
    @classmethod
    def _choose_engine(cls, values: Any) -> Any:
        """Fill in the keys whose defaults depend on the environment, the engine or the device."""
        blocks = {block: values.get(block, {}) for block in ("engine", "communication")}
        if not all(isinstance(block, dict) for block in blocks.values()):
            return values  # which the fields refuse, or which are sections already
        engine = {"name": installed_engine(), **blocks["engine"]}
        if engine["name"] not in list(ENGINES):  # which may be something that cannot be a key
            return values
        shares = _can_share_memory(values, engine) and not _OF_LIBRARIES & blocks["communication"].keys()
        kind = "shared_memory" if shares else communicators_of(engine["name"])[0]
        communication = {"kind": kind, **blocks["communication"]}
        if (engine["name"], values.get("device")) == ("torch", "gpu"):
            engine = {**_FAST_ENGINE, "input_threads": _input_threads(values), **engine}
            communication = {**_FAST_COMMUNICATION, **communication}
        return {**values, "engine": engine, "communication": communication}

    def _require_agreement(self) -> None:
        self._require_possible_engine()
        engine, ranks, on_gpu = self.engine, self.ranks_per_node, self.device == "gpu"
        self.refuse(
            not on_gpu and self.communication.backend == "nccl", "communication.backend", "gloo or mpi on a CPU"
        )
        no_cache = engine.decoded_cache_bytes and not (on_gpu and engine.stick_to_shard)
        allowed = "0, except with device: gpu and engine.stick_to_shard: true"
        self.refuse(no_cache, "engine.decoded_cache_bytes", allowed)
        no_load = engine.hw_decoder_load is not None and not on_gpu
        self.refuse(no_load, "engine.hw_decoder_load", "null, except with device: gpu")
        allowed = f"an entry for each of a node's {ranks} ranks, or an empty list"
        self.refuse(0 < len(self.node.rank_cores) < ranks, "node.rank_cores", allowed)
        self._require_possible_communication()
        allowed = "horovodrun, mpirun, srun or torchrun for more than one node"
        self.refuse(self.num_nodes > 1 and self.launcher == "local", "launcher", allowed)

    def _require_possible_engine(self) -> None:
        engine, entry, on = self.engine, ENGINES[self.engine.name], f"under {ENGINES[self.engine.name].title}"
        precisions, layouts = entry.precisions, entry.layouts
        if self.device == "cpu":
            precisions, layouts, on = entry.cpu_precisions, entry.cpu_layouts, f"{on} on a CPU"
        not_torch = engine.name != "torch"
        self.refuse(engine.compile and not_torch, "engine.compile", f"false {on}")
        self.refuse(engine.cuda_graphs != "none" and not_torch, "engine.cuda_graphs", f"none {on}")
        where, remedy = (on, "") if not_torch else ("in NCHW", "set cluster.engine.layout=NHWC")
        is_fused, in_place = engine.batch_norm == "fused", (engine.name, engine.layout) == ("torch", "NHWC")
        self.refuse(is_fused and not in_place, "engine.batch_norm", f"framework {where}", remedy)
        is_rehearsed = self.rehearsal is not None
        allowed = "timed, together with a rehearsal block, or another engine"
        self.refuse(entry.computes == is_rehearsed, "engine.name", allowed)
        possible = {"engine.precision": precisions, "engine.layout": layouts}
        for key, values in {**possible, "communication.kind": communicators_of(engine.name)}.items():
            self.refuse(self.at(key) not in values, key, f"{', '.join(values)} {on}")

    def _require_possible_communication(self) -> None:
        own, on_gpu, link = self.communication, self.device == "gpu", self.communication.link_bytes_per_s
        kind, in_torch, in_memory = own.kind, own.kind == "torch_distributed", own.kind == "shared_memory"
        for is_wrong, key, allowed, remedy in (
            (own.allreduce == "torus" and own.backend != "nccl",
             "communication.allreduce", "flat or hierarchical without NCCL", "set communication.backend: nccl"),
            (in_torch and own.allreduce != "flat", "communication.allreduce", "flat with torch_distributed", ""),
            (in_torch and own.deferred_fraction, "communication.deferred_fraction", "0 under PyTorch", ""),
            (kind == "none" and self.world_size > 1,
             "communication.kind", f"for one rank, not {self.world_size}", "set cluster.ranks_per_node=1"),
            (kind in ("devices", "shared_memory") and self.num_nodes > 1,
             "communication.kind", "one machine", "set cluster.num_nodes=1, or kind: horovod"),
            (kind == "parameter_server_async" and self.engine.precision == "float16",
             "communication.kind", "float32 only", "set cluster.engine.precision=float32"),
            (self.checkpoint.best and not own.is_synchronous,
             "checkpoint.best", "false where ranks are asynchronous", ""),
            (in_memory and on_gpu, "communication.kind",
             "for CPU ranks: the gradients of GPUs are not in the machine's memory", "leave the key out"),
            (in_memory and self.engine.gradient_precision != "float32",
             "communication.kind", "float32 only", "set cluster.engine.precision=float32"),
            (in_memory and own.allreduce != "flat", "communication.allreduce", "flat with shared_memory", ""),
            (in_memory and link is not None, "communication.link_bytes_per_s",
             "null with shared_memory, which sends nothing over the loopback", ""),
            (link is not None and (self.launcher != "local" or on_gpu), "communication.link_bytes_per_s",
             "null, except for CPU ranks of launcher local", "set launcher: local, or leave it out"),
        ):  # fmt: skip
            self.refuse(is_wrong, key, allowed, remedy)

    @property
    def world_size(self) -> int:
        """Number of ranks on all nodes together."""
        return self.num_nodes * self.ranks_per_node

    @property
    def sum_precision(self) -> str:
        """Number type in which ranks sum gradients; sums over micro-batches are float32 in any case."""
        held = self.engine.gradient_precision
        return "float32" if held == "bfloat16" and self.world_size > MOST_BFLOAT16_SUMMANDS else held


def _input_threads(values: Mapping[str, Any]) -> int:
    """Return the DALI threads of a GPU's rank that a file leaves out: by the cores of its node."""
    node, ranks = values.get("node"), values.get("ranks_per_node", Cluster.model_fields["ranks_per_node"].default)
    cores = node.get("cores") if isinstance(node, dict) else getattr(node, "cores", None)
    if not (isinstance(cores, int) and isinstance(ranks, int) and ranks > 0):
        return _INPUT_THREADS
    return max(1, min(_MOST_INPUT_THREADS, cores // ranks - _OTHER_CORES))


def _can_share_memory(values: Mapping[str, Any], engine: Mapping[str, Any]) -> bool:
    """Return whether the ranks of a cluster file sum float32 gradients on the CPU of one machine in shared memory."""
    ours = values.get("device", "cpu"), values.get("launcher", "local"), values.get("num_nodes", 1)
    is_float32 = gradient_precision(engine["name"], engine.get("precision", "float32")) == "float32"
    return ours == ("cpu", "local", 1) and is_float32 and ENGINES[engine["name"]].shares_memory
