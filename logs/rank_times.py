"""What ranks tell of their times: ``startup.json`` of the way to the first step, ``ranks.json`` of a step."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

from pydantic import Field

_Seconds = Annotated[float, Field(ge=-1e9, le=1e9)]
"""Times beyond 30 years are damage."""


@dataclass(frozen=True)
class Phase:
    """A part of a rank's start-up, in seconds since the process began."""

    phase: str
    thread: str
    begin_s: _Seconds
    end_s: _Seconds


@dataclass(frozen=True)
class LastStart:
    """The rank that was ready last; see `train.rank.startup`."""

    rank: int
    host: str
    ready_s: _Seconds
    median_s: _Seconds
    phase: str
    phase_s: _Seconds
    phase_median_s: _Seconds


@dataclass(frozen=True)
class Startup:
    """The content of ``startup.json``.

    Attributes:
        phases: The phases of rank 0.
        last: The rank that was ready last; None if there is one rank.
        parameters: Number of the network's parameters; None in folders of older runs.
    """

    phases: Sequence[Phase] = ()
    last: LastStart | None = None
    parameters: int | None = None


@dataclass(frozen=True)
class RankTimes:
    """Median and 95th percentile of a rank's times in a step."""

    rank: int
    compute_median_s: _Seconds
    compute_p95_s: _Seconds
    comm_wait_median_s: _Seconds
    input_wait_median_s: _Seconds


@dataclass(frozen=True)
class Ranks:
    """The content of ``ranks.json``."""

    ranks: Sequence[RankTimes] = ()
