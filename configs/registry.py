"""The names that a recipe or a cluster file may use for a part, and the module that has each part.

This table is the registration that every extension needs (docs/extending.md). `configs` imports none of these modules:
the schema takes the names as its allowed values, and whoever builds a part imports its module. A test imports every
module listed here.

Optimizers and decays are blocks of keys, so their registration is the list of classes in `configs.optimizers` and
`configs.decays`.
"""

from collections.abc import Collection, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Literal, NamedTuple

from configs.errors import ConfigError

if TYPE_CHECKING:
    from configs.schema import Data

MOST_CLASSES = 1_000_000
"""Of a data set. A number of a class beyond it is an identifier of something else."""

RendezvousName = Literal["horovod", "torch", "shared_memory", "none"]

_ALL_LAUNCHERS = ("local", "horovodrun", "mpirun", "srun")


class CommunicatorEntry(NamedTuple):
    """A way to sum the gradients.

    Attributes:
        module: Module with a function ``connect(communication)`` that returns a `Connect`.
        engines: The values of ``engine.name`` whose arrays it sums.
        rendezvous: How the ranks learn their numbers and find each other; see `launch.start.rendezvous`.
        launchers: The values of ``launcher`` that can start its ranks.
    """

    module: str
    engines: tuple[str, ...]
    rendezvous: RendezvousName = "none"
    launchers: tuple[str, ...] = _ALL_LAUNCHERS


COMMUNICATORS: Mapping[str, CommunicatorEntry] = {
    "horovod": CommunicatorEntry("train.comm.horovod_communicator", ("mxnet", "timed"), "horovod"),
    "torch_distributed": CommunicatorEntry(
        "train.comm.torch_communicator", ("torch", "timed"), "torch", ("local", "mpirun", "srun", "torchrun")
    ),
    "shared_memory": CommunicatorEntry("train.comm.shared_memory", ("mxnet", "torch", "timed"), "shared_memory"),
    "parameter_server": CommunicatorEntry("train.comm.parameter_servers", ("mxnet",), launchers=("local",)),
    "parameter_server_async": CommunicatorEntry("train.comm.parameter_servers", ("mxnet",), launchers=("local",)),
    "devices": CommunicatorEntry("train.comm.devices", ("mxnet",), launchers=("local",)),
    "none": CommunicatorEntry("train.comm.communicator", ("mxnet", "torch", "timed")),
}
"""`communication.kind` -> communicator. The first one of an engine is its default.

`train.comm.devices` has no function ``connect``: it starts a thread for each rank of a process and connects the threads
itself.
"""


def communicators_of(engine: str) -> tuple[str, ...]:
    """Return the values of ``communication.kind`` that sum an engine's arrays, the default first."""
    return tuple(kind for kind, entry in COMMUNICATORS.items() if engine in entry.engines)


class EngineEntry(NamedTuple):
    """An engine and what a cluster file may ask of it.

    Attributes:
        module: Has a function ``open_engine(cluster, identity)``.
        packages: The frameworks' own packages, any of which is enough for the engine.
        title: The framework's name in messages, and in the log.
        distributions: The names under which pip may have installed the framework.
        precisions: The values of ``engine.precision`` on a GPU.
        cpu_precisions: Those on a CPU.
        cast_precisions: Those in which weights and gradients stay float32, and each step casts the weights.
        layouts: The values of ``engine.layout`` on a GPU.
        cpu_layouts: Those on a CPU.
        computes: Whether the engine trains. If false, it waits as long as a described GPU would compute.
        shares_memory: Whether its ranks on one machine's CPU sum in shared memory if nothing else is asked for.
    """

    module: str
    packages: tuple[str, ...]
    title: str
    distributions: tuple[str, ...]
    precisions: tuple[str, ...]
    cpu_precisions: tuple[str, ...]
    layouts: tuple[str, ...]
    cpu_layouts: tuple[str, ...]
    computes: bool = True
    shares_memory: bool = False
    cast_precisions: tuple[str, ...] = ()


ENGINES: Mapping[str, EngineEntry] = {
    "mxnet": EngineEntry(
        module="train.engine.mxnet.engine",
        packages=("mxnet",),
        title="MXNet",
        distributions=("mxnet", "mxnet-cu112"),
        precisions=("float32", "float16"),
        cpu_precisions=("float32", "bfloat16"),
        layouts=("NCHW", "NHWC"),
        cpu_layouts=("NCHW",),
        shares_memory=True,
        cast_precisions=("bfloat16",),
    ),
    "torch": EngineEntry(
        module="train.engine.torch.engine",
        packages=("torch",),
        title="PyTorch",
        distributions=("torch",),
        precisions=("float32", "float16", "bfloat16"),
        cpu_precisions=("float32", "bfloat16"),
        layouts=("NCHW", "NHWC"),
        cpu_layouts=("NCHW", "NHWC"),
    ),
    "timed": EngineEntry(
        module="train.engine.timed",
        packages=("mxnet", "torch"),
        title="waits",
        distributions=(),
        precisions=(),
        cpu_precisions=("float32", "float16", "bfloat16"),
        layouts=(),
        cpu_layouts=("NCHW", "NHWC"),
        computes=False,
    ),
}
"""`engine.name` -> engine. The first engine is the default, unless the environment has only another one."""


def installed_engine() -> str:
    """Return the default of ``engine.name``: the first engine that this environment has, or else the first."""
    return next((name for name in ENGINES if has_engine(name)), next(iter(ENGINES)))


CAST_FLAGS = frozenset({"avx512f", "avx512bw", "avx512dq", "avx512vl"})
"""What oneDNN 2.4, the library in MXNet 1.9.1, needs of a CPU for any operator in bfloat16, by Linux's names."""


def possible_precisions(engine: str, flags: Collection[str]) -> tuple[str, ...]:
    """Return the values of ``engine.precision`` that an engine has on a CPU with these instruction sets."""
    entry = ENGINES[engine]
    casts = () if set(flags) >= CAST_FLAGS else entry.cast_precisions
    return tuple(each for each in entry.cpu_precisions if each not in casts)


def gradient_precision(engine: str, precision: str) -> str:
    """Return the number type in which an engine holds weights and gradients with a precision."""
    return "float32" if precision in ENGINES[engine].cast_precisions else precision


MOST_BFLOAT16_SUMMANDS = 64
"""Ranks up to which bfloat16 gradients are summed in bfloat16. A ring of more ranks loses more by its roundings than
computing in bfloat16 does (docs/engines.md, a table)."""


def has_engine(name: str) -> bool:
    """Return whether this environment has an engine's framework."""
    return any(find_spec(package) for package in ENGINES[name].packages)


def require_engine(name: str) -> None:
    """Raise if this environment does not have an engine.

    Raises:
        ConfigError: The engine's framework is not installed.
    """
    if has_engine(name):
        return
    found = [other for other, entry in ENGINES.items() if entry.computes and has_engine(other)]
    remedy = f"./run.sh setup --engine {name} adds {ENGINES[name].title}"
    if found:
        remedy += f", or train by --set cluster.engine.name={found[0]}"
    raise ConfigError("engine.name", name, f"{' or '.join(found) or 'none'} in this environment", remedy)


def horovod_has_mpi() -> bool | None:
    """Return whether this environment's Horovod was built with MPI; None if there is no Horovod for MXNet.

    A Horovod with MPI names the function that starts MPI. To ask it by importing it would take seconds.
    """
    spec = find_spec("horovod")
    folders = (spec.submodule_search_locations if spec else None) or []
    libraries = [library for folder in folders for library in Path(folder, "mxnet").glob("mpi_lib*.so")]
    return any(b"MPI_Init_thread" in library.read_bytes() for library in libraries) if libraries else None


def require_reader(source: str) -> None:
    """Raise if this environment lacks DALI, which reads every `data.source` but synthetic images.

    Raises:
        ConfigError: DALI is not installed, as beside a site's own PyTorch for which it has no build.
    """
    if source == "synthetic" or (find_spec("nvidia") and find_spec("nvidia.dali")):
        return
    remedy = "train with --set data.source=synthetic, or in an environment of its own: ./run.sh setup --engine torch"
    raise ConfigError("data.source", source, "synthetic in this environment, which lacks NVIDIA DALI", remedy)


SOURCES: Mapping[str, str] = {
    "digits": "data.sources.digits",
    "idx": "data.sources.idx",
    "table": "data.sources.tables",
    "records": "data.sources.records",
    "webdataset": "data.sources.webdataset",
    "folders": "data.sources.folders",
    "generated": "data.sources.generated",
}
"""`data.source` -> module that recognises and opens the source (`data.sources.image_source.SourceModule`).

Where two sources recognise a folder, the first of this table opens it: the images that tables name may lie in class
folders. Synthetic images have no row, because they are never packed.
"""

ALL_SOURCES = (*SOURCES, "synthetic")

INVENTED_SOURCES = ("synthetic", "generated")
"""The values of ``data.source`` whose images no camera made, so that an accuracy on them is no result."""

SOURCES_OF_FILES = frozenset({"folders", "records", "webdataset"})
"""Sources of the same images in other files; a recipe for one of them takes a data set of any."""

BUILT_IN_SOURCES: Mapping[str, tuple[str, ...]] = {"digits": (), "generated": ("train", "eval", "classes")}
"""Sources that need no files of the user -> the counts that `prepare` takes for them; the program packs them itself."""

SOURCES_WITH_LABEL_VECTORS = frozenset({"table"})
"""Sources whose images have any number of labels: a 0 or 1 for each class, which `loss.kind: sigmoid` is for."""


def packing_words(data: "Data", num_classes: int, destination: Path) -> list[str]:
    """Return the arguments of ``./run.sh prepare`` that pack the data set of a recipe, of so many classes.

    Args:
        data: The recipe's block.
        num_classes: Classes that the recipe expects.
        destination: Folder of the data set.

    Returns:
        The words; FOLDER stands for the user's files, where the source is not built in.
    """
    if data.source not in BUILT_IN_SOURCES:
        return ["FOLDER", str(destination)]
    counts = {"train": data.train_samples, "eval": data.eval_samples, "classes": num_classes}
    options = [word for option in BUILT_IN_SOURCES[data.source] for word in (f"--{option}", str(counts[option]))]
    return [data.source, str(destination), *options]
