"""A finding of ``./run.sh doctor``, and what is judged. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from configs.schema import Cluster

__all__ = ["Facts", "Finding", "Level", "Subject"]

Level = Literal["OK", "WARN", "FAIL"]
Facts = Mapping[str, Any]
"""Out of a rank's JSON."""

_SHOWN_HOSTS = 3


@dataclass(frozen=True)
class Finding:
    """One thing looked at, on ``hosts`` (none: on all of them)."""

    level: Level
    topic: str
    words: str
    remedy: str = ""
    hosts: tuple[str, ...] = ()

    def __str__(self) -> str:
        """Put it on one line."""
        more = f" and {len(self.hosts) - _SHOWN_HOSTS} more" if len(self.hosts) > _SHOWN_HOSTS else ""
        where = f" ({', '.join(self.hosts[:_SHOWN_HOSTS])}{more})" if self.hosts else ""
        return f"{self.level:<4}  {self.topic}{where}: {self.words}" + (f"; {self.remedy}" if self.remedy else "")


@dataclass(frozen=True)
class Subject:
    """What is judged.

    Attributes:
        cluster: The place, as far as it was looked at.
        ranks: What each rank that came back told, see `train.doctor.probe`.
        plan: Of the recipe, see `train.plan.document`; None: no recipe was named.
        packs_itself: The recipe's data set is packed by the program where it is missing.
    """

    cluster: Cluster
    ranks: Sequence[Facts]
    plan: Facts | None
    packs_itself: bool

    @property
    def machines(self) -> list[Facts]:
        """What was told of each machine, by its first rank."""
        return [rank for rank in self.ranks if "machine" in rank]
