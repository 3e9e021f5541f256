"""The jobs of ``bench overlap``: ranks over one link that train, or that wait as long as a described GPU computes."""

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from configs.load import dump, load_both
from configs.programs import Program
from train.bench.bench_overlap import OverlapOptions, Transfer, Workload
from train.bench.launching import Jobs
from train.bench.samples import Figures
from train.networks.arch import float32_gradients, gradient_bytes, network_of
from train.rehearse.rehearsed_run import Course, rehearsed_run

SHRINK = 8
"""Factor by which gradients of timed ranks are shorter, so that sending and summing takes few processors."""
CYCLE_MS_PER_RANK = 4.0
"""Interval at which timed ranks look for gradients, per rank. Looking is most of what they do: at 4, 8 and 16 ms, a
step of 4 ranks without communication took 447, 335 and 205 ms of two processors, and 0.92, 0.93 and 0.93 was hidden."""

LeastExposed = Callable[["Job", Transfer, Figures, Figures], float]
"""From a job, a transfer and the round's samples without communication and with a serial one to the fewest milliseconds
of communication that a step can expose, whatever the library does."""


@dataclass(frozen=True)
class Job:
    """Ranks that take steps with several transfers of the gradients in turn, in the same processes.

    Attributes:
        title: Names the ranks, the link, and the settings that differ from the cluster file.
        recipe: A name or a file.
        cluster: A name or a file.
        overrides: Changes of both.
        least_exposed_ms: The bound of this job; None where nothing bounds what can be hidden.
        link_bytes_per_s: What a rank can send on the link in a second; if None, the network as it is.
        ranks: Number of ranks.
    """

    title: str
    recipe: str
    cluster: str
    overrides: tuple[str, ...]
    least_exposed_ms: LeastExposed | None
    ranks: int
    link_bytes_per_s: float | None = None

    def run(self, transfers: Sequence[Transfer], workload: Workload, jobs: Jobs) -> dict[Transfer, list[Figures]]:
        """Start the ranks once, and return the samples of each transfer, one for each round."""
        overrides = self.overrides
        if self.link_bytes_per_s is not None:
            overrides += (f"cluster.communication.link_bytes_per_s={self.link_bytes_per_s:g}",)
        names = [transfer.name for transfer in transfers]
        effort = {"rounds": workload.rounds, "steps": workload.steps}
        task = {"recipe": self.recipe, "cluster": self.cluster, "overrides": overrides, **effort, "transfers": names}
        place = [override for override in overrides if override.startswith("cluster.")]
        found = jobs.ranks(Program.OVERLAP_OURS, task, cluster=self.cluster, overrides=place).samples
        return {Transfer.parse(name): samples for name, samples in found.items()}

    def over(self, link_bytes_per_s: float | None, name: str, *settings: str) -> "Job":
        """Return the job over another link, with the settings of the cluster that the link needs."""
        overrides = (*self.overrides, *settings)
        return replace(self, title=f"{self.title}, {name}", overrides=overrides, link_bytes_per_s=link_bytes_per_s)

    def setting(self, override: str) -> "Job":
        """Return the job with another setting of the cluster."""
        return replace(self, title=f"{self.title} {override.split('.', 2)[2]}", overrides=(*self.overrides, override))


def real_job(options: OverlapOptions, workload: Workload, ranks: int, *, shares_processors: bool) -> Job:
    """Return the job of ranks that train, over the network as it is.

    Args:
        options: Has the cluster and the user's changes.
        workload: What each rank computes.
        ranks: Ranks of the cluster.
        shares_processors: The ranks compute on the processors that send and sum.
    """
    overrides = (
        f"model.name={workload.model}",
        f"model.image_size={workload.image_size}",
        f"batch.global_size={ranks * workload.batch}",
        *options.overrides,
    )
    bound = _least_of_processors if shares_processors else None
    return Job(f"{ranks} ranks", "imagenet-smoke", options.cluster, overrides, bound, ranks)


def _least_of_processors(_: Job, _transfer: Transfer, none: Figures, serial: Figures) -> float:
    """Return the time for which all processors together would do nothing but what communication takes of them."""
    return max(0.0, serial["processor_ms"] - none["processor_ms"]) / len(os.sched_getaffinity(0))


@dataclass(frozen=True)
class TimedRanks:
    """Ranks that wait as long as a described GPU computes, and what they stand for.

    Attributes:
        job: The job, over the network as it is.
        backward_s: The backward pass, as long as the ranks wait for it.
        sent_bytes: What all buckets together weigh on a rank.
        speed: Seconds of the described GPU for each second of a rank.
        precision: Number type of the gradients.
    """

    job: Job
    backward_s: float
    sent_bytes: int
    speed: float
    precision: str

    def over_backward(self) -> "Job":
        """Return the job over the link on which communication takes as long as backward."""
        sent = ring_bytes(self.sent_bytes, self.job.ranks)
        return self.job.over(sent / self.backward_s, "communication as long as backward")

    def over_described(self, link_bytes_per_s: float, name: str) -> "Job":
        """Return the job over a link of the described machine, slower as its compute is, and its gradients short."""
        return self.job.over(link_bytes_per_s * self.speed / SHRINK, name)


def timed_ranks(options: OverlapOptions, workload: Workload, ranks: int, folder: Path, backward_s: float) -> TimedRanks:
    """Describe ranks that wait, write their config into a folder, and return both.

    Args:
        options: Has the described machine and the user's changes of it.
        workload: What each rank stands for.
        ranks: Number of ranks, all on this machine.
        folder: An existing folder.
        backward_s: How long a backward pass takes in the ranks.

    Raises:
        UserError: The simulator does not know the described machine, or the recipe does not fit it.
    """
    sizes = (f"model.name={workload.model}", f"model.image_size={workload.image_size}")
    place = (
        *sizes,
        "cluster.num_nodes=1",
        f"cluster.ranks_per_node={ranks}",
        f"batch.global_size={ranks * workload.batch}",
    )
    described = load_both("imagenet-b256", options.described, (*place, *options.overrides))
    recipe, cluster = rehearsed_run(*described, Course(SHRINK), ranks=ranks)
    assert cluster.rehearsal is not None
    ends_s = cluster.rehearsal.waits.gradients_s
    speed, cycle_ms = max(ends_s) / backward_s, CYCLE_MS_PER_RANK * ranks
    cluster = cluster.model_copy(
        update={
            "rehearsal": cluster.rehearsal.model_copy(update={"speed": speed}),
            "communication": cluster.communication.model_copy(update={"cycle_time_ms": cycle_ms}),
        }
    )
    config = folder / f"ranks-{ranks}.yaml"
    config.write_text(dump(recipe, cluster), encoding="utf-8")
    precision = cluster.engine.precision
    parameters, width = network_of(recipe.model).parameters, 4 if precision == "float32" else 2
    sizes_bytes, apart = gradient_bytes(parameters, width), float32_gradients(parameters, width)

    def least_exposed_ms(job: Job, transfer: Transfer, _none: Figures, _serial: Figures) -> float:
        assert job.link_bytes_per_s is not None
        ready_ms = [1e3 * end_s / speed for end_s in ends_s]
        sent_ms = 1e3 * ring_bytes(sum(sizes_bytes) / SHRINK, ranks) / job.link_bytes_per_s
        return exposed_ms(transfer.buckets(sizes_bytes, apart).order, ready_ms, sizes_bytes, sent_ms)

    job = Job(f"{ranks} ranks", str(config), str(config), (), least_exposed_ms, ranks)
    return TimedRanks(job, backward_s, sum(sizes_bytes) // SHRINK, speed, precision)


def exposed_ms(
    order: Sequence[Sequence[int]], ready_ms: Sequence[float], sizes_bytes: Sequence[int], sent_ms: float
) -> float:
    """Return what a link that is never idle without need leaves exposed: it sends each bucket when that is complete.

    Args:
        order: The buckets, as indices of gradients, in the order in which they are sent.
        ready_ms: When each gradient is computed, since backward began.
        sizes_bytes: Size of each gradient.
        sent_ms: How long the link takes for all gradients.
    """
    end_ms = 0.0
    for bucket in order:
        share = sum(sizes_bytes[index] for index in bucket) / sum(sizes_bytes)
        end_ms = max(end_ms, *(ready_ms[index] for index in bucket)) + share * sent_ms
    return end_ms - max(ready_ms)


def ring_bytes(total_bytes: float, ranks: int) -> float:
    """Return what each rank sends to sum ``total_bytes`` in a ring."""
    return total_bytes * 2 * (ranks - 1) / ranks
