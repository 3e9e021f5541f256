"""The recipe's real step on this machine, part by part: what ``./run.sh doctor --step`` adds to a rank's report."""

import math
import os
import resource
import statistics
import subprocess
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any

from configs.load import resolve_path
from configs.schema import Cluster, Recipe
from data.forms.catalogue import form_of
from data.input.batches import TrainingBatch, TrainingSource
from data.input.synthetic import open_repeated
from launch.doctor.facts import StepFacts
from train.comm.communicator import Communicator
from train.comm.links import mean_s, time_links
from train.dataset import PackedImages
from train.probe import ProbedRank, open_rank
from train.rank.identity import Identity
from train.step import reduce_once

_BUCKET_ROUNDS = 3

_SAMPLES, _SAMPLING_S = 12, 20.0
"""Samples of each part, and the time for all of them."""
_SHARED = 0.25
"""Share of that time for what all ranks do together, by which no rank is judged."""
_BLOCK_S, _MOST_REPEATS = 0.2, 50
"""A sample is the mean of steps that take so long together, because a thread may wake up some milliseconds late."""

_Actions = dict[str, Callable[[], object]]


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
        on_part: Called with the facts so far before each part, so that the report of a rank that fails or hangs says
            where, and whenever there are more.
        times: How often to take the samples, one set after another.
        accept_s: For an acceptance, the seconds for the samples; the way to other nodes is timed, too. If None, this is
            no acceptance.
    """
    on_part(StepFacts("network"))
    parts = _Parts(open_rank(recipe, cluster, identity, connect=lambda *_: communicator), on_part)
    rank, engine = parts.rank, parts.engine
    source, batch = parts.real_batch() or (None, rank.random_batch())
    parts.note(part="warm-up")
    rank.warm_up()
    engine.finish()
    parts.time_buckets()
    parts.note(part="evaluation")  # The memory of a run is that with an evaluation.
    rank.parts.model.network.inference()(batch.images)
    engine.finish()
    parts.sample(batch, source, times=times, sampling_s=_SAMPLING_S if accept_s is None else accept_s)
    if accept_s is not None:
        parts.note(part="links")
        parts.note(links_s=time_links(engine, communicator, cluster, identity))
    if source is not None:
        source.close()
    return replace(parts.facts, memory_bytes=_used_bytes(cluster, identity), has_ended=True)


class _Parts:
    """The parts of a step, in the same order on every rank; the arguments are those of `probe_step`."""

    def __init__(self, rank: ProbedRank, on_part: Callable[[StepFacts], object]) -> None:
        self.rank, self.engine, self._communicator = rank, rank.parts.engine, rank.parts.communicator
        self._on_part, self.facts = on_part, StepFacts()

    def note(self, **facts: Any) -> None:
        """Add to the facts, and tell them; a new ``part`` begins."""
        self.facts = replace(self.facts, **facts)
        self._on_part(self.facts)

    def _longest(self, seconds: float) -> float:
        """Wait for all ranks, so that they begin together what follows; return the seconds of the slowest one."""
        return max(self._communicator.gather(f"doctor: {self.facts.part}", int(1e6 * seconds))) / 1e6

    def real_batch(self) -> tuple[TrainingSource, TrainingBatch] | None:
        """Return this rank's stream of images and the first batch of it; None if a rank does not see the data set."""
        recipe, cluster = self.rank.parts.recipe, self.rank.parts.cluster
        images = form_of(resolve_path(cluster.paths.data) / recipe.data.name, "train")
        is_packed = images.where.exists() and images.index.exists()
        is_missing = cluster.rehearsal is not None or (isinstance(self.rank.images, PackedImages) and not is_packed)
        if any(self._communicator.gather("doctor: data set", int(is_missing))):
            return None
        self.note(part="first batch")
        source = self.rank.open_images()
        return source, source.next_batch()

    def _sum(self, name: str, arrays: Sequence[Any]) -> None:
        self._communicator.reduce(name, arrays)
        self._communicator.complete()

    def time_buckets(self) -> None:
        """Note size and time of the reduction of each bucket alone, the median of some rounds."""
        gradients = self.rank.parts.model.network.gradients
        width = 4 if self.rank.parts.cluster.sum_precision == "float32" else 2
        sizes: list[int] = []
        medians_s: list[float] = []
        for number, bucket in enumerate(self.rank.parts.model.buckets.order):
            arrays = [gradients[index] for index in bucket]
            self.note(part=f"reduction of bucket {number}")
            times = []
            for _ in range(_BUCKET_ROUNDS):
                times.append(mean_s(self.engine, partial(self._sum, self.facts.part, arrays)))
                self._longest(times[-1])
            sizes.append(width * sum(math.prod(each.shape) for each in arrays))
            medians_s.append(statistics.median(times))
        self.note(buckets_bytes=sizes, buckets_s=medians_s)

    def _actions(self, batch: TrainingBatch, source: TrainingSource | None) -> tuple[_Actions, _Actions]:
        """Return the parts of a step: every rank's own work, and the work of all together."""
        rank, passes = self.rank, self.rank.passes(batch)
        images, steps = self.engine.to_host(batch.images), rank.steps(open_repeated(batch))

        def compute() -> None:
            for _ in range(rank.parts.plan.accumulation_steps):
                passes["forward"]()
                passes["backward"]()
            if not rank.parts.recipe.optimizer.is_shared:  # it waits for the other ranks
                passes["update"]()

        def allreduce() -> None:
            reduce_once(rank.parts.model, self._communicator)
            self._communicator.complete()

        own: _Actions = {"compute": compute, "copy": lambda: self.engine.from_host(images)}
        if source is not None:
            own["input"] = source.next_batch
        return own, {"allreduce": allreduce, "step": lambda: steps(1)}

    def sample(self, batch: TrainingBatch, source: TrainingSource | None, *, times: int, sampling_s: float) -> None:
        """Take rounds of samples: first every rank's own work, without the others, then the work of all together.

        What all do together is sampled less often where it takes long, and only in the first set: nodes are judged by
        their own work, and ranks that share cores, as in a rehearsal, may compute fast and sum slowly.
        """
        engine, (own, shared) = self.engine, self._actions(batch, source)
        repeats, longest_s, taken = {}, {}, {}
        for name, action in {**own, **shared}.items():
            self.note(part=name)
            self._longest(mean_s(engine, action))  # The first time compiles, and allocates memory.
            taken[name] = [mean_s(engine, action)]
            longest_s[name] = self._longest(taken[name][0])
            repeats[name] = min(_MOST_REPEATS, math.ceil(_BLOCK_S / max(longest_s[name], 1e-6)))

        def rounds_in(seconds: float, actions: _Actions) -> int:
            return int(seconds / sum(repeats[name] * longest_s[name] for name in actions))

        self.note(part="samples")
        most = int(_SAMPLES * sampling_s / _SAMPLING_S)
        together = min(most, rounds_in(_SHARED * sampling_s, shared))
        alone = min(most, rounds_in((1 - _SHARED) * sampling_s, own))
        for number in range(times * alone):
            for actions in (own, shared) if number < together else (own,):
                values = {name: mean_s(engine, action, repeats[name]) for name, action in actions.items()}
                for name, value in values.items():
                    taken[name].append(value)
                self._longest(sum(values.values()))
        # The first values only told how long a sample is, unless there was no time for others.
        self.note(
            images=self.rank.parts.plan.global_batch_size,
            samples={name: values[1:] or values * times for name, values in taken.items()},
        )


def _used_bytes(cluster: Cluster, identity: Identity) -> int | None:
    """Return the bytes in use on this rank's GPU, by all programs, or the most that this process has had on a CPU."""
    if cluster.device == "cpu":
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10
    with suppress(ValueError):
        return int(of_gpu(identity, "memory.used")) << 20
    return None


def of_gpu(identity: Identity, query: str) -> str:
    """Return what nvidia-smi tells of this rank's GPU; empty where it does not."""
    visible, number = list(filter(None, os.environ.get("CUDA_VISIBLE_DEVICES", "").split(","))), identity.local_rank
    gpu = visible[number] if number < len(visible) else str(number)
    command = ["nvidia-smi", "-i", gpu, f"--query-gpu={query}", "--format=csv,noheader,nounits"]
    with suppress(OSError, subprocess.SubprocessError):
        return subprocess.run(command, capture_output=True, text=True, timeout=60, check=True).stdout.strip()
    return ""
