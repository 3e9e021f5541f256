"""What a training step is made of, and how much of what this machine could do it reaches."""

from __future__ import annotations

import argparse
import logging
from collections import defaultdict
from dataclasses import dataclass

from configs.errors import UserError
from configs.programs import Program, command_of
from train.bench.launching import run_ranks
from train.bench.measure import Figures, Report, make_report, summarize
from train.bench.samples import samples_of

__all__ = ["PURPOSE", "add_arguments", "measure"]

logger = logging.getLogger(__name__)

PURPOSE = "forward, backward, update, images/s and the share of the measured peak, by network, ranks and threads"

_WARMUP = 1
"""Steps before the first sample of each start."""

_CASES = (
    "resnet50:64:16:2x1", "resnet50:64:32:1x2", "resnet50:64:16:1x1", "resnet50:64:4:2x1",
    "resnet50:224:16:2x1", "resnet18:64:16:2x1", "resnet20:32:32:2x1",
)  # fmt: skip


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """See `Bench`."""
    parser.add_argument(
        "--cases", metavar="CASE", nargs="+", default=_CASES,
        help="network:pixels:batch a rank:ranks x threads of each, as resnet50:64:16:2x1",
    )  # fmt: skip
    parser.add_argument("--rounds", metavar="N", type=int, default=2, help="starts of each (default: %(default)s)")
    parser.add_argument("--seconds", metavar="S", type=float, default=4, help="of each start (default: %(default)s)")


@dataclass(frozen=True)
class _Case:
    """One network on one part of the machine."""

    model: str
    image_size: int
    batch: int
    ranks: int
    threads: int

    @classmethod
    def parse(cls, text: str) -> _Case:
        try:
            model, image_size, batch, machine = text.split(":")
            ranks, threads = machine.split("x")
            return cls(model, int(image_size), int(batch), int(ranks), int(threads))
        except ValueError:
            raise UserError(f"--cases {text}: network:pixels:batch:ranks x threads, as {_CASES[0]}") from None

    @property
    def title(self) -> str:
        """Write it for people."""
        workers = f"{self.ranks} rank{'s' * (self.ranks > 1)} of {self.threads} thread{'s' * (self.threads > 1)}"
        return f"{self.model}, {self.image_size} px, batch {self.batch}, {workers}"

    def run(self, seconds: float) -> list[Figures]:
        """Start the ranks; gives their samples."""
        overrides = [
            f"model.name={self.model}", f"model.image_size={self.image_size}",
            f"batch.global_size={self.ranks * self.batch}",
            f"cluster.ranks_per_node={self.ranks}", f"cluster.engine.threads={self.threads}",
        ]  # fmt: skip
        words = [word for override in overrides for word in ("--set", override)]
        said = run_ranks(
            command_of(Program.STEP_OURS, *words, "--seconds", str(seconds)),
            overrides=[override for override in overrides if override.startswith("cluster.")],
        )
        return samples_of(said)["step"]


def measure(options: argparse.Namespace) -> Report:
    """See `Bench`."""
    cases = [_Case.parse(text) for text in options.cases]
    measured: dict[_Case, list[Figures]] = defaultdict(list)
    for number in range(options.rounds):
        for case in cases:
            logger.info("round %d of %d: %s", number + 1, options.rounds, case.title)
            measured[case] += case.run(options.seconds)
    rows = [row for case, samples in measured.items() for row in summarize(case.title, samples, _WARMUP)]
    return make_report(rows, [
        "forward, backward and update one after another; step_ms and images_per_s as a run queues them",
        "an image takes 6 operations a multiply-add of train.networks.arch; the peak is what the same ranks and "
        "threads reach in a oneDNN product of float32 matrices of 1536 x 1536",
    ])  # fmt: skip
