"""The input of the doctor's checks, and the result of one check."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from configs.schema import Cluster
from launch.doctor.facts import MachineFacts, RankFacts
from launch.setup.layout import Variant

Level = Literal["OK", "WARN", "FAIL"]

_SHOWN_HOSTS = 3


@dataclass(frozen=True)
class CheckResult:
    """The result of one check.

    Attributes:
        level: OK, WARN or FAIL.
        topic: What was checked.
        words: What was found.
        remedy: What to do about it.
        hosts: The hosts that the result is about; empty for all hosts.
    """

    level: Level
    topic: str
    words: str
    remedy: str = ""
    hosts: tuple[str, ...] = ()

    def __str__(self) -> str:
        """Return the result as one line."""
        more = f" and {len(self.hosts) - _SHOWN_HOSTS} more" if len(self.hosts) > _SHOWN_HOSTS else ""
        where = f" ({', '.join(self.hosts[:_SHOWN_HOSTS])}{more})" if self.hosts else ""
        return f"{self.level:<4}  {self.topic}{where}: {self.words}" + (f"; {self.remedy}" if self.remedy else "")


@dataclass(frozen=True)
class PlannedRun:
    """What the checks need of the recipe's plan, see `train.plan.document`.

    Attributes:
        total_bytes: Memory of a rank.
        certain_bytes: The part of it that follows from the recipe.
        pinned_bytes_per_node: Page-locked memory of a host, for the JPEG decoders of its GPUs.
        parameters: Number of the network's parameters.
        slow_settings: Settings that make steps much longer, each with what to set instead.
        total_steps: Steps of the run.
    """

    total_bytes: int
    certain_bytes: int
    pinned_bytes_per_node: int
    parameters: int
    slow_settings: Sequence[str] = ()
    total_steps: int = 0


@dataclass(frozen=True)
class ExpectedRate:
    """The simulator's forecast of the images a second, with the ends of its interval, or why there is none.

    ``is_measured`` tells whether anything of the kind, this machine or another one with its chip, was ever measured;
    ``at_peak`` is the rate at which all multiply-adds of a step take the peak FLOP/s of the GPUs' data sheet, None on
    CPUs.
    """

    images_per_s: float = 0.0
    low: float = 0.0
    high: float = 0.0
    problem: str = ""
    is_measured: bool = True
    at_peak: float | None = None


@dataclass(frozen=True)
class ProbeReport:
    """Everything that the checks look at.

    Attributes:
        cluster: The part of the cluster that was probed.
        ranks: The facts of each rank that reported.
        plan: The recipe's plan. If None, the user named no recipe.
        is_packed_on_demand: Whether the program itself packs the recipe's data set if it is missing.
        forecast: For the ranks that were started. If None, no step was asked for.
        base: The interpreter that has the site's own MXNet, see `launch.setup.layout.Kind`.
        variant: What the environment computes on.
        hosts: The hosts that the user listed; empty if the launcher found them.
        times: Sets of samples that the ranks took; the first one is judged.
    """

    cluster: Cluster
    ranks: Sequence[RankFacts]
    plan: PlannedRun | None
    is_packed_on_demand: bool
    forecast: ExpectedRate | None = None
    base: str = ""
    variant: Variant = "gpu"
    hosts: Sequence[str] = ()
    times: int = 1

    @property
    def absent(self) -> tuple[str, ...]:
        """The listed hosts from which no rank reported."""
        return tuple(host for host in self.hosts if host not in {rank.host for rank in self.ranks})

    @property
    def machines(self) -> list[tuple[str, MachineFacts, RankFacts]]:
        """Host, machine, and report of the first rank of each machine, which also looked at the machine."""
        return [(rank.host, rank.machine, rank) for rank in self.ranks if rank.machine is not None]


def culprits_of(failed: Sequence[RankFacts]) -> tuple[RankFacts, tuple[str, ...]]:
    """Return the rank whose failure comes first, and the hosts whose ranks failed by themselves.

    A rank whose failure is not a consequence of another rank's failure comes first.
    """
    hosts = tuple(dict.fromkeys(rank.host for rank in failed if not rank.is_second_hand))
    return min(failed, key=lambda rank: rank.is_second_hand), hosts
