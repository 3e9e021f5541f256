"""One rank of ``./run.sh doctor``: inspects its machine, loads the libraries, connects to the others, measures.

The rank judges nothing: `launch.doctor.diagnosis` does. The rank writes its facts into the folder of its config.yaml,
and again after each part, so that the file of a rank that hangs still shows how far it came. The doctor starts this
module as a command and imports it never, because it imports frameworks.
"""

import signal

signal.signal(signal.SIGINT, signal.SIG_DFL)  # The imports take seconds; Ctrl-C ends a rank there, too, without a word.

import json
import os
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from configs.arguments import exit_status
from configs.errors import UserError
from configs.load import load_run
from configs.registry import ENGINES
from configs.schema import Cluster, Recipe
from launch.doctor.facts import PROBE_BYTES, AloneFacts, RankFacts, write_facts
from launch.doctor.machine import inspect_dataset, inspect_machine
from launch.doctor.step_probe import of_gpu, probe_step
from logs.environment import processor
from logs.folder import CONFIG_FILE
from train.comm.communicator import Communicator, Connect, libraries_of, start_communicator
from train.comm.devices import run_ranks_here
from train.engine.protocol import open_engine
from train.measure.node_energy import node_meter
from train.probe import allreduce_s, train_alone
from train.rank.failure import is_second_hand, one_line
from train.rank.identity import Identity, read_identity
from train.rank.startup import Ledger
from train.rank.watchdog import Watchdog, die_with_parent

_MEASURING_S = 60
"""Time limit of everything except connecting the ranks, which has the cluster file's time limit."""

_STEP_S = 110
"""Time limit of the recipe's step, on top."""

_SET_S = 60
"""Time limit of each further set of samples of the step."""

_ROUNDS = 5

_UNUSABLE = (ImportError, OSError, RuntimeError, MemoryError, UserError)
"""What a library or its driver raises, also where it is missing. MXNet, DALI and Horovod raise RuntimeError."""


@dataclass(frozen=True)
class Wanted:
    """What a rank is asked for.

    Attributes:
        data: Whether to check the recipe's data set, too.
        step: Whether to take the recipe's step, too.
        times: How often to take the samples of the step.
        accept_s: With ``step``, for so long; and also time the way to other nodes. If None, this is no acceptance.
        alone: Whether to do nothing but train without the other ranks, twice.
    """

    data: bool = False
    step: bool = False
    times: int = 1
    accept_s: float | None = None
    alone: bool = False


@dataclass
class _Report:
    """The facts of a rank, which are written after each part."""

    folder: Path
    facts: RankFacts

    def add(self, **facts: Any) -> None:
        """Add to the facts, and write them."""
        self.facts = replace(self.facts, **facts)
        write_facts(self.folder, self.facts)


def main(wanted: str, folder: str) -> int:
    """Run one rank.

    Args:
        wanted: The values of `Wanted` that differ from their defaults, as JSON.
        folder: Has the config.yaml, and takes the facts; on a disk that all hosts share. It is the last argument, as of
            every rank: whoever starts ranks stops them, and reports their end, by files in it.

    Returns:
        0, or 1 if the ranks could not connect, or the allreduce or the step failed.
    """
    return exit_status(lambda: _run(Path(folder), Wanted(**json.loads(wanted))))


def _run(folder: Path, wanted: Wanted) -> int:
    die_with_parent()
    recipe, cluster = load_run(folder / CONFIG_FILE)
    limit_s: float = cluster.communication.timeout_s + _MEASURING_S + (_STEP_S if wanted.step else 0)
    limit_s += (wanted.times - 1) * _SET_S + (wanted.accept_s or 0)

    def examine(identity: Identity, ledger: Ledger, connect: Connect) -> int:
        """Write all facts of one rank, and for an acceptance the energy of its node."""
        own = identity.rank, identity.local_rank, identity.world_size, identity.host
        report = _Report(folder, RankFacts(*own, cores=sorted(os.sched_getaffinity(0))))
        report.add()
        watchdog = Watchdog(limit_s, lambda error: report.add(failure=str(error), is_second_hand=error.waits))
        is_acceptance = wanted.accept_s is not None or wanted.alone
        meter = node_meter(identity, cluster) if is_acceptance else None
        if meter is not None:
            meter.start()
        if is_acceptance and cluster.device == "cpu":
            report.add(model=processor())
        elif is_acceptance:
            model, _, uuid = of_gpu(identity, "name,uuid").partition(", ")
            report.add(model=model, gpu=uuid)
        if wanted.alone:
            report.add(alone=_trained_alone(recipe, cluster, identity))
        else:
            connected = partial(start_communicator, identity, ledger, connect)
            _examine(report, wanted, recipe, cluster, identity, lambda: connected().result())
        if meter is not None:
            meter.stop()
            report.add(joules=meter.joules)
        watchdog.rest()
        return 1 if report.facts.failure else 0

    return run_ranks_here(cluster, read_identity(os.environ), Ledger(), examine)


def _examine(
    report: _Report,
    wanted: Wanted,
    recipe: Recipe,
    cluster: Cluster,
    identity: Identity,
    connect: Callable[[], Communicator],
) -> None:
    if identity.local_rank == 0:
        data = inspect_dataset(recipe, cluster) if wanted.data else None
        report.add(machine=inspect_machine(cluster), data=data)
    report.add(libraries={name: _attempt(load) for name, load in _libraries(cluster, identity).items()})
    try:
        communicator = connect()
        if identity.world_size > 1:
            report.add(**_allreduce(communicator, identity, cluster))
        report.add(clock_offsets_s=_clock_offsets(communicator))
        if wanted.step:
            report.add(step=probe_step(
                recipe, cluster, identity, communicator, lambda step: report.add(step=step), times=wanted.times,
                accept_s=wanted.accept_s,
            ))  # fmt: skip
    except _UNUSABLE as error:
        report.add(failure=one_line(error) or repr(error), is_second_hand=is_second_hand(error))


def _trained_alone(recipe: Recipe, cluster: Cluster, identity: Identity) -> AloneFacts:
    try:
        trained = [train_alone(recipe, cluster, identity) for _ in range(2)]
    except _UNUSABLE as error:
        return AloneFacts((), failure=one_line(error))
    return AloneFacts([f"{bits:016x}" for bits, _ in trained], all(is_finite for _, is_finite in trained))


def _libraries(cluster: Cluster, identity: Identity) -> dict[str, Callable[[], Any]]:
    """Return the function that loads each library, in the order that `train.dataset` requires: DALI before Horovod."""
    loaders: dict[str, Callable[[], Any]] = {
        ENGINES[cluster.engine.name].title: lambda: open_engine(cluster, identity).features(),
        "DALI": _load_dali,
    }
    return {**loaders, **libraries_of(cluster.communication.kind)}


def _attempt(load: Callable[[], Any]) -> Any:
    try:
        return load() or {}
    except _UNUSABLE as error:
        return " ".join(str(error).split())


def _load_dali() -> None:
    import data.input.pipeline  # noqa: F401, PLC0415


def _allreduce(communicator: Communicator, identity: Identity, cluster: Cluster) -> dict[str, Any]:
    """Time the allreduce of one large array over all ranks; return its rate, and whether the sums were right."""
    size, engine = identity.world_size, open_engine(cluster, identity)
    array = engine.zeros((PROBE_BYTES // 4,))
    ones = engine.flag(array, is_set=True)
    times, is_right = [], True
    for _ in range(1 + _ROUNDS):
        engine.overwrite(array, ones)
        times.append(allreduce_s(engine, communicator, "probe", array))
        is_right = is_right and bool((engine.to_host(array) == size).all())
    median_s = statistics.median(times[1:])  # the first round is a warm-up
    return {"bus_bytes_per_s": 2 * (size - 1) / size * PROBE_BYTES / median_s, "sums_are_right": is_right}


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
    sys.exit(main(*sys.argv[1:]))
