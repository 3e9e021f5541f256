"""Many scenarios at once: a sweep, the best under a deadline or a budget, and what each cause of lost time costs."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from configs.errors import ConfigError, nearest
from train.sim.constants import Calibration
from train.sim.forecast import Forecast, Scenario, forecast, time_step

__all__ = ["KEYS", "Limits", "explain", "optimize", "parse_sweep", "sweep"]

Change = Callable[[Scenario, str], Scenario]


def _ranks(scenario: Scenario, value: str) -> Scenario:
    return replace(scenario, machine=scenario.machine.with_ranks(int(value)))


def _software(scenario: Scenario, **values: object) -> Scenario:
    return replace(scenario, software=replace(scenario.software, **values))  # type: ignore[arg-type]


KEYS: dict[str, Change] = {
    "ranks": _ranks,
    "batch": lambda scenario, value: replace(scenario, batch=float(value)),
    "bucket_bytes": lambda scenario, value: _software(scenario, bucket_bytes=int(float(value)), boundaries=()),
    "algorithm": lambda scenario, value: _software(scenario, algorithm=value),
    "nics": lambda scenario, value: replace(scenario, machine=replace(scenario.machine, nics=int(value))),
    "uplink_share": lambda scenario, value: replace(
        scenario, machine=replace(scenario.machine, uplink_share=float(value))
    ),
}
"""What a sweep can vary: ``ranks`` keeps the images a rank (weak scaling), ``batch`` is images a rank."""

_BYTES_PER_IMAGE = 70e6
"""Of a ResNet-50 step in 16 bits: 208 images fill a 16 GB V100 (MLPerf 0.6)."""


def parse_sweep(text: str) -> tuple[str, tuple[str, ...]]:
    """Read ``ranks=64,128``, ``ranks=8..4096`` (doubling) or ``ranks=64..4096/100`` (that many, evenly).

    Raises:
        ConfigError: Unknown key or unreadable values.
    """
    key, equals, values = text.partition("=")
    if key not in KEYS or not equals or not values:
        raise ConfigError("--sweep", text, f"KEY=VALUES with KEY of {', '.join(KEYS)}", nearest(key, KEYS))
    span = re.fullmatch(r"(\d+)\.\.(\d+)(?:/(\d+))?", values)
    if span is None:
        return key, _checked(key, text, tuple(each.strip() for each in values.split(",")))
    low, high, count = int(span[1]), int(span[2]), int(span[3] or 0)
    if not 0 < low <= high or (span[3] and count < 2):  # noqa: PLR2004 (both ends)
        raise ConfigError("--sweep", text, "LOW..HIGH rising from 1, /COUNT of 2 or more")
    if count:
        found = [round(low + (high - low) * index / (count - 1)) for index in range(count)]
    else:
        found = list(itertools.takewhile(lambda each: each <= high, (low << index for index in itertools.count())))
    return key, tuple(str(each) for each in dict.fromkeys(found))


def _checked(key: str, text: str, values: tuple[str, ...]) -> tuple[str, ...]:
    if key == "algorithm":
        return values
    for value in values:
        try:
            good = float(value) > 0 and (key not in ("ranks", "nics") or value.isdecimal())
        except ValueError:
            good = False
        if not good:
            raise ConfigError("--sweep", text, f"{key} in numbers above 0" + (", whole" if key == "ranks" else ""))
    return values


def sweep(
    scenario: Scenario, calibration: Calibration, changes: Sequence[tuple[str, tuple[str, ...]]]
) -> Iterator[tuple[dict[str, str], Forecast]]:
    """Forecast every combination of the values given."""
    keys = [key for key, _ in changes]
    for values in itertools.product(*(values for _, values in changes)):
        changed = scenario
        for key, value in zip(keys, values, strict=True):
            changed = KEYS[key](changed, value)
        yield dict(zip(keys, values, strict=True)), forecast(changed, calibration)


@dataclass(frozen=True)
class Limits:
    """What an optimum must keep to.

    Args:
        max_ranks: Accelerators there are.
        memory_bytes: Of one; none: batches up to 512.
        deadline_s: Longest time to train; with it the cheapest run is sought, without it the fastest.
        budget_hours: Most accelerator hours.
        max_global_batch: Beyond it no recipe is known to converge.
    """

    max_ranks: int
    memory_bytes: float | None = None
    deadline_s: float | None = None
    budget_hours: float | None = None
    max_global_batch: int = 86_016


def optimize(scenario: Scenario, calibration: Calibration, limits: Limits) -> list[Forecast]:
    """Try batches, node counts, bucket plans and algorithms; give what keeps to the limits, best first.

    Nodes come in powers of two, 1.5 times these, and all there are.
    """
    node = scenario.machine.ranks_per_node
    nodes = max(1, limits.max_ranks // node)
    counts = {count for power in range(nodes.bit_length()) for count in (1 << power, 3 << power >> 1)}
    most = 512 if limits.memory_bytes is None else int((limits.memory_bytes - 1.5e9) / _BYTES_PER_IMAGE)
    batches = [batch for batch in _BATCHES if batch <= most]
    found = []
    for count in sorted({nodes, *(each for each in counts if each <= nodes)}):
        ranks = min(limits.max_ranks, count * node)
        fitting = [batch for batch in batches if _SMALLEST_BATCH <= ranks * batch <= limits.max_global_batch]
        if not fitting:
            continue
        there = replace(_ranks(scenario, str(ranks)), batch=fitting[len(fitting) // 2], accumulation=1)
        # The plan is sought at one batch: what overlaps best hardly moves with it.
        tuned = [there, *(_software(there, algorithm=name, bucket_bytes=size, boundaries=()) for name, size in _PLANS)]
        best = min(tuned, key=lambda each: time_step(each, calibration).total_s)
        found += [forecast(replace(best, batch=batch), calibration) for batch in fitting]
    kept = [one for one in found if _keeps(one, limits)]
    cheapest = limits.deadline_s is not None
    return sorted(kept, key=lambda one: one.accelerator_hours if cheapest else one.run.total_s)


_BATCHES = (8, 16, 24, 32, 40, 42, 48, 64, 96, 128, 192, 208, 256, 400, 512)
_SMALLEST_BATCH = 256
"""Images a step below which no reference point lies near."""
_PLANS = tuple(itertools.product(("auto", "hierarchical", "halving-doubling"), (4 << 20, 16 << 20, 64 << 20)))


def _keeps(one: Forecast, limits: Limits) -> bool:
    in_time = limits.deadline_s is None or one.run.total_s <= limits.deadline_s
    return in_time and (limits.budget_hours is None or one.accelerator_hours <= limits.budget_hours)


def explain(scenario: Scenario, calibration: Calibration) -> dict[str, float]:
    """Give the milliseconds that a step would lose if one cause of lost time were not there, largest first."""
    machine, constants = scenario.machine, calibration.constants
    total_s = time_step(scenario, calibration).total_s

    def saved(other: Scenario, **changed: float) -> float:
        patched = replace(calibration, constants=constants.replaced(**changed)) if changed else calibration
        return 1e3 * (total_s - time_step(other, patched).total_s)

    ideal = {
        "uplinks between racks shared": saved(replace(scenario, machine=replace(machine, nodes_per_rack=None))),
        "ranks not numbered rack by rack": saved(replace(scenario, machine=replace(machine, rack_ordered=True))),
        "as many network cards as accelerators": saved(
            replace(scenario, machine=replace(machine, nics=max(machine.nics, machine.ranks_per_node)))
        ),
        "slowest rank": saved(scenario, straggler=0.0),
        "reductions take multiprocessors from backward": saved(_software(scenario, channels=0)),
        "negotiation between nodes": saved(scenario, multinode_s=0.0),
        "all communication and waiting": 1e3
        * (total_s - time_step(replace(scenario, machine=machine.with_ranks(1)), calibration).total_s),
    }
    return dict(sorted(ideal.items(), key=lambda each: -each[1]))
