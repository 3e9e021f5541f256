"""One rank of ``./run.sh doctor``: looks at its machine, loads the libraries, meets the others, measures; never judges.

Every rank leaves ``rank_N.json`` in the folder of its config, rewritten as it gets further, so that one which never
comes back has still told how far it came.
"""

from __future__ import annotations

import argparse
import faulthandler
import os
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from configs.load import load_run
from configs.schema import Cluster, Recipe
from logs.folder import CONFIG_FILE, write_json
from train.comm.communicator import Communicator, Connect, bring_up
from train.comm.devices import run_ranks_here
from train.comm.horovod_communicator import horovod_features
from train.doctor.machine import look_at_data, look_at_machine
from train.engine.protocol import open_engine
from train.rank.failure import is_second_hand
from train.rank.identity import Identity, read_identity
from train.rank.startup import Ledger
from train.rank.watchdog import die_with_parent

__all__ = ["main"]

_MEASURING_S = 60
"""What all but the meeting of the ranks may take."""

_ALLREDUCE_BYTES = 32 << 20
_ROUNDS = 5

_UNUSABLE = (ImportError, OSError, RuntimeError)
"""What an import raises where a library or its driver is missing; RuntimeError is also MXNet's and Horovod's own."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Look; gives 0, or 1 where the ranks could not meet."""
    parser = argparse.ArgumentParser(prog="python -m train.doctor.probe", description=__doc__)
    parser.add_argument("folder", type=Path, help="holds config.yaml; on a disk that all hosts share")
    parser.add_argument("--data", action="store_true", help="look at the recipe's data set too")
    options = parser.parse_args(arguments)
    die_with_parent()
    recipe, cluster = load_run(options.folder / CONFIG_FILE)
    faulthandler.dump_traceback_later(cluster.communication.timeout_s + _MEASURING_S, exit=True)
    main_of_rank = partial(_look, options.folder, recipe if options.data else None, cluster)
    return run_ranks_here(cluster, read_identity(os.environ), Ledger(), main_of_rank)


def _look(
    folder: Path, recipe: Recipe | None, cluster: Cluster, identity: Identity, ledger: Ledger, connect: Connect
) -> int:
    """Do it all for one rank."""
    facts: dict[str, Any] = {
        "rank": identity.rank,
        "local_rank": identity.local_rank,
        "world_size": identity.world_size,
        "host": identity.host,
        "cores": sorted(os.sched_getaffinity(0)),
    }
    if identity.local_rank == 0:
        facts["machine"] = look_at_machine(cluster)
        facts["data"] = look_at_data(recipe, cluster) if recipe else None
    path = folder / f"rank_{identity.rank}.json"
    write_json(path, facts)
    facts["libraries"] = {name: _attempt(load) for name, load in _libraries(cluster, identity).items()}
    write_json(path, facts)
    try:
        communicator = bring_up(identity, ledger, connect).wait()
        facts["allreduce"] = _allreduce(communicator, identity, cluster)
        facts["clock_offsets_s"] = _clock_offsets(communicator)
    except _UNUSABLE as error:
        # MXNet's begins with a traceback.
        facts["failure"] = (str(error).strip().splitlines() or [repr(error)])[-1]
        facts["is_second_hand"] = is_second_hand(error)
    write_json(path, facts)
    return 1 if "failure" in facts else 0


def _libraries(cluster: Cluster, identity: Identity) -> dict[str, Callable[[], object]]:
    """Say how each library is loaded, in the order that they have to come in (see `PackedImages.load`)."""
    loaders: dict[str, Callable[[], object]] = {
        "MXNet": lambda: open_engine(cluster, identity).features(),
        "DALI": _load_dali,
    }
    if cluster.communication.kind == "horovod":
        loaders["Horovod"] = horovod_features
    return loaders


def _attempt(load: Callable[[], object]) -> dict[str, Any]:
    try:
        return {"has": load()}
    except _UNUSABLE as error:
        return {"problem": " ".join(str(error).split())}


def _load_dali() -> None:
    import data.input.pipeline  # noqa: F401, PLC0415


def _allreduce(communicator: Communicator, identity: Identity, cluster: Cluster) -> dict[str, Any] | None:
    """Time the sum of one large array over all ranks; None of a single one.

    Returns:
        ``bus_bytes_per_s`` is what each rank sends and receives at once, in a ring: 2 (n - 1) / n of the array over the
        median time; ``is_right``: every element of every sum was the number of ranks.
    """
    size = identity.world_size
    if size == 1:
        return None
    engine = open_engine(cluster, identity)
    array = engine.zeros((_ALLREDUCE_BYTES // 4,))
    ones = engine.flag(array, is_set=True)
    times, is_right = [], True
    for number in range(1 + _ROUNDS):
        engine.overwrite(array, ones)
        engine.wait_all()
        communicator.gather("ready", number)
        begin = time.perf_counter()
        communicator.reduce("probe", [array])
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
    """Compare the clocks with rank 0's just after all have met; the median over rounds, in seconds, by rank."""
    rounds = []
    for _ in range(_ROUNDS):
        communicator.gather("meet", 0)
        times = communicator.gather("clock", time.time_ns())
        rounds.append([(each - times[0]) / 1e9 for each in times])
    return [statistics.median(column) for column in zip(*rounds, strict=True)]


if __name__ == "__main__":
    sys.exit(main())
