"""One rank of ``./run.sh doctor``: inspects its machine, loads the libraries, connects to the others, measures.

The rank judges nothing: `launch.doctor.diagnosis` does. The rank writes its facts into the folder of its config.yaml,
and again after each part, so that the file of a rank that hangs still shows how far it came. The doctor starts this
module as a command and imports it never, because it imports frameworks.
"""

import signal

signal.signal(signal.SIGINT, signal.SIG_DFL)  # The imports take seconds; Ctrl-C ends a rank there, too, without a word.

import faulthandler
import math
import os
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from configs.arguments import Parser, exit_status, parse
from configs.load import load_run
from configs.registry import ENGINES
from configs.schema import Cluster, Recipe
from launch.doctor.facts import AllreduceFacts, AloneFacts, LibraryFacts, RankFacts, StepFacts, write_facts
from launch.doctor.machine import inspect_dataset, inspect_machine
from launch.doctor.step_probe import of_gpu, probe_step
from logs.environment import processor
from logs.folder import CONFIG_FILE
from train.accept.alone import train_alone
from train.comm.communicator import Communicator, Connect, libraries_of, start_communicator
from train.comm.devices import run_ranks_here
from train.engine.protocol import open_engine
from train.measure.node_energy import node_meter
from train.probe import allreduce_s
from train.rank.failure import is_second_hand
from train.rank.identity import Identity, read_identity
from train.rank.startup import Ledger
from train.rank.watchdog import die_with_parent

_MEASURING_S = 60
"""Time limit of everything except connecting the ranks, which has the cluster file's time limit."""

_STEP_S = 110
"""Time limit of the recipe's step, on top."""

_SET_S = 60
"""Time limit of each further set of samples of the step."""

_ALLREDUCE_BYTES = 32 << 20
_ROUNDS = 5

_UNUSABLE = (ImportError, OSError, RuntimeError)
"""Exceptions of an import if a library or its driver is missing. MXNet and Horovod also raise RuntimeError."""


@dataclass(frozen=True)
class _Options:
    """The command line of ``python -m launch.doctor.probe``."""

    folder: Path
    data: bool
    step: bool
    times: int
    accept_s: float | None
    alone: bool


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one rank; return 0, or 1 if the ranks could not connect or the allreduce failed."""
    parser = Parser(prog="python -m launch.doctor.probe", description=__doc__)
    parser.add_argument("folder", type=Path, help="folder with config.yaml, on a disk that all hosts share")
    parser.add_argument("--data", action="store_true", help="also check the recipe's data set")
    parser.add_argument("--step", action="store_true", help="also take the recipe's step")
    parser.add_argument("--times", type=int, default=1, help="how often to take the samples of the step")
    accepted = "with --step, take samples for so long, and also time the way to other nodes"
    parser.add_argument("--accept-s", metavar="S", type=float, help=accepted)
    parser.add_argument("--alone", action="store_true", help="do nothing but train without the other ranks, twice")
    return exit_status(lambda: _run(parse(parser, _Options, arguments)))


def _run(options: _Options) -> int:
    die_with_parent()
    recipe, cluster = load_run(options.folder / CONFIG_FILE)
    limit_s = cluster.communication.timeout_s + _MEASURING_S + (_STEP_S if options.step else 0)
    limit_s += (options.times - 1) * _SET_S + math.ceil(options.accept_s or 0)
    faulthandler.dump_traceback_later(limit_s, exit=True)
    return run_ranks_here(cluster, read_identity(os.environ), Ledger(), partial(_examine, options, recipe, cluster))


def _examine(
    options: _Options, recipe: Recipe, cluster: Cluster, identity: Identity, ledger: Ledger, connect: Connect
) -> int:
    """Write all facts of one rank, and for an acceptance the energy of its node."""
    meter = node_meter(identity, cluster) if options.accept_s is not None or options.alone else None
    if meter is not None:
        meter.start()
    facts = _examined(options, recipe, cluster, identity, ledger, connect)
    if meter is not None:
        meter.stop()
        facts = replace(facts, joules=meter.joules)
    write_facts(options.folder, facts)
    return 1 if facts.failure else 0


def _examined(
    options: _Options, recipe: Recipe, cluster: Cluster, identity: Identity, ledger: Ledger, connect: Connect
) -> RankFacts:
    """Return all facts of one rank, which are written after each part but the last."""
    write = partial(write_facts, options.folder)
    facts = RankFacts(
        rank=identity.rank,
        local_rank=identity.local_rank,
        world_size=identity.world_size,
        host=identity.host,
        cores=sorted(os.sched_getaffinity(0)),
    )
    if options.alone or options.accept_s:
        model, gpu = _device(cluster, identity)
        facts = replace(facts, model=model, gpu=gpu)
    if options.alone:
        write(facts)
        return replace(facts, alone=_trained_alone(recipe, cluster, identity))
    if identity.local_rank == 0:
        data = inspect_dataset(recipe, cluster) if options.data else None
        facts = replace(facts, machine=inspect_machine(cluster), data=data)
    write(facts)
    facts = replace(facts, libraries={name: _attempt(load) for name, load in _libraries(cluster, identity).items()})
    write(facts)
    try:
        communicator = start_communicator(identity, ledger, connect).result()
        facts = replace(facts, allreduce=_allreduce(communicator, identity, cluster))
        facts = replace(facts, clock_offsets_s=_clock_offsets(communicator))
        if options.step:
            note = partial(_write_step, options.folder, facts)
            step = probe_step(
                recipe, cluster, identity, communicator, note, times=options.times, accept_s=options.accept_s
            )
            facts = replace(facts, step=step)
    except _UNUSABLE as error:
        # The message of an error inside MXNet begins with a traceback; the last line says what happened.
        failure = (str(error).strip().splitlines() or [repr(error)])[-1]
        facts = replace(facts, failure=failure, is_second_hand=is_second_hand(error))
    return facts


def _device(cluster: Cluster, identity: Identity) -> tuple[str, str]:
    """Return the model of a rank's processor or GPU, and the UUID of the GPU."""
    if cluster.device == "cpu":
        return processor(), ""
    name, _, uuid = of_gpu(identity, "name,uuid").partition(", ")
    return name, uuid


def _trained_alone(recipe: Recipe, cluster: Cluster, identity: Identity) -> AloneFacts:
    try:
        trained = [train_alone(recipe, cluster, identity) for _ in range(2)]
    except _UNUSABLE as error:
        return AloneFacts((), failure=(str(error).strip().splitlines() or [repr(error)])[-1])
    return AloneFacts([f"{bits:016x}" for bits, _ in trained], all(is_finite for _, is_finite in trained))


def _write_step(folder: Path, connected: RankFacts, step: StepFacts) -> None:
    write_facts(folder, replace(connected, step=step))


def _libraries(cluster: Cluster, identity: Identity) -> dict[str, Callable[[], Any]]:
    """Return the function that loads each library, in the order that `train.dataset` requires: DALI before Horovod."""
    loaders: dict[str, Callable[[], Any]] = {
        ENGINES[cluster.engine.name].title: lambda: open_engine(cluster, identity).features(),
        "DALI": _load_dali,
    }
    return {**loaders, **libraries_of(cluster.communication.kind)}


def _attempt(load: Callable[[], Any]) -> LibraryFacts:
    try:
        return LibraryFacts(has=load())
    except _UNUSABLE as error:
        return LibraryFacts(problem=" ".join(str(error).split()))


def _load_dali() -> None:
    import data.input.pipeline  # noqa: F401, PLC0415


def _allreduce(communicator: Communicator, identity: Identity, cluster: Cluster) -> AllreduceFacts | None:
    """Time the allreduce of one large array over all ranks; return None if there is only one rank."""
    size = identity.world_size
    if size == 1:
        return None
    engine = open_engine(cluster, identity)
    array = engine.zeros((_ALLREDUCE_BYTES // 4,))
    ones = engine.flag(array, is_set=True)
    times, is_right = [], True
    for _ in range(1 + _ROUNDS):
        engine.overwrite(array, ones)
        times.append(allreduce_s(engine, communicator, "probe", array))
        is_right = is_right and bool((engine.to_host(array) == size).all())
    median_s = statistics.median(times[1:])  # the first round is a warm-up
    bus_bytes_per_s = 2 * (size - 1) / size * _ALLREDUCE_BYTES / median_s
    return AllreduceFacts(_ALLREDUCE_BYTES, median_s, bus_bytes_per_s, is_right)


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
