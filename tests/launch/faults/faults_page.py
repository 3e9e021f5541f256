"""The page ``docs/fault-runs.md``: a table for each launcher, of which single rows can be made again."""

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

_HEAD = """# Faults in measured runs

`./run.sh test tests/launch/faults/test_faults.py --faults-table docs/fault-runs.md` generates this page and checks
every row. Each row is one run of the recipe `digits` on two ranks of one machine, with one injected fault. The engine
is MXNet unless the title of a table says PyTorch.

- A signal goes to rank 1, or to rank 0 during a checkpoint, because rank 0 writes the checkpoint.
- A frozen rank is detected after 10 s (`watchdog_s`), and during start-up after 30 s (`communication.timeout_s`). Both
  are keys of the cluster file.
- No run leaves a process, a damaged checkpoint or shared memory behind.
- "Ended after" is the time from the fault until the last process is gone. The machine may have run other work.
- Two nodes are imitated on one machine. `tests/launch/test_machines.py` uses two separate machines, made of network
  namespaces with ssh between them.

| exit status | meaning |
| --- | --- |
| 1 | a rank failed, the network was not saved, or a rank refused and the disk is too full for its report (horovodrun) |
| 2 | a rank refused to start |
| 75 | the run was told to stop, and its state, if it had any, was saved |
| 130 | Ctrl-C: the same at a user's wish |

Launchers return a status of their own: srun the largest of its ranks, horovodrun always 1. So the ranks' failure
reports in the run folder decide the status, and name rank, host and reason.

Open MPI and Slurm let a frozen rank continue for a moment in order to end it. In that moment the rank itself reports
that it was frozen. A frozen rank that is killed reports nothing; the reports of the other ranks
tell which rank it was.
"""
_TITLES = {
    "local 1": "Local launcher, one node",
    "horovodrun 1": "horovodrun over Gloo, one node",
    "horovodrun 2": "horovodrun over Gloo, two nodes (`localhost` and `127.0.0.1`), in a job script for listed hosts",
    "mpirun 1": "mpirun over MPI, one node",
    "mpirun 2": "mpirun over MPI, two virtual Slurm nodes, on which Open MPI starts its daemons with srun",
    "srun 1": "srun over MPI (PMIx), one node",
    "srun 2": "srun over MPI (PMIx), two virtual Slurm nodes",
    "local 1 torch": "PyTorch over Gloo, local launcher, one node",
    "mpirun 1 torch": "PyTorch over Gloo, mpirun, one node",
    "srun 2 torch": "PyTorch over Gloo, srun, two virtual Slurm nodes",
}
_INCIDENTS = """Second starts, restarts, signals, disks

Each row is a run of four epochs in which the incident happens after the first checkpoint. At the end of the run, after
`--resume` where needed, the weights are those of an undisturbed run, bit for bit. The launchers are those of the tables
above, on one node.
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
    after = f"{ended.seconds:.0f} s" if ended.seconds else "at its end"
    return f" {ended.status} | {after} | {_shortened(str(message))} |"


def _shortened(text: str) -> str:
    """Return a message without this machine's folders and host name."""
    words = [
        Path(word.rstrip(":")).name + ":" * word.endswith(":") if "/tmp" in word else word for word in text.split()
    ]
    return " ".join(words).replace("|", "/").replace(os.uname().nodename, "HOST")
