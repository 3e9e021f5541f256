"""How often a rank that has its cores for itself wakes up for gradients."""

import pytest

from configs.blocks.rehearsal import Rehearsal, Waits
from configs.load import load_both
from tests.engines import ALONE, cpu_engine
from train.engine.timed.device import Device
from train.engine.timed.network import TimedNetwork
from train.networks.arch import network_of


@pytest.mark.parametrize(("speed", "together"), [(1.0, 1), (2.0, 2), (4.0, 3)])
def test_gradients_wait_for_each_other_for_a_millisecond_of_this_rehearsal_at_most(
    monkeypatch: pytest.MonkeyPatch, speed: float, together: int
) -> None:
    monkeypatch.setattr("os.cpu_count", lambda: 4)
    recipe, cluster = load_both("digits", "laptop", ["cluster.ranks_per_node=1"])
    table = network_of(recipe.model)
    count = len(table.parameters)
    # A gradient every 1.5 ms: in 1 ms comes no other one, in 2 ms one more, in 4 ms two more.
    waits = Waits(
        forward_s=0.0, gradients_s=tuple(0.0015 * (count - index) for index in range(count)), update_s=0.0,
        evaluation_s=0.0, top1=(0.5,),
    )  # fmt: skip
    rehearsed = cluster.model_copy(update={"rehearsal": Rehearsal(waits=waits, speed=speed, shrink=100)})
    network = TimedNetwork(cpu_engine(), table, recipe, rehearsed, Device(1.0), ALONE)
    assert [len(indices) for _, indices in network._groups[1:]] == [together] * (len(network._groups) - 1)
    assert sum(len(indices) for _, indices in network._groups) == count
