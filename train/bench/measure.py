"""Shared by all benches: measure alternatives in turn, make a row of each figure, and describe the machine.

Imports no framework; a bench imports one inside the function that needs it.
"""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from logs.environment import environment
from train.bench.samples import MeasurementFailed

__all__ = ["BenchRow", "MeasurementFailed", "Report", "interleave", "make_report", "ratio_rows", "summarize"]

Figures = Mapping[str, float]
"""Name of a figure -> value. A name ends with the unit: ``step_ms``, ``images_per_s``, ``input_wait_fraction``."""

_PACKAGES = ("horovod", "mxnet", "mxnet-cu112", "numpy", "nvidia-dali-cuda110", "pillow", "torch", "torchvision")
_MACHINE = ("platform", "cpu", "cores", "usable_cores", "memory_bytes", "gpus")


@dataclass(frozen=True)
class BenchRow:
    """One figure of one alternative.

    Attributes:
        alternative: Name of what was measured.
        figure: Name of the figure, with the unit. ``FIGURE / REFERENCE`` is the value of the alternative divided by the
            value of the reference in the same round.
        n: Number of rounds that count.
        warmup: Number of rounds before them that do not count.
        median: Median of the rounds that count.
        low: Smallest value of the rounds that count.
        high: Largest value of the rounds that count.
    """

    alternative: str
    figure: str
    n: int
    warmup: int
    median: float
    low: float
    high: float


@dataclass(frozen=True)
class Report:
    """The answer of a bench.

    Attributes:
        rows: The figures.
        notes: Sentences that explain the rows.
        versions: Package -> version, and the commit of this program.
        machine: The machine that it ran on.
    """

    rows: tuple[BenchRow, ...]
    notes: tuple[str, ...]
    versions: Mapping[str, str]
    machine: Mapping[str, Any]

    def to_json(self) -> dict[str, Any]:
        """Return the report as values that JSON can hold."""
        return dataclasses.asdict(self)


def make_report(rows: Iterable[BenchRow], notes: Iterable[str] = ()) -> Report:
    """Return a report of rows and notes, with a description of this machine and the versions of the packages."""
    found = environment()
    versions = {"python": found["python"].split()[0]}
    versions |= {name: version for name, version in found["packages"].items() if name.lower() in _PACKAGES}
    if found["git"]:
        versions["commit"] = f"{found['git']['commit']}{', changed since' if found['git']['dirty'] else ''}"
    return Report(tuple(rows), tuple(notes), versions, {name: found[name] for name in _MACHINE})


def interleave(
    alternatives: Mapping[str, Callable[[], Figures]],
    *,
    n: int,
    warmup: int = 0,
    reference: str | None = None,
    compared: Collection[str] | None = None,
    announce: Callable[[str], object] | None = None,
) -> list[BenchRow]:
    """Measure all alternatives once in each round, so that a machine that slows down for a while slows all of them.

    Args:
        alternatives: Name -> function that measures once. All rounds of an alternative have the same figures.
        n: Number of rounds that count.
        warmup: Number of rounds before them that do not count.
        reference: The alternative that the others are compared with (`ratio_rows`); if None, there is no comparison.
        compared: The figures to compare; if None, all that both alternatives have.
        announce: Called with a line before each measurement, because a bench may last minutes.
    """
    assert n >= 1
    assert reference is None or reference in alternatives
    measured: dict[str, list[Figures]] = {name: [] for name in alternatives}
    for number in range(warmup + n):
        for name, measure in alternatives.items():
            if announce is not None:
                announce(f"round {number + 1} of {warmup + n}: {name}")
            figures = measure()
            if number >= warmup:
                measured[name].append(figures)
    rows = [row for name, rounds in measured.items() for row in summarize(name, rounds, warmup)]
    return rows if reference is None else [*rows, *ratio_rows(measured, reference, warmup, compared)]


def summarize(alternative: str, rounds: Sequence[Figures], warmup: int = 0) -> list[BenchRow]:
    """Return a row for each figure; all rounds have the same figures."""
    rows = []
    for figure in rounds[0]:
        values = [figures[figure] for figures in rounds]
        rows.append(
            BenchRow(
                alternative,
                figure,
                n=len(values),
                warmup=warmup,
                median=statistics.median(values),
                low=min(values),
                high=max(values),
            )
        )
    return rows


def ratio_rows(
    measured: Mapping[str, Sequence[Figures]], reference: str, warmup: int = 0, compared: Collection[str] | None = None
) -> list[BenchRow]:
    """Return the ratio of each alternative to the reference, computed round by round.

    Args:
        measured: Alternative -> the figures of each round.
        reference: The alternative to divide by. Rounds in which the figure of the reference is 0 are left out.
        warmup: Number of rounds that do not count and are not in ``measured``; for the rows.
        compared: The figures to compare; if None, all that both alternatives have.
    """
    rows = []
    for name, rounds in measured.items():
        wanted = rounds[0] if compared is None else compared
        shared = [figure for figure in wanted if figure in measured[reference][0] and name != reference]
        for figure in shared:
            pairs = zip(rounds, measured[reference], strict=True)
            ratios = [{f"{figure} / {reference}": own[figure] / other[figure]} for own, other in pairs if other[figure]]
            rows += summarize(name, ratios, warmup) if ratios else []
    return rows
