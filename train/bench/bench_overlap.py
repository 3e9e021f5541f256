"""How much of the communication a step hides behind backward, over a link on which both take as long.

Ranks wait as long as a described GPU computes, layer by layer, and send real gradients in real buckets: what is hidden
then depends on the program and on its library, and not on the processors that two cores lack.
"""

import logging
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from configs.arguments import option
from configs.errors import UserError
from train.bench.measure import COUNT, Bench, BenchRow, PlaceOptions, Report, effort, summarize
from train.comm.buckets import BucketPlan, plan_reductions
from train.networks.arch import float32_gradients, gradient_bytes, network_of

if TYPE_CHECKING:
    from configs.schema import Cluster, Recipe
    from train.bench.launching import Jobs

logger = logging.getLogger(__name__)

NONE, SERIAL = 0, 1 << 40
"""Bytes of a bucket: without communication; and with one bucket, which is complete when backward has ended."""

_RECIPE, _BATCH = "imagenet-b256", 42
"""What is described, and the images of a rank."""
_BUCKET_BYTES = 4 << 20
_SHRINK = 8
"""Factor by which gradients of the ranks are shorter, so that sending and summing takes few processors."""
_CYCLE_MS_PER_RANK = 4.0
"""Interval at which the ranks look for gradients, per rank. Looking is most of what they do: at 4, 8 and 16 ms, a step
of 4 ranks without communication took 447, 335 and 205 ms of two processors, and 0.92, 0.93 and 0.93 was hidden."""


@dataclass(frozen=True)
class OverlapBench(PlaceOptions, Bench):
    """See `train.bench.measure.Bench`."""

    question = "share of the communication that a step hides behind the backward pass of a described GPU"
    needs = "mxnet"
    usual_cluster = "abci-v100"

    ranks: Sequence[int] = option("ranks on this machine", (2, 4, 8), metavar="N", type=COUNT, nargs="+")
    rounds: int = effort("measured rounds", quick=5, usual=15, thorough=40)

    def measure(self, jobs: "Jobs", backward_s: float = 0.5) -> Report:
        """See `train.bench.measure.Bench`.

        ``backward_s`` is how long a backward pass takes in the ranks; what two cores do for eight ranks takes a small
        part of the default.
        """
        from configs.load import load_both
        from train.rehearse.rehearsed_run import rehearsed_run

        if min(self.ranks) < 2:  # noqa: PLR2004 (one rank sends nothing)
            raise UserError(f"--ranks {min(self.ranks)}: allowed: two ranks or more, because one rank sends nothing")
        rows: list[BenchRow] = []
        for ranks in self.ranks:
            place = ("cluster.num_nodes=1", f"cluster.ranks_per_node={ranks}", f"batch.global_size={ranks * _BATCH}")
            recipe, described = load_both(_RECIPE, self.cluster, (*place, *self.overrides))
            recipe, cluster = rehearsed_run(recipe, described, {"shrink": _SHRINK}, ranks=ranks)
            rows += self._compare(described, recipe, cluster, backward_s, jobs)
        notes = [
            f"{recipe.model.name} at {recipe.model.image_size} px, batch {_BATCH} a rank, "
            f"{described.engine.precision}, on a GPU of {self.cluster}, "
            f"{backward_s / _backward_s(cluster):.3g} times slower; gradients are {_SHRINK} times shorter, and the "
            "link is so slow that communication takes as long as backward",
            "serial: one bucket; another one is named by its largest size, and the last layer goes first",
            "exposed: the step minus the step without communication; hidden: the share of serial's exposed time that "
            "is not exposed. All of it cannot be hidden, because a bucket leaves when its last gradient is computed; "
            f"the library looks for gradients every {_CYCLE_MS_PER_RANK:g} ms times the ranks, sends messages one "
            "after another, and uses CPU time",
        ]
        return Report(rows, notes)

    def _compare(
        self, described: "Cluster", recipe: "Recipe", cluster: "Cluster", backward_s: float, jobs: "Jobs"
    ) -> list[BenchRow]:
        """Start the ranks once, and return the rows of every transfer."""
        from configs.load import dump

        ranks = cluster.world_size
        title = f"{ranks} ranks"
        transfers = [NONE, SERIAL, *sorted({_BUCKET_BYTES, described.communication.bucket_bytes})]
        logger.info("%s: %s", title, "; ".join(map(_title, transfers)))
        speed = _backward_s(cluster) / backward_s
        sizes_bytes, _ = plan_buckets(recipe, cluster, SERIAL)
        # In a ring.
        sent_bytes = sum(sizes_bytes) / _SHRINK * 2 * (ranks - 1) / ranks
        place = [
            f"cluster.rehearsal.speed={speed!r}",
            f"cluster.communication.cycle_time_ms={_CYCLE_MS_PER_RANK * ranks}",
            f"cluster.communication.link_bytes_per_s={sent_bytes / backward_s:g}",
        ]
        with tempfile.TemporaryDirectory(prefix="bench-overlap-") as folder:
            config = Path(folder, "config.yaml")
            config.write_text(dump(recipe, cluster), encoding="utf-8")
            shape = {"rounds": self.rounds, "buckets_bytes": transfers}
            found = jobs.ranks("steps.overlap", {"cluster": str(config), "overrides": place, **shape}).samples
        none, *others = ([each["step_ms"] for each in found[str(index)]] for index in range(len(transfers)))
        rows = summarize(f"{title}: none", [{"step_ms": step_ms} for step_ms in none])
        for bucket_bytes, own in zip(transfers[1:], others, strict=True):
            rows += summarize(f"{title}: {_title(bucket_bytes)}", figures(own, none, others[0], backward_s))
        return rows


def _backward_s(cluster: "Cluster") -> float:
    """Return when the described GPU has computed the last gradient, since backward began."""
    assert cluster.rehearsal is not None
    return max(cluster.rehearsal.waits.gradients_s)


def plan_buckets(recipe: "Recipe", cluster: "Cluster", bucket_bytes: int) -> tuple[Sequence[int], BucketPlan]:
    """Return the sizes of a network's gradients, and the buckets of at most so many bytes."""
    width = 4 if cluster.engine.precision == "float32" else 2
    parameters = network_of(recipe.model).parameters
    sizes_bytes = gradient_bytes(parameters, width)
    return sizes_bytes, plan_reductions(sizes_bytes, bucket_bytes, 0.0, float32_gradients(parameters, width))


def _title(bucket_bytes: int) -> str:
    return {NONE: "none", SERIAL: "serial"}.get(bucket_bytes) or f"overlapped {bucket_bytes >> 10} KiB"


def figures(
    own_ms: Sequence[float], none_ms: Sequence[float], serial_ms: Sequence[float], backward_s: float
) -> list[dict[str, float]]:
    """Return the figures of each round of a transfer, from the steps of the same round.

    Args:
        own_ms: The steps with the transfer.
        none_ms: Those without communication.
        serial_ms: Those of communication after backward.
        backward_s: Time of a backward pass.
    """
    rounds = []
    for step_ms, without_ms, late_ms in zip(own_ms, none_ms, serial_ms, strict=True):
        exposed_ms, cost_ms = step_ms - without_ms, late_ms - without_ms
        each = {"step_ms": step_ms, "exposed_ms": exposed_ms, "exposed / backward": exposed_ms / 1e3 / backward_s}
        rounds.append(each | ({"hidden_fraction": 1 - exposed_ms / cost_ms} if cost_ms > 0 else {}))
    # A round in which communication after backward costs no time has no share of it, so no round may have one.
    shared = set.intersection(*map(set, rounds))
    return [{name: each[name] for name in each if name in shared} for each in rounds]
