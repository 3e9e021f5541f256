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

__all__ = ["COMMUNICATORS", "SCHEDULERS", "SOURCES", "module_of"]

COMMUNICATORS: Mapping[str, str] = {
    "horovod": "train.comm.horovod",
    "parameter_server": "train.comm.kvstore",
    "parameter_server_async": "train.comm.kvstore",
    "devices": "train.comm.devices",
    "none": "train.comm.communicator",
}
"""`communication.kind` -> module with a function ``connect(communication)``."""

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
    "folders": "data.sources.folders",
    "table": "data.sources.tables",
    "generated": "data.sources.generated",
}
"""`data.source` -> module that recognises and opens the source; synthetic images have none, they are never packed."""


def module_of(table: Mapping[str, str], name: str) -> ModuleType:
    """Import the module that has the part ``name`` of one of the tables above.

    Args:
        table: `COMMUNICATORS`, `SCHEDULERS` or `SOURCES`.
        name: A key of the table; the schema has already refused any other name.

    Raises:
        KeyError: ``name`` is not in the table, which is a programmer's mistake.
    """
    return importlib.import_module(table[name])
