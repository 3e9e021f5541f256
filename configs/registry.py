"""The names that a recipe or a cluster file may use for a part, and the module that has each part.

This table is the registration that every extension needs (docs/extending.md). `configs` imports none of these modules:
the schema takes the names as its allowed values, and whoever builds a part calls `module_of`. A test imports every
module listed here.

Optimizers and decays are blocks of keys, so their registration is the list of classes in `configs.optimizers` and
`configs.decays`.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from types import ModuleType
from typing import TYPE_CHECKING, Literal

__all__ = [
    "BUILT_IN_SOURCES",
    "COMMUNICATORS",
    "ENGINES",
    "SCHEDULERS",
    "SOURCES",
    "SOURCES_WITH_LABEL_VECTORS",
    "CommunicatorKind",
    "DataSource",
    "PackedSource",
    "module_of",
    "packing_words",
]

COMMUNICATORS: Mapping[str, str] = {
    "horovod": "train.comm.horovod_communicator",
    "parameter_server": "train.comm.parameter_servers",
    "parameter_server_async": "train.comm.parameter_servers",
    "devices": "train.comm.devices",
    "none": "train.comm.communicator",
}
"""`communication.kind` -> module with a function ``connect(communication)`` that returns a `Connect`.

`train.comm.devices` has none: it starts a thread for each rank of a process and connects the threads itself.
"""

ENGINES: Mapping[str, str] = {"mxnet": "train.engine.mxnet"}
"""Framework -> package with a function ``open_engine(cluster, identity)``."""

SCHEDULERS: Mapping[str, str] = {
    "none": "launch.submit.hosts",
    "slurm": "launch.submit.slurm",
    "gridengine": "launch.submit.gridengine",
    "pbs": "launch.submit.pbs",
    "lsf": "launch.submit.lsf",
    "kubernetes": "launch.submit.kubernetes",
}
"""`scheduler.kind` -> module with the scheduler's description ``SCHEDULER`` and its ``render`` function.

`none` stands for a list of machines that no scheduler grants (``./run.sh submit --hosts``).
"""

SOURCES: Mapping[str, str] = {
    "digits": "data.sources.digits",
    "idx": "data.sources.idx",
    "table": "data.sources.tables",
    "folders": "data.sources.folders",
    "generated": "data.sources.generated",
}
"""`data.source` -> module that recognises and opens the source (`data.sources.image_source.SourceModule`).

Where two sources recognise a folder, the first of this table opens it: the images that tables name may lie in class
folders. Synthetic images have no row, because they are never packed.
"""

BUILT_IN_SOURCES: Mapping[str, tuple[str, ...]] = {"digits": (), "generated": ("train", "eval", "classes")}
"""Sources that need no files of the user -> the counts that `prepare` takes for them; the program packs them itself."""

SOURCES_WITH_LABEL_VECTORS = frozenset({"table"})
"""Sources whose images have any number of labels: a 0 or 1 for each class, which `loss.kind: sigmoid` is for."""

if TYPE_CHECKING:
    CommunicatorKind = str
    DataSource = str
    PackedSource = str
else:
    # A type checker cannot read names from a table, pydantic can.
    CommunicatorKind = Literal[tuple(COMMUNICATORS)]
    _ALL_SOURCES = (*SOURCES, "synthetic")
    DataSource = Literal[_ALL_SOURCES]
    PackedSource = Literal[tuple(SOURCES)]


def packing_words(source: str, destination: str, *, train: int, eval: int, classes: int) -> list[str]:
    """Return the arguments of ``./run.sh prepare`` that pack a data set of these counts from a source.

    Args:
        source: A key of `SOURCES`.
        destination: Folder of the data set.
        train: Training images that the recipe expects.
        eval: Evaluation images that the recipe expects.
        classes: Classes that the recipe expects.

    Returns:
        The words; FOLDER stands for the user's files, where the source is not built in.
    """
    if source not in BUILT_IN_SOURCES:
        return ["FOLDER", destination]
    counts = {"train": train, "eval": eval, "classes": classes}
    options = [word for option in BUILT_IN_SOURCES[source] for word in (f"--{option}", str(counts[option]))]
    return [source, destination, *options]


def module_of(table: Mapping[str, str], name: str) -> ModuleType:
    """Import the module that has the part ``name`` of one of the tables above.

    Args:
        table: `COMMUNICATORS`, `SCHEDULERS` or `SOURCES`.
        name: A key of the table; the schema has already refused any other name.

    Raises:
        KeyError: ``name`` is not in the table, which is a programmer's mistake.
    """
    return importlib.import_module(table[name])
