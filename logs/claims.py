"""Claims on run folders: which process trains in a folder, on which host, and whether it still does. Across nodes.

A claim is a file ``claims/N.json`` of the run folder; the highest number counts. Whoever claims a folder makes the file
of the next number, and the file system lets only one process do that. The launcher and rank 0 both lock and touch the
file while they live, so that ranks that outlive their launcher for a moment keep the folder.

A claim has ended when its owner has written so. A claim is lost when nobody holds it any more. On the owner's node that
is known at once: the owner's process is gone, and nobody has locked the file. Another node may see neither processes
nor locks; there, a claim is lost when its file has not been touched for `STALE_S`.
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
from datetime import datetime
from pathlib import Path
from typing import Any

from configs.errors import UserError
from logs.disk import explain_disk_errors, write_json

CLAIMS_FOLDER = "claims"

BEAT_S = 5.0
"""Time between two signs of life."""

STALE_S = 60.0
"""Time without a sign of life after which the owner on another node counts as gone.

It is longer than the seconds for which the server of a network file system may not answer.
"""

_JOB_VARIABLES = ("SLURM_JOB_ID", "PBS_JOBID", "LSB_JOBID", "JOB_ID")


def take(folder: Path, *, pid: int | None = None, patience_s: float = 0) -> Path:
    """Claim a run folder for a process of this machine.

    Args:
        folder: An existing folder.
        pid: The process that owns the claim. If None, this process.
        patience_s: How long to wait for the end of an owner that may be gone: a job that is queued again after the loss
            of its node starts before the lost owner's claim is stale.

    Returns:
        The file of the claim.

    Raises:
        UserError: A living process has claimed the folder, or the folder cannot be written.
    """
    deadline, first_beat = time.monotonic() + patience_s, None
    # The new claim takes the number after the claim that is judged here. If there is another new claim by then, that
    # number is taken, and making the file fails.
    while words := _holder_of(previous := _newest(folder)):
        assert previous is not None
        beat = previous.stat().st_mtime
        # An owner that gives signs of life is there, unless these are the last ranks of this very job.
        is_there = first_beat is not None and beat > first_beat and not was_lost_by_this_job(folder)
        if is_there or time.monotonic() > deadline:
            raise UserError(f"{folder}: a run is going on in it: {words}; wait for its end, or give another folder")
        if first_beat is None:
            sys.stderr.write(f"{folder}: claimed by {words}; waits for up to {patience_s:.0f} s for its end\n")
            first_beat = beat
        time.sleep(min(BEAT_S, patience_s / 10))
    if previous is not None and "ended" not in (record := _read(previous)):
        sys.stderr.write(f"{folder}: takes over from {_words(record)}, which is gone\n")
    path = folder / CLAIMS_FOLDER / f"{1 + (_number(previous) if previous else 0)}.json"
    with explain_disk_errors(path):
        path.parent.mkdir(exist_ok=True)
        try:
            with path.open("x", encoding="utf-8") as file:
                file.write(json.dumps(_owner(os.getpid() if pid is None else pid), indent=2) + "\n")
        except FileExistsError:
            raise UserError(
                f"{folder}: a run is going on in it: another launcher has claimed it just now; wait for its end, or "
                "give another folder"
            ) from None
    return path


def release(claim: Path) -> None:
    """Write into a claim that it has ended; a claim whose folder is gone needs no end."""
    if claim.exists():
        # Where that cannot be written, on a full disk, the next launcher finds that the owner is gone.
        with suppress(UserError):
            write_json(claim, {**_read(claim), "ended": _now()})


def is_lost(claim: Path) -> bool:
    """Return whether another process has taken the folder over, because the owner of ``claim`` gave no sign of life."""
    newest = _newest(claim.parent.parent)
    return newest is not None and _number(newest) > _number(claim)


def has_lost(folder: Path, pid: int) -> bool:
    """Return whether another process has taken the folder over from process ``pid`` of this machine."""
    claim = owned_by(folder, pid)
    return claim is not None and is_lost(claim)


def was_lost_by_this_job(folder: Path) -> bool:
    """Return whether this job of the scheduler made the last claim on the folder, and nobody ended that claim."""
    record = _last_of_this_job(folder)
    return bool(record) and "ended" not in record


def ended_by_this_job(folder: Path) -> datetime | None:
    """Return when the last claim on the folder began, if this job of the scheduler made the claim and ended it."""
    record = _last_of_this_job(folder)
    return datetime.fromisoformat(record["since"]) if "ended" in record else None


def _last_of_this_job(folder: Path) -> Mapping[str, Any]:
    """Return the last claim on the folder if this job of the scheduler made it, otherwise an empty mapping."""
    path = _newest(folder)
    record = {} if path is None else _read(path)
    return record if record.get("job") is not None and record["job"] == _job() else {}


def owned_by(folder: Path, pid: int) -> Path | None:
    """Return the newest claim that process ``pid`` of this machine has taken and not ended, or None."""
    wanted = _identity(pid)
    for path in reversed(_claims(folder)):
        record = _read(path)
        if "ended" not in record and {key: record.get(key) for key in wanted} == wanted:
            return path
    return None


def holder(folder: Path) -> str | None:
    """Return in words who trains in the folder now, or None if nobody does."""
    return _holder_of(_newest(folder))


def _holder_of(path: Path | None) -> str | None:
    """Return in words who holds a claim now, or None if nobody does."""
    record = {} if path is None else _read(path)
    if path is None or "ended" in record:
        return None
    is_here = {key: record.get(key) for key in ("boot", "pid_space")} == _place()
    if is_here and _identity(int(record["pid"]))["process_start"] == record["process_start"]:
        return _words(record)
    if _is_locked(path):
        return f"{_words(record)}{', whose ranks are still ending' if is_here else ''}"
    age_s = _age_s(path)
    return None if is_here or age_s > STALE_S else f"{_words(record)}, last sign of life {max(0, age_s):.0f} s ago"


@contextmanager
def kept(folder: Path, on_loss: Callable[[str], object]) -> Iterator[None]:
    """Lock the newest claim on a folder and give signs of life while the block runs. Without a claim, do nothing.

    Args:
        folder: The run folder.
        on_loss: Called once, in a thread, with the words for the user, if another process takes the folder over.
    """
    path = _newest(folder)
    if path is None:
        yield
        return
    done = threading.Event()
    with path.open("rb") as file:
        with suppress(OSError):  # A file system without locks; the signs of life remain.
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        beats = threading.Thread(target=_beat, args=(path, done, on_loss), name="claim", daemon=True)
        beats.start()
        try:
            yield
        finally:
            done.set()
            beats.join()


def _beat(path: Path, done: threading.Event, on_loss: Callable[[str], object]) -> None:
    while not done.wait(BEAT_S):
        # A file server may fail for a moment; a folder that was deleted is reported by whoever writes into it.
        with suppress(OSError):
            os.utime(path)
            if is_lost(path):
                folder = path.parent.parent
                on_loss(f"{folder}: taken over by {holder(folder) or 'another run'}, because there was no sign of life")
                return


def _claims(folder: Path) -> list[Path]:
    return sorted((path for path in (folder / CLAIMS_FOLDER).glob("*.json") if path.stem.isdecimal()), key=_number)


def _newest(folder: Path) -> Path | None:
    return next(reversed(_claims(folder)), None)


def _number(path: Path) -> int:
    return int(path.stem)


def _read(path: Path) -> Mapping[str, Any]:
    """Return the content of a claim, or an empty mapping while its owner is still writing the file."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}


def _owner(pid: int) -> dict[str, Any]:
    return {"host": socket.gethostname(), "job": _job(), "user": _user(), "since": _now(), **_identity(pid)}


def _job() -> str | None:
    return next((os.environ[name] for name in _JOB_VARIABLES if os.environ.get(name)), None)


def _identity(pid: int) -> dict[str, Any]:
    """Return what tells a process from all others; its number alone is used again, also on other machines."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()
    except OSError:
        fields = []
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


def _words(record: Mapping[str, Any]) -> str:
    if not record:
        return "an owner that has not written its name yet"
    job = f", job {record['job']}" if record.get("job") else ""
    return (
        f"{record.get('user')} on {record.get('host')}{job}, process {record.get('pid')}, since {record.get('since')}"
    )


def _is_locked(path: Path) -> bool:
    with suppress(OSError), path.open("r+b") as file:
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
    with path.open("rb") as file:
        return now - os.fstat(file.fileno()).st_mtime
