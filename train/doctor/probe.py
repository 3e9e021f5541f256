"""One rank of ``./run.sh doctor``: inspects its machine, loads the libraries, connects to the others, measures.

The rank judges nothing: `launch.doctor.diagnosis` does. The rank writes ``rank_N.json`` into the folder of its
config.yaml and rewrites the file after each part, so that the file of a rank that hangs still shows how far it came.
"""

import argparse
import faulthandler
import os
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from configs.load import load_run
from configs.registry import ENGINES
from configs.schema import Cluster, Recipe
from logs.folder import CONFIG_FILE, write_json
from train.comm.communicator import Communicator, Connect, bring_up, libraries_of
from train.comm.devices import run_ranks_here
from train.doctor.machine import inspect_dataset, inspect_machine
from train.engine.protocol import open_engine
from train.rank.failure import is_second_hand
from train.rank.identity import Identity, read_identity
from train.rank.startup import Ledger
from train.rank.watchdog import die_with_parent

_MEASURING_S = 60
"""Time limit of everything except connecting the ranks, which has the cluster file's time limit."""

_STEP_S = 110
"""Time limit of the recipe's step, on top."""

_ALLREDUCE_BYTES = 32 << 20
_ROUNDS = 5

_UNUSABLE = (ImportError, OSError, RuntimeError)
"""Exceptions of an import if a library or its driver is missing. MXNet and Horovod also raise RuntimeError."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one rank; return 0, or 1 if the ranks could not connect or the allreduce failed."""
    parser = argparse.ArgumentParser(prog="python -m train.doctor.probe", description=__doc__)
    parser.add_argument("folder", type=Path, help="folder with config.yaml, on a disk that all hosts share")
    parser.add_argument("--data", action="store_true", help="also check the recipe's data set")
    parser.add_argument("--step", action="store_true", help="also take the recipe's step")
    options = parser.parse_args(arguments)
    die_with_parent()
    recipe, cluster = load_run(options.folder / CONFIG_FILE)
    limit_s = cluster.communication.timeout_s + _MEASURING_S + (_STEP_S if options.step else 0)
    faulthandler.dump_traceback_later(limit_s, exit=True)
    job = _Job(options.folder, cluster, recipe, has_data=options.data, has_step=options.step)
    return run_ranks_here(cluster, read_identity(os.environ), Ledger(), partial(_examine, job))


@dataclass(frozen=True)
class _Job:
    """What the ranks are to do.

    Attributes:
        folder: Where the ranks write their reports.
        cluster: The machines that were started.
        recipe: The recipe whose run is to follow.
        has_data: Whether the recipe's data set is checked.
        has_step: Whether the recipe's step is taken.
    """

    folder: Path
    cluster: Cluster
    recipe: Recipe
    has_data: bool
    has_step: bool


def _examine(job: _Job, identity: Identity, ledger: Ledger, connect: Connect) -> int:
    """Write all facts of one rank."""
    cluster, path = job.cluster, job.folder / f"rank_{identity.rank}.json"
    facts: dict[str, Any] = {
        "rank": identity.rank,
        "local_rank": identity.local_rank,
        "world_size": identity.world_size,
        "host": identity.host,
        "cores": sorted(os.sched_getaffinity(0)),
    }
    if identity.local_rank == 0:
        facts["machine"] = inspect_machine(cluster)
        facts["data"] = inspect_dataset(job.recipe, cluster) if job.has_data else None
    write_json(path, facts)
    facts["libraries"] = {name: _attempt(load) for name, load in _libraries(cluster, identity).items()}
    write_json(path, facts)
    try:
        communicator = bring_up(identity, ledger, connect).wait()
        facts["allreduce"] = _allreduce(communicator, identity, cluster)
        facts["clock_offsets_s"] = _clock_offsets(communicator)
        if job.has_step:
            from train.doctor.step_probe import probe_step  # noqa: PLC0415 (loads what a run needs)

            note = lambda step: write_json(path, {**facts, "step": step})  # noqa: E731
            facts["step"] = probe_step(job.recipe, cluster, identity, communicator, note)
    except _UNUSABLE as error:
        # The message of an error inside MXNet begins with a traceback; the last line says what happened.
        facts["failure"] = (str(error).strip().splitlines() or [repr(error)])[-1]
        facts["is_second_hand"] = is_second_hand(error)
    write_json(path, facts)
    return 1 if "failure" in facts else 0


def _libraries(cluster: Cluster, identity: Identity) -> dict[str, Callable[[], object]]:
    """Return the function that loads each library, in the order that `train.dataset` requires: DALI before Horovod."""
    loaders: dict[str, Callable[[], object]] = {
        ENGINES[cluster.engine.name].title: lambda: open_engine(cluster, identity).features(),
        "DALI": _load_dali,
    }
    return {**loaders, **libraries_of(cluster.communication.kind)}


def _attempt(load: Callable[[], object]) -> dict[str, Any]:
    try:
        return {"has": load()}
    except _UNUSABLE as error:
        return {"problem": " ".join(str(error).split())}


def _load_dali() -> None:
    import data.input.pipeline  # noqa: F401, PLC0415


def _allreduce(communicator: Communicator, identity: Identity, cluster: Cluster) -> dict[str, Any] | None:
    """Time the allreduce of one large array over all ranks.

    Returns:
        None if there is only one rank. ``bus_bytes_per_s`` is the rate at which each rank sends, and at the same time
        receives, in a ring: 2 (n - 1) / n of the array in the median time. ``is_right`` is whether every element of
        every sum was the number of ranks.
    """
    size = identity.world_size
    if size == 1:
        return None
    engine = open_engine(cluster, identity)
    array = engine.zeros((_ALLREDUCE_BYTES // 4,))
    ones = engine.flag(array, is_set=True)
    times, is_right = [], True
    for number in range(1 + _ROUNDS):  # the first round is a warm-up
        engine.overwrite(array, ones)
        engine.wait_all()
        communicator.gather("ready", number)
        begin = time.perf_counter()
        communicator.reduce("probe", [array])
        communicator.complete()
        engine.wait_all()
        times.append(time.perf_counter() - begin)
        is_right = is_right and bool((engine.to_host(array) == size).all())
    median_s = statistics.median(times[1:])
    return {
        "bytes": _ALLREDUCE_BYTES,
        "median_s": median_s,
        "bus_bytes_per_s": 2 * (size - 1) / size * _ALLREDUCE_BYTES / median_s,
        "is_right": is_right,
    }


def _clock_offsets(communicator: Communicator) -> list[float]:
    """Return each rank's clock minus rank 0's clock in seconds, by rank: the median over several rounds.

    A rank reads its clock when a gather over all ranks returns, which is nearly the same moment on every rank.
    """
    rounds = []
    for _ in range(_ROUNDS):
        communicator.gather("meet", 0)
        times = communicator.gather("clock", time.time_ns())
        rounds.append([(each - times[0]) / 1e9 for each in times])
    return [statistics.median(column) for column in zip(*rounds, strict=True)]


if __name__ == "__main__":
    sys.exit(main())
