"""What a run ran on: versions, machine, driver, variables, commit. Imports none of the packages that it lists."""

import hashlib
import os
import platform
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from importlib.metadata import distributions
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from configs.load import ROOT
from configs.machine_limits import usable_cores
from configs.reading import is_file
from configs.resume_check import COMPARED_VARIABLES, arithmetic_changes, arithmetic_of
from logs.disk import explain_disk_errors, found_object, read_as, write_json
from logs.redaction import is_secret, redact_lines

ENVIRONMENT_FILE = "environment.json"
"""The file of a run folder that holds the surroundings of the newest attempt."""

ANSWER_S = 20
"""Time that Git and ``nvidia-smi`` have, of which one waits for a file server, the other for a GPU that hangs."""

_STARTING_VERBS = ("train", "sweep", "rehearse")
_PREFIXES = ("HOROVOD_", "NCCL_", "DALI_", "CUDA_", *COMPARED_VARIABLES)
_DIFF_CHARACTERS = 200_000
_HEADER = re.compile(r"^(Name|Version): *(.*?) *$", re.MULTILINE)
_PAIR = re.compile(r"^(\w[\w ]*?)\s*: (.*)$", re.MULTILINE)

CPUINFO = Path("/proc/cpuinfo")
"""Where Linux tells what the processors are."""

_INSTRUCTION_SETS = re.compile(r"sse\w*|ssse3|pni|avx\w*|fma4?|f16c|bmi\d|amx\w*|xop")
"""The flags of a CPU by which numerical libraries choose kernels; pni is SSE3."""


class _Environment(BaseModel, extra="allow"):
    """What a submission or a page reads of ``environment.json``."""

    packages: dict[str, Any] | None = None
    git: dict[str, Any] | None = None
    gpus: list[dict[str, Any]] | None = None
    command: str | None = None
    memory_bytes: int | None = None
    cores: int | None = None
    cpu_sockets: int | None = None
    cpu_cores: int | None = None


def environment() -> dict[str, Any]:
    """Return what is known of this process's surroundings, for ``environment.json``; what is unknown is None."""
    return {
        "python": sys.version,
        "packages": _packages(),
        "platform": platform.platform(),
        "hostname": platform.node(),
        **_cpu(),
        "cores": os.cpu_count(),
        "usable_cores": usable_cores(),
        "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        "gpus": _gpus(),
        "variables": {
            name: value
            for name, value in sorted(os.environ.items())
            if name.startswith(_PREFIXES) and not is_secret(name, value)
        },
        "git": _git(),
    }


def write_environment(folder: Path, variables: Mapping[str, str]) -> list[str]:
    """Write this process's surroundings into a run folder, for the attempt that begins.

    Variables that may hold a secret are left out, and only the owner can read the file.

    If the folder has the surroundings of an earlier attempt, the part of them on which the results depend is kept under
    ``earlier_attempts``, oldest first: machine, commit, changes since the commit, packages, host. Attempts in a row
    with equal surroundings are one entry.

    Args:
        folder: The run folder.
        variables: The variables that the ranks get on top of this process's own.

    Returns:
        What differs from the earlier attempts, a phrase each; see `configs.resume_check.arithmetic_changes`.
    """
    path = folder / ENVIRONMENT_FILE
    surroundings = environment()
    surroundings["variables"] |= {name: value for name, value in variables.items() if not is_secret(name, value)}
    before = found_object(path)
    if not before and is_file(path):
        sys.stderr.write(
            f"warning: {path}: damaged; whether code and packages are still those of before is not known\n"
        )
        with explain_disk_errors(path):
            path.rename(f"{path}.damaged")
    command = before.get("command")  # the one that began the run
    surroundings["command"] = command if isinstance(command, str) else command_given(sys.orig_argv)
    earlier = _earlier_attempts(before)
    if earlier:
        surroundings["earlier_attempts"] = earlier
    write_json(path, surroundings, is_private=True)
    now = arithmetic_of(surroundings)
    return list(dict.fromkeys(told for each in earlier for told in arithmetic_changes(each, now)))


def read_environment(run_folder: Path) -> dict[str, Any]:
    """Return the content of a run's ``environment.json``.

    Raises:
        UserError: If the file is missing, is not a JSON object, or holds a value of another kind than runs record.
    """
    return read_as(_Environment, run_folder / ENVIRONMENT_FILE).model_dump()


def command_given(words: Sequence[str]) -> str | None:
    """Return the command line of ``./run.sh`` that started a process, without secrets; None if it was another one.

    Args:
        words: The process's command line, with Python's own options, as in ``sys.orig_argv``.
    """
    given = list(words[words.index("-m") + 2 :]) if "-m" in words else []
    if not given or given[0] not in _STARTING_VERBS:
        return None
    return shlex.join(["./run.sh", *map(redact_lines, given)])


def machine_in_words(surroundings: Mapping[str, Any]) -> str:
    """Return the machine of an ``environment.json`` as ``AMD EPYC, 2 cores, 8 A100``; empty if it names none."""
    cores, gpus = surroundings.get("usable_cores"), surroundings.get("gpus") or []
    names = [str(gpu["name"]) for gpu in gpus if isinstance(gpu, dict) and gpu.get("name")]
    kinds = [f"{names.count(name)} {name}" for name in dict.fromkeys(names)]
    return ", ".join([*filter(None, [str(surroundings.get("cpu") or ""), f"{cores:g} cores" if cores else ""]), *kinds])


def _earlier_attempts(content: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return `arithmetic_of` of the attempts before, from what the file holds; none if it is damaged."""
    try:
        earlier, last = [dict(each) for each in content.get("earlier_attempts") or []], arithmetic_of(content)
        for each in (*earlier, last):
            arithmetic_changes(each, each)  # raises where the file was changed
    except (AttributeError, LookupError, TypeError, ValueError):
        return []
    return [*earlier, last] if content and earlier[-1:] != [last] else earlier


def _packages() -> dict[str, str]:
    """Return the version of every installed package.

    Only the headers of the metadata are parsed: to parse whole files took 0.37 s.
    """
    headers = [(found.read_text("METADATA") or "").partition("\n\n")[0] for found in distributions()]
    fields = [dict(_HEADER.findall(header)) for header in headers]
    return dict(sorted((each["Name"], each["Version"]) for each in fields if {"Name", "Version"} <= each.keys()))


def _cpu() -> dict[str, Any]:
    """Return the processors' model and instruction sets, their number, their cores, and the size of the last cache."""
    text = CPUINFO.read_text(encoding="utf-8") if CPUINFO.is_file() else ""
    blocks = [dict(_PAIR.findall(block)) for block in text.strip().split("\n\n")]
    cores = {(block["physical id"], block["core id"]) for block in blocks if {"physical id", "core id"} <= block.keys()}
    first = blocks[0]
    # A virtual machine may call every generation of processors by one name.
    numbers = [first.get(key) for key in ("vendor_id", "cpu family", "model")]
    return {
        "cpu": first.get("model name"),
        "cpu_id": None if None in numbers else "{} family {} model {}".format(*numbers),
        "cpu_flags": sorted(flag for flag in first.get("flags", "").split() if _INSTRUCTION_SETS.fullmatch(flag))
        or None,
        "cpu_sockets": len({socket for socket, _ in cores}) or None,
        "cpu_cores": len(cores) or None,
        "cpu_cache": first.get("cache size"),
    }


def processor() -> str:
    """Return the model of this machine's processors, with the number of its instruction sets."""
    found = _cpu()
    return f"{found['cpu'] or 'unknown'} ({found['cpu_id']}, {len(found['cpu_flags'] or ())} instruction sets)"


def cpu_flags() -> frozenset[str]:
    """Return the instruction sets of this machine's processors, by Linux's names; none if they are unknown."""
    return frozenset(_cpu()["cpu_flags"] or ())


def _gpus() -> list[dict[str, str]] | None:
    keys = ("name", "driver_version", "memory.total", "mig.mode.current")
    # Drivers before R450 do not know MIG, and refuse the whole question.
    for asked in (keys, keys[:-1]):
        answer = _output_of("nvidia-smi", f"--query-gpu={','.join(asked)}", "--format=csv,noheader")
        if answer is not None:
            return [dict(zip(asked, line.split(", "), strict=False)) for line in answer.splitlines()]
    return None


def git_command() -> tuple[str, ...]:
    """Return the beginning of a command of Git's in this program's folder, which may be another user's."""
    return "git", "-c", f"safe.directory={ROOT}", "-C", str(ROOT)


def _git() -> dict[str, Any] | None:
    """Return the commit of this program and what was changed since.

    Without a checkout of its own, as in an image, the commit is the one that PROGRAM_REVISION names; None without it.
    """
    top = _output_of(*git_command(), "rev-parse", "--show-toplevel")
    if top is None or Path(top.strip()) != ROOT:
        revision = os.environ.get("PROGRAM_REVISION", "unknown")
        named = revision.removesuffix("-dirty")
        is_dirty = named != revision
        return None if named == "unknown" else {"commit": named, "dirty": is_dirty, "diff_sha256": None, "diff": None}
    commit = _output_of(*git_command(), "rev-parse", "--verify", "HEAD")
    status = _output_of(*git_command(), "status", "--porcelain")
    diff = _output_of(*git_command(), "diff", "--no-color", "HEAD") or ""
    return {
        "commit": commit and commit.strip(),
        "dirty": None if status is None else bool(status),
        "diff_sha256": hashlib.sha256(diff.encode()).hexdigest() if diff else None,
        "diff": redact_lines(diff) if 0 < len(diff) <= _DIFF_CHARACTERS else None,
    }


def _output_of(*command: str) -> str | None:
    """Return what a command prints; None if it is not installed, fails, or takes too long, which is told."""
    if shutil.which(command[0]) is None:
        return None
    # A hook of Git tells the commands that it starts about its own repository, which may be another one.
    variables = {name: value for name, value in os.environ.items() if not re.match("GIT_(?!CONFIG)", name)}
    try:
        done = subprocess.run(
            command, env=variables, capture_output=True, text=True, errors="replace", timeout=ANSWER_S, check=False
        )
    except subprocess.TimeoutExpired:
        sys.stderr.write(
            f"warning: {command[0]} has not answered in {ANSWER_S} s; {ENVIRONMENT_FILE} goes without it\n"
        )
        return None
    return done.stdout if done.returncode == 0 else None
