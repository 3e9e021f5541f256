"""What the ranks of the doctor report, one JSON file a rank, and how the files are written and read."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

from logs.disk import adapter_of, write_json
from logs.energy import Joules

PROBE_BYTES = 32 << 20
"""Size of the array whose sum is timed."""


@dataclass(frozen=True)
class FolderFacts:
    """A folder of a machine.

    Attributes:
        folder: Its path.
        free_bytes: Free space; if the folder is missing, that of its nearest parent. None if nobody can tell.
        is_writable: Whether this user may write to it, or to its nearest parent.
        problem: Why there is no such folder. If None, there may be one.
    """

    folder: str
    free_bytes: int | None = None
    is_writable: bool = False
    problem: str | None = None


@dataclass(frozen=True)
class MachineFacts:
    """A machine; a fact that cannot be found out is None.

    Attributes:
        environment: See `logs.environment.environment`.
        memory_available_bytes: Memory that programs can still get, of the machine or of the control group.
        shm_free_bytes: Free shared memory.
        runs: The cluster file's folder of runs.
        temporary: The folder of temporary files, by TMPDIR.
        stage: The cluster file's folder for copies of the data set; None if it names none.
        interfaces: Network interface -> state, as ``up``.
        adapters: InfiniBand adapter -> states of its ports, as ``4: ACTIVE``.
        usable_cores: Cores that a control group grants, which may be half a one; None if it grants all of ``cores``.
        memory_limit: The control group that limits the memory, and its limit; None without one.
        limits: The limits of a process that are set, by what ``ulimit`` calls them.
        compiler_shortage: What is missing for ``engine.compile``, and a remedy; None if nothing is.
    """

    environment: Mapping[str, Any]
    memory_available_bytes: int | None
    shm_free_bytes: int | None
    runs: FolderFacts
    temporary: FolderFacts
    stage: FolderFacts | None
    interfaces: Mapping[str, str | None]
    adapters: Mapping[str, Sequence[str | None]]
    usable_cores: float | None = None
    memory_limit: str | None = None
    limits: Mapping[str, int] = field(default_factory=dict)
    compiler_shortage: tuple[str, str] | None = None


@dataclass(frozen=True)
class DatasetFacts:
    """The recipe's data set as a machine sees it.

    Attributes:
        folder: Its folder. If None, the images are generated in memory.
        problem: One line that says what is wrong, or None.
        exists: Whether the folder is there, or else the user has to make it.
        records: Images for training and evaluation.
        bytes: Their size.
    """

    folder: str | None
    problem: str | None = None
    exists: bool = True
    records: int = 0
    bytes: int = 0


@dataclass(frozen=True)
class StepFacts:
    """The recipe's step on one rank.

    Attributes:
        part: The part under way, or the last one.
        buckets_s: Seconds of the reduction of each bucket alone.
        images: The global batch.
        memory_bytes: Memory in use at the end, or the peak on a CPU; None if nobody can tell.
        samples: Part -> seconds of one step in each round: ``compute``, ``copy`` and ``input`` on this rank alone,
            ``allreduce`` and ``step`` on all ranks together. All ranks have as many, and begin a round together; where
            steps are long, there is one.
        buckets_bytes: Size of each bucket.
        links_s: Seconds of the swaps with one partner after another, see `train.comm.links`; for an acceptance.
        has_ended: Whether the rank came to the end.
    """

    part: str = ""
    buckets_s: Sequence[float] = ()
    images: int = 0
    memory_bytes: int | None = None
    samples: Mapping[str, Sequence[float]] = field(default_factory=dict)
    buckets_bytes: Sequence[int] = ()
    links_s: Sequence[float | None] = ()
    has_ended: bool = False

    @property
    def step_s(self) -> float:
        """Median seconds of a step of all ranks together."""
        return median(self.samples["step"])


@dataclass(frozen=True)
class AloneFacts:
    """The seeded trainings of a rank without the others, one after another, for an acceptance.

    Attributes:
        checksums: Of the weights after each training, in hexadecimal digits.
        are_finite: Whether all weights of all trainings were finite.
        failure: Why a training failed; empty if none did.
    """

    checksums: Sequence[str]
    are_finite: bool = True
    failure: str = ""


@dataclass(frozen=True)
class RankFacts:
    """Everything that one rank reports. What it did not come to, or was not asked for, is None.

    Attributes:
        rank: Its number.
        local_rank: Its number on its host.
        world_size: Number of ranks.
        host: Its host.
        cores: The cores that it may use.
        machine: From the first rank of a host only.
        data: From the first rank of a host only.
        libraries: Name -> what the library has, by feature, or one line that says why it cannot be loaded; in the order
            in which they were loaded.
        bus_bytes_per_s: The rate at which each of n ranks sends, and at the same time receives, in a ring that sums one
            large array: 2 (n - 1) / n of its bytes in the median time; None also for a single rank.
        sums_are_right: Whether every element of every such sum was the number of ranks.
        clock_offsets_s: Each rank's clock minus rank 0's, by rank; after the allreduce.
        step: The recipe's step.
        failure: Why the ranks could not connect, or the allreduce failed, or the part of the step under way.
        is_second_hand: Whether ``failure`` is the consequence of another rank's failure.
        model: The model of the rank's processor, or GPU; for an acceptance.
        gpu: The UUID of the rank's GPU, likewise; empty on a CPU, and where nvidia-smi does not tell.
        alone: The trainings without the others.
        joules: What the host's devices used while the rank ran, from the first rank of a host; for an acceptance.
    """

    rank: int
    local_rank: int
    world_size: int
    host: str
    cores: Sequence[int]
    machine: MachineFacts | None = None
    data: DatasetFacts | None = None
    libraries: Mapping[str, Mapping[str, Any] | str] | None = None
    bus_bytes_per_s: float | None = None
    sums_are_right: bool = True
    clock_offsets_s: Sequence[float] | None = None
    step: StepFacts | None = None
    failure: str | None = None
    is_second_hand: bool = False
    model: str = ""
    gpu: str = ""
    alone: AloneFacts | None = None
    joules: Joules | None = None


def write_facts(folder: Path, facts: RankFacts) -> None:
    """Write a rank's report, so that a reader finds the old one or the new one."""
    write_json(folder / f"rank_{facts.rank}.json", asdict(facts))


def read_facts(folder: Path) -> list[RankFacts]:
    """Return the reports in a folder, in the order of the ranks."""
    adapter = adapter_of(RankFacts)
    reports: list[RankFacts] = [adapter.validate_json(path.read_bytes()) for path in folder.glob("rank_*.json")]
    return sorted(reports, key=lambda report: report.rank)
