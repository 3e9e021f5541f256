"""The history of a cluster's checks: a file with a line for each check, and the nodes that were slow before."""

import json
import os
import socket
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict
from datetime import datetime, timezone
from typing import Any

from configs.errors import UserError
from configs.load import resolve_path
from configs.schema import Cluster
from launch.doctor.check_result import CheckResult
from logs.claims import job_id
from logs.disk import explain_disk_errors, write_text
from logs.nodes import NodeScore

_KEPT = 1000
"""Lines that are left when the file has become twice as long."""
_LAST = 20
"""Checks that are looked at, so that a node that was repaired is forgotten."""


def remember(recipe_name: str, cluster: Cluster, nodes: Sequence[NodeScore]) -> list[CheckResult]:
    """Add a check to the history; return a warning for each of its nodes that was slow in two jobs or more.

    A file that cannot be read or written is a warning, too. Damaged lines are passed over.

    Args:
        recipe_name: The recipe as the user named it.
        cluster: What was examined; its ``health`` names the file.
        nodes: The scores of all nodes.
    """
    path = resolve_path(cluster.health or f"{cluster.paths.runs}/health.jsonl")
    row = {
        "time": datetime.now(timezone.utc).astimezone().isoformat(timespec="seconds"),
        "job": job_id() or f"{socket.gethostname()}-{os.getpid()}",
        "cluster": cluster.name,
        "recipe": recipe_name,
        "num_nodes": len(nodes),
        "slow": [asdict(node) for node in nodes if node.is_slow],
    }
    try:
        with explain_disk_errors(path):
            path.parent.mkdir(parents=True, exist_ok=True)
            lines = path.read_text(encoding="utf-8", errors="replace").splitlines() if path.exists() else []
            lines.append(json.dumps(row))
            if len(lines) > 2 * _KEPT:
                write_text(path, "\n".join(lines[-_KEPT:]) + "\n")
            else:
                with path.open("a", encoding="utf-8") as file:  # in one piece, as other jobs may do the same
                    file.write(f"{lines[-1]}\n")
    except UserError as error:
        return [CheckResult("WARN", "history", str(error))]
    rows = _rows(lines, cluster.name)[-_LAST:]
    results = []
    for host in (node.host for node in nodes):
        found = [(each["job"], slow) for each in rows for slow in each["slow"] if slow["host"] == host]
        if len({job for job, _ in found}) > 1:
            parts = ", ".join(sorted({slow["part"] for _, slow in found}))
            worst = 100 * max(slow["excess"] for _, slow in found)
            words = f"slow in {len(found)} of the last {len(rows)} checks, in {parts}, by up to {worst:.1f} %"
            results.append(CheckResult("WARN", "history", words, "have the node repaired, or leave it out", (host,)))
    return results


def _rows(lines: Sequence[str], cluster_name: str) -> list[Mapping[str, Any]]:
    rows = []
    for line in lines:
        with suppress(ValueError, TypeError, KeyError):
            row = json.loads(line)
            if row["cluster"] == cluster_name:
                rows.append(row)
    return rows
