"""The system description of a submission, from the fields that runs recorded and the fields that the user gives."""

import re
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from configs.errors import UserError, nearest
from configs.load import parse_yaml
from configs.reading import read_bytes
from configs.registry import ENGINES
from configs.schema import Cluster
from logs.judge.official import RULESET, run_tool

_STATUS = {
    "onprem": "Available on-premise",
    "cloud": "Available cloud",
    "preview": "Preview",
    "research": "Research, Development, or Internal (RDI)",
}
"""submission_status of a log -> the status in a system description of ruleset 4.0.0."""
_NUMBERS = ("number_of_nodes", "host_processors_per_node", "accelerators_per_node")
"""Fields that the official result summary multiplies. It ends in a traceback if one of them is not a whole number."""
_STACK = ("horovod", "nvidia-dali-cuda110", "nvidia-dali-cuda120", "nvidia-dali-cuda130", "numpy", "mlperf-logging")
_GIB = 1 << 30


def required_fields() -> list[str]:
    """Return the fields that the official checker asks for."""
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "empty.json").write_text("{}", encoding="utf-8")
        words = run_tool(Path(folder), "system_desc_checker", ["empty.json", "training", RULESET])
    fields = list(dict.fromkeys(re.findall(r"Missing field ([\w-]+)", words)))
    assert fields, words
    return fields


def read_fields(path: Path | None, assignments: Sequence[str]) -> dict[str, str]:
    """Return the fields that the user gives, name -> value.

    Args:
        path: A YAML or JSON file with fields, or None.
        assignments: Words of the form ``NAME=VALUE``, which replace fields of the file.

    Raises:
        UserError: If the file cannot be read or is not a mapping, or an assignment has no ``=``.
    """
    fields: dict[str, str] = {}
    if path is not None:
        try:
            tree = parse_yaml(read_bytes(path).decode("utf-8"), str(path))
        except (OSError, UnicodeDecodeError) as error:
            raise UserError(f"{path}: cannot be read ({error}); give a YAML or JSON file of fields") from None
        if not isinstance(tree, dict):
            raise UserError(
                f"{path}: got {type(tree).__name__}, allowed: a mapping of names to values; write lines NAME: VALUE"
            )
        fields = {str(name): "" if value is None else str(value) for name, value in tree.items()}
    for assignment in assignments:
        name, equals, value = assignment.partition("=")
        if not equals:
            raise UserError(f"--field: got {assignment!r}, allowed: NAME=VALUE; give, for example, --field cooling=air")
        fields[name] = value
    return fields


def describe(
    environment: Mapping[str, Any], cluster: Cluster, given: Mapping[str, str], *, org: str, division: str
) -> dict[str, str]:
    """Return the system description.

    Args:
        environment: Content of a run's ``environment.json``.
        cluster: The run's cluster.
        given: The user's fields, which replace recorded ones.
        org: The submitter.
        division: ``open`` or ``closed``.

    Raises:
        UserError: If the description has no such field as a given one, or a required field is unknown.
    """
    required = required_fields()
    for name in given:
        if name not in required:
            raise UserError(f"system description: got field {name!r}, which does not exist; {nearest(name, required)}")
    known = _recorded(environment, cluster) | {"submitter": org, "division": division} | dict(given)
    if cluster.device != "gpu":
        known = {name: "none" for name in required if name.startswith("accelerator_")} | known
    if unknown := [name for name in required if name not in known]:
        names = ", ".join(unknown)
        raise UserError(
            f"system description: {len(unknown)} of {len(required)} fields are not recorded by a run: {names}; "
            "give each with --field NAME=VALUE (no VALUE if a field does not apply), or all in --system-file FILE"
        )
    for name in _NUMBERS:
        if name in required and not known[name].isdecimal():
            raise UserError(
                f"system description: {name}: got {known[name]!r}, allowed: a whole number; give --field {name}=N"
            )
    return {name: known[name] for name in required}


def _recorded(environment: Mapping[str, Any], cluster: Cluster) -> dict[str, str]:
    """Return the fields that a run has recorded."""
    packages, gpus = environment.get("packages") or {}, environment.get("gpus") or []
    engine = ENGINES[cluster.engine.name]
    version = next((packages[name] for name in engine.distributions if name in packages), None)
    git = environment.get("git") or {}
    memory, sockets, cores = (environment.get(key) for key in ("memory_bytes", "cpu_sockets", "cpu_cores"))
    found: dict[str, Any] = {
        "status": _STATUS[cluster.submission.status],
        "system_name": cluster.submission.platform,
        "number_of_nodes": cluster.num_nodes,
        "host_processor_model_name": environment.get("cpu"),
        "host_processors_per_node": sockets,
        "host_processor_core_count": cores // sockets if cores and sockets else None,
        "host_processor_caches": environment.get("cpu_cache"),
        "host_processor_vcpu_count": environment.get("cores"),
        "host_memory_capacity": memory and f"{memory / _GIB:.0f} GiB",
        "framework": version and f"{engine.title} {version}",
        "other_software_stack": "; ".join(f"{name} {packages[name]}" for name in _STACK if name in packages) or None,
        "operating_system": environment.get("platform"),
        "hw_notes": "",
        "sw_notes": f"commit {git['commit']}" if git.get("commit") else "",
    }
    found["accelerators_per_node"] = cluster.ranks_per_node if cluster.device == "gpu" else 0
    if cluster.device == "gpu" and gpus:
        found["accelerator_model_name"] = gpus[0].get("name")
        found["accelerator_memory_capacity"] = gpus[0].get("memory.total")
    return {name: str(value) for name, value in found.items() if value is not None}
