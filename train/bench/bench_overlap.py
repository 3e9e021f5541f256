"""How much of the communication a step hides behind backward, over a link of a chosen speed, and under which settings.

`train.bench.bench_options` has the question and the options.
"""

from __future__ import annotations

import argparse
import logging
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import median

from configs.errors import UserError
from configs.load import load_cluster
from configs.programs import Program, command_of
from train.bench.launching import is_local_cpu, run_ranks
from train.bench.measure import BenchRow, Figures, Report, make_report, summarize
from train.bench.programs.overlap_ours import NONE, OVERLAPPED, SERIAL, Transfer
from train.bench.samples import read_samples
from train.networks.arch import build_network, gradient_bytes

__all__ = ["measure"]

logger = logging.getLogger(__name__)

_WARMUP = 1
_BUCKETS = (256 << 10, 1 << 20, 4 << 20, 1 << 30)
_DEFERRED = 0.3
_SETTINGS = ("engine.update_groups=1", "engine.backward_bulk_nodes=15")
"""Settings that are fixed when a process starts; each one replaces that of the cluster file."""


@dataclass(frozen=True)
class _LinkJob:
    """A job over one link, with one set of settings.

    Attributes:
        options: The command line.
        ranks: Number of ranks.
        bits_per_s: Speed of the link in each direction; if None, the network as it is.
        settings: Overrides of the cluster, each ``cluster.key=value``.
    """

    options: argparse.Namespace
    ranks: int
    bits_per_s: float | None = None
    settings: tuple[str, ...] = ()

    def run(self, transfers: Sequence[Transfer]) -> dict[Transfer, list[Figures]]:
        """Measure all transfers in turn with one start of the ranks, and return the samples of each."""
        options = self.options
        logger.info("%s: %s", self.title, "; ".join(transfer.title for transfer in transfers))
        recipe = [
            f"model.name={options.model}",
            f"model.image_size={options.image_size}",
            f"batch.global_size={self.ranks * options.batch}",
        ]
        place = (*options.overrides, *self.settings)
        words = ["--cluster", options.cluster]
        words += [word for override in (*recipe, *place) for word in ("--set", override)]
        words += ["--rounds", str(options.rounds), "--steps", str(options.steps)]
        words += [transfer.name for transfer in transfers]
        command = command_of(Program.OVERLAP_OURS, *words)
        output = run_ranks(command, cluster=options.cluster, overrides=(*place, *self._link))
        return {Transfer.parse(name): samples for name, samples in read_samples(output).items()}

    @property
    def _link(self) -> tuple[str, ...]:
        return () if self.bits_per_s is None else (f"cluster.communication.link_bytes_per_s={self.bits_per_s / 8:g}",)

    @property
    def title(self) -> str:
        """Name the link, and the settings that differ from the cluster file."""
        link = "network as it is" if self.bits_per_s is None else f"{self.bits_per_s / 1e9:.3g} Gb/s"
        return " ".join([link, *(setting.split(".", 2)[2] for setting in self.settings)])


def measure(options: argparse.Namespace) -> Report:
    """See `Bench`."""
    cluster = load_cluster(options.cluster, options.overrides)
    ranks = cluster.world_size
    if ranks == 1:
        raise UserError(f"--cluster: got {cluster.name} with one rank, which sends nothing; allowed: two ranks or more")
    if options.links and not is_local_cpu(cluster):
        raise UserError(
            f"--links: got {' '.join(options.links)}, allowed: none on {cluster.name}, whose network is real"
        )
    usual = ("doubling", "1", "10") if is_local_cpu(cluster) else ()
    links = [_bits_per_s(link) for link in (usual if options.links is None else options.links)]
    table = build_network(options.model, num_classes=1000, image_size=options.image_size)
    total_bytes = sum(gradient_bytes(table.parameters, 4))
    overlapped = Transfer(OVERLAPPED, _BUCKETS[1])
    deferring = replace(overlapped, deferred=_DEFERRED)
    transfers = (Transfer(NONE), Transfer(SERIAL, _BUCKETS[2]), overlapped, deferring)
    rows, alone_s = _measure(_LinkJob(options, ranks), transfers[:3])
    for link in links:
        # In a ring of n ranks, each rank sends 2 (n - 1) / n of the gradients' bytes. At the speed of `doubling`, that
        # takes as long as a step without communication.
        job = _LinkJob(options, ranks, link or 8 * total_bytes * 2 * (ranks - 1) / ranks / alone_s)
        if link is not None or options.no_sweep:
            rows += _measure(job, transfers)[0]
            continue
        rows += _measure(job, (*transfers, *_other_transfers(overlapped, deferring)))[0]
        for setting in _SETTINGS:
            rows += _measure(replace(job, settings=(f"cluster.{setting}",)), transfers[:3])[0]
    notes = [
        f"{ranks} ranks; {options.model} at {options.image_size} px, batch {options.batch}, gradients of "
        f"{total_bytes / 1e6:.1f} MB",
        "a bucket is named by its largest size; the last layer goes first; settings beside the link replace those of "
        "the cluster file",
        "exposed: the step minus the step without communication; hidden: the share of serial's exposed time that is "
        "not exposed",
    ]
    return make_report(rows, notes)


def _bits_per_s(link: str) -> float | None:
    """Return the speed that a value of ``--links`` names; None if it is ``doubling``.

    Raises:
        UserError: The value is neither a number above 0 nor ``doubling``.
    """
    if link == "doubling":
        return None
    try:
        speed = float(link)
    except ValueError:
        speed = math.nan
    if not speed > 0:
        raise UserError(f"--links {link}: allowed: Gb/s above 0, or doubling")
    return 1e9 * speed


def _other_transfers(overlapped: Transfer, deferring: Transfer) -> list[Transfer]:
    """Return transfers that differ from one of these two in one property each: bucket size, order, number format."""
    sizes = [replace(deferring, bucket_bytes=size) for size in _BUCKETS if size != overlapped.bucket_bytes]
    return [*sizes, replace(overlapped, order="first"), replace(deferring, wire="float16")]


def _measure(job: _LinkJob, transfers: Sequence[Transfer]) -> tuple[list[BenchRow], float]:
    """Return the rows of a job, and the seconds of a step without communication."""
    measured = job.run(transfers)
    none, serial = (next(measured[each] for each in transfers if each.when == when) for when in (NONE, SERIAL))
    rows = []
    for transfer, samples in measured.items():
        rounds = [_figures(transfer, *each) for each in zip(samples, none, serial, strict=True)]
        # A round in which communication after backward costs no time has no hidden_fraction, so no round may have it.
        common = set.intersection(*(set(each) for each in rounds))
        kept = [{figure: each[figure] for figure in each if figure in common} for each in rounds]
        rows += summarize(f"{job.title}: {transfer.title}", kept, _WARMUP)
    return rows, median(sample["step_ms"] for sample in none) / 1e3


def _figures(transfer: Transfer, own: Figures, none: Figures, serial: Figures) -> Figures:
    """Return the figures of a sample, computed with the samples of the same round without communication and serial."""
    exposed_ms, serial_ms = own["step_ms"] - none["step_ms"], serial["step_ms"] - none["step_ms"]
    if transfer.when == NONE:
        return own
    if transfer.when == SERIAL or serial_ms <= 0:
        return {**own, "exposed_ms": exposed_ms}
    return {**own, "exposed_ms": exposed_ms, "hidden_fraction": 1 - exposed_ms / serial_ms}
