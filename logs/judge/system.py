"""The system description of a submission: what the runs recorded, and the rest as the user tells it."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from configs.errors import UserError, nearest
from configs.load import parse_yaml
from configs.schema import Cluster
from logs.environment import ENVIRONMENT_FILE

__all__ = ["describe", "read_environment", "read_fields", "required_fields"]

_STATUS = {
    "onprem": "Available on-premise",
    "cloud": "Available cloud",
    "preview": "Preview",
    "research": "Research, Development, or Internal (RDI)",
}
"""submission_status of a log -> its words in a system description of ruleset 4.0.0."""
_NUMBERS = ("number_of_nodes", "host_processors_per_node", "accelerators_per_node")
"""Fields that the official result summary multiplies; it ends in a traceback where one is no whole number."""
_STACK = ("horovod", "nvidia-dali-cuda110", "numpy", "mlperf-logging")
_GIB = 1 << 30


def required_fields(ruleset: str) -> list[str]:
    """Ask the official checker which fields it wants."""
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "empty.json").write_text("{}", encoding="utf-8")
        command = [sys.executable, "-m", "mlperf_logging.system_desc_checker", "empty.json", "training", ruleset]
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    fields = list(dict.fromkeys(re.findall(r"Missing field ([\w-]+)", done.stderr)))
    assert fields, done.stderr
    return fields


def read_fields(path: Path | None, assignments: Sequence[str]) -> dict[str, str]:
    """Read the fields that the user gives: a YAML or JSON file, then ``NAME=VALUE`` on top.

    Raises:
        UserError: The file cannot be read or is no block of fields, or an assignment has no ``=``.
    """
    fields: dict[str, str] = {}
    if path is not None:
        try:
            tree = parse_yaml(path.read_text(encoding="utf-8"), str(path))
        except (OSError, UnicodeDecodeError) as error:
            raise UserError(f"{path}: cannot be read ({error}); give a YAML or JSON file of fields") from None
        if not isinstance(tree, dict):
            raise UserError(f"{path}: a system file is a block of fields, this is {type(tree).__name__}")
        fields = {str(name): "" if value is None else str(value) for name, value in tree.items()}
    for assignment in assignments:
        name, equals, value = assignment.partition("=")
        if not equals:
            raise UserError(f"--field: got {assignment!r}, allowed: NAME=VALUE, as cooling=air")
        fields[name] = value
    return fields


def describe(
    environment: Mapping[str, Any], cluster: Cluster, given: Mapping[str, str], *, org: str, division: str, ruleset: str
) -> dict[str, str]:
    """Fill the description from a run's ``environment.json`` and cluster; ``given`` comes before what was recorded.

    Raises:
        UserError: A given field is none of the description's, or some are still unknown; they are named.
    """
    required = required_fields(ruleset)
    for name in given:
        if name not in required:
            raise UserError(f"system description: got {name!r}, which is no field of it; {nearest(name, required)}")
    known = _recorded(environment, cluster) | {"submitter": org, "division": division} | dict(given)
    if unknown := [name for name in required if name not in known]:
        names = ", ".join(unknown)
        raise UserError(
            f"system description: {len(unknown)} of {len(required)} fields are not recorded by a run: {names}; "
            "give each with --field NAME=VALUE (empty where it does not apply), or all in --system-file FILE"
        )
    for name in _NUMBERS:
        if name in required and not known[name].isdecimal():
            raise UserError(
                f"system description: {name}: got {known[name]!r}, allowed: a whole number; give --field {name}=N"
            )
    return {name: known[name] for name in required}


def _recorded(environment: Mapping[str, Any], cluster: Cluster) -> dict[str, str]:
    """Give the fields that a run knows of itself; what it could not find out is left out."""
    packages, gpus = environment.get("packages") or {}, environment.get("gpus") or []
    mxnet = packages.get("mxnet") or packages.get("mxnet-cu112")
    git = environment.get("git") or {}
    memory, sockets = environment.get("memory_bytes"), environment.get("cpu_sockets")
    found: dict[str, Any] = {
        "status": _STATUS[cluster.submission.status],
        "system_name": cluster.submission.platform,
        "number_of_nodes": cluster.num_nodes,
        "host_processor_model_name": environment.get("cpu"),
        "host_processors_per_node": sockets,
        "host_processor_core_count": sockets and environment.get("cpu_cores", 0) // sockets,
        "host_processor_caches": environment.get("cpu_cache"),
        "host_processor_vcpu_count": environment.get("cores"),
        "host_memory_capacity": memory and f"{memory / _GIB:.0f} GiB",
        "framework": mxnet and f"MXNet {mxnet}",
        "other_software_stack": "; ".join(f"{name} {packages[name]}" for name in _STACK if name in packages) or None,
        "operating_system": environment.get("platform"),
        "hw_notes": "",
        "sw_notes": f"commit {git['commit']}" if git.get("commit") else "",
    }
    if cluster.device == "gpu":
        found["accelerators_per_node"] = cluster.ranks_per_node
        if gpus:
            found["accelerator_model_name"] = gpus[0].get("name")
            found["accelerator_memory_capacity"] = gpus[0].get("memory.total")
    else:
        kinds = (
            "model_name", "host_interconnect", "frequency", "on-chip_memories", "memory_configuration",
            "memory_capacity", "interconnect", "interconnect_topology",
        )  # fmt: skip
        found |= {"accelerators_per_node": 0} | {f"accelerator_{kind}": "none" for kind in kinds}
    return {name: str(value) for name, value in found.items() if value is not None}


def read_environment(run_folder: Path) -> dict[str, Any]:
    """Read a run's ``environment.json``.

    Raises:
        UserError: It is not there or is no JSON object.
    """
    path = run_folder / ENVIRONMENT_FILE
    try:
        tree = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise UserError(f"{path}: cannot be read ({error}); give folders of runs of this program") from None
    if not isinstance(tree, dict):
        raise UserError(f"{path}: is no JSON object; give folders of runs of this program")
    return tree
