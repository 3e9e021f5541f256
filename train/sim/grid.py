"""Many scenarios: the best run within limits, and the time that each cause of waiting costs."""

import itertools
from dataclasses import replace

from train.sim.forecast import Forecast, Scenario, forecast, time_step
from train.sim.time_to_train import LARGEST_CONVERGED

_FRAMEWORK_BYTES = 1.5e9
_BYTES_PER_IMAGE = 70e6
"""Memory of a ResNet-50 step in 16 bits for each image: 208 images fill a V100 with 16 GB (MLPerf 0.6)."""
_BATCHES = (8, 16, 24, 32, 40, 42, 48, 64, 96, 128, 192, 208, 256, 400, 512)
_SMALLEST_GLOBAL_BATCH = 256
"""Images a step; there is no convergence point near a smaller global batch."""
_REDUCTIONS = tuple(itertools.product(("auto", "hierarchical"), (4 << 20, 16 << 20, 64 << 20)))
"""Pairs of algorithm and bucket_bytes that `optimize` tries: only algorithms that the program has. ``auto`` is its flat
allreduce (NCCL chooses ring or tree), ``hierarchical`` its hierarchical and torus ones."""


def optimize(
    scenario: Scenario, *, deadline_s: float | None = None, budget_hours: float | None = None
) -> list[Forecast]:
    """Try batches, numbers of nodes, bucket sizes and algorithms; return the runs within the limits, best first.

    Numbers of nodes are the powers of two, 1.5 times these, and all nodes of the cluster.

    Args:
        scenario: Its cluster limits the nodes, and the batch by an accelerator's memory if that is known.
        deadline_s: Longest time to train. If given, the cheapest run is the best; if None, the fastest.
        budget_hours: Most accelerator hours. If None, there is no limit.
    """
    cluster, largest, found = scenario.cluster, _BATCHES[-1], []
    if cluster.node.gpu_memory_bytes is not None:
        largest = int((cluster.node.gpu_memory_bytes - _FRAMEWORK_BYTES) / _BYTES_PER_IMAGE)
    for count in _node_counts(cluster.num_nodes):
        ranks = count * cluster.ranks_per_node
        most = min(largest, LARGEST_CONVERGED // ranks)
        batches = [batch for batch in _BATCHES if _SMALLEST_GLOBAL_BATCH / ranks <= batch <= most]
        if batches:
            # The reductions are tuned with one batch: which of them overlaps best hardly depends on the batch.
            middle = replace(scenario.with_machine(ranks=ranks), batch=batches[len(batches) // 2], accumulation=1)
            best = _with_best_reductions(middle)
            found += [forecast(replace(best, batch=batch)) for batch in batches]
    if budget_hours is not None:
        found = [one for one in found if one.accelerator_hours <= budget_hours]
    if deadline_s is None:
        return sorted(found, key=lambda one: one.run.total_s)
    return sorted((one for one in found if one.run.total_s <= deadline_s), key=lambda one: one.accelerator_hours)


def _node_counts(nodes: int) -> list[int]:
    counts = {count for power in range(nodes.bit_length()) for count in (1 << power, 3 << power >> 1)}
    return sorted({nodes, *(count for count in counts if count <= nodes)})


def _with_best_reductions(scenario: Scenario) -> Scenario:
    """Return the scenario with the algorithm and bucket size of the shortest step, or with its own if they are best."""
    tuned = [scenario.with_software(algorithm=name, bucket_bytes=size, boundaries=()) for name, size in _REDUCTIONS]
    return min([scenario, *tuned], key=lambda each: time_step(each).total_s)


def savings_by_cause(scenario: Scenario) -> dict[str, float]:
    """Return by how many milliseconds a step would be shorter without each cause of lost time, largest first."""
    total_s, product = time_step(scenario).total_s, scenario.machine.accelerator
    own_cards = replace(product, nics=max(product.nics, product.node))

    def saved_ms(other: Scenario) -> float:
        return 1e3 * (total_s - time_step(other).total_s)

    savings = {
        "shared uplinks between racks": saved_ms(scenario.with_machine(nodes_per_rack=None)),
        "ranks that are not numbered rack by rack": saved_ms(scenario.with_machine(rack_ordered=True)),
        "accelerators that share a network card": saved_ms(scenario.with_machine(accelerator=own_cards)),
        "ranks that are slower than others": saved_ms(scenario.with_constants(straggler=0.0)),
        "reductions that take multiprocessors from backward": saved_ms(scenario.with_software(channels=0)),
        "negotiation between nodes": saved_ms(scenario.with_constants(multinode_s=0.0)),
        "waiting for images": saved_ms(scenario.with_software(images_per_s=None)),
        "all communication and waiting": saved_ms(scenario.with_machine(ranks=1)),
    }
    return dict(sorted(savings.items(), key=lambda each: -each[1]))
