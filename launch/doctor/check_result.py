"""The input of the doctor's checks, and the result of one check."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from configs.schema import Cluster
from launch.doctor.facts import MachineFacts, RankFacts
from launch.setup.layout import Kind

Level = Literal["OK", "WARN", "FAIL"]
Source = Literal["the other nodes", "the simulator", "the data sheet", "the cluster file", "the baseline"]

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
class Expected:
    """What a figure is compared with.

    Attributes:
        by: Where the expectation comes from.
        low: Least value that is as expected; None for any.
        high: Largest such value; None for any.
        decides: Whether the verdict follows. If not, nothing of the kind was ever measured.
        note: Why there are no numbers, or what they are.
    """

    by: Source
    low: float | None = None
    high: float | None = None
    decides: bool = True
    note: str = ""

    def is_above(self, value: float) -> bool:
        """Return whether a value is decidedly less than expected."""
        return self.decides and self.low is not None and value < self.low


def in_words(expected: Expected, unit: str) -> str:
    """Return an expectation in words."""
    ends = [f"{end:.4g}" for end in (expected.low, expected.high) if end is not None]
    form = "{} to {}" if len(ends) > 1 else "at least {}" if expected.low is not None else "at most {}"
    said = f"{expected.by}: {form.format(*ends)} {unit}".rstrip() if ends else f"{expected.by}: no figure"
    mark = "" if expected.decides or not ends else ", unproven: nothing of the kind was ever measured"
    return said + (f" ({expected.note})" if expected.note else "") + mark


def rate_in_words(images_per_s: float, expected: Sequence[Expected]) -> str:
    """Return the rate of all ranks, with its share of what the GPUs' data sheet allows."""
    limits = [each.high for each in expected if each.by == "the data sheet" and each.high]
    shares = (f", {100 * images_per_s / limit:.3g} % of what the data sheet allows" for limit in limits)
    return f"{images_per_s:,.1f} images/s" + "".join(shares)


@dataclass(frozen=True)
class ProbeReport:
    """Everything that the checks look at.

    Attributes:
        cluster: The part of the cluster that was probed.
        ranks: The facts of each rank that reported.
        plan: The recipe's plan with its memory, see `train.plan.document`; in a rehearsal the ranks need none. If None,
            the user named no recipe.
        kind: What the environment is for; None if set-up did not make it.
        hosts: The hosts that the user listed; empty if the launcher found them.
        times: Sets of samples that the ranks took; the first one is judged.
    """

    cluster: Cluster
    ranks: Sequence[RankFacts]
    plan: Mapping[str, Any] | None
    kind: Kind | None = None
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
