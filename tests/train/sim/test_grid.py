"""The search for the best run: what is tried, and what is allowed; and what each cause of waiting costs."""

from dataclasses import replace

import pytest

from configs.load import load_cluster, load_recipe
from train.sim.forecast import Scenario, make_scenario
from train.sim.grid import optimize, savings_by_cause

SCENARIO = make_scenario(load_recipe("imagenet-b256"), load_cluster("dgx-a100"))


def _scenario(*sets: str) -> Scenario:
    """Return the scenario with the limits of another cluster."""
    return replace(SCENARIO, cluster=load_cluster("dgx-a100", sets))


SMALL = "cluster.node.gpu_memory_bytes=6000000000"
"""(6 - 1.5) GB hold 64 images of 70 MB."""


@pytest.mark.medium
@pytest.mark.parametrize(
    ("sets", "largest"),
    [((), 512), (("cluster.node.gpu_memory_bytes=16000000000",), 192), (("cluster.num_nodes=32",), 512)],
)
def test_a_batch_fits_the_memory_and_is_no_larger_than_any_that_converged(sets: tuple[str, ...], largest: int) -> None:
    """(16 - 1.5) GB hold 207 images of 70 MB; 256 times 512 images are more than 86,016."""
    found = optimize(_scenario("cluster.node.gpu_memory_bytes=null", *sets))
    assert max(one.scenario.batch for one in found) == largest
    assert max(one.scenario.global_batch for one in found) <= 86_016


@pytest.mark.medium
@pytest.mark.parametrize(("nodes", "tried"), [(1, {8}), (13, {8, 16, 24, 32, 48, 64, 96, 104})])
def test_nodes_are_tried_by_powers_of_two_and_halves_between_and_all_of_them(nodes: int, tried: set[int]) -> None:
    found = optimize(_scenario(SMALL, f"cluster.num_nodes={nodes}"))
    assert {one.scenario.machine.ranks for one in found} == tried


def test_a_cause_that_is_not_there_costs_nothing_and_the_causes_come_by_size() -> None:
    saved = savings_by_cause(SCENARIO)
    assert list(saved.values()) == sorted(saved.values(), reverse=True)
    assert saved["shared uplinks between racks"] == 0
    for cause in ("ranks that are slower than others", "negotiation between nodes"):
        assert saved[cause] > 0
    alone = replace(SCENARIO, machine=replace(SCENARIO.machine, ranks=1))
    assert all(abs(each) < 1e-9 for each in savings_by_cause(alone).values())
    starved = replace(SCENARIO, software=replace(SCENARIO.software, images_per_s=1.0))
    assert next(iter(savings_by_cause(starved))) == "waiting for images"
    for cards, has_cause in ((1, True), (12, False)):  # of eight accelerators
        product = replace(SCENARIO.machine.accelerator, nics=cards)
        machine = replace(SCENARIO.machine, accelerator=product)
        saved = savings_by_cause(replace(SCENARIO, machine=machine))
        assert (saved["accelerators that share a network card"] > 0) is has_cause
