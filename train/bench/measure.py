"""Shared by all benches: options, alternatives that are measured in turn, a row of each figure, and the machine.

A figure of an alternative is compared with the reference's figure of the same round, so that whatever slows the machine
for a while slows both. The median of these ratios has a 90 % interval, and the interval gives the verdict.

The module of every bench imports this one at its top, so only the standard library is imported here, and what needs no
more: ``--help`` works before anything is installed.
"""

import dataclasses
import logging
import math
import statistics
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

from configs.arguments import option, whole_number
from train.bench.samples import Figures

if TYPE_CHECKING:
    from configs.schema import Cluster
    from train.bench.launching import Jobs

logger = logging.getLogger(__name__)

Alternative = TypeVar("Alternative")

CONFIDENCE = 0.9
"""How often, at least, the interval of a median holds the true median."""
CANNOT_TELL = "cannot tell on this machine"

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
        median: Median of the rounds that count.
        low: Smallest value of the rounds that count.
        high: Largest value of the rounds that count.
        interval_low: Lower end of the median's interval (`median_interval`); None with too few rounds.
        interval_high: Upper end of the same interval.
        verdict: The answer, if the row answers a question; of a ratio, on which side of 1 its interval lies.
    """

    alternative: str
    figure: str
    n: int
    median: float
    low: float
    high: float
    interval_low: float | None = None
    interval_high: float | None = None
    verdict: str = ""


@dataclass(frozen=True)
class Report:
    """The answer of a bench.

    Attributes:
        rows: The figures.
        notes: Sentences that explain the rows.
    """

    rows: Sequence[BenchRow]
    notes: Sequence[str]


def surroundings() -> dict[str, Any]:
    """Return ``versions``, those of the packages and of this program, and a description of this ``machine``."""
    from logs.environment import environment  # noqa: PLC0415 (needs what set-up installs)

    found = environment()
    versions = {"python": found["python"].split()[0]}
    versions |= {name: version for name, version in found["packages"].items() if name.lower() in _PACKAGES}
    if found["git"]:
        versions["commit"] = f"{found['git']['commit']}{', changed since' if found['git']['dirty'] else ''}"
    return {"versions": versions, "machine": {name: found[name] for name in _MACHINE}}


def interleave(
    alternatives: Mapping[str, Callable[[], Figures]],
    *,
    n: int,
    warmup: int = 0,
    reference: str | None = None,
    compared: Collection[str] | None = None,
) -> list[BenchRow]:
    """Measure all alternatives once in each round, so that a machine that slows down for a while slows all of them.

    Args:
        alternatives: Name -> function that measures once. All rounds of an alternative have the same figures.
        n: Number of rounds that count.
        warmup: Number of rounds before them that do not count.
        reference: The alternative that the others are compared with (`ratio_rows`); if None, there is no comparison.
        compared: The figures to compare; if None, all that both alternatives have.
    """
    assert n >= 1
    assert reference is None or reference in alternatives
    measured: dict[str, list[Figures]] = {name: [] for name in alternatives}
    for number, name in turns(list(alternatives), warmup + n):
        logger.info("round %d of %d: %s", number + 1, warmup + n, name)  # A bench may last minutes.
        figures = alternatives[name]()
        if number >= warmup:
            measured[name].append(figures)
    rows = [row for name, rounds in measured.items() for row in summarize(name, rounds)]
    return rows if reference is None else [*rows, *ratio_rows(measured, reference, compared)]


def turns(alternatives: Sequence[Alternative], rounds: int) -> Iterator[tuple[int, Alternative]]:
    """Yield the number of each round, from 0 on, with each alternative.

    Every second round takes the alternatives in the opposite order, so that none always follows the same other one.
    """
    for number in range(rounds):
        for alternative in alternatives[:: -1 if number % 2 else 1]:
            yield number, alternative


def summarize(alternative: str, rounds: Sequence[Figures]) -> list[BenchRow]:
    """Return a row for each figure; all rounds have the same figures."""
    rows = []
    for figure in rounds[0]:
        values = [figures[figure] for figures in rounds]
        low, high = median_interval(values) or (None, None)
        middle = statistics.median(values)
        rows.append(BenchRow(alternative, figure, len(values), middle, min(values), max(values), low, high))
    return rows


def ratio_rows(
    measured: Mapping[str, Sequence[Figures]], reference: str, compared: Collection[str] | None = None
) -> list[BenchRow]:
    """Return the ratio of each alternative to the reference, computed round by round, with a verdict.

    Args:
        measured: Alternative -> the figures of each round.
        reference: The alternative to divide by. Rounds in which the figure of the reference is 0 are left out.
        compared: The figures to compare; if None, all that both alternatives have.
    """
    rows: list[BenchRow] = []
    for name, rounds in measured.items():
        wanted = rounds[0] if compared is None else compared
        shared = [figure for figure in wanted if figure in measured[reference][0] and name != reference]
        for figure in shared:
            pairs = zip(rounds, measured[reference], strict=True)
            ratios = [{f"{figure} / {reference}": own[figure] / other[figure]} for own, other in pairs if other[figure]]
            below, above = ("faster", "slower") if figure.endswith(("_s", "_ms")) else ("lower", "higher")
            if "_per_" in figure:
                below, above = "slower", "faster"
            for row in summarize(name, ratios) if ratios else []:
                low, high = row.interval_low or 0.0, row.interval_high or math.inf
                verdict = below if high < 1 else above if low > 1 else CANNOT_TELL
                rows.append(dataclasses.replace(row, verdict=verdict))
    return rows


def median_interval(values: Sequence[float]) -> tuple[float, float] | None:
    """Return an interval that holds the true median in at least `CONFIDENCE` of all cases, or None below 5 values.

    It lies between two order statistics, the k-th smallest and the k-th largest value, with the largest k that keeps
    the confidence: that of k is 1 - 2 P(X < k), where X is binomial (n, 1/2). No distribution is assumed, which is why
    5 values are needed: the median lies outside the range of 4 with a probability of 1/8.
    """
    n = len(values)
    outside, k = 0.0, 0
    while (outside := outside + 2 * math.comb(n, k) / 2**n) <= 1 - CONFIDENCE:
        k += 1
    return (sorted(values)[k - 1], sorted(values)[-k]) if k else None


class Bench(ABC):
    """A question that ``./run.sh bench NAME`` answers by measurements: a frozen dataclass whose fields are its options.

    The fields are made by `configs.arguments.option` and `effort`. The defaults answer the question in under six
    minutes on two cores.

    Attributes:
        question: What the bench measures, in one line.
        needs: The engine that the question is about; an environment without it cannot answer.
    """

    question: ClassVar[str]
    needs: ClassVar[str | None] = None

    @abstractmethod
    def measure(self, jobs: "Jobs") -> Report:
        """Measure, and return the figures; ``jobs`` starts programs.

        Raises:
            UserError: An option is wrong, or something is missing on this machine.
            MeasurementFailed: A program that was to be measured failed.
        """


def is_local_cpu(cluster: "Cluster") -> bool:
    """Return whether a cluster is the CPU of one machine, whose ranks this program starts by itself."""
    return cluster.launcher == "local" and cluster.device == "cpu"


COUNT = whole_number(1, 1_000_000)
"""Parses the value of an option that counts starts, steps, images, pixels or ranks."""


def effort(what: str, *, quick: float, usual: float | None, thorough: float) -> Any:
    """Return a field that says how much to measure: by a number, or by ``--quick`` or ``--thorough``.

    Args:
        what: What the number counts.
        quick: The number for a first impression.
        usual: The number that answers the question in under six minutes on two cores; None where the bench chooses it.
        thorough: The number for a narrow interval.
    """
    presets = {"--quick": quick, "--thorough": thorough}
    metavar, kind = ("N", COUNT) if isinstance(quick, int) else ("S", float)
    return option(what, usual, metavar=metavar, type=kind, presets=presets)


@dataclass(frozen=True)
class PlaceOptions:
    """Where a bench measures, or what it describes: the options of `configs.arguments.add_place`."""

    usual_cluster: ClassVar[str] = "laptop"

    cluster: str
    overrides: Sequence[str]
