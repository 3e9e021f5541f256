"""The nodes of a job as a check found them before the run: the file ``nodes.json`` of a run folder."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from pydantic import TypeAdapter, ValidationError

from logs.disk import write_json

NODES_FILE = "nodes.json"


@dataclass(frozen=True)
class NodeScore:
    """How a node did in the check.

    Attributes:
        host: Its name.
        excess: By which share its slowest rank takes longer than the median rank: 0.05 is 5 %.
        part: The part of a step to which ``excess`` belongs: compute, input, copy or allreduce.
        is_slow: Whether ``excess`` is more than noise.
        problem: Why the node cannot take part in a run; empty if it can.
    """

    host: str
    excess: float
    part: str
    is_slow: bool
    problem: str = ""


def write_nodes(run_folder: Path, nodes: Sequence[NodeScore]) -> None:
    """Write the scores, so that a reader finds the old file or the new one."""
    write_json(run_folder / NODES_FILE, {"nodes": [asdict(node) for node in nodes]})


def read_nodes(run_folder: Path) -> list[NodeScore]:
    """Return the scores of a run's nodes; none if no check wrote any, or if the file is damaged."""
    try:
        return TypeAdapter(dict[str, list[NodeScore]]).validate_json((run_folder / NODES_FILE).read_bytes())["nodes"]
    except (OSError, ValidationError, KeyError):
        return []
