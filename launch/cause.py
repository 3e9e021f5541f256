"""Why a run failed, from what its ranks left behind and what the launcher saw: rank, host and step by name."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from configs.errors import STOPPED_STATUS
from configs.schema import Cluster
from launch.start.local import Outcome
from logs.folder import STARTUP_FILE
from logs.metrics import METRICS_FILE

__all__ = ["find_cause", "read_failures", "was_stopped"]


def read_failures(folder: Path) -> list[dict[str, Any]]:
    """Read what each failing rank wrote."""
    return [json.loads(path.read_text(encoding="utf-8")) for path in sorted(folder.glob("failure_*.json"))]


def find_cause(
    folder: Path, cluster: Cluster, outcome: Outcome, rows: Sequence[Mapping[str, Any]]
) -> Mapping[str, Any]:
    """Give ``message`` and, where known, ``rank`` and ``step`` of the first failure.

    First what a rank says of itself; then ranks that died without a word; then those that left no word at all when
    others stood still waiting.
    """
    if outcome.interrupted_by or outcome.lost_server is not None:
        lost = f"a parameter server ended with status {outcome.lost_server} before the ranks did"
        return {"message": "stopped by a signal" if outcome.interrupted_by else lost}
    if was_stopped(outcome, rows, cluster.world_size):
        return {"step": rows[0]["step"], "message": rows[0]["message"]}
    first_hand = [row for row in rows if not row["second_hand"] or "killed_by" in row]
    row = min(first_hand, key=lambda each: each["time"], default=None)
    told = {row["rank"]: row["step"] for row in rows}
    step, when = _when(folder, told.values())
    if row and "killed_by" not in row:
        if row["step"] is not None:
            step, when = row["step"], _at(row["step"])
        return {**row, "step": step, "message": f"rank {row['rank']} on {row['host']} failed{when}: {row['message']}"}
    silent = [(rank, _how(status)) for rank, status in outcome.failed if rank not in told]
    if row:
        silent = [(row["rank"], row["message"])]
    elif not silent and told:
        silent = [(rank, "stood still, without a word") for rank in _still(cluster.world_size, rows)]
    if silent:
        rank, how = silent[0]
        host = row["host"] if row else _host(folder, cluster, rank)
        return {"rank": rank, "step": step, "message": f"rank {rank} on {host} {how}{when}"}
    if told:
        row = min(rows, key=lambda each: each["time"])
        return {**row, "message": f"every rank waited for another{_at(step)}; rank {row['rank']}: {row['message']}"}
    return {"message": f"the launcher ended with status {outcome.exit_status}"}


def was_stopped(outcome: Outcome, rows: Sequence[Mapping[str, Any]], world_size: int) -> bool:
    """Tell whether a run was told to stop and nothing else went wrong.

    That all ranks agreed to stop counts whatever status their launcher makes of it, and so does that each of them was
    told. Some that a signal ended before they could agree may have been told so because another one died, and then the
    status is its.
    """
    if not rows or not outcome.exit_status or any(row["status"] != STOPPED_STATUS for row in rows):
        return False
    has_agreed = not all(row["second_hand"] for row in rows)
    return outcome.exit_status == STOPPED_STATUS or has_agreed or len(rows) == world_size


def _still(world_size: int, rows: Sequence[Mapping[str, Any]]) -> list[int]:
    """Give the ranks that left no word when others did; where all did, those that were not seen to wait for another.

    A launcher that ends a frozen rank lets it go on for a moment, in which it may still say that it was told to end.
    """
    told = {row["rank"] for row in rows}
    waited = {row["rank"] for row in rows if row.get("waited")}
    return [rank for rank in range(world_size) if rank not in told] or sorted(told - waited if waited else [])


def _when(folder: Path, told: Iterable[int | None]) -> tuple[int | None, str]:
    """Give about the step at which a rank ended, and how to say it: by the other ranks, else by the run's metrics."""
    step = min((step for step in told if step is not None), default=None)
    if step is not None:
        return step, f" at or before step {step}"
    if not (folder / STARTUP_FILE).is_file():
        return None, ""
    try:
        rows = (folder / METRICS_FILE).read_text(encoding="utf-8").splitlines()
        step = int(json.loads(rows[-1])["step"])
    except (OSError, ValueError, LookupError):
        step = 0
    return step, f" at or after step {step}"


def _at(step: int | None) -> str:
    return "" if step is None else f" at step {step}"


def _how(status: int) -> str:
    return f"was killed by signal {status - 128}" if status > 128 else f"ended with status {status}"  # noqa: PLR2004


def _host(folder: Path, cluster: Cluster, rank: int) -> str:
    """Name a rank's host as the ranks told each other; before they had, as ``keep.sh`` did."""
    if cluster.launcher == "local":
        return socket.gethostname()
    try:
        return str(json.loads((folder / STARTUP_FILE).read_text(encoding="utf-8"))["hosts"][rank])
    except (OSError, ValueError, LookupError):
        pass
    try:
        lines = (folder / "ranks.txt").read_text(encoding="utf-8").splitlines()
        return dict(line.split(" ", 1) for line in lines)[str(rank)]
    except (OSError, ValueError, LookupError):
        return "an unknown host"
