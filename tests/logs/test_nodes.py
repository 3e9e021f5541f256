"""Which nodes a run takes of those that its job was granted, and in which order."""

import pytest

from logs.nodes import NodeScore, choose_nodes

SIX = [f"n{number}" for number in range(1, 7)]


def _slow(host: str, excess: float) -> NodeScore:
    return NodeScore(host, excess, "compute", is_slow=True, delay=excess)


def _fine(host: str, excess: float) -> NodeScore:
    return NodeScore(host, excess, "compute", is_slow=False, delay=excess)


@pytest.mark.parametrize(
    ("failed", "scores", "chosen"),
    [
        ([], [], "n1 n2 n3 n4"),
        (["n2"], [], "n1 n3 n4 n5"),
        ([], [_slow("n1", 0.05), _slow("n3", 0.2), _fine("n2", 0.02)], "n2 n4 n5 n6"),
        ([], [_fine("n1", 0.01), _fine("n3", 0.03)], "n1 n2 n4 n5"),
        (["n2", "n4"], [_slow("n1", 0.05), _slow("n3", 0.2)], "n1 n3 n5 n6"),
        (["n2"], [_slow("n1", 0.05), _slow("n3", 0.2), NodeScore("n4", 0, "", is_slow=False, problem="no data")],
         "n1 n3 n5 n6"),
        (["n1", "n2", "n3", "n4", "n5"], [_slow("n6", 9)], "n1 n2 n3 n6"),
    ],
    ids=[
        "healthy", "failed", "slow", "perhaps slow", "failed is worse than slow", "cannot take part", "no better one"
    ],
)  # fmt: skip
def test_a_run_goes_on_without_the_worst_nodes_and_keeps_the_order_of_the_others(
    failed: list[str], scores: list[NodeScore], chosen: str
) -> None:
    assert choose_nodes(SIX, 4, failed=failed, scores=scores) == chosen.split()
