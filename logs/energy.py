"""The energy of a run: what the first rank of each node counted, in ``energy_RANK.json``, and the sum over the run."""

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from itertools import groupby
from pathlib import Path
from typing import Annotated

from pydantic import Field

from configs.errors import UserError
from configs.reading import entries
from logs.disk import read_as, write_json

ENERGY_PREFIX = "energy_"
"""Begin of the names of the files; each attempt at a run adds to them."""

_JOULES_PER_WH = 3600.0

_Joules = Annotated[float, Field(ge=0, lt=1e18)]


@dataclass(frozen=True)
class Joules:
    """What each device of a machine has used, in joules; None for one whose counter cannot be read.

    Attributes:
        gpus: The GPUs; empty if none was asked for.
        packages: The processors with their caches, a package each; empty if the kernel shows none.
        dram: The memory beside each package; empty where the processor does not count it apart, as AMD's.
    """

    gpus: Sequence[_Joules | None] = ()
    packages: Sequence[_Joules | None] = ()
    dram: Sequence[_Joules | None] = ()

    @property
    def is_known(self) -> bool:
        """Whether any device could be read."""
        return any(each is not None for each in (*self.gpus, *self.packages, *self.dram))


@dataclass(frozen=True)
class AttemptEnergy:
    """What one node used in one attempt at a run, from ``run_start`` to ``run_stop`` or to the last reading.

    Attributes:
        attempt: When the first rank's process of the attempt began, in Unix seconds: the same number on all nodes.
        nodes: Number of nodes of the attempt.
        host: This node.
        joules: What its devices used.
        from_step: The step at which the attempt began.
    """

    attempt: float
    nodes: int
    host: str
    joules: Joules
    from_step: int = 0


@dataclass(frozen=True)
class Totals:
    """Sums in joules; None if a device of the kind could not be read, or there is none.

    Attributes:
        joules: All that was counted. None for a run on GPUs whose GPUs were not, and for one on processors whose
            processors were not.
        gpus_j: The GPUs.
        packages_j: The processors.
        dram_j: The memory, where it is counted apart.
    """

    joules: float | None = None
    gpus_j: float | None = None
    packages_j: float | None = None
    dram_j: float | None = None


@dataclass(frozen=True)
class RunEnergy(Totals):
    """The energy of all nodes and all attempts; the sums are None unless every node of each attempt was counted.

    Attributes:
        images_per_joule: Trained images, each counted once however often it was repeated after a failure.
        watt_hours_to_target: The energy of a run that reached its target; None for any other.
        attempts: Number of attempts that were counted.
        nodes: Host -> its sums.
    """

    images_per_joule: float | None = None
    watt_hours_to_target: float | None = None
    attempts: int = 0
    nodes: Mapping[str, Totals] = field(default_factory=dict)

    @property
    def words(self) -> str:
        """The energy in a clause, with what is counted and what is not."""
        if self.joules is None:
            return "unknown: not every device that computes could be read on every node"
        kinds = {"GPUs": self.gpus_j, "processors": self.packages_j, "memory": self.dram_j}
        counted = ", ".join(name for name, value in kinds.items() if value is not None)
        # A sum without GPUs is that of a run without them.
        others = "".join(f"{name}, " for name, value in kinds.items() if value is None and name != "GPUs")
        goal = "" if self.watt_hours_to_target is None else " to the target"
        rate = "" if self.images_per_joule is None else f", {self.images_per_joule:.4g} images/J"
        energy = f"{self.joules / _JOULES_PER_WH:.4g} Wh{goal} ({counted}){rate}"
        return f"{energy}; not counted: {others}network, disks, cooling, power supplies and the rest of the hosts"


def write_attempts(folder: Path, rank: int, attempts: Sequence[AttemptEnergy]) -> None:
    """Write what the node of a rank used in each attempt in which the rank counted.

    Raises:
        UserError: The disk is full or in trouble.
    """
    write_json(folder / f"{ENERGY_PREFIX}{rank}.json", {"attempts": [asdict(each) for each in attempts]})


def read_attempts(folder: Path, rank: int | str = "*") -> list[AttemptEnergy]:
    """Return what ranks wrote; of a damaged file nothing, so that a node is missing and the sum unknown.

    Args:
        folder: The run folder.
        rank: The rank. If ``*``, all ranks.

    Raises:
        Unreadable: The folder cannot be read.
    """
    found = []
    for path in entries(folder):
        if path.match(f"{ENERGY_PREFIX}{rank}.json"):
            with suppress(UserError):
                found += read_as(dict[str, list[AttemptEnergy]], path).get("attempts", [])
    return found


def energy_of(
    counted: Iterable[AttemptEnergy], *, images: float | None = None, has_reached_target: bool = False
) -> RunEnergy | None:
    """Return the energy of all nodes and attempts as far as it was counted; None if no counter could be read.

    Args:
        counted: What nodes used in attempts, see `read_attempts`.
        images: Number of trained images. If None, it is unknown.
        has_reached_target: Whether the run reached its target.
    """
    # A launcher that does not number the ranks of a node lets each of them count the whole node.
    rows = [*{(row.attempt, row.host): row for row in counted}.values()]
    if not rows:
        return None
    by_attempt = [[*each] for _, each in groupby(sorted(rows, key=lambda row: row.attempt), lambda row: row.attempt)]
    # An attempt on machines without counters leaves no row, and the next one goes on from its checkpoint.
    is_whole = by_attempt[0][0].from_step == 0 and all(len(each) == each[0].nodes for each in by_attempt)
    totals = _totals(rows) if is_whole else Totals()
    nodes = {host: _totals(row for row in rows if row.host == host) for host in sorted({row.host for row in rows})}
    found = RunEnergy(**vars(totals), attempts=len(by_attempt), nodes=nodes)
    if not found.joules:
        return found
    return replace(
        found,
        images_per_joule=images / found.joules if images else None,
        watt_hours_to_target=found.joules / _JOULES_PER_WH if has_reached_target else None,
    )


def _totals(rows: Iterable[AttemptEnergy]) -> Totals:
    used = [row.joules for row in rows]
    gpus_j, packages_j, dram_j = (
        _sum(_sum(getattr(each, kind)) for each in used) for kind in ("gpus", "packages", "dram")
    )
    least = gpus_j if any(each.gpus for each in used) else packages_j
    parts = [each for each in (gpus_j, packages_j, dram_j) if each is not None]
    return Totals(None if least is None else sum(parts), gpus_j, packages_j, dram_j)


def _sum(values: Iterable[float | None]) -> float | None:
    """Return the sum; None if a value is unknown, or there is none."""
    found = list(values)
    known = [each for each in found if each is not None]
    return sum(known) if known and len(known) == len(found) else None
