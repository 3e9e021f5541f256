"""The recipe's real step on this machine, part by part: what ``./run.sh doctor --step`` adds to a rank's report."""

import os
import statistics
import subprocess
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from configs.errors import UserError
from configs.load import resolve_path
from configs.optimizers import HyperParameters
from configs.schema import Cluster, Recipe
from data.input.batches import TrainingBatch
from launch.doctor.facts import PartFailure, StepFacts
from train.comm.communicator import Communicator
from train.compose import Composition, compose
from train.dataset import images_of
from train.measure.timing import Clock
from train.rank.identity import Identity
from train.rank.startup import Ledger
from train.warmup import warm_up

_FAILURES = (ImportError, OSError, RuntimeError, MemoryError, UserError)
"""What a library or its driver raises. MXNet, DALI and Horovod raise RuntimeError."""

_ROUNDS, _ENOUGH_S = 3, 4.0
"""A part is timed three times, or less often once that has taken so many seconds."""

_HARMLESS = HyperParameters(lr=0.0, momentum=0.0, weight_decay=0.0)


class _PartFailed(Exception):
    """A part failed on this rank or on another one."""


@dataclass
class _OneBatch:
    """A training source that gives one batch again and again."""

    batch: TrainingBatch

    def begin_epoch(self, epoch: int) -> None:
        """Do nothing."""

    def next_batch(self) -> TrainingBatch:
        return self.batch

    def state(self) -> bytes:
        return b""

    def close(self) -> None:
        """Do nothing."""


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
        result = None
        try:
            while len(times) < rounds and sum(times) < _ENOUGH_S:
                begin = time.perf_counter()
                result = action()
                times.append(time.perf_counter() - begin)
            self.note(seconds={**self.facts.seconds, name: statistics.median(times)})
        except _FAILURES as error:
            self.note(failure=PartFailure(name, (str(error).strip().splitlines() or [repr(error)])[-1]))
        if any(self.communicator.gather(f"doctor: {name}", int(self.facts.failure is not None))):
            raise _PartFailed
        return result


def probe_step(
    recipe: Recipe,
    cluster: Cluster,
    identity: Identity,
    communicator: Communicator,
    on_part: Callable[[StepFacts], object],
) -> StepFacts:
    """Take the recipe's step at its real shapes, with the parts that a run is made of.

    Args:
        recipe: The recipe, with a global batch that fits the ranks that were started.
        cluster: The machines that were started.
        identity: This rank.
        communicator: Connects the ranks.
        on_part: Called with the facts so far before each part.
    """
    parts = _Parts(communicator, on_part, StepFacts(memory_before_bytes=_used_bytes(cluster, identity)))
    with suppress(_PartFailed):
        rank: Composition = parts.run(
            "network", lambda: compose(recipe, cluster, identity, Ledger(), connect=lambda *_: communicator)
        )
        _take(rank, parts, _real_batch(rank, parts) or _random_batch(rank))
    return replace(parts.facts, memory_bytes=_used_bytes(cluster, identity), has_ended=True)


def _take(rank: Composition, parts: _Parts, batch: TrainingBatch) -> None:
    """Time the parts of a step and whole steps on one batch; the warm-up is that of a run."""
    engine, model, network = rank.engine, rank.model, rank.model.network
    parts.note(images=rank.plan.global_batch_size)

    def part(name: str, *queue: Callable[[], object]) -> None:
        def finished() -> None:
            for each in queue:
                each()
            engine.wait_all()

        parts.run(name, finished, rounds=_ROUNDS)

    image_type = images_of(rank.recipe, rank.cluster, rank.plan, rank.identity).image_type
    size = rank.plan.per_rank_batch_size
    parts.run("warm-up", lambda: warm_up(engine, model, parts.communicator, size, image_type))
    # Backward needs a forward pass of its own, so the two are timed together, and forward also alone.
    part("forward", lambda: network.forward(*batch))
    part("forward and backward", lambda: network.forward(*batch), network.backward)
    for number in range(len(model.buckets.order)):
        name = f"reduction of bucket {number}"
        part(name, partial(_reduce, rank, name, number))
        seconds = {**parts.facts.seconds}
        parts.note(buckets_s=[*parts.facts.buckets_s, seconds.pop(name)], seconds=seconds)
    part("update", lambda: model.optimizer.update(_HARMLESS))
    part("evaluation", lambda: network.inference()(batch.images))
    step = rank.make_step(Clock(engine, rank.cluster.engine.run_ahead_steps), lambda _: None, image_type=image_type)
    part("step", lambda: step(0, _OneBatch(batch), _HARMLESS))


def _reduce(rank: Composition, name: str, number: int) -> None:
    """Queue the reduction of one bucket alone."""
    gradients = [rank.model.network.gradients[index] for index in rank.model.buckets.order[number]]
    rank.communicator.reduce(name, gradients)
    rank.communicator.complete()


def _real_batch(rank: Composition, parts: _Parts) -> TrainingBatch | None:
    """Return the first batch of this rank's training pipeline; None if a rank does not see the data set."""
    recipe, cluster = rank.recipe, rank.cluster
    is_missing = recipe.data.source != "synthetic" and not _is_packed(
        resolve_path(cluster.paths.data) / recipe.data.name
    )
    parts.note(has_real_images=not any(parts.communicator.gather("doctor: data set", int(is_missing))))
    if not parts.facts.has_real_images:
        return None
    images = images_of(recipe, cluster, rank.plan, rank.identity)

    def first_batch() -> TrainingBatch:
        images.load()
        source = images.open_training(rank.engine)
        source.begin_epoch(1)
        batch = source.next_batch()
        rank.engine.wait_all()
        source.close()
        return batch

    batch: TrainingBatch = parts.run("first batch", first_batch)
    return batch


def _is_packed(folder: Path) -> bool:
    return (folder / "train.rec").is_file() and (folder / "train.idx").is_file()


def _random_batch(rank: Composition) -> TrainingBatch:
    size, network = rank.plan.per_rank_batch_size, rank.model.network
    image_type = images_of(rank.recipe, rank.cluster, rank.plan, rank.identity).image_type
    images = np.random.default_rng(0).standard_normal((size, *network.image_shape), np.float32).astype(image_type)
    labels = np.zeros((size, *network.label_shape), np.float32)
    return TrainingBatch(rank.engine.from_host(images), rank.engine.from_host(labels))


def _used_bytes(cluster: Cluster, identity: Identity) -> int | None:
    """Return the bytes in use on this rank's GPU, by all programs, or the most that this process has had on a CPU."""
    if cluster.device == "cpu":
        lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
        return next((int(line.split()[1]) << 10 for line in lines if line.startswith("VmHWM:")), None)
    visible = os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")
    gpu = (
        visible[identity.local_rank] if identity.local_rank < len(visible) and visible[0] else str(identity.local_rank)
    )
    command = ["nvidia-smi", "-i", gpu, "--query-gpu=memory.used", "--format=csv,noheader,nounits"]
    with suppress(OSError, subprocess.SubprocessError, ValueError):
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
        return int(done.stdout) << 20
    return None
