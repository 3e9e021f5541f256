"""The input and the output of the doctor's checks: what the probing ranks reported, and the result of one check."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from configs.schema import Cluster

Level = Literal["OK", "WARN", "FAIL"]
Facts = Mapping[str, Any]
"""Facts that a rank reported as JSON, see `train.doctor.probe`."""

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
class ProbeReport:
    """Everything that the checks look at.

    Attributes:
        cluster: The part of the cluster that was probed.
        ranks: The facts of each rank that reported, see `train.doctor.probe`.
        plan: The recipe's plan, see `train.plan.document`. If None, the user named no recipe.
        is_packed_on_demand: Whether the program itself packs the recipe's data set if it is missing.
        forecast: The simulator's forecast of the step for the ranks that were started, or ``problem``. If None, no step
            was asked for.
        base: The interpreter that has the site's own MXNet, see `launch.setup.layout.Kind`.
    """

    cluster: Cluster
    ranks: Sequence[Facts]
    plan: Facts | None
    is_packed_on_demand: bool
    forecast: Facts | None = None
    base: str = ""

    @property
    def machines(self) -> list[Facts]:
        """The facts of the first rank of each machine, which also looked at the machine."""
        return [rank for rank in self.ranks if "machine" in rank]
