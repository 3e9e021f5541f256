"""The page ``docs/faults.md``: a table for each launcher, of which single rows can be made again."""

from __future__ import annotations

import fcntl
import os
import re
from pathlib import Path

from tests.launch.disturbed import FAULTS, FULL, PHASES, WAYS, Ended, Way

Cell = tuple[Way, str, str]
"""How the run is started, the fault, and the phase of the run that the fault comes in."""

_HEAD = """# Faults, and how a run ends

`./run.sh test tests/launch/test_faults.py --faults-table docs/faults.md` makes this page and checks every row. Each row
is a run of the recipe `digits`, with two ranks on one machine, that is disturbed once. The engine is MXNet, unless the
title of a table names PyTorch.

- A signal goes to rank 1. During a checkpoint it goes to rank 0, which writes the checkpoint.
- A rank that stands still is noticed after 10 s (`watchdog_s`), at start-up after 30 s (`communication.timeout_s`).
  Both are keys of the cluster file.
- No run leaves a process, a damaged checkpoint or shared memory behind.
- Times count from the fault until the last process is gone, on a machine that may have had other work to do.
- Two nodes are imitated on one machine. ssh was not tried.

Exit status 75: the run was told to stop, and its state was saved if there was any. Exit status 2: the run was refused
before it began. Under horovodrun a refused run ends with 1, because horovodrun turns every failure of a rank into 1.

Open MPI and Slurm let a frozen rank continue for a moment in order to end it, and in that moment the rank itself
reports that it stood still. A frozen rank that is killed reports nothing; which rank it was follows from the reports of
the other ranks.
"""
_TITLES = {
    "local 1": "Local launcher, one node",
    "horovodrun 1": "horovodrun over Gloo, one node",
    "horovodrun 2": "horovodrun over Gloo, two nodes: `localhost` and `127.0.0.1`, in a job script for a list of hosts",
    "mpirun 1": "mpirun over MPI, one node",
    "mpirun 2": "mpirun over MPI, two virtual nodes of Slurm, on which Open MPI starts its daemons by srun",
    "srun 1": "srun over MPI (PMIx), one node",
    "srun 2": "srun over MPI (PMIx), two virtual nodes of Slurm",
    "local 1 torch": "PyTorch over Gloo, local launcher, one node",
}
_COLUMNS = "| fault | phase | exit status | ended after | message |\n| --- | --- | --- | --- | --- |"


def write_row(path: Path, cell: Cell, ended: Ended) -> None:
    """Write one row of the page and keep the others. Several processes may write rows at the same time."""
    with path.open("a+", encoding="utf-8") as page:
        fcntl.flock(page, fcntl.LOCK_EX)
        page.seek(0)
        text = _page(page.read(), cell, ended)
        page.truncate(0)
        page.write(text)


def _page(text: str, cell: Cell, ended: Ended) -> str:
    before = {block.partition("\n")[0]: block for block in re.split(r"^## ", text, flags=re.MULTILINE)[1:]}
    parts = [_HEAD]
    for way in WAYS:
        title = _TITLES[str(way)]
        old = dict(re.findall(r"^(\| [^|]+ \| [^|]+) \|(.*)$", before.get(title, ""), re.MULTILINE))
        lines = []
        for fault in (*FAULTS, FULL):
            for phase in PHASES:
                key = f"| {fault} | {phase}"
                cells = _row(ended) if cell == (way, fault, phase) else old.get(key, " | | not tried yet |")
                lines.append(f"{key} |{cells}")
        parts.append("\n".join([f"## {title}", "", _COLUMNS, *lines, ""]))
    return "\n".join(parts)


def _row(ended: Ended) -> str:
    message = ended.summary.get("failure") or next(
        (line for line in ended.errors.splitlines() if "the disk is full" in line), ""
    )
    after = f"{ended.seconds:.0f} s" if ended.seconds else "continues"
    return f" {ended.status} | {after} | {_shortened(str(message))} |"


def _shortened(text: str) -> str:
    """Return a message without this machine's folders and host name."""
    words = [
        Path(word.rstrip(":")).name + ":" * word.endswith(":") if "/tmp" in word else word for word in text.split()
    ]
    return " ".join(words).replace("|", "/").replace(os.uname().nodename, "HOST")
