"""What this process may use of the machine: its disks; processors and memory as affinity and control groups allow.

A container, a Slurm job or a systemd unit gets a share of a machine, and the machine's own figures say nothing of it.
Imports nothing of ours, and only the standard library.
"""

import math
import os
import re
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from configs.arguments import counted

_UNLIMITED_BYTES = 1 << 62
"""Version 1 says "no limit" by a number near 2**63, rounded to pages."""


_KILL_FILES = ("memory.events", "memory.oom_control")
"""Where versions 2 and 1 count kills."""


class MemoryLimit(NamedTuple):
    """A limit on the memory of this process and its group.

    Attributes:
        limit_bytes: The limit.
        free_bytes: What is left of it; the page cache counts as free, because the kernel gives it back.
        group: The folder of the control group that has the limit, for messages.
    """

    limit_bytes: int
    free_bytes: int
    group: Path


def free_bytes(folder: Path) -> int | None:
    """Return what a user may still write to the disk of an existing folder; None if nobody can tell.

    Some network file systems know no size, and say that all of their 0 bytes are taken.
    """
    with suppress(OSError):
        disk = os.statvfs(folder)
        return disk.f_bavail * disk.f_frsize if disk.f_blocks else None
    return None


def gpu_shortage(found: int, ranks_per_node: int) -> tuple[str, str] | None:
    """Return what is wrong and a remedy if a machine has fewer GPUs than ranks; None if it has enough.

    Args:
        found: The GPUs that the ranks of the machine can see.
        ranks_per_node: The ranks of the machine, each of which takes one GPU.
    """
    if found >= ranks_per_node:
        return None
    if not found:
        remedy = "take machines with GPUs and NVIDIA's driver, or --cluster laptop with cluster.device=cpu"
        return "no GPU can be seen", remedy
    words = f"{counted(found, 'GPU')} for {ranks_per_node} ranks per node"
    return words, f"ask for whole nodes, see CUDA_VISIBLE_DEVICES, or set cluster.ranks_per_node={found}"


def usable_cores(root: Path = Path("/")) -> float:
    """Return how many processors this process may use at a time; a quota of a control group may be half a core.

    Args:
        root: Where ``proc`` and ``sys`` are.
    """
    cores = float(len(os.sched_getaffinity(0)))
    for group in _groups("cpu", root):
        files = (group / "cpu.max", group / "cpu.cfs_quota_us", group / "cpu.cfs_period_us")
        quota = re.match(r"(\d+)\s+(\d+)", "\n".join(map(_text, files)).strip())
        if quota and int(quota[2]):
            cores = min(cores, int(quota[1]) / int(quota[2]))
    return cores


def default_workers(root: Path = Path("/")) -> int:
    """Return the number of processes that keep the usable processors busy, at least 1."""
    return max(1, math.floor(usable_cores(root)))


def memory_limit(root: Path = Path("/")) -> MemoryLimit | None:
    """Return the limit of a control group that leaves this process the least memory; None if no group has one."""
    found = []
    for group in _groups("memory", root):
        word = _text(group / "memory.max") or _text(group / "memory.limit_in_bytes") or "max"
        if not word.isdigit() or (limit := int(word)) >= _UNLIMITED_BYTES:
            continue
        used = int(_text(group / "memory.current") or _text(group / "memory.usage_in_bytes") or 0)
        cached = re.search(r"^(?:total_)?inactive_file (\d+)$", _text(group / "memory.stat"), re.MULTILINE)
        free = limit - used + (int(cached[1]) if cached else 0)
        found.append(MemoryLimit(limit, max(0, min(free, limit)), group))
    return min(found, key=lambda each: each.free_bytes, default=None)


def available_memory_bytes(root: Path = Path("/")) -> int | None:
    """Return the memory that this process can still get: the machine's, or less where a control group limits it.

    Returns:
        The bytes; None if the kernel does not tell.
    """
    found = re.search(r"^MemAvailable: *(\d+) kB", _text(root / "proc/meminfo"), re.MULTILINE)
    limit = memory_limit(root)
    amounts = [int(found[1]) << 10] if found else []
    return min([*amounts, *([limit.free_bytes] if limit else [])], default=None)


def oom_kills(root: Path = Path("/")) -> int:
    """Return how many processes of this process's groups the kernel has killed because memory ran out.

    Version 2 counts a kill in the group of the process and in all groups around it, version 1 in that group only.
    """
    groups = list(_groups("memory", root))
    inner = sum(_kills_in(group) for group in groups if (group / _KILL_FILES[1]).is_file())
    return inner + max((_kills_in(group) for group in groups if (group / _KILL_FILES[0]).is_file()), default=0)


def _kills_in(group: Path) -> int:
    text = "".join(_text(group / file) for file in _KILL_FILES)
    found = re.search(r"^oom_kill (\d+)$", text, re.MULTILINE)
    return int(found[1]) if found else 0


def _groups(controller: str, root: Path) -> Iterator[Path]:
    """Yield the folder of this process's control group of a controller, and those of the groups around it.

    *Source*: man 7 cgroups; Linux, Documentation/admin-guide/cgroup-v1 and cgroup-v2.
    """
    mounts = []
    for line in _text(root / "proc/self/mountinfo").splitlines():
        fields, _, options = line.partition(" - ")
        kind, _, rest = options.partition(" ")
        if kind == "cgroup2" or (kind == "cgroup" and controller in rest.split(" ")[-1].split(",")):
            _, _, _, inside, place, *_ = fields.split(" ")
            mounts.append((kind, inside, place))
    for line in _text(root / "proc/self/cgroup").splitlines():
        _, controllers, path = line.split(":", 2)
        for kind, inside, place in mounts:
            if controllers != "" if kind == "cgroup2" else controller not in controllers.split(","):
                continue
            mount = root / place.lstrip("/")
            # A container may see its own group as the root of the mount, whatever the path in /proc is.
            relative = path.removeprefix(inside.rstrip("/")).lstrip("/") if path.startswith(inside) else ""
            folder = mount / relative if (mount / relative).is_dir() else mount
            yield folder
            yield from (each for each in folder.parents if each == mount or mount in each.parents)


def _text(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return ""
