"""The recipe's real step on this machine, part by part: what ``./run.sh doctor --step`` adds to a rank's report."""

import math
import os
import resource
import statistics
import subprocess
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from configs.errors import UserError
from configs.load import resolve_path
from configs.schema import Cluster, Recipe
from data.forms.catalogue import form_of
from data.input.batches import TrainingBatch, TrainingSource
from data.input.synthetic import open_repeated
from launch.doctor.facts import PartFailure, StepFacts
from train.comm.communicator import Communicator
from train.comm.links import time_links
from train.dataset import PackedImages
from train.engine.protocol import Engine
from train.probe import ProbedRank, open_rank
from train.rank.identity import Identity
from train.step import reduce_once

_FAILURES = (ImportError, OSError, RuntimeError, MemoryError, UserError)
"""What a library or its driver raises. MXNet, DALI and Horovod raise RuntimeError."""

_ROUNDS, _ENOUGH_S = 3, 4.0
"""A part is timed three times, or less often once that has taken so many seconds."""

_SAMPLES, _LEAST_SAMPLES, _SAMPLING_S = 12, 4, 20.0
"""Samples of each part, the least that tell noise from differences, and the time for all of them. Where even the least
take longer, there are none."""
_BLOCK_S, _MOST_REPEATS = 0.2, 50
"""A sample is the mean of steps that take so long together, because a thread may wake up some milliseconds late."""


class _PartFailed(Exception):
    """A part failed on this rank or on another one."""


@dataclass
class _Parts:
    """Runs the parts of a step in the same order on every rank, and ends on all ranks when a part fails on one.

    Attributes:
        communicator: Connects the ranks.
        on_part: Called before each part, so that the report of a rank that hangs says where.
        facts: What is known so far.
    """

    communicator: Communicator
    on_part: Callable[[StepFacts], object]
    facts: StepFacts = field(default_factory=StepFacts)

    def note(self, **facts: Any) -> None:
        """Add to the facts."""
        self.facts = replace(self.facts, **facts)

    def run(self, name: str, action: Callable[[], Any], *, rounds: int = 1) -> Any:
        """Run a part, keep the median of its seconds, and return what its last round returned.

        Raises:
            _PartFailed: The part failed on some rank.
        """
        self.note(part=name)
        self.on_part(self.facts)
        times: list[float] = []
        spent_s, result = 0.0, None
        while len(times) < rounds and spent_s < _ENOUGH_S:
            result, own_s, longest_s = self.once(name, action)
            times.append(own_s)
            spent_s += longest_s
        self.note(seconds={**self.facts.seconds, name: statistics.median(times)})
        return result

    def once(self, name: str, action: Callable[[], Any]) -> tuple[Any, float, float]:
        """Run an action on every rank and wait for all of them, so that they begin the next one together.

        Returns:
            What the action returned, its seconds on this rank, and its seconds on the slowest rank.

        Raises:
            _PartFailed: The action failed on some rank.
        """
        result, begin = None, time.perf_counter()
        try:
            result = action()
        except _FAILURES as error:
            self.note(failure=PartFailure(name, last_line(error)))
        own_s = time.perf_counter() - begin
        failed = self.facts.failure is not None
        told = self.communicator.gather(f"doctor: {name}", 2 * int(1e6 * own_s) + failed)
        if any(each % 2 for each in told):
            raise _PartFailed
        return result, own_s, max(told) / 2e6


def probe_step(  # noqa: PLR0913 (each says another part of what is probed)
    recipe: Recipe,
    cluster: Cluster,
    identity: Identity,
    communicator: Communicator,
    on_part: Callable[[StepFacts], object],
    *,
    times: int = 1,
    accept_s: float | None = None,
) -> StepFacts:
    """Take the recipe's step at its real shapes, with the parts that a run is made of.

    Args:
        recipe: The recipe, with a global batch that fits the ranks that were started.
        cluster: The machines that were started.
        identity: This rank.
        communicator: Connects the ranks.
        on_part: Called with the facts so far before each part.
        times: How often to take the samples, one set after another.
        accept_s: For an acceptance, the seconds for the samples; the way to other nodes is timed, too. If None, this is
            no acceptance.
    """
    parts = _Parts(communicator, on_part, StepFacts(memory_before_bytes=_used_bytes(cluster, identity)))
    with suppress(_PartFailed):
        rank: ProbedRank = parts.run(
            "network", lambda: open_rank(recipe, cluster, identity, connect=lambda *_: communicator)
        )
        source, batch = _real_batch(rank, parts) or (None, rank.random_batch())
        step = _take(rank, parts, batch)
        _sample(rank, parts, batch, source, step, times, accept_s=accept_s)
        if accept_s is not None:
            engine = rank.parts.engine
            parts.note(links_s=parts.run("links", lambda: time_links(engine, communicator, cluster, identity)))
        if source is not None:
            source.close()
    return replace(parts.facts, memory_bytes=_used_bytes(cluster, identity), has_ended=True)


def _take(rank: ProbedRank, parts: _Parts, batch: TrainingBatch) -> Callable[[], object]:
    """Time the parts of a step and whole steps on one batch; the warm-up is that of a run. Return the step."""
    engine, model, passes = rank.parts.engine, rank.parts.model, rank.passes(batch)
    lengths = [math.prod(each.shape) for each in model.network.gradients]
    width = 4 if rank.parts.cluster.sum_precision == "float32" else 2
    parts.note(
        images=rank.parts.plan.global_batch_size,
        buckets_bytes=[width * sum(lengths[index] for index in bucket) for bucket in model.buckets.order],
    )

    def part(name: str, *queue: Callable[[], object]) -> None:
        def finished() -> None:
            for each in queue:
                each()
            engine.wait_all()

        parts.run(name, finished, rounds=_ROUNDS)

    parts.run("warm-up", rank.warm_up)
    # Backward needs a forward pass of its own, so the two are timed together, and forward also alone.
    part("forward", passes["forward"])
    part("forward and backward", passes["forward"], passes["backward"])
    for number, bucket in enumerate(model.buckets.order):
        name, gradients = f"reduction of bucket {number}", [model.network.gradients[index] for index in bucket]
        part(name, partial(parts.communicator.reduce, name, gradients), parts.communicator.complete)
        seconds = {**parts.facts.seconds}
        parts.note(buckets_s=[*parts.facts.buckets_s, seconds.pop(name)], seconds=seconds)
    part("update", passes["update"])
    part("evaluation", lambda: model.network.inference()(batch.images))
    step = partial(rank.steps(open_repeated(batch)), 1)
    part("step", step)
    return step


def _sample(  # noqa: PLR0913 (each says another part of what is sampled)
    rank: ProbedRank,
    parts: _Parts,
    batch: TrainingBatch,
    source: TrainingSource | None,
    step: Callable[[], object],
    times: int,
    *,
    accept_s: float | None,
) -> None:
    """Take rounds of samples: in each, first every rank's own work, without the others, then the work of all together.

    Further sets have own work only, by which nodes are judged.
    """
    engine, model, passes = rank.parts.engine, rank.parts.model, rank.passes(batch)
    sampling_s = _SAMPLING_S if accept_s is None else accept_s
    images = engine.to_host(batch.images)

    def compute() -> None:
        for _ in range(rank.parts.plan.accumulation_steps):
            passes["forward"]()
            passes["backward"]()
        if not rank.parts.recipe.optimizer.is_shared:  # it waits for the other ranks
            passes["update"]()

    def allreduce() -> None:
        reduce_once(engine, model.network, parts.communicator, model.buckets)
        parts.communicator.complete()

    own: dict[str, Callable[[], object]] = {"compute": compute, "copy": lambda: engine.from_host(images)}
    if source is not None:
        own["input"] = source.next_batch
    shared: dict[str, Callable[[], object]] = {"allreduce": allreduce, "step": step}
    parts.note(part="samples")
    parts.on_part(parts.facts)
    step_us = max(parts.communicator.gather("doctor: time of a step", int(1e6 * parts.facts.seconds["step"])))
    if _LEAST_SAMPLES * 2e-6 * step_us > sampling_s:
        if accept_s is None:
            return
        shared = {}  # Ranks that share cores, as in a rehearsal, may compute fast and sum slowly.
    repeats, round_s = {}, 0.0
    for name, action in (own | shared).items():
        _, _, longest_s = parts.once(name, partial(_seconds, engine, {name: action}, {name: 1}))
        repeats[name] = min(_MOST_REPEATS, math.ceil(_BLOCK_S / max(longest_s, 1e-6)))
        round_s += repeats[name] * longest_s
    rounds = min(int(_SAMPLES * sampling_s / _SAMPLING_S), int(sampling_s / round_s))
    taken: dict[str, list[float]] = {name: [] for name in repeats}
    for number in range(times * rounds if rounds >= _LEAST_SAMPLES else 0):
        for actions in (own, shared)[: 2 if number < rounds else 1]:
            samples, _, _ = parts.once("samples", partial(_seconds, engine, actions, repeats))
            for name, value in samples.items():
                taken[name].append(value)
    parts.note(samples={name: values for name, values in taken.items() if values})


def _seconds(
    engine: Engine, actions: Mapping[str, Callable[[], object]], repeats: Mapping[str, int]
) -> dict[str, float]:
    """Return the mean seconds of each action over its repeats."""
    seconds = {}
    for name, action in actions.items():
        spent_s = 0.0
        for _ in range(repeats[name]):
            begin = time.monotonic()
            action()
            spent_s += engine.finish() - begin
        seconds[name] = spent_s / repeats[name]
    return seconds


def _real_batch(rank: ProbedRank, parts: _Parts) -> tuple[TrainingSource, TrainingBatch] | None:
    """Return this rank's stream of images and the first batch of it; None if a rank does not see the data set."""
    recipe, cluster = rank.parts.recipe, rank.parts.cluster
    images = form_of(resolve_path(cluster.paths.data) / recipe.data.name, "train")
    is_packed = images.where.exists() and images.index.exists()
    is_missing = cluster.rehearsal is not None or (isinstance(rank.images, PackedImages) and not is_packed)
    parts.note(has_real_images=not any(parts.communicator.gather("doctor: data set", int(is_missing))))
    if not parts.facts.has_real_images:
        return None

    def first_batch() -> tuple[TrainingSource, TrainingBatch]:
        source = rank.open_images()
        batch = source.next_batch()
        rank.parts.engine.wait_all()
        return source, batch

    opened: tuple[TrainingSource, TrainingBatch] = parts.run("first batch", first_batch)
    return opened


def _used_bytes(cluster: Cluster, identity: Identity) -> int | None:
    """Return the bytes in use on this rank's GPU, by all programs, or the most that this process has had on a CPU."""
    if cluster.device == "cpu":
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10
    with suppress(ValueError):
        return int(of_gpu(identity, "memory.used")) << 20
    return None


def last_line(error: BaseException) -> str:
    """Return what an error says; the message of one inside MXNet begins with a traceback, and its last line tells."""
    return (str(error).strip().splitlines() or [repr(error)])[-1]


def of_gpu(identity: Identity, query: str) -> str:
    """Return what nvidia-smi tells of this rank's GPU; empty where it does not."""
    visible, number = list(filter(None, os.environ.get("CUDA_VISIBLE_DEVICES", "").split(","))), identity.local_rank
    gpu = visible[number] if number < len(visible) else str(number)
    command = ["nvidia-smi", "-i", gpu, f"--query-gpu={query}", "--format=csv,noheader,nounits"]
    with suppress(OSError, subprocess.SubprocessError):
        return subprocess.run(command, capture_output=True, text=True, timeout=60, check=True).stdout.strip()
    return ""
