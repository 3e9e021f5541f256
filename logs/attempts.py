"""The attempts at a run that ended before the run did, and whether the run may go on by itself."""

import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, Literal

from configs.errors import UserError
from configs.reading import is_file, read_bytes
from logs.checkpoints import CheckpointFolder, step_of
from logs.disk import checked, explain_disk_errors

ATTEMPTS_FILE = "attempts.jsonl"
Outcome = Literal["failed", "stopped", "lost", "checked"]
_FRUITLESS = 2
"""Attempts in a row without progress after which a run does not go on by itself."""


@dataclass(frozen=True)
class Attempt:
    """An attempt that ended before the run did.

    Attributes:
        time: When the attempt ended.
        outcome: ``failed``; ``stopped`` by a signal; ``lost`` if it ended without a word, with its node or by SIGKILL;
            ``checked`` for a check of the nodes before an attempt, which left out hosts.
        cause: Why, in one line.
        host: The host of the rank that failed first, if it is known.
        from_step: The step at which the attempt began.
        kept_step: The step of the newest checkpoint at its end.
        goes_on: Whether the run went on by itself.
        leaves_out: The hosts that the run leaves out from here on: they failed, or the check found them slow.
    """

    time: str
    outcome: Outcome
    cause: str
    host: str | None
    from_step: int
    kept_step: int
    goes_on: bool
    leaves_out: Sequence[str] = ()

    @property
    def description(self) -> str:
        """The attempt in one line: how and why it ended, from which step, what it kept, and what followed."""
        if self.outcome == "checked":
            return f"began without {', '.join(self.leaves_out)}: {self.cause}"
        then = "was restarted automatically" if self.goes_on else "was not restarted"
        without = f" without {', '.join(self.leaves_out)}" if self.leaves_out else ""
        kept = f"kept step {self.kept_step}" if self.kept_step else "kept no step"
        return f"{self.outcome}: {self.cause}; from step {self.from_step}, {kept}, {then}{without}"


@dataclass(frozen=True)
class Attempts:
    """The attempts at the run in ``run_folder`` that have ended: the file ``attempts.jsonl``."""

    run_folder: Path

    def read(self) -> list[Attempt]:
        """Return the attempts in the order in which they ended; a line that is none is left out."""
        path, rows = self.run_folder / ATTEMPTS_FILE, []
        for line in read_bytes(path).splitlines() if is_file(path) else []:
            with suppress(UserError):
                rows.append(checked(Attempt, line, str(path)))
        return rows

    def left_out(self, *, after: Sequence[Outcome] = ("failed", "checked")) -> dict[str, str]:
        """Return the hosts that the run leaves out after attempts with these outcomes, each with the reason."""
        found = {host: each.cause for each in self.read() if each.outcome in after for host in each.leaves_out}
        return dict(sorted(found.items()))

    def leave_out(self, hosts: Mapping[str, str]) -> None:
        """Record that a check of the nodes leaves out some of them.

        Args:
            hosts: Host -> why the run goes on without it.

        Raises:
            UserError: If the disk is full, or the disk or the file server is in trouble.
        """
        attempt = self._ended_now("checked", "; ".join(hosts.values()), None)
        self._write({**asdict(attempt), "leaves_out": list(hosts)})

    def add(
        self,
        outcome: Literal["failed", "stopped", "lost"],
        cause: str,
        *,
        host: str | None = None,
        limit: int,
        times: int = 2,
        may_leave_out: Callable[[Sequence[str]], Sequence[str]] = lambda _: (),
    ) -> str | None:
        """Record that an attempt ended, and return why the run may not go on by itself, or None if it may.

        Args:
            outcome: See `Attempt`.
            cause: See `Attempt`.
            host: See `Attempt`.
            limit: How often a run may go on by itself after this outcome.
            times: How often a host may fail before the run leaves it out.
            may_leave_out: Returns those of the given hosts, which failed so often, that the run can do without.

        Raises:
            UserError: If the disk is full, or the disk or the file server is in trouble.
        """
        attempt = self._ended_now(outcome, cause, host)
        attempts = [*(each for each in self.read() if each.outcome != "checked"), attempt]
        reason = _why_not_again(attempts, limit)
        row = {**asdict(attempt), "goes_on": reason is None}
        if reason is None:
            without = self.left_out(after=["failed"])
            failed = [each.host for each in attempts if each.outcome == "failed" and each.host]
            bad = sorted({host for host in failed if failed.count(host) >= times and host not in without})
            row["leaves_out"] = list(may_leave_out(bad))
        self._write(row)
        return reason

    def _ended_now(self, outcome: Outcome, cause: str, host: str | None) -> Attempt:
        checkpoints = CheckpointFolder(self.run_folder)
        resumed, newest = checkpoints.resume_point(), checkpoints.files()[:1]
        return Attempt(
            time=datetime.now().astimezone().isoformat(timespec="seconds"),
            outcome=outcome,
            cause=cause,
            host=host,
            from_step=step_of(resumed) if resumed else 0,
            kept_step=step_of(newest[0]) if newest else 0,
            goes_on=True,
        )

    def _write(self, row: Mapping[str, Any]) -> None:
        path = self.run_folder / ATTEMPTS_FILE
        with explain_disk_errors(path), path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(row) + "\n")


def _why_not_again(attempts: Sequence[Attempt], limit: int) -> str | None:
    """Return why a run may not go on by itself after the last of its attempts, or None if it may.

    Args:
        attempts: All attempts so far. Only those since the run was last started by hand count.
        limit: How often a run may go on after the outcome of the last attempt.
    """
    last, since = attempts[-1], since_hand(attempts)
    # A node that is lost and a time limit queue a job again; a failure restarts the ranks.
    is_failure = last.outcome == "failed"
    count = sum((each.outcome == "failed") == is_failure for each in since)
    if count > limit:
        key, what = ("max_restarts", "failed") if is_failure else ("max_requeues", "was stopped or lost")
        return f"it {what} {count} time{'s' if count > 1 else ''}, and scheduler.{key} is {limit}"
    tail = since[-_FRUITLESS:]
    if len(tail) == _FRUITLESS and all(each.kept_step <= each.from_step for each in tail):
        return f"{_FRUITLESS} attempts in a row kept no step after step {last.from_step}"
    return None


def since_hand(attempts: Sequence[Attempt]) -> Sequence[Attempt]:
    """Return the attempts since the run was last started by hand, of which only the last may have ended for good."""
    by_hand = [number for number, each in enumerate(attempts[:-1], start=1) if not each.goes_on]
    return attempts[max(by_hand, default=0) :]
