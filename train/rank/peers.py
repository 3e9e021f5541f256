"""A frozen rank is named within seconds, by the ranks that wait for it, and told from a slow one.

The ranks of a synchronous run stand still together, so a rank that waits knows only that somebody is late. Every rank
that takes no step for a while therefore leaves a sign in the run folder, from the thread of its watchdog. A rank that
computes slowly, waits for its input or shares its machine leaves one too. A frozen process, or a machine that is gone,
leaves none.
"""

import logging
import statistics
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

from logs.slow_ranks import name_ranks
from train.rank.identity import Identity

logger = logging.getLogger(__name__)

LOOK_EVERY_S = 0.25
"""Time between two calls of `Peers.look`."""

_SIGN_S, _SIGN_STEPS = 0.5, 5
"""A rank leaves its sign after so long without a step, and so many times the median of its recent steps."""

_BREAK_SIGN_S = 2.5
"""The same between steps, where an evaluation, a checkpoint or a compilation takes its time."""

_NAME_FACTOR = 4
"""After this multiple of that time, ranks without a sign are named: 2 s or 20 steps, 10 s between steps. A rank on a
busy machine has 1.5 s for its sign."""

_END_FACTOR = 36
"""This multiple after its name, 18 s or 180 steps, 90 s between steps, the run ends if a rank that was named has left
no sign since. A machine that swaps, or is moved by its hypervisor, comes back within seconds. The time counts from the
name, because a file server that stood still delays the signs of all ranks."""

_RECENT_STEPS = 32
_SETTLED_STEPS = 4
"""Steps of an attempt before a limit follows from their times, beyond those that are queued: the first ones compile."""

_BREAK_STEPS = 2
"""Steps after a break that still belong to it: they wait for the first images."""


class Peers:
    """The other ranks of a synchronous run, as far as their signs tell.

    Args:
        folder: The run folder, which all ranks see.
        identity: This rank.
        hosts: The host of each rank.
        run_ahead_steps: Steps that may be queued: the time of a step shows so many steps later.
    """

    def __init__(self, folder: Path, identity: Identity, hosts: Sequence[str], run_ahead_steps: int) -> None:
        self._paths = [folder / f"responds_{rank}" for rank in range(len(hosts))]
        self._own, self._hosts = self._paths[identity.rank], hosts
        self._settled_steps = _SETTLED_STEPS + run_ahead_steps
        self._steps_s: list[float] = []
        self._since_break = 0
        self._named: list[int] = []
        self._has_signed, self._has_looked, self._looked_s = True, False, 0.0
        self.rest()

    def stepped(self, seconds: float) -> None:
        """Take note of a step; a new list, because another thread reads it."""
        self._since_break += 1
        if self._since_break >= _BREAK_STEPS:
            self._steps_s = [*self._steps_s[1 - _RECENT_STEPS :], seconds]

    def paused(self) -> None:
        """Take note of an epoch, an evaluation or a checkpoint, whose times say nothing of steps."""
        self._since_break = 0

    def look(self, stalled_s: float, waits: Callable[[], bool]) -> bool:
        """Leave a sign if this rank takes no step, and name the ranks that do not; called by the watchdog's thread.

        Args:
            stalled_s: Time since the last step, whatever was done meanwhile, during which this process ran.
            waits: Returns whether this rank waits for other ranks.

        Returns:
            Whether the run is to end, because a rank does not respond.
        """
        steps_s = self._steps_s
        unit_s = within_s = max(_SIGN_S, _SIGN_STEPS * statistics.median(steps_s or [0.0]))
        if len(steps_s) < self._settled_steps or self._since_break < _BREAK_STEPS:
            unit_s = max(within_s, _BREAK_SIGN_S)
        if stalled_s < within_s:
            self.rest()
        elif stalled_s < unit_s:
            return False  # A sign stays: other ranks may be at the last step still.
        elif not self._has_signed:
            self._sign()
        elif not self._has_looked and stalled_s >= _NAME_FACTOR * unit_s:
            self._has_looked, self._looked_s = True, stalled_s
            if waits() and (silent := self._silent()):
                self._named = silent
                if self._speaks(silent):
                    who = name_ranks(silent, [self._hosts[rank] for rank in silent])
                    logger.warning("no step for %.1f s: %s does not respond", stalled_s, who)
        elif self._named and stalled_s - self._looked_s >= _END_FACTOR * unit_s and waits():
            self._named = [rank for rank in self._silent() if rank in self._named]
            return bool(self._named)
        return False

    def rest(self) -> None:
        """Take back the sign, and forget the ranks that were named."""
        if self._has_signed:
            with suppress(OSError):
                self._own.unlink(missing_ok=True)
            if self._named and self._speaks(self._named):
                logger.warning("rank %s responds again", ", ".join(map(str, self._named)))
        self._named, self._has_signed, self._has_looked = [], False, False

    def _sign(self) -> None:
        self._has_signed = True
        with suppress(OSError):
            self._own.touch()

    def _silent(self) -> list[int]:
        """Return the ranks without a sign; none if this rank cannot leave one either, for example on a full disk.

        The sign is left once more, which makes a client of NFS read the folder anew.
        """
        try:
            self._own.unlink(missing_ok=True)
            self._own.touch()
            there = {path.name for path in self._own.parent.iterdir()}
        except OSError:
            return []
        return [rank for rank, path in enumerate(self._paths) if path.name not in there]

    def _speaks(self, silent: Sequence[int]) -> bool:
        """Return whether this rank speaks for all: the first one that responds."""
        first = next(rank for rank in range(len(self._paths)) if rank not in silent)
        return self._paths[first] == self._own
