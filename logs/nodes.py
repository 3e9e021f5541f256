"""The nodes of a job as a check found them before the run, in ``nodes.json`` of a run folder, and which of them run."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from configs.errors import UserError
from logs.disk import read_as, write_json

NODES_FILE = "nodes.json"

_NOTABLE = 0.02
"""Share of a step from which on a node's delay decides which nodes stay behind as spares, even if it may be noise. A
wrong choice costs nothing there. Of 64 healthy rehearsed ranks, the largest was 1.1 % (docs/rehearsal.md)."""


@dataclass(frozen=True)
class NodeScore:
    """How a node did in the check.

    Attributes:
        host: Its name.
        excess: By which share its slowest rank takes longer than the median rank: 0.05 is 5 %.
        part: The part of a step to which ``excess`` belongs: compute, input, copy or allreduce.
        is_slow: Whether ``excess`` is more than noise.
        problem: Why the node cannot take part in a run; empty if it can.
        delay: By which share of a step the part delays the run.
    """

    host: str
    excess: float
    part: str
    is_slow: bool
    problem: str = ""
    delay: float = 0.0


def write_nodes(run_folder: Path, nodes: Sequence[NodeScore]) -> None:
    """Write the scores, so that a reader finds the old file or the new one."""
    write_json(run_folder / NODES_FILE, {"nodes": [asdict(node) for node in nodes]})


def read_nodes(run_folder: Path) -> list[NodeScore]:
    """Return the scores of a run's nodes; none if no check wrote any, or if the file is damaged."""
    try:
        return read_as(dict[str, list[NodeScore]], run_folder / NODES_FILE)["nodes"]
    except (KeyError, UserError):
        return []


def choose_nodes(
    granted: Sequence[str],
    num_needed: int,
    *,
    failed: Sequence[str] = (),
    scores: Sequence[NodeScore] = (),
) -> list[str]:
    """Return the nodes of a run, in the order of its ranks.

    Nodes that cannot take part, that failed, or that are slow come last, so that they are taken only where nothing
    better is there. Of the others, the last ones stay behind as spare ones.

    Args:
        granted: The nodes of the job.
        num_needed: Number of nodes that the run needs, at most as many as there are.
        failed: Nodes on which ranks failed.
        scores: What the check found.
    """
    found: Mapping[str, NodeScore] = {score.host: score for score in scores}

    def badness(host: str) -> tuple[bool, bool, float]:
        score = found.get(host)
        is_out = score is not None and bool(score.problem)
        return is_out, host in failed, score.delay if score is not None and _is_notable(score) else 0.0

    best = sorted(granted, key=badness)[:num_needed]
    return [host for host in granted if host in best]


def why_left_out(score: NodeScore) -> str:
    """Return in words why a node is left out, or an empty text if the check found nothing against it."""
    if score.problem:
        return f"{score.host} failed the check: {score.problem}"
    if not _is_notable(score):
        return ""
    chance = "" if score.is_slow else ", perhaps by chance"
    return f"{score.host} is {100 * score.excess:.0f} % slower than the median ({score.part}{chance})"


def _is_notable(score: NodeScore) -> bool:
    return score.is_slow or score.delay > _NOTABLE
