"""Facts about a machine and its data set that decide whether a run can work: memory, disks, network links, records.

Changes nothing on the machine; imports no framework.
"""

import os
import resource
import tempfile
from contextlib import suppress
from itertools import islice
from pathlib import Path

from configs.compilers import compiler_shortage
from configs.errors import UserError
from configs.load import resolve_path
from configs.machine_limits import available_memory_bytes, free_bytes, memory_limit, usable_cores
from configs.registry import BUILT_IN_SOURCES
from configs.schema import Cluster, Recipe
from data.forms.catalogue import image_files
from data.stage import dataset_bytes
from data.verify import check_dataset
from launch.doctor.facts import DatasetFacts, FolderFacts, MachineFacts
from logs.environment import environment
from train.dataset import local_folder

LIMITS = {
    "open files": resource.RLIMIT_NOFILE, "processes": resource.RLIMIT_NPROC, "address space": resource.RLIMIT_AS,
    "file size": resource.RLIMIT_FSIZE, "locked memory": resource.RLIMIT_MEMLOCK,
}  # fmt: skip
"""The limits of a process that a run may meet."""

_SAMPLE_BYTES, _SAMPLE_FILES = 1 << 20, 64
"""Bytes that are read at each end of a file of records."""


def inspect_machine(cluster: Cluster, root: Path = Path("/")) -> MachineFacts:
    """Return facts about this machine, where ``proc``, ``sys`` and ``dev`` are below ``root``."""
    cores, limit = usable_cores(root), memory_limit(root)
    soft_limits = {name: resource.getrlimit(which)[0] for name, which in LIMITS.items()}
    return MachineFacts(
        environment=environment(),
        memory_available_bytes=available_memory_bytes(root),
        shm_free_bytes=free_bytes(root / "dev/shm"),
        runs=_folder_facts(resolve_path(cluster.paths.runs)),
        stage=None if cluster.paths.stage is None else _stage_facts(cluster.paths.stage),
        interfaces={path.name: _read_line(path / "operstate") for path in (root / "sys/class/net").glob("*")},
        usable_cores=cores if cores < len(os.sched_getaffinity(0)) else None,
        memory_limit=None if limit is None else f"{limit.group} has {limit.limit_bytes / 1e9:.2f} GB",
        limits={name: soft for name, soft in soft_limits.items() if soft != resource.RLIM_INFINITY},
        temporary=_folder_facts(Path(tempfile.gettempdir())),
        compiler_shortage=compiler_shortage(cluster),
        adapters={
            path.name: [_read_line(state) for state in sorted(path.glob("ports/*/state"))]
            for path in (root / "sys/class/infiniband").glob("*")
        },
    )


def inspect_dataset(recipe: Recipe, cluster: Cluster) -> DatasetFacts:
    """Check the recipe's data set as this machine sees it, and read both ends of files that hold images."""
    folder = resolve_path(cluster.paths.data) / recipe.data.name
    if recipe.data.source == "synthetic":
        return DatasetFacts(folder=None)
    if recipe.data.source in BUILT_IN_SOURCES and not folder.exists():
        return DatasetFacts(str(folder), exists=False)
    try:
        manifest = check_dataset(folder, recipe.data, recipe.model.num_classes)
        for path in islice(image_files(folder), _SAMPLE_FILES):
            with path.open("rb") as file:
                file.read(_SAMPLE_BYTES)
                file.seek(max(0, path.stat().st_size - _SAMPLE_BYTES))
                file.read(_SAMPLE_BYTES)
    except UserError as error:
        return DatasetFacts(str(folder), problem=str(error))
    except OSError as error:
        return DatasetFacts(str(folder), problem=f"{error.filename}: {error.strerror}")
    records = manifest.train.records + manifest.eval.records
    return DatasetFacts(str(folder), records=records, bytes=dataset_bytes(manifest))


def _folder_facts(folder: Path) -> FolderFacts:
    existing = next(path for path in (folder, *folder.parents) if path.exists())
    is_writable = os.access(existing, os.W_OK | os.X_OK)
    return FolderFacts(str(folder), free_bytes=free_bytes(existing), is_writable=is_writable)


def _stage_facts(path: str) -> FolderFacts:
    try:
        return _folder_facts(local_folder(path))
    except UserError as error:
        return FolderFacts(path, problem=str(error))


def _read_line(path: Path) -> str | None:
    with suppress(OSError):
        return path.read_text(encoding="ascii").strip()
    return None
