"""Facts about a machine and its data set that decide whether a run can work: memory, disks, network links, records.

Changes nothing on the machine; imports no framework.
"""

import os
import re
import resource
import shutil
from contextlib import suppress
from pathlib import Path
from typing import Any

from configs.errors import UserError
from configs.load import resolve_path
from configs.schema import Cluster, Recipe
from data.cache import resident_bytes
from data.stage import dataset_bytes
from data.verify import check_dataset
from logs.environment import environment
from train.dataset import local_folder

_SAMPLE_BYTES = 1 << 20
"""Bytes that are read at each end of a file of records."""


def inspect_machine(cluster: Cluster) -> dict[str, Any]:
    """Return facts about this machine, in values that JSON can hold; a fact that cannot be found out is None."""
    return {
        "environment": environment(),
        "memory_available_bytes": _available_memory(),
        "locked_memory_bytes": _limit(resource.RLIMIT_MEMLOCK),
        "shm_free_bytes": _free(Path("/dev/shm")),
        "runs": _folder_facts(resolve_path(cluster.paths.runs)),
        "stage": None if cluster.paths.stage is None else _stage_facts(cluster.paths.stage),
        "interfaces": {path.name: _read_line(path / "operstate") for path in Path("/sys/class/net").glob("*")},
        "adapters": {path.name: _ports(path) for path in Path("/sys/class/infiniband").glob("*")},
    }


def inspect_dataset(recipe: Recipe, cluster: Cluster) -> dict[str, Any]:
    """Check the recipe's data set as this machine sees it, and read both ends of each file of records.

    Returns:
        ``problem`` is None or one line that says what is wrong; ``is_cache_told`` is whether the kernel tells this user
        how much of the data set the page cache holds.
    """
    folder = resolve_path(cluster.paths.data) / recipe.data.name
    if recipe.data.source == "synthetic":
        return {"folder": None}
    try:
        manifest = check_dataset(folder, recipe.data, recipe.model.num_classes)
        for path in folder.glob("*.rec"):
            _read_ends(path)
        is_cache_told = resident_bytes([folder / "eval.rec"]) is not None
    except UserError as error:
        return {"folder": str(folder), "problem": str(error), "exists": folder.exists()}
    except OSError as error:
        return {"folder": str(folder), "problem": f"{error.filename}: {error.strerror}", "exists": True}
    return {
        "folder": str(folder),
        "problem": None,
        "records": manifest.train.records + manifest.eval.records,
        "bytes": dataset_bytes(manifest),
        "is_cache_told": is_cache_told,
    }


def _read_ends(path: Path) -> None:
    with path.open("rb") as file:
        file.read(_SAMPLE_BYTES)
        file.seek(max(0, path.stat().st_size - _SAMPLE_BYTES))
        file.read(_SAMPLE_BYTES)


def _available_memory() -> int | None:
    found = re.search(r"^MemAvailable: *(\d+) kB", Path("/proc/meminfo").read_text(encoding="ascii"), re.MULTILINE)
    return int(found[1]) << 10 if found else None


def _limit(which: int) -> int | None:
    soft, _ = resource.getrlimit(which)
    return None if soft == resource.RLIM_INFINITY else soft


def _folder_facts(folder: Path) -> dict[str, Any]:
    """Return a folder's free bytes and whether it is writable; if it is missing, those of its nearest parent."""
    existing = next(path for path in (folder, *folder.parents) if path.exists())
    is_writable = os.access(existing, os.W_OK | os.X_OK)
    return {"folder": str(folder), "free_bytes": _free(existing), "is_writable": is_writable}


def _stage_facts(path: str) -> dict[str, Any]:
    try:
        return _folder_facts(local_folder(path))
    except UserError as error:
        return {"problem": str(error)}


def _free(folder: Path) -> int | None:
    with suppress(OSError):
        return shutil.disk_usage(folder).free
    return None


def _ports(adapter: Path) -> dict[str, str | None]:
    """Return the state and rate of each port of an InfiniBand adapter: ``4: ACTIVE, 100 Gb/sec (4X EDR)``."""
    ports = sorted(adapter.glob("ports/*"))
    return {port.name: f"{_read_line(port / 'state')}, {_read_line(port / 'rate')}" for port in ports}


def _read_line(path: Path) -> str | None:
    with suppress(OSError):
        return path.read_text(encoding="ascii").strip()
    return None
