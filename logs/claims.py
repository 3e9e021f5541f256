"""Claims on run folders: which process trains in a folder, on which host, and whether it still does. Across nodes.

A claim is a file ``claims/N.json`` of the run folder; the highest number counts. Whoever claims a folder makes the file
of the next number, and the file system lets only one process do that. The launcher and rank 0 both lock and touch the
file while they live, so that ranks that outlive their launcher for a moment keep the folder.

A claim has ended when its owner has written so. A claim is lost when nobody holds it any more. On the owner's node that
is known at once: the owner's process is gone, and nobody has locked the file. Another node may see neither processes
nor locks; there, a claim is lost when its file has not been touched for `STALE_S`. So is one that was copied with its
folder, whose owner lives in the other folder.
"""

import fcntl
import getpass
import json
import os
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any, BinaryIO

from configs.errors import UserError
from configs.reading import Unreadable, entries, exists, patiently
from logs.disk import explain_disk_errors, found_object, write_json

CLAIMS_FOLDER = "claims"

BEAT_S = 5.0
"""Time between two signs of life."""

STALE_S = 60.0
"""Time without a sign of life after which the owner on another node counts as gone.

It is longer than the seconds for which the server of a network file system may not answer.
"""

_OWNER_KEYS = ("pid", "process_start", "since")
"""Keys of a claim that tell its owner from all others."""

_JOB_VARIABLES = ("SLURM_JOB_ID", "PBS_JOBID", "LSB_JOBID", "JOB_ID")


@dataclass(frozen=True)
class Claim:
    """A claim on a run folder: the file ``path``, ``claims/N.json`` of the folder.

    Attributes:
        path: The file.
        owner: What the file said when this process took or held the claim; empty if it did neither.
    """

    path: Path
    owner: Mapping[str, Any] = field(default_factory=dict, compare=False)

    @property
    def number(self) -> int:
        """The claim's place in the order of all claims on the folder."""
        return int(self.path.stem)

    def release(self) -> None:
        """Write into the claim that it has ended; a claim whose folder is gone needs no end."""
        # Where that cannot be written, on a full disk, the next launcher finds that the owner is gone.
        with suppress(UserError):
            if exists(self.path):
                write_json(self.path, {**self.record(), "ended": _now()})

    def is_lost(self) -> bool:
        """Return whether another process has taken the folder over: this owner gave no sign of life, or was deleted.

        In a folder that was deleted and begun anew, the new owner's claim has the number of the old one.
        """
        newest = Claims(self.path.parent.parent).newest()
        if newest is None or newest.number != self.number:
            return newest is not None and newest.number > self.number
        record = newest.record()
        return bool(record and self.owner) and any(record.get(key) != self.owner.get(key) for key in _OWNER_KEYS)

    def holder(self) -> str | None:
        """Return a description of the process that holds the claim now, or None if nobody does."""
        record = self.record()
        if "ended" in record:
            return None
        is_here = {key: record.get(key) for key in ("boot", "pid_space")} == _place()
        start = _identity(record.get("pid"))["process_start"]
        is_alive = is_here and start is not None and start == record.get("process_start")
        # In a copy of the folder, the claim is another file, which its owner neither locks nor touches.
        if is_alive and record.get("inode") in (None, patiently(self.path, self.path.stat).st_ino):
            return _description(record)
        if _is_locked(self.path):
            return f"{_description(record)}{', whose ranks are still ending' if is_here else ''}"
        age_s, is_gone = _age_s(self.path), is_here and not is_alive
        if is_gone or age_s > STALE_S:
            return None
        when = f"{max(0, age_s):.0f} s ago"
        if age_s < -STALE_S:  # Its clock was ahead, or this one was set back, and a dead owner would live until then.
            remedy = f"if it has ended, touch {self.path}, and try again {STALE_S:.0f} s later"
            when = f"{-age_s:,.0f} s in the future; {remedy}"
        return f"{_description(record)}, last heartbeat {when}"

    def record(self) -> Mapping[str, Any]:
        """Return the content of the file; empty while its owner is still writing the file, or if it is damaged.

        Raises:
            Unreadable: The file cannot be read, so that nothing is known of its owner.
        """
        return found_object(self.path)


@dataclass(frozen=True)
class Claims:
    """The claims on ``run_folder``, an existing folder."""

    run_folder: Path

    def take(self, *, pid: int | None = None, patience_s: float = 0) -> Claim:
        """Claim the run folder for a process of this machine.

        Args:
            pid: The process that owns the claim. If None, this process.
            patience_s: How long to wait for the end of an owner that may be gone: a job that is queued again after the
                loss of its node starts before the lost owner's claim is stale.

        Raises:
            UserError: A living process has claimed the folder, whether one has cannot be read, or the folder cannot be
                written.
        """
        previous = self._wait_for_end(patience_s)
        if previous is not None and "ended" not in (record := previous.record()):
            sys.stderr.write(f"{self.run_folder}: takes over from {_description(record)}, which is gone\n")
        path = self.run_folder / CLAIMS_FOLDER / f"{1 + (previous.number if previous else 0)}.json"
        with explain_disk_errors(path):
            path.parent.mkdir(exist_ok=True)
            identity = _identity(os.getpid() if pid is None else pid)
            owner = {"host": socket.gethostname(), "job": job_id(), "user": _user(), "since": _now(), **identity}
            try:
                with path.open("x", encoding="utf-8") as file:
                    owner["inode"] = os.fstat(file.fileno()).st_ino
                    file.write(json.dumps(owner, indent=2) + "\n")
            except FileExistsError:
                raise UserError(
                    f"{self.run_folder}: a run is active in it: another launcher has claimed it just now; wait for "
                    "its end, or give another folder"
                ) from None
        return Claim(path, owner)

    def _wait_for_end(self, patience_s: float) -> Claim | None:
        """Wait until nobody holds the newest claim, and return that claim, or None if there is no claim.

        A new claim takes the number after the returned one. If there is another new claim by then, that number is
        taken, and making the file fails.
        """
        deadline, first_beat = time.monotonic() + patience_s, None
        while (newest := self.newest()) and (holder := newest.holder()):
            beat = patiently(newest.path, newest.path.stat).st_mtime
            # An owner that gives signs of life is there, unless these are the last ranks of this very job.
            is_there = first_beat is not None and beat > first_beat and not self.were_lost_by_this_job()
            if is_there or time.monotonic() > deadline:
                raise UserError(
                    f"{self.run_folder}: a run is active in it: {holder}; wait for its end, or give another folder"
                )
            if first_beat is None:
                waits = f"waits for up to {patience_s:.0f} s for its end"
                sys.stderr.write(f"{self.run_folder}: claimed by {holder}; {waits}\n")
                first_beat = beat
            time.sleep(min(BEAT_S, patience_s / 10))
        return newest

    def were_lost_by_this_job(self) -> bool:
        """Return whether this job of the scheduler made the last claim on the folder, and nobody ended that claim."""
        record = self._last_of_this_job()
        return bool(record) and "ended" not in record

    def ended_by_this_job(self) -> datetime | None:
        """Return when the last claim on the folder began, if this job of the scheduler made and ended that claim."""
        record = self._last_of_this_job()
        with suppress(ValueError):  # The claim was changed.
            return datetime.fromisoformat(str(record.get("since"))) if "ended" in record else None
        return None

    def _last_of_this_job(self) -> Mapping[str, Any]:
        """Return the last claim on the folder if this job of the scheduler made it, otherwise an empty mapping."""
        newest = self.newest()
        record = newest.record() if newest else {}
        return record if record.get("job") is not None and record["job"] == job_id() else {}

    def owned_by(self, pid: int) -> Claim | None:
        """Return the newest claim that process ``pid`` of this machine has taken and not ended, or None."""
        wanted = _identity(pid)
        for claim in reversed(self._all()):
            record = claim.record()
            if "ended" not in record and {key: record.get(key) for key in wanted} == wanted:
                return claim
        return None

    def holder(self) -> str | None:
        """Return a description of the process that trains in the folder now, or None if nobody does."""
        newest = self.newest()
        return newest.holder() if newest else None

    @contextmanager
    def held(self, on_loss: Callable[[str], object]) -> Iterator[None]:
        """Lock the newest claim and give signs of life while the block runs. Without a claim, do nothing.

        Args:
            on_loss: Called once, in a thread, with a message for the user, if another process takes the folder over, or
                the folder is deleted, emptied or unmounted.
        """
        newest = self.newest()
        if newest is None:
            yield
            return
        claim = Claim(newest.path, newest.record())
        done = threading.Event()
        with patiently(claim.path, lambda: claim.path.open("rb")) as file:
            with suppress(OSError):  # A file system without locks; the signs of life remain.
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
            beats = threading.Thread(target=_beat, args=(claim, done, on_loss), name="claim", daemon=True)
            beats.start()
            try:
                yield
            finally:
                done.set()
                beats.join()

    def newest(self) -> Claim | None:
        """Return the claim of the highest number, or None if there is no claim."""
        return next(reversed(self._all()), None)

    def _all(self) -> list[Claim]:
        files = entries(self.run_folder / CLAIMS_FOLDER)
        found = (Claim(path) for path in files if path.suffix == ".json" and path.stem.isdecimal())
        return sorted(found, key=lambda claim: claim.number)


def _beat(claim: Claim, done: threading.Event, on_loss: Callable[[str], object]) -> None:
    claims, times_missed = Claims(claim.path.parent.parent), 0
    while not done.wait(BEAT_S):
        with suppress(OSError, Unreadable):  # A file server may fail for a moment: a folder must be missing twice.
            # An unmounted disk leaves an empty folder, where nobody could resume from the checkpoints that follow.
            is_there = claim.path.exists() or claims.newest() is not None
            times_missed = 0 if is_there else times_missed + 1
            if times_missed > 1:
                how = "emptied or unmounted" if claims.run_folder.exists() else "moved or deleted"
                on_loss(f"{claims.run_folder}: was {how} during the run, which ends; resume it, or start it again")
                return
            if claim.is_lost():
                new_owner = claims.holder() or "another run"
                on_loss(f"{claims.run_folder}: taken over by {new_owner}, because its heartbeat had stopped")
                return
            os.utime(claim.path)


def job_id() -> str | None:
    """Return the scheduler's name of the job that this process belongs to; None outside a job."""
    return next((os.environ[name] for name in _JOB_VARIABLES if os.environ.get(name)), None)


def _identity(pid: Any) -> dict[str, Any]:
    """Return what tells a process from all others; its number alone is used again, also on other machines."""
    fields: list[str] = []
    if isinstance(pid, int):  # else the claim was changed
        with suppress(OSError):
            fields = Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()
    is_alive = bool(fields) and fields[0] not in ("Z", "X")
    return {**_place(), "pid": pid, "process_start": int(fields[19]) if is_alive else None}


def _place() -> dict[str, str]:
    """Return the running kernel, and the space of its process numbers: a container has one of its own."""
    boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    return {"boot": boot, "pid_space": str(Path("/proc/self/ns/pid").readlink())}


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return str(os.getuid())


def _now() -> str:
    return datetime.now().astimezone().isoformat(timespec="seconds")


def _description(record: Mapping[str, Any]) -> str:
    if not all(isinstance(record.get(key), str) for key in ("user", "host", "since")):
        return "an owner whose name is not written yet, or damaged"
    job = f", job {record['job']}" if record.get("job") else ""
    return (
        f"{record.get('user')} on {record.get('host')}{job}, process {record.get('pid')}, since {record.get('since')}"
    )


def _is_locked(path: Path) -> bool:
    def opened() -> BinaryIO | None:
        try:
            return path.open("r+b")
        except PermissionError:  # of another user
            return None

    with suppress(OSError):  # It is gone.
        if file := patiently(path, opened):
            with file:
                try:
                    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except BlockingIOError:
                    return True
    return False


def _age_s(path: Path) -> float:
    """Return the seconds since the last sign of life, by the file server's clock, which writes all times."""
    probe = path.with_name(f".now-{socket.gethostname()}-{os.getpid()}")
    try:
        probe.touch()
        now = probe.stat().st_mtime
    except OSError:
        now = time.time()
    finally:
        with suppress(OSError):
            probe.unlink()
    # A client of a network file system may remember times for a minute; opening the file makes it ask the server.
    flags = os.O_RDONLY | os.O_NONBLOCK  # a pipe would wait for its writer
    descriptor = patiently(path, lambda: os.open(path, flags))
    try:
        return now - os.fstat(descriptor).st_mtime
    finally:
        os.close(descriptor)
