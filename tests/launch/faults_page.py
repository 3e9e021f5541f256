"""The page of outcomes, ``docs/faults.md``: a table a launcher, of which a part can be made anew."""

from __future__ import annotations

import fcntl
import os
import re
from pathlib import Path

from tests.launch.disturbed import FAULTS, FULL, PHASES, WAYS, Ended, Way

Cell = tuple[Way, str, str]
"""Way, fault and phase."""

_HEAD = """# What goes wrong, and how a run ends

Made by `./run.sh test tests/launch/test_faults.py --faults-table docs/faults.md`, which also judges each row: digits on
two ranks, on one machine. A rank that stands still is noticed after 10 s (`watchdog_s`), at start-up after 30 s
(`communication.timeout_s`): cluster settings. Signals go to rank 1, in a checkpoint to rank 0, which writes it. Nothing
is left: no process, no damaged checkpoint, no shared memory. Times count from the fault until the last process is gone,
on a machine that may have had other work. Two nodes are what passes for them on one machine; ssh was not tried.

75: told to stop, state kept if there was any. 2: refused before the run; horovodrun makes a 1 of it, as of any status.
A rank that Open MPI or Slurm lets go on for a moment to end it says itself that it was frozen; of one that is killed as
it stands, the others' silence tells.
"""
_TITLES = {
    "local 1": "Local launcher, one node",
    "horovodrun 1": "horovodrun over Gloo, one node",
    "horovodrun 2": "horovodrun over Gloo, two nodes: `localhost` and `127.0.0.1`, in a job script for a list of hosts",
    "mpirun 1": "mpirun over MPI, one node",
    "mpirun 2": "mpirun over MPI, two nodes: Slurm's virtual ones, where Open MPI starts its daemons by srun",
    "srun 1": "srun over MPI (PMIx), one node",
    "srun 2": "srun over MPI (PMIx), two virtual nodes",
}
_COLUMNS = "| fault | in | exit | after | what is said |\n| --- | --- | --- | --- | --- |"


def write_row(path: Path, cell: Cell, ended: Ended) -> None:
    """Write a row of the page and leave the others; parts of it may be made side by side."""
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
    said = ended.summary.get("failure") or next(
        (line for line in ended.errors.splitlines() if "the disk is full" in line), ""
    )
    after = f"{ended.seconds:.0f} s" if ended.seconds else "goes on"
    return f" {ended.status} | {after} | {_shortened(str(said))} |"


def _shortened(text: str) -> str:
    """Leave out the folders of this machine."""
    words = [
        Path(word.rstrip(":")).name + ":" * word.endswith(":") if "/tmp" in word else word for word in text.split()
    ]
    return " ".join(words).replace("|", "/").replace(os.uname().nodename, "HOST")
