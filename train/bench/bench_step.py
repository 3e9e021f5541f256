"""The times of the parts of a training step, and the share of this machine's peak that a step reaches.

`train.bench.bench_options` has the question and the options.
"""

from __future__ import annotations

import argparse
import logging
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from configs.errors import UserError
from configs.load import load_cluster
from configs.programs import Program, command_of
from configs.schema import Cluster
from train.bench.bench_options import CLUSTER_CASES, STEP_CASES
from train.bench.launching import run_ranks
from train.bench.measure import Figures, Report, make_report, summarize, turns
from train.bench.samples import read_samples

__all__ = ["measure"]

logger = logging.getLogger(__name__)

_WARMUP = 1
"""Steps before the first sample of each start, as the rows report them."""


@dataclass(frozen=True)
class _StepCase:
    """A network, an image size and a batch a rank; ranks of each machine and threads, if None the cluster's."""

    model: str
    image_size: int
    batch: int
    ranks: int | None = None
    threads: int | None = None

    @classmethod
    def parse(cls, text: str) -> _StepCase:
        """Return the case of a value of ``--cases``.

        Raises:
            UserError: The value is not of the form network:pixels:batch or network:pixels:batch:ranks x threads.
        """
        try:
            model, image_size, batch, *machine = text.split(":")
            ranks, threads = map(int, machine[0].split("x")) if len(machine) == 1 else (None, None)
            if len(machine) <= 1:
                return cls(model, int(image_size), int(batch), ranks, threads)
        except ValueError:
            pass
        raise UserError(
            f"--cases {text}: allowed: network:pixels:batch or network:pixels:batch:ranks x threads, as {STEP_CASES[0]}"
        )

    def title(self, cluster: Cluster) -> str:
        """Return the name of the case in the table."""
        ranks, threads = cluster.world_size, cluster.engine.threads
        workers = f"{ranks} rank{'s' * (ranks > 1)}"
        if cluster.device == "cpu":
            workers += f" of {threads} thread{'s' * (threads > 1)}"
        return f"{self.model}, {self.image_size} px, batch {self.batch}, {workers}"

    def overrides(self, place: Sequence[str]) -> tuple[str, ...]:
        """Return the changes of the cluster: those of the user, and the case's own."""
        own = {"cluster.ranks_per_node": self.ranks, "cluster.engine.threads": self.threads}
        return (*place, *(f"{key}={value}" for key, value in own.items() if value is not None))

    def run(self, seconds: float, cluster_name: str = "laptop", place: Sequence[str] = ()) -> list[Figures]:
        """Start the ranks on a cluster, changed by ``place``, and return the samples."""
        overrides = self.overrides(place)
        cluster = load_cluster(cluster_name, overrides)
        recipe = [
            f"model.name={self.model}",
            f"model.image_size={self.image_size}",
            f"batch.global_size={cluster.world_size * self.batch}",
        ]
        words = ["--cluster", cluster_name]
        words += [word for override in (*recipe, *overrides) for word in ("--set", override)]
        command = command_of(Program.STEP_OURS, *words, "--seconds", str(seconds))
        return read_samples(run_ranks(command, cluster=cluster_name, overrides=overrides))["step"]


def measure(options: argparse.Namespace) -> Report:
    """See `Bench`."""
    place = options.overrides
    usual = STEP_CASES if options.cluster == "laptop" else CLUSTER_CASES
    titles = {
        case: case.title(load_cluster(options.cluster, case.overrides(place)))
        for case in map(_StepCase.parse, options.cases or usual)
    }
    measured: dict[_StepCase, list[Figures]] = defaultdict(list)
    for number, case in turns(list(titles), options.rounds):
        logger.info("start %d of %d: %s", number + 1, options.rounds, titles[case])
        measured[case] += case.run(options.seconds, options.cluster, place)
    rows = [row for case, samples in measured.items() for row in summarize(titles[case], samples, _WARMUP)]
    notes = [
        "forward, backward and update: one after another; step_ms and images_per_s: as a run queues them",
        "an image takes 6 operations for each multiply-add of train.networks.arch; the peak is what the same ranks and "
        "threads reach in the engine's product of float32 matrices of 1536 x 1536",
    ]
    return make_report(rows, notes)
