"""Many scenarios: a sweep of values, the best run within limits, and the time that each cause of waiting costs."""

import itertools
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from configs.errors import ConfigError, nearest
from train.sim.collectives import check_algorithm
from train.sim.constants import Calibration
from train.sim.forecast import Forecast, Scenario, forecast, time_step
from train.sim.step_time import MAX_BATCH, MAX_RANKS

Change = Callable[[Scenario, str], Scenario]


def _with_ranks(scenario: Scenario, value: str) -> Scenario:
    return replace(scenario, machine=scenario.machine.with_ranks(int(value)))


def _with_software(scenario: Scenario, **values: object) -> Scenario:
    return replace(scenario, software=replace(scenario.software, **values))  # type: ignore[arg-type]


def _with_machine(scenario: Scenario, **values: object) -> Scenario:
    return replace(scenario, machine=replace(scenario.machine, **values))  # type: ignore[arg-type]


SWEEP_KEYS: dict[str, Change] = {
    "ranks": _with_ranks,
    "batch": lambda scenario, value: replace(scenario, batch=float(value)),
    "bucket_bytes": lambda scenario, value: _with_software(scenario, bucket_bytes=int(float(value)), boundaries=()),
    "algorithm": lambda scenario, value: _with_software(scenario, algorithm=value),
    "nics": lambda scenario, value: _with_machine(scenario, nics=int(value)),
    "uplink_share": lambda scenario, value: _with_machine(scenario, uplink_share=float(value)),
}
"""Values that a sweep can vary. ``ranks`` keeps the images of each rank (weak scaling); ``batch`` is images a rank."""
_LARGEST = {"ranks": MAX_RANKS, "batch": MAX_BATCH, "bucket_bytes": 1 << 32, "nics": 64, "uplink_share": 1}
"""Largest value of each key."""
_WHOLE_NUMBERS = ("ranks", "batch", "nics")

_MOST_VALUES = 10_000
_FRAMEWORK_BYTES = 1.5e9
_BYTES_PER_IMAGE = 70e6
"""Memory of a ResNet-50 step in 16 bits for each image: 208 images fill a V100 with 16 GB (MLPerf 0.6)."""
_LARGEST_BATCH = 512
"""Images a rank, if the memory of the accelerator is not known."""
_BATCHES = (8, 16, 24, 32, 40, 42, 48, 64, 96, 128, 192, 208, 256, 400, 512)
_SMALLEST_GLOBAL_BATCH = 256
"""Images a step; there is no convergence point near a smaller global batch."""
_REDUCTIONS = tuple(itertools.product(("auto", "hierarchical"), (4 << 20, 16 << 20, 64 << 20)))
"""Pairs of algorithm and bucket_bytes that `optimize` tries: only algorithms that the program has. ``auto`` is its flat
allreduce (NCCL chooses ring or tree), ``hierarchical`` its hierarchical and torus ones."""


def parse_sweep(text: str) -> tuple[str, tuple[str, ...]]:
    """Read ``ranks=64,128``, ``ranks=8..4096`` (doubling) or ``ranks=64..4096/100`` (100 values, evenly spaced).

    Returns:
        The key and the values as text.

    Raises:
        ConfigError: The key is not one of `SWEEP_KEYS`, or the values cannot be read.
    """
    key, equals, values = text.partition("=")
    if key not in SWEEP_KEYS or not equals or not values:
        raise ConfigError("--sweep", text, f"KEY=VALUES with KEY of {', '.join(SWEEP_KEYS)}", nearest(key, SWEEP_KEYS))
    span = re.fullmatch(r"(\d+)\.\.(\d+)(?:/(\d+))?", values)
    if span is None:
        return key, _checked(key, text, tuple(each.strip() for each in values.split(",")))
    if key not in ("ranks", "batch", "bucket_bytes", "nics"):
        raise ConfigError("--sweep", text, f"{key}=VALUE,VALUE,...; only whole numbers have LOW..HIGH")
    low, high, count = int(span[1]), int(span[2]), int(span[3] or 0)
    is_count_too_small = span[3] is not None and count <= 1
    if not 0 < low <= high or is_count_too_small:
        raise ConfigError("--sweep", text, "LOW..HIGH with 1 <= LOW <= HIGH, and /COUNT of 2 or more")
    if high > _LARGEST[key] or count > _MOST_VALUES:
        raise ConfigError("--sweep", text, f"{key} up to {_LARGEST[key]:,}, and at most {_MOST_VALUES:,} values")
    if count:
        found = [round(low + (high - low) * index / (count - 1)) for index in range(count)]
    else:
        found = list(itertools.takewhile(lambda each: each <= high, (low << index for index in itertools.count())))
    return key, tuple(str(each) for each in dict.fromkeys(found))


def _checked(key: str, text: str, values: tuple[str, ...]) -> tuple[str, ...]:
    """Return ``values``; raise `ConfigError` if one of them is not a number above 0, or not whole for a count."""
    if key == "algorithm":
        for value in values:
            check_algorithm("--sweep", value)
        return values
    for value in values:
        try:
            is_usable = 0 < float(value) <= _LARGEST[key] and (key not in _WHOLE_NUMBERS or value.isdecimal())
        except ValueError:
            is_usable = False
        if not is_usable:
            kind = "whole numbers above 0" if key in _WHOLE_NUMBERS else "numbers above 0"
            raise ConfigError("--sweep", text, f"{key} in {kind}, up to {_LARGEST[key]:,}")
    return values


def sweep(
    scenario: Scenario, calibration: Calibration, changes: Sequence[tuple[str, tuple[str, ...]]]
) -> Iterator[tuple[dict[str, str], Forecast]]:
    """Yield the forecast of every combination of values, each with the combination itself.

    Args:
        scenario: Everything that the sweep does not vary.
        calibration: Fitted constants.
        changes: Pairs of a key and its values, as `parse_sweep` returns them.
    """
    keys = [key for key, _ in changes]
    for values in itertools.product(*(values for _, values in changes)):
        changed = scenario
        for key, value in zip(keys, values, strict=True):
            changed = SWEEP_KEYS[key](changed, value)
        yield dict(zip(keys, values, strict=True)), forecast(changed, calibration)


@dataclass(frozen=True)
class Limits:
    """Limits of the runs among which `optimize` looks for the best.

    Args:
        max_ranks: Number of available accelerators.
        memory_bytes: Memory of an accelerator. If None, batches up to 512 images are tried.
        deadline_s: Longest time to train. If given, the cheapest run is the best; if None, the fastest.
        budget_hours: Most accelerator hours. If None, there is no limit.
        max_global_batch: Largest global batch; no recipe is known to converge with a larger one.
    """

    max_ranks: int
    memory_bytes: float | None = None
    deadline_s: float | None = None
    budget_hours: float | None = None
    max_global_batch: int = 86_016

    def allow(self, one: Forecast) -> bool:
        """Return whether a run meets the deadline and the budget."""
        in_time = self.deadline_s is None or one.run.total_s <= self.deadline_s
        return in_time and (self.budget_hours is None or one.accelerator_hours <= self.budget_hours)


def optimize(scenario: Scenario, calibration: Calibration, limits: Limits) -> list[Forecast]:
    """Try batches, numbers of nodes, bucket sizes and algorithms; return the runs within the limits, best first.

    Numbers of nodes are the powers of two, 1.5 times these, and all available nodes.
    """
    if limits.memory_bytes is None:
        largest = _LARGEST_BATCH
    else:
        largest = int((limits.memory_bytes - _FRAMEWORK_BYTES) / _BYTES_PER_IMAGE)
    node, found = scenario.machine.ranks_per_node, []
    for count in _node_counts(max(1, limits.max_ranks // node)):
        ranks = min(limits.max_ranks, count * node)
        batches = [
            batch
            for batch in _BATCHES
            if batch <= largest and _SMALLEST_GLOBAL_BATCH <= ranks * batch <= limits.max_global_batch
        ]
        if batches:
            # The reductions are tuned with one batch: which of them overlaps best hardly depends on the batch.
            middle = replace(_with_ranks(scenario, str(ranks)), batch=batches[len(batches) // 2], accumulation=1)
            best = _with_best_reductions(middle, calibration)
            found += [forecast(replace(best, batch=batch), calibration) for batch in batches]
    is_cheapest_best = limits.deadline_s is not None
    allowed = [one for one in found if limits.allow(one)]
    return sorted(allowed, key=lambda one: one.accelerator_hours if is_cheapest_best else one.run.total_s)


def _node_counts(nodes: int) -> list[int]:
    counts = {count for power in range(nodes.bit_length()) for count in (1 << power, 3 << power >> 1)}
    return sorted({nodes, *(count for count in counts if count <= nodes)})


def _with_best_reductions(scenario: Scenario, calibration: Calibration) -> Scenario:
    """Return the scenario with the algorithm and bucket size of the shortest step, or with its own if they are best."""
    tuned = [_with_software(scenario, algorithm=name, bucket_bytes=size, boundaries=()) for name, size in _REDUCTIONS]
    return min([scenario, *tuned], key=lambda each: time_step(each, calibration).total_s)


def savings_by_cause(scenario: Scenario, calibration: Calibration) -> dict[str, float]:
    """Return by how many milliseconds a step would be shorter without each cause of lost time, largest first."""
    machine, constants = scenario.machine, calibration.constants
    total_s = time_step(scenario, calibration).total_s

    def saved_ms(other: Scenario, **changed: float) -> float:
        patched = replace(calibration, constants=constants.replaced(**changed)) if changed else calibration
        return 1e3 * (total_s - time_step(other, patched).total_s)

    many_cards = max(machine.nics, machine.ranks_per_node)
    savings = {
        "shared uplinks between racks": saved_ms(_with_machine(scenario, nodes_per_rack=None)),
        "ranks that are not numbered rack by rack": saved_ms(_with_machine(scenario, rack_ordered=True)),
        "accelerators that share a network card": saved_ms(_with_machine(scenario, nics=many_cards)),
        "ranks that are slower than others": saved_ms(scenario, straggler=0.0),
        "reductions that take multiprocessors from backward": saved_ms(_with_software(scenario, channels=0)),
        "negotiation between nodes": saved_ms(scenario, multinode_s=0.0),
        "all communication and waiting": saved_ms(_with_ranks(scenario, "1")),
    }
    return dict(sorted(savings.items(), key=lambda each: -each[1]))
