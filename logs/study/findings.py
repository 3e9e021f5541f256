"""What a scaling study's numbers say, in sentences: each is computed from the rows, none is written beforehand."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from statistics import median
from typing import Any

from logs.study.cells import Row
from logs.study.scaling_figures import grouped, ranks_in_words

__all__ = ["findings", "ratios", "where"]

_NOISE_CORES = 0.1
"""What an idle machine's own services use at most."""

_AXES = ("communication", "data", "batch", "ranks")


def findings(rows: Sequence[Row]) -> list[str]:
    """Compare cells that differ in one thing; networks are named from the one that loses, or gains, most.

    Args:
        rows: Measured and predicted ones, with their efficiency; only the last sentence looks at both.
    """
    known = [row for row in rows if row.basis == "measured" and row.images_per_s is not None]
    return [
        *_in_place_of_the_first(known, "communication"), *_in_place_of_the_first(known, "data"), *_batches(known),
        *_efficiencies(known), *_quality(known), *_first_epochs(known), *_clocks(known), *_others(known),
        *_simulator(rows),
    ]  # fmt: skip


def _in_place_of_the_first(rows: Sequence[Row], axis: str) -> Iterator[str]:
    """Say what each network keeps of its speed when another value stands on an axis than the first one."""
    names = list(dict.fromkeys(getattr(row, axis) for row in rows))
    for name in names[1:]:
        for key, group in grouped(rows, *(each for each in _AXES if each != axis)).items():
            shares = ratios(group, axis, names[0], name)
            if shares:
                told = ", ".join(f"{network} runs at {share:.0%}" for network, share in sorted(shares, key=_second))
                yield f"{name} in place of {names[0]} ({where(axis, key)}): {told} of its images/s."


def _batches(rows: Sequence[Row]) -> Iterator[str]:
    """Say what the largest batch gives over the smallest, at the fewest and the most ranks."""
    for key, group in grouped(rows, "communication", "data", "ranks").items():
        batches = sorted({row.batch for row in group})
        ends = {min(row.ranks for row in rows), max(row.ranks for row in rows)}
        gains = ratios(group, "batch", batches[0], batches[-1])
        if len(batches) > 1 and key[-1] in ends and gains:
            order = sorted(gains, key=_second, reverse=True)
            told = ", ".join(f"{network} {gain:.2f} times" for network, gain in order)
            yield f"Batch {batches[-1]} in place of {batches[0]} ({where('batch', key)}): {told} its images/s."


def _efficiencies(rows: Sequence[Row]) -> Iterator[str]:
    """Say what is kept of the ideal speed at the most ranks."""
    most = max((row.ranks for row in rows), default=1)
    fewest = min((row.ranks for row in rows), default=1)
    if most == fewest:
        return
    for key, group in grouped([row for row in rows if row.ranks == most], "communication", "data", "batch").items():
        shares = [
            (network, median(row.efficiency or 0.0 for row in cell))
            for (network,), cell in grouped(group, "network").items()
        ]
        told = ", ".join(f"{network} {share:.0%}" for network, share in sorted(shares, key=_second))
        yield f"On {most} ranks ({where('ranks', key)}): {told} of the ideal speed."


def _quality(rows: Sequence[Row]) -> Iterator[str]:
    """Say what accuracy came of the same number of epochs on more ranks, where there is more than one epoch."""
    trained = [row for row in rows if row.later_epoch_s is not None and row.quality is not None]
    for (network, data, batch), group in grouped(trained, "network", "data", "batch").items():
        cells = grouped(group, "ranks", "communication")
        if len({ranks for ranks, _ in cells}) > 1:
            told = ", ".join(
                f"{median(row.quality or 0.0 for row in cell):.3f} on {ranks} ({way})"
                for (ranks, way), cell in cells.items()
            )
            metric = "mean ROC-AUC" if group[0].mean_auc is not None else "top-1"
            yield f"{metric} of {network} ({data}, batch {batch} a rank), by ranks: {told}."


def _first_epochs(rows: Sequence[Row]) -> Iterator[str]:
    ratios = [row.first_epoch_s / row.later_epoch_s for row in rows if row.first_epoch_s and row.later_epoch_s]
    if ratios:
        yield f"The first epoch takes {_range(ratios)} times a later one."


def _clocks(rows: Sequence[Row]) -> Iterator[str]:
    ratios = [row.cpu_s / row.wall_s for row in rows if row.cpu_s and row.wall_s]
    if ratios:
        yield f"CPU seconds of all ranks are {_range(ratios)} times the wall's; a rate by the one is none by the other."


def _others(rows: Sequence[Row]) -> Iterator[str]:
    """Say so where the machine was not the study's alone."""
    shares = [row.other_busy_cores for row in rows if row.other_busy_cores is not None]
    if shares and median(shares) > _NOISE_CORES:
        yield f"Other programs kept {_range(shares)} cores busy meanwhile: run it again on an idle machine."


def _simulator(rows: Sequence[Row]) -> Iterator[str]:
    """Say how far predictions are off where cells were measured as well."""
    errors = []
    for cell in grouped([row for row in rows if row.images_per_s], "network", *_AXES).values():
        rates = {
            basis: median(row.images_per_s or 0.0 for row in same) for (basis,), same in grouped(cell, "basis").items()
        }
        if len(rates) > 1:
            errors.append(rates["predicted"] / rates["measured"])
    if errors:
        yield f"Where cells were measured, the simulator's images/s are {_range(errors)} times theirs."


def ratios(rows: Sequence[Row], axis: str, base: object, other: object) -> list[tuple[str, float]]:
    """Give images/s at ``other`` over those at ``base``, of each network that has both."""
    found = []
    for (network,), group in grouped(rows, "network").items():
        rates = {
            value: median(row.images_per_s or 0.0 for row in cell) for (value,), cell in grouped(group, axis).items()
        }
        if base in rates and other in rates and base != other:
            found.append((network, rates[other] / rates[base]))
    return found


def _second(pair: tuple[str, float]) -> float:
    return pair[1]


def where(axis: str, key: Sequence[object]) -> str:
    """Name what the cells compared have in common."""
    return ", ".join(
        _told(name, value) for name, value in zip((each for each in _AXES if each != axis), key, strict=True)
    )


def _told(name: str, value: Any) -> str:
    if name == "ranks":
        return ranks_in_words(value)
    return f"batch {value} a rank" if name == "batch" else str(value)


def _range(values: Sequence[float]) -> str:
    """Write median, lowest and highest."""
    return f"{median(values):.2f} ({min(values):.2f} to {max(values):.2f})"
