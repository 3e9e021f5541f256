"""The cluster file's block of a rehearsal: how long a described GPU computes, and which faults are injected."""

from __future__ import annotations

import re
from typing import Annotated, NamedTuple

from pydantic import Field

from configs.errors import ConfigError
from configs.section import Section

SLOWER = 10
"""Factor by which a rank computes longer after the fault ``slow``."""
FAULTS = {
    "kill": "the rank is killed",
    "silence": "the rank is frozen and does not respond",
    "notice": "the rank is told to stop, as by a scheduler before the end of the job",
    "error": "the rank's step fails",
    "slow": f"the rank computes {SLOWER} times longer from then on",
    "link": "the rank's connections to all other ranks break",
    "disk": "the rank cannot write to any file",
}
"""What a rehearsal can do to a rank, and what it means."""
MOST_SLOW = 1000
"""Highest factor of a slow rank."""
SLOW_PARTS = ("", "copy", "link")
"""What of a rank can be slow, by the word behind its number: its compute if there is none."""
_FAULT = re.compile(r"(?P<kind>[a-z]+)@(?P<step>0|[1-9]\d{0,8}):(?P<rank>\d{1,6})")


class Fault(NamedTuple):
    """A fault to inject: a key of `FAULTS`, the step, 1 or more, before which it happens, and the rank."""

    kind: str
    step: int
    rank: int

    @classmethod
    def parse(cls, text: str) -> Fault:
        """Return the fault that ``WHAT@STEP:RANK`` describes.

        Raises:
            ConfigError: The text has another form, or the fault is unknown.
        """
        match = _FAULT.fullmatch(text)
        if match is None or match["kind"] not in FAULTS or match["step"] == "0":
            raise ConfigError("faults", text, f"WHAT@STEP:RANK with WHAT one of {', '.join(FAULTS)}, STEP 1 or more")
        return cls(match["kind"], int(match["step"]), int(match["rank"]))

    @property
    def ends_attempt(self) -> bool:
        """Whether the ranks fail with the fault; only rank 0 writes to the disk."""
        return self.kind not in ("slow", "notice") and (self.kind != "disk" or not self.rank)


Seconds = Annotated[float, Field(ge=0, le=3600)]
Share = Annotated[float, Field(ge=0, le=1)]


class Waits(Section):
    """The time that one rank of the described machine computes, in seconds, and the accuracies that it reaches.

    ``./run.sh rehearse`` takes the times from the simulator, and the accuracies from the published course of a run.
    """

    forward_s: Seconds
    """Forward pass of a step."""
    gradients_s: Annotated[tuple[Seconds, ...], Field(strict=False)] = Field(json_schema_extra={"unit": "s"})
    """Time from the beginning of the backward pass to the end of each gradient's computation, first layer first."""
    update_s: Seconds
    """Update of the weights."""
    copy_s: Seconds = 0.0
    """Copy of a micro-batch to the device, which ./run.sh accept measures."""
    swap_s: Seconds = 0.0
    """Swap of an array with another node, which ./run.sh accept measures."""
    evaluation_s: Seconds
    """Inference on the rank's share of the evaluation images."""
    top1: Annotated[tuple[Share, ...], Field(strict=False)]
    """Invented top-1 after each epoch, from epoch 1 on."""


class Rehearsal(Section):
    """A run whose network computes nothing: ranks wait as long as a described GPU would compute."""

    waits: Waits
    shrink: int = Field(256, ge=1, le=1_000_000)
    """Factor by which every tensor of weights and gradients is smaller than the real one, so that many ranks fit on one
    machine. Buckets are planned for the real sizes."""
    speed: float = Field(1.0, ge=0.001, le=1000)
    """Factor by which the rehearsal is faster than the described run."""
    slow_ranks: Annotated[dict[str, float], Field(strict=False)] = Field(default_factory=dict)
    """Rank -> factor by which this rank computes more slowly than the others; RANK:copy and RANK:link slow its copies
    and its link instead."""
    noise: float = Field(0.0, ge=0, le=1)
    """Standard deviation of a wait, as a share of it; the ranks differ from each other by half as much for good, and
    one wait of 50 takes ten deviations longer."""
    faults: Annotated[tuple[str, ...], Field(strict=False)] = Field(
        (), description=f"Faults to inject, each WHAT@STEP:RANK; WHAT is one of {', '.join(FAULTS)}."
    )
    forked: bool = False
    """Whether the ranks are forked from a process that has imported the program, so that many start fast on one
    machine."""

    def _require_agreement(self) -> None:
        for fault in self.faults:
            Fault.parse(fault)
        for rank, factor in self.slow_ranks.items():
            number, _, part = rank.partition(":")
            if not number.isdecimal() or part not in SLOW_PARTS or not 0 < factor <= MOST_SLOW:
                allowed = f"RANK: FACTOR, RANK:copy: FACTOR or RANK:link: FACTOR, above 0 and at most {MOST_SLOW}"
                raise ConfigError("slow_ranks", f"{rank}:{factor}", allowed)

    def after_failures(self, count: int) -> Rehearsal:
        """Return the rehearsal that goes on after ``count`` failed attempts, each ended by the faults of one step."""
        faults = [Fault.parse(text) for text in self.faults]
        past = sorted({each.step for each in faults if each.ends_attempt})[:count]
        left = [text for text, each in zip(self.faults, faults, strict=True) if each.step not in past]
        return self.model_copy(update={"faults": tuple(left)})

    def slowness(self, rank: int, part: str = "") -> float:
        """Return the factor by which a rank takes longer for a part, see `SLOW_PARTS`."""
        return self.slow_ranks.get(f"{rank}:{part}" if part else str(rank), 1.0)

    def faults_of(self, rank: int) -> list[Fault]:
        """Return the faults of one rank, earliest first."""
        return sorted((each for each in map(Fault.parse, self.faults) if each.rank == rank), key=lambda each: each.step)
