"""How much of the communication a step hides, over a link of a chosen speed, and which setting hides most."""

from __future__ import annotations

import argparse
import logging
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from statistics import median

from configs.errors import UserError
from configs.programs import Program, command_of
from train.bench.launching import run_ranks
from train.bench.measure import Figures, Report, Row, make_report, summarize
from train.bench.programs.overlap_ours import NONE, OVERLAPPED, SERIAL, Way
from train.bench.samples import samples_of
from train.networks.arch import build_network, gradient_bytes

__all__ = ["PURPOSE", "add_arguments", "measure"]

logger = logging.getLogger(__name__)

PURPOSE = "a step without communication, with it after backward, and beside backward, over a link of a set speed"

_WARMUP = 1
_BUCKETS = (256 << 10, 1 << 20, 4 << 20, 1 << 30)
_DEFERRED = 0.3
_SETTINGS = ("engine.update_groups=1", "engine.backward_bulk_nodes=15")
"""Fixed when a process starts; each in place of the laptop's."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """See `Bench`."""
    parser.add_argument("--model", default="resnet18", help="a network of train.networks.arch (default: %(default)s)")
    parser.add_argument("--image-size", metavar="PX", type=int, default=64)
    parser.add_argument("--batch", metavar="N", type=int, default=16, help="images a rank (default: %(default)s)")
    parser.add_argument("--rounds", metavar="N", type=int, default=3, help="rounds that count (default: %(default)s)")
    parser.add_argument("--steps", metavar="N", type=int, default=2, help="steps of a sample (default: %(default)s)")
    parser.add_argument(
        "--links", metavar="GBPS", nargs="*", default=["doubling", "1", "10"],
        help="Gb/s each way; doubling: at which communication after backward doubles the step (default: all three)",
    )  # fmt: skip
    parser.add_argument("--no-sweep", action="store_true", help="only the links, not what else can be set")


@dataclass(frozen=True)
class _Job:
    """Two ranks over one link with one environment."""

    options: argparse.Namespace
    bits_per_s: float | None = None
    settings: tuple[str, ...] = ()

    def run(self, ways: Sequence[Way]) -> dict[Way, list[Figures]]:
        """Measure ``ways`` in turn, within one pair of ranks."""
        options = self.options
        logger.info("%s: %s", self.title, "; ".join(way.title for way in ways))
        recipe = [f"model.name={options.model}", f"model.image_size={options.image_size}",
                  f"batch.global_size={2 * options.batch}"]  # fmt: skip
        words = [word for override in (*recipe, *self.settings) for word in ("--set", override)]
        words += ["--rounds", str(options.rounds), "--steps", str(options.steps), *(way.name for way in ways)]
        said = run_ranks(command_of(Program.OVERLAP_OURS, *words), overrides=(*self.settings, *self._link))
        return {Way.parse(name): samples for name, samples in samples_of(said).items()}

    @property
    def _link(self) -> tuple[str, ...]:
        return () if self.bits_per_s is None else (f"cluster.communication.link_bytes_per_s={self.bits_per_s / 8:g}",)

    @property
    def title(self) -> str:
        """Name the link and what is not as the laptop's file says."""
        link = "loopback as it is" if self.bits_per_s is None else f"{self.bits_per_s / 1e9:.3g} Gb/s"
        return " ".join([link, *(setting.split(".", 2)[2] for setting in self.settings)])


def measure(options: argparse.Namespace) -> Report:
    """See `Bench`."""
    links = [_bits_per_s(link) for link in options.links]
    table = build_network(options.model, num_classes=1000, image_size=options.image_size)
    total_bytes = sum(gradient_bytes(table.parameters, 4))
    plain = Way(OVERLAPPED, _BUCKETS[1])
    deferring = replace(plain, deferred=_DEFERRED)
    ways = (Way(NONE), Way(SERIAL, _BUCKETS[2]), plain, deferring)
    rows, alone_s = _measure(_Job(options), ways[:3])
    for link in links:
        # In a ring of two, each rank sends all of the gradients once.
        job = _Job(options, link or 8 * total_bytes / alone_s)
        sweeps = link is None and not options.no_sweep
        rows += _measure(job, (*ways, *_other_ways(plain, deferring)) if sweeps else ways)[0]
        if sweeps:
            rows += [row for each in _other_settings(job) for row in _measure(each, ways[:3])[0]]
    return make_report(rows, [
        f"two ranks of one thread; {options.model} at {options.image_size} px, batch {options.batch}, gradients of "
        f"{total_bytes / 1e6:.1f} MB",
        "buckets by their cap, last layer first; as the laptop's file says, save what is named beside the link",
        "exposed: step minus the step without communication; hidden: the part of serial's that is not exposed",
    ])  # fmt: skip


def _bits_per_s(link: str) -> float | None:
    """Read a link's speed; none: as fast as makes communication after backward double the step."""
    if link == "doubling":
        return None
    try:
        speed = float(link)
    except ValueError:
        speed = math.nan
    if not speed > 0:
        raise UserError(f"--links {link}: Gb/s above 0, or doubling")
    return 1e9 * speed


def _other_ways(plain: Way, deferring: Way) -> list[Way]:
    """Vary one thing at a time."""
    sizes = [replace(deferring, bucket_bytes=size) for size in _BUCKETS if size != plain.bucket_bytes]
    return [*sizes, replace(plain, order="first"), replace(deferring, wire="float16")]


def _other_settings(job: _Job) -> Iterator[_Job]:
    """Vary what is fixed when a process starts."""
    for setting in _SETTINGS:
        yield replace(job, settings=(f"cluster.{setting}",))


def _measure(job: _Job, ways: Sequence[Way]) -> tuple[list[Row], float]:
    """Give a job's rows, and the seconds of a step without communication."""
    measured = job.run(ways)
    none, serial = (next(measured[way] for way in ways if way.when == when) for when in (NONE, SERIAL))
    rows = []
    for way, samples in measured.items():
        rounds = [_figures(way, *each) for each in zip(samples, none, serial, strict=True)]
        # Where communication after backward costs nothing, there is nothing to hide.
        told = set.intersection(*(set(each) for each in rounds))
        shared = [{figure: each[figure] for figure in each if figure in told} for each in rounds]
        rows += summarize(f"{job.title}: {way.title}", shared, _WARMUP)
    return rows, median(sample["step_ms"] for sample in none) / 1e3


def _figures(way: Way, own: Figures, none: Figures, serial: Figures) -> Figures:
    """Compare a sample with those of the same round."""
    exposed_ms, serial_ms = own["step_ms"] - none["step_ms"], serial["step_ms"] - none["step_ms"]
    if way.when == NONE:
        return own
    if way.when == SERIAL or serial_ms <= 0:
        return {**own, "exposed_ms": exposed_ms}
    return {**own, "exposed_ms": exposed_ms, "hidden_fraction": 1 - exposed_ms / serial_ms}
