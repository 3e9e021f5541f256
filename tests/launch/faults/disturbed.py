"""Runs that are harmed on purpose: started by every launcher, watched until they are in a phase, and then disturbed."""

import contextlib
import itertools
import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from configs.load import ROOT, load_both
from configs.registry import ENGINES, has_engine
from data.recordio import index_rows
from launch.run import open_run
from launch.submit.script import job_text
from launch.submit.submission import make_job, submit_command
from logs.checkpoints import CHECKPOINT_FOLDER
from logs.folder import RunFolder
from tests.launch.mpi import require_mpi
from tests.launch.scheduled import ranks
from tests.limits import processes_like
from train.rank.identity import read_identity

FAULTS = {"kill -9": signal.SIGKILL, "kill -STOP": signal.SIGSTOP, "SIGTERM": signal.SIGTERM}
PHASES = ("start-up", "step", "evaluation", "checkpoint")
FULL = "full disk"
DAMAGED = "damaged images"
"""From then on no image of the split that the phase reads can be decoded."""
START_UP_S = 30
"""After which a rank that stands still at start-up is noticed: imports alone may take a third of it."""

_BEGIN = {"step": "epoch_start", "evaluation": "eval_start"}
_SPLITS = {"step": "train", "evaluation": "eval"}
"""Phase -> the images that it reads."""

_GIVE_UP_S = 300

_TINY = ["model.name=resnet8", "model.image_size=16", "run.eval_every_epochs=1", "run.eval_first_epoch=1",
         "run.log_every_steps=2", "cluster.watchdog_s=10", "run.target_top1=null",
         "schedule.warmup_epochs=1"]  # fmt: skip

_BY_MPI = "cluster.communication.backend=mpi"
_TWO_NODES = ["cluster.num_nodes=2", "cluster.ranks_per_node=1"]


@dataclass(frozen=True)
class Way:
    """How a run of two ranks is started.

    Attributes:
        launcher: What starts the ranks.
        nodes: On how many machines, or what passes for them.
        settings: Of the cluster file.
        needs: The commands without which it cannot be tried.
        in_slurm: Whether in an allocation of virtual nodes.
        hosts: Machines that a job script without a scheduler is for.
        engine: The framework.
    """

    launcher: str
    nodes: int
    settings: tuple[str, ...] = ()
    needs: tuple[str, ...] = ()
    in_slurm: bool = False
    hosts: tuple[str, ...] = ()
    engine: str = "mxnet"

    def __str__(self) -> str:
        return f"{self.launcher} {self.nodes}" + (f" {self.engine}" if self.engine != "mxnet" else "")


WAYS = (
    Way("local", 1),
    Way("horovodrun", 1, ("cluster.launcher=horovodrun",)),
    Way("horovodrun", 2, ("cluster.launcher=horovodrun", *_TWO_NODES), hosts=("localhost", "127.0.0.1")),
    Way("mpirun", 1, ("cluster.launcher=mpirun", _BY_MPI), ("mpirun",)),
    Way("mpirun", 2, ("cluster.launcher=mpirun", _BY_MPI, *_TWO_NODES), ("mpirun",), in_slurm=True),
    Way("srun", 1, ("cluster.launcher=srun", _BY_MPI), ("mpirun",), in_slurm=True),
    Way("srun", 2, ("cluster.launcher=srun", _BY_MPI, *_TWO_NODES), ("mpirun",), in_slurm=True),
    Way("local", 1, engine="torch"),
    Way("mpirun", 1, ("cluster.launcher=mpirun",), ("mpirun",), engine="torch"),
    Way("srun", 2, ("cluster.launcher=srun", *_TWO_NODES), in_slurm=True, engine="torch"),
)


def faults_of(way: Way) -> Iterator[tuple[str, str]]:
    """Yield each fault and the phase of the run that it comes in; in damaged images a launcher has no part."""
    yield from itertools.product((*FAULTS, FULL), PHASES)
    if way.launcher == "local":
        yield from itertools.product((DAMAGED,), _SPLITS)


@dataclass(frozen=True)
class Ended:
    """How a disturbed run ended."""

    status: int
    seconds: float
    summary: dict[str, object]
    errors: str
    last_event: str
    segments_left: frozenset[Path] = frozenset()


def disturb(way: Way, folder: Path, data: Path, fault: str, phase: str) -> Ended:
    """Start a run on the data sets in ``data``, wait for the phase, do it harm, and wait until nobody is left of it."""
    never_ends = (fault, phase) != (FULL, "checkpoint")
    overrides = [*_TINY, f"cluster.paths.data={data}", f"run.epochs={2000 if never_ends else 2}", *way.settings]
    overrides.append(f"cluster.engine.name={way.engine}")
    if phase == "checkpoint" and never_ends:
        overrides.append("model.name=resnet56")  # 7 MB take long enough to be seen half written
    if (fault, phase) == ("kill -STOP", "start-up"):
        overrides.append(f"cluster.communication.timeout_s={START_UP_S}")
    output = folder.parent.parent / "output"
    with output.open("wb") as file:
        launcher = subprocess.Popen(
            _command(way, folder, overrides), cwd=ROOT, env=_environment(way), stdout=file, stderr=file
        )
    segments: set[Path] = set()
    try:
        if never_ends:
            _wait_for(phase, folder, launcher)
            segments |= segments_of(folder)
            _harm(fault, phase, folder, data)
        begin = time.monotonic()
        while launcher.poll() is None and time.monotonic() < begin + _GIVE_UP_S:
            segments |= segments_of(folder)
            time.sleep(0.2)
        status = launcher.wait(timeout=0)
        while processes_like(f"{folder}$") and time.monotonic() < begin + _GIVE_UP_S:
            time.sleep(0.05)
        seconds = time.monotonic() - begin
        assert not processes_like(f"{folder}$"), "somebody is left"
    finally:
        for pid in (launcher.pid, *processes_like(f"{folder}$")):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
    if never_ends and (folder / CHECKPOINT_FOLDER).exists():
        assert RunFolder(folder).checkpoints.newest_valid()[1] == [], "a damaged checkpoint is left"
    log, summary = folder / "result_0.txt", folder / "summary.json"
    events = log.read_text(encoding="utf-8").splitlines() if log.exists() else [""]
    told = json.loads(summary.read_text(encoding="utf-8")) if summary.exists() else {}
    printed = output.read_text(encoding="utf-8")
    left = frozenset(path for path in segments if path.exists())
    return Ended(status, seconds if never_ends else 0.0, told, printed, events[-1], left)


def victim_of(phase: str) -> int:
    """Give the rank to harm: 0 writes the checkpoints."""
    return 0 if phase == "checkpoint" else 1


def require(way: Way) -> None:
    """Skip where the launcher is not installed, or cannot connect the ranks."""
    missing = [command for command in way.needs if shutil.which(command) is None]
    missing += [] if has_engine(way.engine) else [ENGINES[way.engine].title]
    if missing:
        pytest.skip(f"{', '.join(missing)} is not installed here")
    if _BY_MPI in way.settings:
        require_mpi()


def segments_of(folder: Path) -> set[Path]:
    """List the shared memory that the run's processes have mapped; that of others on the machine does not count."""
    found = set()
    for pid in processes_like(f"{folder}$"):
        with contextlib.suppress(OSError):
            rows = Path(f"/proc/{pid}/maps").read_text(encoding="utf-8").splitlines()
            found |= {Path(row[row.index("/dev/shm/") :]) for row in rows if "/dev/shm/" in row}
    return {path for path in found if path.exists()}


def _command(way: Way, folder: Path, overrides: list[str]) -> list[str]:
    if way.hosts:
        recipe, cluster = load_both("digits", "laptop", overrides)
        spec = make_job(recipe, cluster, way.hosts, (folder,))
        open_run(recipe, spec.cluster, folder)
        spec.script.write_text(job_text(spec), encoding="utf-8")
        return shlex.split(submit_command(spec))
    sets = [word for override in overrides for word in ("--set", override)]
    allocation = ["salloc", f"--nodes={way.nodes}", "--ntasks=2", "--quiet"] if way.in_slurm else []
    return [*allocation, sys.executable, "-I", "-m", "launch", "train", "digits", "--run-dir", str(folder), *sets]


def _environment(way: Way) -> dict[str, str]:
    # Virtual nodes are one host, and Open MPI's shared memory crashes between what it takes for two.
    two_in_one = {"OMPI_MCA_btl": "tcp,self", "OMPI_MCA_btl_tcp_if_include": "lo"} if way.in_slurm else {}
    return {**os.environ, **two_in_one}


def _wait_for(phase: str, folder: Path, launcher: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + _GIVE_UP_S
    while launcher.poll() is None and time.monotonic() < deadline:
        if _is_in(phase, folder) and _rank(folder, victim_of(phase)):
            return
        time.sleep(0.0005 if phase == "checkpoint" else 0.01)  # to look costs a fifth of a core at 0.0005
    how = "did not come in time to" if launcher.poll() is None else f"ended with {launcher.poll()} before"
    pytest.fail(f"the run {how} its {phase}: {(folder.parent.parent / 'output').read_text(encoding='utf-8')}")


def _is_in(phase: str, folder: Path) -> bool:
    log = folder / "result_0.txt"
    if phase == "checkpoint":
        return any((folder / CHECKPOINT_FOLDER).glob(".step-*"))
    text = log.read_text(encoding="utf-8") if log.exists() else ""
    if phase == "start-up":
        return '"init_start"' in text and '"init_stop"' not in text
    return f'"{_BEGIN[phase]}"' in text.rpartition(":::MLLOG")[2]


def _harm(fault: str, phase: str, folder: Path, data: Path) -> None:
    if fault == DAMAGED:
        _damage(data / "digits" / f"{_SPLITS[phase]}.rec")
        return
    if fault == FULL:
        with (folder.parent / "filler").open("wb", buffering=0) as filler:
            for size in (1 << 16, 1 << 12, 1):
                with contextlib.suppress(OSError):
                    while True:
                        filler.write(b"\0" * size)
        return
    victim = _rank(folder, victim_of(phase))
    assert victim is not None
    os.kill(victim, FAULTS[fault])


def _damage(rec: Path) -> None:
    """Overwrite the beginning of every image, and leave the records whole."""
    headers_bytes = 32  # of a record and of its image
    with rec.open("r+b") as file:
        for _, offset in index_rows(rec.with_suffix(".idx")):
            file.seek(offset + headers_bytes)
            file.write(b"\0" * 64)


def _rank(folder: Path, number: int) -> int | None:
    """Find a rank's own process."""
    for pid in ranks(folder):
        with contextlib.suppress(OSError):
            words = Path(f"/proc/{pid}/environ").read_text(encoding="utf-8").split("\0")
            if read_identity(dict(word.split("=", 1) for word in words if "=" in word)).rank == number:
                return pid
    return None
