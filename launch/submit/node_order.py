"""Which of a job's nodes a run takes, and in which order: ranks are numbered along racks or switches. Pure."""

import re
from collections.abc import Mapping, Sequence

from configs.errors import UserError
from launch.submit.hosts import parse_hosts
from logs.nodes import NodeScore

_LEAF_SWITCH = re.compile(r"^SwitchName=\S+ Level=0 .*?Nodes=(\S+)", re.MULTILINE)


def choose_nodes(
    granted: Sequence[str],
    num_needed: int,
    *,
    failed: Sequence[str] = (),
    scores: Sequence[NodeScore] = (),
    leaves: Sequence[Sequence[str]] = (),
) -> list[str]:
    """Return the nodes of a run, in the order of its ranks.

    Nodes that cannot take part, that failed, or that are slow come last, so that they are taken only where nothing
    better is there. Of the others, those of the last switch stay behind as spares.

    Args:
        granted: The nodes of the job.
        num_needed: Number of nodes that the run needs, at most as many as there are.
        failed: Nodes on which ranks failed.
        scores: What the check found.
        leaves: The nodes of each switch to which nodes are connected. If empty, nobody knows.
    """
    found: Mapping[str, NodeScore] = {score.host: score for score in scores}
    places = {host: (switch, row) for switch, hosts in enumerate(leaves) for row, host in enumerate(hosts)}
    last = (len(leaves), 0)
    # Sorting is stable, so nodes that no switch names stay in the scheduler's order.
    by_place = sorted(granted, key=lambda host: places.get(host, last))

    def badness(host: str) -> tuple[bool, bool, float]:
        score = found.get(host)
        is_out = score is not None and bool(score.problem)
        return is_out, host in failed, score.excess if score is not None and score.is_slow else 0.0

    best = sorted(by_place, key=badness)[:num_needed]
    return [host for host in by_place if host in best]


def why_left_out(score: NodeScore) -> str:
    """Return in words why a node is left out, or an empty text if the check found nothing against it."""
    if score.problem:
        return f"{score.host} failed the check: {score.problem}"
    return f"{score.host} is {100 * score.excess:.0f} % slower than the median ({score.part})" if score.is_slow else ""


def slurm_leaves(topology: str) -> list[list[str]]:
    """Return the nodes of each leaf switch, from what ``scontrol show topology`` prints.

    Without a topology, or with one that has no switches, the list is empty.
    """
    try:
        return [list(parse_hosts(listed, 1)) for listed in _LEAF_SWITCH.findall(topology)]
    except UserError:  # Slurm's names may have brackets in a form of their own.
        return []
