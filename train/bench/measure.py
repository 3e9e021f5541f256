"""What every bench shares: alternatives measured in turn, rows with their spread, and what they were measured on.

Imports no framework; a bench imports one inside the function that needs it.
"""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from logs.environment import environment

__all__ = ["MeasurementFailed", "Report", "Row", "interleave", "make_report", "ratio_rows", "summarize"]

Figures = Mapping[str, float]
"""Figure -> value; the name of a figure ends with its unit: ``step_ms``, ``images_per_s``, ``input_wait_fraction``."""

_PACKAGES = ("horovod", "mxnet", "mxnet-cu112", "numpy", "nvidia-dali-cuda110", "pillow", "torch", "torchvision")
_MACHINE = ("platform", "cpu", "cores", "usable_cores", "memory_bytes", "gpus")


class MeasurementFailed(RuntimeError):
    """What was to be measured failed; the text says what and why."""


@dataclass(frozen=True)
class Row:
    """One figure of one alternative.

    Attributes:
        alternative: What was measured.
        figure: What of it, with its unit; ``figure / reference`` is a ratio of the two in the same round.
        n: Rounds that count.
        warmup: Rounds before them that do not.
        median: Of the rounds.
        low: Their smallest value.
        high: Their largest value.
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
        notes: Sentences that a reader of the rows needs.
        versions: Package -> version, and the program's commit.
        machine: What it ran on.
    """

    rows: tuple[Row, ...]
    notes: tuple[str, ...]
    versions: Mapping[str, str]
    machine: Mapping[str, Any]

    def to_json(self) -> dict[str, Any]:
        """Give the report as plain values."""
        return dataclasses.asdict(self)


def make_report(rows: Iterable[Row], notes: Iterable[str] = ()) -> Report:
    """Put rows and notes together with this machine and the versions of what runs on it."""
    found = environment()
    versions = {"python": found["python"].split()[0]}
    versions |= {name: version for name, version in found["packages"].items() if name.lower() in _PACKAGES}
    if found["git"]:
        versions["commit"] = f"{found['git']['commit']}{', changed since' if found['git']['dirty'] else ''}"
    return Report(tuple(rows), tuple(notes), versions, {name: found[name] for name in _MACHINE})


def interleave(
    alternatives: Mapping[str, Callable[[], Figures]], *, n: int, warmup: int = 0, reference: str | None = None,
    compared: Collection[str] | None = None, tell: Callable[[str], object] | None = None,
) -> list[Row]:  # fmt: skip
    """Measure alternatives round robin, so that a machine that slows down for a while slows all of them.

    Args:
        alternatives: Name -> one measurement; all rounds of one alternative give the same figures.
        n: Rounds that count.
        warmup: Rounds before them that do not.
        reference: The alternative that others are compared with; adds `ratio_rows`.
        compared: The figures to compare; none: all that both have.
        tell: Takes a line a measurement, since a bench may last minutes.
    """
    assert n >= 1
    assert reference is None or reference in alternatives
    measured: dict[str, list[Figures]] = {name: [] for name in alternatives}
    for number in range(warmup + n):
        for name, measure in alternatives.items():
            if tell is not None:
                tell(f"round {number + 1} of {warmup + n}: {name}")
            figures = measure()
            if number >= warmup:
                measured[name].append(figures)
    rows = [row for name, rounds in measured.items() for row in summarize(name, rounds, warmup)]
    return rows if reference is None else [*rows, *ratio_rows(measured, reference, warmup, compared)]


def summarize(alternative: str, rounds: Sequence[Figures], warmup: int = 0) -> list[Row]:
    """Make a row of each figure of ``rounds``, which all hold the same figures."""
    rows = []
    for figure in rounds[0]:
        values = [figures[figure] for figures in rounds]
        rows.append(Row(alternative, figure, len(values), warmup, statistics.median(values), min(values), max(values)))
    return rows


def ratio_rows(
    measured: Mapping[str, Sequence[Figures]], reference: str, warmup: int = 0, compared: Collection[str] | None = None
) -> list[Row]:
    """Compare with ``reference``, round by round, the figures that both have; rounds where it is 0 are left out."""
    rows = []
    for name, rounds in measured.items():
        wanted = rounds[0] if compared is None else compared
        shared = [figure for figure in wanted if figure in measured[reference][0] and name != reference]
        for figure in shared:
            pairs = zip(rounds, measured[reference], strict=True)
            ratios = [{f"{figure} / {reference}": own[figure] / other[figure]} for own, other in pairs if other[figure]]
            rows += summarize(name, ratios, warmup) if ratios else []
    return rows
