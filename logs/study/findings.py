"""The findings of a scaling study, as sentences that are all computed from the rows of the table."""

import math
from collections.abc import Iterator, Sequence
from statistics import median
from typing import Any

from logs.study.cells import ScalingRow
from logs.study.scaling_figures import grouped, in_words, ranks_in_words, strong_speed_ups

_NOISE_CORES = 0.1
"""Cores that the services of an idle machine keep busy at most."""

AXES = ("framework", "communication", "data", "batch", "ranks")
"""Columns by which the rows of one network differ."""


def findings(rows: Sequence[ScalingRow], global_batches: Sequence[int] = ()) -> list[str]:
    """Return the sentences, each about cells that differ in one axis of the grid.

    A sentence names the network that loses most first, or the network that gains most.

    Args:
        rows: Measured and predicted rows, with their efficiency. Only the last sentence uses predicted rows.
        global_batches: Batches of all ranks together, for the sentences on strong scaling.
    """
    known = [row for row in rows if row.basis == "measured" and row.images_per_s is not None]
    return [
        *_against_first_value(known, "framework"),
        *_against_first_value(known, "communication"),
        *_against_first_value(known, "data"),
        *_batches(known),
        *_efficiencies(known),
        *_strong_scaling(known, global_batches),
        *_quality(known),
        *_first_epochs(known),
        *_cpu_time(known),
        *_servers(known),
        *_other_programs(known),
        *_simulator(rows),
    ]


def _against_first_value(rows: Sequence[ScalingRow], axis: str) -> Iterator[str]:
    """Compare each network's speed at every other value of an axis with its speed at the first value."""
    names = list(dict.fromkeys(getattr(row, axis) for row in rows))
    for name in names[1:]:
        for key, group in grouped(rows, *(each for each in AXES if each != axis)).items():
            shares = ratios(group, axis, names[0], name)
            if shares:
                speeds = ", ".join(f"{network} runs at {share:.0%}" for network, share in sorted(shares, key=_second))
                noise = _noise(group, axis, (names[0], name))
                cells = f"{name} instead of {names[0]} ({where(axis, key)})"
                yield f"{cells}: {speeds} of its images/s with {names[0]}{noise}."


def _noise(rows: Sequence[ScalingRow], axis: str, values: Sequence[object]) -> str:
    """Return a warning if the runs of one cell lie further apart than the medians of the cells that are compared."""
    spreads, apart = [1.0], [math.inf]
    for group in grouped([row for row in rows if getattr(row, axis) in values], "network").values():
        cells = [[row.images_per_s or 0.0 for row in cell] for cell in grouped(group, axis).values()]
        spreads += [max(cell) / min(cell) for cell in cells if min(cell) > 0]
        medians = [median(cell) for cell in cells]
        apart += [max(medians) / min(medians)] if len(cells) > 1 and min(medians) > 0 else []
    return f"; runs of one cell differ up to {max(spreads):.2f} times" if max(spreads) > min(apart) else ""


def _batches(rows: Sequence[ScalingRow]) -> Iterator[str]:
    """Compare the largest batch with the smallest, at the fewest and at the most ranks."""
    for key, group in grouped(rows, "framework", "communication", "data", "ranks").items():
        batches = sorted({row.batch for row in group})
        ends = {min(row.ranks for row in rows), max(row.ranks for row in rows)}
        gains = ratios(group, "batch", batches[0], batches[-1])
        if len(batches) > 1 and key[-1] in ends and gains:
            order = sorted(gains, key=_second, reverse=True)
            speeds = ", ".join(f"{network} {gain:.2f} times" for network, gain in order)
            cells = f"Batch {batches[-1]} instead of {batches[0]} ({where('batch', key)})"
            yield f"{cells}: {speeds} its images/s at batch {batches[0]}."


def _efficiencies(rows: Sequence[ScalingRow]) -> Iterator[str]:
    """Compare the speed at the most ranks with the ideal speed, which grows with the ranks."""
    most = max((row.ranks for row in rows), default=1)
    fewest = min((row.ranks for row in rows), default=1)
    if most == fewest:
        return
    at_most = [row for row in rows if row.ranks == most and row.efficiency is not None]
    for key, group in grouped(at_most, "framework", "communication", "data", "batch").items():
        shares = [
            (network, median(row.efficiency or 0.0 for row in cell))
            for (network,), cell in grouped(group, "network").items()
        ]
        speeds = ", ".join(f"{network} {share:.0%}" for network, share in sorted(shares, key=_second))
        yield f"On {most} ranks ({where('ranks', key)}): {speeds} of the ideal images/s."


def _strong_scaling(rows: Sequence[ScalingRow], sizes: Sequence[int]) -> Iterator[str]:
    """Compare the speed at the most ranks with the fewest, where all ranks together keep the same batch."""
    for size in sizes:
        for place, pairs in strong_speed_ups(rows, size).items():
            fewest, most = (pick(row.ranks for row, _ in pairs) for pick in (min, max))
            ways: dict[str, list[float]] = {}
            for row, speed_up in pairs:
                if row.ranks == most:
                    ways.setdefault(row.communication, []).append(speed_up)
            speeds = ", ".join(f"{median(found):.2f} times ({way})" for way, found in ways.items())
            split = f"Strong scaling: batch {size} split over {ranks_in_words(most)} ({in_words(place)})"
            yield f"{split}: {speeds} the images/s on {ranks_in_words(fewest)}; ideal is {most / fewest:g} times."


def _quality(rows: Sequence[ScalingRow]) -> Iterator[str]:
    """Compare the accuracy after the same epochs on different numbers of ranks, in runs of more than one epoch."""
    trained = [row for row in rows if row.later_epoch_s is not None and row.quality is not None]
    for (framework, network, data, batch), group in grouped(trained, "framework", "network", "data", "batch").items():
        cells = grouped(group, "ranks", "communication")
        if len({ranks for ranks, _ in cells}) > 1:
            values = ", ".join(
                f"{median(row.quality or 0.0 for row in cell):.3f} on {ranks} ({way})"
                for (ranks, way), cell in cells.items()
            )
            metric = "mean ROC-AUC" if group[0].mean_auc is not None else "top-1"
            where_run = in_words((framework, data, f"batch {batch} a rank"))
            yield f"{metric} of {network} by number of ranks ({where_run}): {values}."


def _first_epochs(rows: Sequence[ScalingRow]) -> Iterator[str]:
    ratios = [row.first_epoch_s / row.later_epoch_s for row in rows if row.first_epoch_s and row.later_epoch_s]
    if ratios:
        yield f"The first epoch takes {_range(ratios)} times as long as a later epoch."


def _cpu_time(rows: Sequence[ScalingRow]) -> Iterator[str]:
    ratios = [row.cpu_s / row.wall_s for row in rows if row.cpu_s and row.wall_s]
    if ratios:
        words = f"The CPU time of all ranks is {_range(ratios)} times the wall time"
        yield f"{words}: a rate per CPU second is not a rate per second."


def _servers(rows: Sequence[ScalingRow]) -> Iterator[str]:
    """Say how many cores the parameter servers took, which the ranks on the same machine did not have."""
    shares = [row.server_busy_cores for row in rows if row.server_busy_cores]
    if shares:
        yield f"Parameter servers kept {_range(shares)} of the cores busy that they share with the ranks."


def _other_programs(rows: Sequence[ScalingRow]) -> Iterator[str]:
    """Warn if other programs used the machine during the runs."""
    shares = [row.other_busy_cores for row in rows if row.other_busy_cores is not None]
    if is_disturbed(rows):
        yield f"Other programs kept {_range(shares)} cores busy during the runs: repeat the study on an idle machine."


def is_disturbed(rows: Sequence[ScalingRow]) -> bool:
    """Return whether other programs kept cores of the machine busy during the runs."""
    shares = [row.other_busy_cores for row in rows if row.other_busy_cores is not None]
    return bool(shares) and median(shares) > _NOISE_CORES


def _simulator(rows: Sequence[ScalingRow]) -> Iterator[str]:
    """Compare the predicted with the measured speed, in cells that have both."""
    errors = []
    for cell in grouped([row for row in rows if row.images_per_s], "network", *AXES).values():
        rates = {
            basis: median(row.images_per_s or 0.0 for row in same) for (basis,), same in grouped(cell, "basis").items()
        }
        if len(rates) > 1:
            errors.append(rates["predicted"] / rates["measured"])
    if errors:
        yield f"In cells with both, the predicted images/s are {_range(errors)} times the measured images/s."


def ratios(rows: Sequence[ScalingRow], axis: str, base: object, other: object) -> list[tuple[str, float]]:
    """Return the networks measured at both values of an axis, each with the images/s at ``other`` over ``base``."""
    found = []
    for (network,), group in grouped(rows, "network").items():
        rates = {
            value: median(row.images_per_s or 0.0 for row in cell) for (value,), cell in grouped(group, axis).items()
        }
        if rates.get(base) and other in rates and base != other:
            found.append((network, rates[other] / rates[base]))
    return found


def _second(pair: tuple[str, float]) -> float:
    return pair[1]


def where(axis: str, key: Sequence[object]) -> str:
    """Return what cells that differ only in ``axis`` have in common: the values ``key`` of the other axes, in words."""
    others = [name for name in AXES if name != axis]
    return in_words([_value(name, value) for name, value in zip(others, key, strict=True)])


def _value(name: str, value: Any) -> str:
    if name == "ranks":
        return ranks_in_words(value)
    return f"batch {value} a rank" if name == "batch" else str(value)


def _range(values: Sequence[float]) -> str:
    """Return median, lowest and highest value as text."""
    return f"{median(values):.2f} ({min(values):.2f} to {max(values):.2f})"
