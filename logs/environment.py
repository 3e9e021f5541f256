"""What a run ran on: versions, machine, driver, variables, commit. Imports none of the packages that it names."""

from __future__ import annotations

import hashlib
import os
import platform
import re
import shutil
import subprocess
import sys
from importlib.metadata import distributions
from pathlib import Path
from typing import Any

from configs.load import ROOT

__all__ = ["environment"]

_PREFIXES = ("MXNET_", "HOROVOD_", "NCCL_", "OMP_", "DALI_", "CUDA_")
_SECRETS = ("SECRET", "TOKEN", "PASSWORD")
_DIFF_CHARACTERS = 200_000
_HEADER = re.compile(r"^(Name|Version): *(.*?) *$", re.MULTILINE)
_PAIR = re.compile(r"^(\w[\w ]*?)\s*: (.*)$", re.MULTILINE)


def environment() -> dict[str, Any]:
    """Describe this process's surroundings, for ``environment.json``; what cannot be found out is None."""
    return {
        "python": sys.version,
        "packages": _packages(),
        "platform": platform.platform(),
        "hostname": platform.node(),
        **_cpu(),
        "cores": os.cpu_count(),
        "usable_cores": len(os.sched_getaffinity(0)),
        "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        "gpus": _gpus(),
        "variables": {
            name: value
            for name, value in sorted(os.environ.items())
            if name.startswith(_PREFIXES) and not any(word in name for word in _SECRETS)
        },
        "git": _git(),
    }


def _packages() -> dict[str, str]:
    """Give the version of every installed package. Only headers are read: to parse whole files took 0.37 s."""
    headers = [(found.read_text("METADATA") or "").partition("\n\n")[0] for found in distributions()]
    fields = [dict(_HEADER.findall(header)) for header in headers]
    return dict(sorted((each["Name"], each["Version"]) for each in fields if {"Name", "Version"} <= each.keys()))


def _cpu() -> dict[str, Any]:
    """Give the processors' model, how many there are, cores of them all, and the size of the largest cache."""
    path = Path("/proc/cpuinfo")
    text = path.read_text(encoding="utf-8") if path.is_file() else ""
    blocks = [dict(_PAIR.findall(block)) for block in text.strip().split("\n\n")]
    cores = {(block["physical id"], block["core id"]) for block in blocks if {"physical id", "core id"} <= block.keys()}
    return {
        "cpu": blocks[0].get("model name"),
        "cpu_sockets": len({socket for socket, _ in cores}) or None,
        "cpu_cores": len(cores) or None,
        "cpu_cache": blocks[0].get("cache size"),
    }


def _gpus() -> list[dict[str, str]] | None:
    keys = ("name", "driver_version", "memory.total")
    words = _ask("nvidia-smi", f"--query-gpu={','.join(keys)}", "--format=csv,noheader")
    if words is None:
        return None
    return [dict(zip(keys, line.split(", "), strict=False)) for line in words.splitlines()]


def _git() -> dict[str, Any] | None:
    """Give the commit of this program and what was changed since; None if it is not a checkout of its own."""
    top = _ask("git", "-C", str(ROOT), "rev-parse", "--show-toplevel")
    if top is None or Path(top.strip()) != ROOT:
        return None
    commit = _ask("git", "-C", str(ROOT), "rev-parse", "--verify", "HEAD")
    status = _ask("git", "-C", str(ROOT), "status", "--porcelain")
    diff = _ask("git", "-C", str(ROOT), "diff", "HEAD") or ""
    return {
        "commit": commit and commit.strip(),
        "dirty": None if status is None else bool(status),
        "diff_sha256": hashlib.sha256(diff.encode()).hexdigest() if diff else None,
        "diff": diff if 0 < len(diff) <= _DIFF_CHARACTERS else None,
    }


def _ask(*command: str) -> str | None:
    """Give what a command prints; None when it is not installed, fails or takes too long."""
    if shutil.which(command[0]) is None:
        return None
    try:
        done = subprocess.run(command, capture_output=True, text=True, errors="replace", timeout=20, check=False)
    except subprocess.TimeoutExpired:
        return None
    return done.stdout if done.returncode == 0 else None
