"""The history of a cluster's checks: a file with a line for each check, and the nodes that were slow before."""

import json
from collections.abc import Collection, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path

from pydantic import ValidationError

from configs.errors import UserError
from launch.doctor.check_result import CheckResult
from logs.disk import adapter_of, explain_disk_errors, write_text
from logs.nodes import NodeScore

_KEPT = 1000
"""Lines that are left when the file has become twice as long."""
_LAST = 20
"""Checks that are looked at, so that a node that was repaired is forgotten."""


@dataclass(frozen=True)
class CheckRow:
    """One line of the history.

    Attributes:
        time: When the check ended, as ISO 8601 with its time zone.
        job: The job, or host and process outside a job.
        cluster: Name of the cluster file.
        recipe: The recipe as the user named it.
        num_nodes: Number of nodes that were examined.
        slow: The nodes that were slow.
    """

    time: str
    job: str
    cluster: str
    recipe: str
    num_nodes: int
    slow: Sequence[NodeScore]


def remember(path: Path, row: CheckRow, hosts: Collection[str]) -> list[CheckResult]:
    """Add a check to the history; return a warning for each of its hosts that was slow in two jobs or more.

    A file that cannot be read or written is a warning, too. Damaged lines are passed over.
    """
    try:
        with explain_disk_errors(path):
            path.parent.mkdir(parents=True, exist_ok=True)
            lines = path.read_text(encoding="utf-8", errors="replace").splitlines() if path.exists() else []
            lines.append(json.dumps(asdict(row)))
            if len(lines) > 2 * _KEPT:
                write_text(path, "\n".join(lines[-_KEPT:]) + "\n")
            else:
                with path.open("a", encoding="utf-8") as file:  # in one piece, as other jobs may do the same
                    file.write(f"{lines[-1]}\n")
    except UserError as error:
        return [CheckResult("WARN", "history", str(error))]
    rows = [each for each in _rows(lines) if each.cluster == row.cluster][-_LAST:]
    results = []
    for host in hosts:
        found = [(each.job, node) for each in rows for node in each.slow if node.host == host]
        if len({job for job, _ in found}) > 1:
            parts = ", ".join(sorted({node.part for _, node in found}))
            worst = 100 * max(node.excess for _, node in found)
            words = f"slow in {len(found)} of the last {len(rows)} checks, in {parts}, by up to {worst:.1f} %"
            results.append(CheckResult("WARN", "history", words, "have the node repaired, or leave it out", (host,)))
    return results


def _rows(lines: Sequence[str]) -> list[CheckRow]:
    rows, adapter = [], adapter_of(CheckRow)
    for line in lines:
        with suppress(ValidationError):
            rows.append(adapter.validate_json(line))
    return rows
