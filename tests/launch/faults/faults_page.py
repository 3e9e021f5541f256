"""The page ``docs/faults.md``: a table for each launcher, of which single rows can be made again."""

import fcntl
import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from tests.launch.faults.disturbed import WAYS, Ended, Way, faults_of
from tests.launch.faults.incidents import INCIDENTS
from tests.launch.faults.scene import Told

Cell = tuple[Way, str, str]
"""How the run is started, the fault, and the phase of the run that the fault comes in."""

_HEAD = """# Faults, and how a run ends

`./run.sh test tests/launch/faults/test_faults.py --faults-table docs/faults.md` makes this page and checks every row.
Each row is a run of the recipe `digits`, with two ranks on one machine, that is disturbed once. The engine is MXNet,
unless the title of a table names PyTorch.

- A signal goes to rank 1. During a checkpoint it goes to rank 0, which writes the checkpoint.
- A rank that stands still is noticed after 10 s (`watchdog_s`), at start-up after 30 s (`communication.timeout_s`).
  Both are keys of the cluster file.
- No run leaves a process, a damaged checkpoint or shared memory behind.
- Times count from the fault until the last process is gone, on a machine that may have had other work to do.
- Two nodes are imitated on one machine. `tests/launch/test_machines.py` runs two machines that are really two, as
  namespaces with ssh between them.

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
    "mpirun 1 torch": "PyTorch over Gloo, mpirun, one node",
    "srun 2 torch": "PyTorch over Gloo, srun, two virtual nodes of Slurm",
}
_INCIDENTS = """Second starts, restarts, signals, disks

A run of four epochs to which something happens after its first checkpoint. In the end, if need be after `--resume`, its
weights are those of an undisturbed run, bit for bit. The launchers are those of the tables above, on one node.
"""
_COLUMNS = "| fault | phase | exit status | ended after | message |\n| --- | --- | --- | --- | --- |"


def write_row(path: Path, cell: Cell, ended: Ended) -> None:
    """Write the row of a fault and keep the others. Several processes may write rows at the same time."""
    _write(path, {(str(cell[0]), f"| {cell[1]} | {cell[2]}"): _row(ended)})


def write_incident(path: Path, title: str, way: Way, told: Told) -> None:
    """Write the row of an incident; see `write_row`."""
    after = "continues" if told.seconds is None else f"{told.seconds:.0f} s"
    row = f" {told.status} | {after} | {_shortened(told.message)} |"
    _write(path, {("incidents", _incident_key(title, way)): row})


def _write(path: Path, new: Mapping[tuple[str, str], str]) -> None:
    with path.open("a+", encoding="utf-8") as page:
        fcntl.flock(page, fcntl.LOCK_EX)
        page.seek(0)
        text = _page(page.read(), new)
        page.truncate(0)
        page.write(text)


def _page(text: str, new: Mapping[tuple[str, str], str]) -> str:
    """Return the page with new rows, by the table and the row's first two columns."""
    before = {block.partition("\n")[0]: block for block in re.split(r"^## ", text, flags=re.MULTILINE)[1:]}
    keys = {str(way): [f"| {fault} | {phase}" for fault, phase in faults_of(way)] for way in WAYS}
    parts = [_HEAD]
    for name, rows in keys.items():
        parts.append(_table(name, _TITLES[name], _COLUMNS, rows, before, new))
    pairs = [_incident_key(title, way) for each in INCIDENTS for title in each.titles for way in each.ways]
    columns = _COLUMNS.replace("| fault | phase |", "| incident | launcher |")
    parts.append(_table("incidents", _INCIDENTS.rstrip("\n"), columns, pairs, before, new))
    return "\n".join(parts)


def _table(
    name: str,
    title: str,
    columns: str,
    keys: Sequence[str],
    before: Mapping[str, str],
    new: Mapping[tuple[str, str], str],
) -> str:
    block = before.get(title.partition("\n")[0], "")
    old = dict(re.findall(r"^(\| [^|]+ \| [^|]+) \|(.*)$", block, re.MULTILINE))
    lines = [f"{key} |{new.get((name, key)) or old.get(key, ' | | not tried yet |')}" for key in keys]
    return "\n".join([f"## {title}", "", columns, *lines, ""])


def _incident_key(title: str, way: Way) -> str:
    return f"| {title} | {str(way).replace(' 1', '')}"


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
