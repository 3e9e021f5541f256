"""The times of the parts of a training step, and the share of this machine's peak that a step reaches.

`train.bench.bench_options` has the question and the options.
"""

from __future__ import annotations

import argparse
import logging
from collections import defaultdict
from dataclasses import dataclass

from configs.errors import UserError
from configs.programs import Program, command_of
from train.bench.bench_options import STEP_CASES
from train.bench.launching import run_ranks
from train.bench.measure import Figures, Report, make_report, summarize
from train.bench.samples import read_samples

__all__ = ["measure"]

logger = logging.getLogger(__name__)

_WARMUP = 1
"""Steps before the first sample of each start, as the rows report them."""


@dataclass(frozen=True)
class _StepCase:
    """A network, an image size and a batch on a number of ranks and threads."""

    model: str
    image_size: int
    batch: int
    ranks: int
    threads: int

    @classmethod
    def parse(cls, text: str) -> _StepCase:
        """Return the case of a value of ``--cases``.

        Raises:
            UserError: The value is not of the form network:pixels:batch:ranks x threads.
        """
        try:
            model, image_size, batch, machine = text.split(":")
            ranks, threads = machine.split("x")
            return cls(model, int(image_size), int(batch), int(ranks), int(threads))
        except ValueError:
            raise UserError(
                f"--cases {text}: allowed: network:pixels:batch:ranks x threads, as {STEP_CASES[0]}"
            ) from None

    @property
    def title(self) -> str:
        """Return the name of the case in the table."""
        workers = f"{self.ranks} rank{'s' * (self.ranks > 1)} of {self.threads} thread{'s' * (self.threads > 1)}"
        return f"{self.model}, {self.image_size} px, batch {self.batch}, {workers}"

    def run(self, seconds: float) -> list[Figures]:
        """Start the ranks, and return the samples."""
        overrides = [f"cluster.ranks_per_node={self.ranks}", f"cluster.engine.threads={self.threads}"]
        recipe = [
            f"model.name={self.model}",
            f"model.image_size={self.image_size}",
            f"batch.global_size={self.ranks * self.batch}",
        ]
        words = [word for override in (*recipe, *overrides) for word in ("--set", override)]
        output = run_ranks(command_of(Program.STEP_OURS, *words, "--seconds", str(seconds)), overrides=overrides)
        return read_samples(output)["step"]


def measure(options: argparse.Namespace) -> Report:
    """See `Bench`."""
    cases = [_StepCase.parse(text) for text in options.cases]
    measured: dict[_StepCase, list[Figures]] = defaultdict(list)
    for number in range(options.rounds):
        for case in cases:
            logger.info("round %d of %d: %s", number + 1, options.rounds, case.title)
            measured[case] += case.run(options.seconds)
    rows = [row for case, samples in measured.items() for row in summarize(case.title, samples, _WARMUP)]
    notes = [
        "forward, backward and update: one after another; step_ms and images_per_s: as a run queues them",
        "an image takes 6 operations for each multiply-add of train.networks.arch; the peak is what the same ranks and "
        "threads reach in the engine's product of float32 matrices of 1536 x 1536",
    ]
    return make_report(rows, notes)
