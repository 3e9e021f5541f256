"""How much of the communication a step hides behind backward, over a link of a chosen speed, and under which settings.

With timed compute, ranks wait as long as a described GPU computes, layer by layer, and send real gradients in real
buckets: what is hidden then depends on the program and on its library, and not on the processors that two cores lack.
With real compute, ranks train, on processors that also have to send and to sum.
"""

import logging
import math
import tempfile
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING

from configs.errors import UserError
from configs.registry import communicators_of
from train.bench.measure import BenchRow, Report, make_report, summarize
from train.bench.options import Bench, PlaceOptions, effort, is_local_cpu, option
from train.bench.samples import Figures
from train.comm.buckets import BucketPlan, plan_buckets, plan_reductions
from train.networks.arch import build_network, gradient_bytes

if TYPE_CHECKING:
    from configs.schema import Cluster
    from train.bench.launching import Jobs
    from train.bench.overlap_jobs import Job

logger = logging.getLogger(__name__)

NONE, SERIAL, OVERLAPPED = "none", "serial", "overlapped"

_WARMUP = 1
_BUCKETS = (256 << 10, 1 << 20, 4 << 20, 1 << 30)
_DEFERRED = 0.3
_SETTINGS = ("cluster.engine.update_groups=1", "cluster.engine.backward_bulk_nodes=15")
"""Settings that are fixed when a process starts; each one replaces that of the cluster file."""
_BACKWARD, _DOUBLING = "backward", "doubling"
_TIMED_RANKS = (2, 4, 8)
_ENOUGH, _WIDEST = 0.8, 0.1
"""The question of a hidden fraction: is it at least this, by an interval no wider than this?"""
_NOTES = (
    "a bucket is named by its largest size; the last layer goes first; settings beside the link replace those of the "
    "cluster file",
    "exposed: the step minus the step without communication; hidden: the share of serial's exposed time that is not "
    f"exposed; its verdict needs an interval of at most {_WIDEST}",
)


@dataclass(frozen=True)
class OverlapOptions(PlaceOptions):
    """The options of ``bench overlap``."""

    compute: str | None = option(
        "timed: ranks on this CPU sleep as long as a described GPU computes; real: ranks train (default: timed; real "
        "on a cluster that is more than one machine's CPU)",
        choices=("timed", "real"),
    )
    model: str | None = option(
        "a network of train.networks.arch (default: timed: resnet50, 224 px, batch 42; real: resnet18, 64 px, "
        "batch 16)",
        metavar="M",
    )
    image_size: int | None = option("side of an image", metavar="PX", type=int)
    batch: int | None = option("images per rank", metavar="N", type=int)
    described: str = option("timed: the cluster that has the GPU", "abci-v100", metavar="C")
    ranks: Sequence[int] | None = option(
        "timed: ranks on this machine (default: 2 4 8)", metavar="N", type=int, nargs="+"
    )
    rounds: int | None = effort("measured rounds", quick=5, usual=None, thorough=40, default="timed 15, real 7")
    steps: int | None = option("steps of a sample (default: 1)", metavar="N", type=int)
    links: Sequence[str] | None = option(
        "Gb/s in each direction. timed: of the described machine, or backward, the speed at which communication "
        "takes as long as backward (default: backward); real: or doubling, the speed at which communication after "
        "backward makes a step take twice as long (default: doubling 1 10; on another cluster, its own network)",
        metavar="GBPS",
        nargs="*",
    )
    no_sweep: bool = option("measure the links only, without the other settings", False, action="store_true")


@dataclass(frozen=True)
class Workload:
    """What each rank computes, and how often it is measured.

    Attributes:
        model: A network of `train.networks.arch`.
        image_size: Side of an image, px.
        batch: Images a rank.
        rounds: Rounds that count.
        steps: Steps of a sample.
    """

    model: str
    image_size: int
    batch: int
    rounds: int
    steps: int = 1

    def changed_by(self, options: OverlapOptions) -> "Workload":
        """Return the workload with what the options set."""
        given = {name: getattr(options, name) for name in ("model", "image_size", "batch", "rounds", "steps")}
        return replace(self, **{name: value for name, value in given.items() if value is not None})


_USUAL = {"timed": Workload("resnet50", 224, 42, 15), "real": Workload("resnet18", 64, 16, 7)}


@dataclass(frozen=True)
class Transfer:
    """When and how the gradients are reduced.

    Attributes:
        when: Never (``none``), after backward has ended (``serial``) or during backward (``overlapped``).
        bucket_bytes: Largest size of one reduction.
        order: The layer with the first bucket: the ``last`` layer of the network, or the ``first``.
        wire: Data type of the numbers sent.
        deferred: Share of the bytes that is reduced after the gradients of the first layers
            (`train.comm.buckets.plan_reductions`).
    """

    when: str
    bucket_bytes: int = 1 << 20
    order: str = "last"
    wire: str = "float32"
    deferred: float = 0.0

    @property
    def name(self) -> str:
        """Return the text that `parse` reads."""
        return ":".join([self.when, str(self.bucket_bytes), self.order, self.wire, f"{self.deferred:g}"])

    @property
    def title(self) -> str:
        """Return the name in the table; defaults are left out."""
        if self.when == NONE:
            return NONE
        order = "" if self.order == "last" else ", first layer first"
        wire = "" if self.wire == "float32" else f", {self.wire}"
        deferred = f", {self.deferred:.0%} deferred" if self.deferred else ""
        return f"{self.when} {self.bucket_bytes >> 10} KiB{order}{wire}{deferred}"

    @classmethod
    def parse(cls, text: str) -> "Transfer":
        """Return the transfer of the text ``when:bucket_bytes:order:wire:deferred``."""
        when, bucket_bytes, order, wire, deferred = text.split(":")
        return cls(when, int(bucket_bytes), order, wire, float(deferred))

    def buckets(self, sizes: Sequence[int], apart: Collection[int] = ()) -> BucketPlan:
        """Return the buckets for gradients of these sizes in bytes; see `plan_reductions` for ``apart``."""
        if self.order == "last":
            return plan_reductions(sizes, self.bucket_bytes, self.deferred, apart)
        mirrored = plan_buckets(sizes[::-1], self.bucket_bytes)
        return BucketPlan(tuple(tuple(len(sizes) - 1 - index for index in bucket) for bucket in mirrored))


def measure(options: OverlapOptions, jobs: "Jobs", backward_s: float = 0.5) -> Report:
    """See `train.bench.options.Bench`.

    ``backward_s`` is how long a backward pass takes in timed ranks; what two cores do for eight ranks takes a small
    part of the default.
    """
    from configs.load import load_cluster

    cluster = load_cluster(options.cluster, () if options.compute == "timed" else options.overrides)
    compute = options.compute or ("timed" if is_local_cpu(cluster) else "real")
    workload = _USUAL[compute].changed_by(options)
    if compute == "real":
        return _measure_real(options, workload, cluster, jobs)
    if not is_local_cpu(cluster):
        raise UserError(
            f"--compute timed: got --cluster {cluster.name}, allowed: laptop, or no --cluster: the ranks sleep on "
            "this machine's CPU; --described names the machine that they imitate"
        )
    return _measure_timed(options, workload, jobs, backward_s)


BENCH = Bench(
    "share of the communication that a step hides behind the backward pass, with timed or real compute, by link speed",
    OverlapOptions,
    measure,
    needs="mxnet",
)


def _measure_timed(options: OverlapOptions, workload: Workload, jobs: "Jobs", backward_s: float) -> Report:
    """Measure ranks that wait as long as a described GPU computes."""
    from configs.load import load_cluster
    from train.bench.overlap_jobs import CYCLE_MS_PER_RANK, SHRINK, timed_ranks

    counts = options.ranks or _TIMED_RANKS
    if min(counts) < 2:  # noqa: PLR2004 (one rank sends nothing)
        raise UserError(f"--ranks {min(counts)}: allowed: two ranks or more, because one rank sends nothing")
    links = [_bits_per_s(link, _BACKWARD) for link in options.links or [_BACKWARD]]
    caps = sorted({_BUCKETS[2], load_cluster(options.described, options.overrides).communication.bucket_bytes})
    transfers = [Transfer(NONE), Transfer(SERIAL, caps[0]), *(Transfer(OVERLAPPED, cap) for cap in caps)]
    others = [Transfer(OVERLAPPED, cap) for cap in _BUCKETS[1:] if cap not in caps]
    others.append(Transfer(OVERLAPPED, caps[0], order="first"))
    rows: list[BenchRow] = []
    with tempfile.TemporaryDirectory(prefix="bench-overlap-") as folder:
        for ranks in counts:
            timed = timed_ranks(options, workload, ranks, Path(folder), backward_s)
            for link in links:
                job = timed.over_backward() if link is None else timed.over_described(link / 8, _title(link))
                is_swept = ranks == counts[0] and link is None and not options.no_sweep
                wanted = [*transfers, *(others if is_swept else ())]
                rows += _compare(job, wanted, workload, jobs, backward_s)[0]
    notes = [
        f"timed: {workload.model} at {workload.image_size} px, batch {workload.batch} a rank, {timed.precision}, on a "
        f"GPU of {options.described}, {1 / timed.speed:.3g} times slower; gradients are {SHRINK} times shorter, "
        "and the link is slower so that communication keeps its share of a step",
        *_NOTES,
        "hidden_bound: what can be hidden at most, because a bucket leaves when its last gradient is computed; the "
        f"rest is the library's: it looks for gradients every {CYCLE_MS_PER_RANK:g} ms times the ranks, sends "
        "messages one after another, and uses CPU time",
    ]
    return make_report(rows, notes)


def _measure_real(options: OverlapOptions, workload: Workload, cluster: "Cluster", jobs: "Jobs") -> Report:
    """Measure ranks that train."""
    from train.bench.overlap_jobs import real_job, ring_bytes

    ranks = cluster.world_size
    if options.ranks:
        raise UserError("--ranks: allowed: with --compute timed; real ranks are the cluster's (cluster.ranks_per_node)")
    if ranks == 1:
        raise UserError(f"--cluster: got {cluster.name} with one rank, which sends nothing; allowed: two ranks or more")
    if options.links and not is_local_cpu(cluster):
        raise UserError(
            f"--links: got {' '.join(options.links)}, allowed: none on {cluster.name}, whose network is real"
        )
    usual = (_DOUBLING, "1", "10") if is_local_cpu(cluster) else ()
    links = [_bits_per_s(link, _DOUBLING) for link in (usual if options.links is None else options.links)]
    table = build_network(workload.model, num_classes=1000, image_size=workload.image_size)
    total_bytes = sum(gradient_bytes(table.parameters, 4))
    overlapped = Transfer(OVERLAPPED, _BUCKETS[1])
    deferring = replace(overlapped, deferred=_DEFERRED)
    transfers = (Transfer(NONE), Transfer(SERIAL, _BUCKETS[2]), overlapped, deferring)
    plain = real_job(options, workload, ranks, shares_processors=is_local_cpu(cluster))
    rows, alone_s = _compare(plain.over(None, "network as it is"), transfers[:3], workload, jobs)
    # What ranks sum in shared memory passes no link.
    sends = communicators_of(cluster.engine.name)[0]
    settings = [f"cluster.communication.kind={sends}"] if cluster.communication.kind == "shared_memory" else []
    for link in links:
        bits_per_s = link or 8 * ring_bytes(total_bytes, ranks) / alone_s
        job = plain.over(bits_per_s / 8, _title(bits_per_s), *settings)
        if link is not None or options.no_sweep:
            rows += _compare(job, transfers, workload, jobs)[0]
            continue
        rows += _compare(job, (*transfers, *_other_transfers(overlapped, deferring)), workload, jobs)[0]
        for setting in _SETTINGS:
            rows += _compare(job.setting(setting), transfers[:3], workload, jobs)[0]
    notes = [
        f"{ranks} ranks; {workload.model} at {workload.image_size} px, batch {workload.batch}, gradients of "
        f"{total_bytes / 1e6:.1f} MB",
        *_NOTES,
    ]
    if plain.least_exposed_ms:
        notes.append(
            "hidden_bound: what can be hidden at most if the ranks' cores also send and sum: processor_ms of serial "
            "minus that of none, over all cores, stays exposed"
        )
    return make_report(rows, notes)


def _bits_per_s(link: str, word: str) -> float | None:
    """Return the speed that a value of ``--links`` names; None if it is ``word``.

    Raises:
        UserError: The value is neither a number above 0 nor ``word``.
    """
    if link == word:
        return None
    try:
        speed = float(link)
    except ValueError:
        speed = math.nan
    if not speed > 0:
        raise UserError(f"--links {link}: allowed: Gb/s above 0, or {word}")
    return 1e9 * speed


def _title(bits_per_s: float) -> str:
    return f"{bits_per_s / 1e9:.3g} Gb/s"


def _other_transfers(overlapped: Transfer, deferring: Transfer) -> list[Transfer]:
    """Return transfers that differ from one of these two in one property each: bucket size, order, number format."""
    sizes = [replace(deferring, bucket_bytes=size) for size in _BUCKETS if size != overlapped.bucket_bytes]
    return [*sizes, replace(overlapped, order="first"), replace(deferring, wire="float16")]


def _compare(
    job: "Job", transfers: Sequence[Transfer], workload: Workload, jobs: "Jobs", backward_s: float | None = None
) -> tuple[list[BenchRow], float]:
    """Return the rows of a job, and the seconds of a step without communication."""
    logger.info("%s: %s", job.title, "; ".join(transfer.title for transfer in transfers))
    measured = job.run(transfers, workload, jobs)
    none, serial = (next(measured[each] for each in transfers if each.when == when) for when in (NONE, SERIAL))
    rows: list[BenchRow] = []
    for transfer, samples in measured.items():
        rounds = [_figures(job, transfer, each, backward_s) for each in zip(samples, none, serial, strict=True)]
        # A round in which communication after backward costs no time has no hidden_fraction, so no round may have it.
        common = set.intersection(*(set(each) for each in rounds))
        kept = [{figure: each[figure] for figure in each if figure in common} for each in rounds]
        rows += map(_judged, summarize(f"{job.title}: {transfer.title}", kept, _WARMUP))
    return rows, median(sample["step_ms"] for sample in none) / 1e3


def _figures(job: "Job", transfer: Transfer, samples: Sequence[Figures], backward_s: float | None = None) -> Figures:
    """Return the figures of a transfer's sample.

    Args:
        job: Has the bound.
        transfer: The transfer.
        samples: The transfer's sample, and those without communication and with a serial one of the same round.
        backward_s: Time of a backward pass, where it is known.
    """
    own, none, serial = samples
    exposed_ms, serial_ms = own["step_ms"] - none["step_ms"], serial["step_ms"] - none["step_ms"]
    if transfer.when == NONE:
        return own
    figures = {**own, "exposed_ms": exposed_ms}
    if transfer.when == SERIAL:
        return figures if backward_s is None else {**figures, "exposed / backward": serial_ms / 1e3 / backward_s}
    if serial_ms <= 0:
        return figures
    figures["hidden_fraction"] = 1 - exposed_ms / serial_ms
    if job.least_exposed_ms is not None and transfer.wire == "float32":
        figures["hidden_bound"] = 1 - job.least_exposed_ms(job, transfer, none, serial) / serial_ms
    return figures


def _judged(row: BenchRow) -> BenchRow:
    """Return the row with the answer to the question of a hidden fraction."""
    if row.figure != "hidden_fraction":
        return row
    return row.judged(_ENOUGH, below=f"less than {_ENOUGH}", above=f"more than {_ENOUGH}", widest=_WIDEST)
