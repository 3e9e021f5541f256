"""The times of the parts of a training step and of an evaluation, and the share of the peak that a step reaches.

`train.bench.bench_options` has the question and the options.
"""

from __future__ import annotations

import argparse
import logging
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from configs.errors import UserError
from configs.load import load_cluster
from configs.networks import IMAGE_SIZES
from configs.programs import Program, command_of
from configs.registry import ENGINES, possible_precisions
from configs.schema import Cluster
from logs.environment import cpu_flags
from train.bench.bench_options import CLUSTER_CASES, STEP_CASES
from train.bench.launching import run_ranks
from train.bench.measure import BenchRow, Figures, Report, make_report, ratio_rows, summarize, turns
from train.bench.samples import read_samples

logger = logging.getLogger(__name__)

ALL = "all"
"""The value of ``--cases`` that stands for every network at every precision of the cluster's device."""
_USUAL_SIZE, _USUAL_BATCH = {"cpu": 64, "gpu": 224}, {"cpu": 16, "gpu": 128}
_GREY = (
    "model.input_channels=1",
    "model.num_classes=10",
    "data.mean=[123.675, 123.675, 123.675]",
    "data.std=[58.395, 58.395, 58.395]",
)


@dataclass(frozen=True)
class _StepCase:
    """A network, an image size and a batch a rank; ranks of a machine, threads and precision, if None the cluster's."""

    model: str
    image_size: int
    batch: int
    ranks: int | None = None
    threads: int | None = None
    precision: str | None = None

    @classmethod
    def parse(cls, text: str) -> _StepCase:
        """Return the case of a value of ``--cases``.

        Raises:
            UserError: The value has another form than network:pixels:batch, with or without :ranks x threads, with or
                without :precision.
        """
        try:
            model, image_size, batch, *more = text.split(":")
            ranks, threads = map(int, more[0].split("x")) if more else (None, None)
            if len(more) <= 2:  # noqa: PLR2004 (ranks x threads, precision)
                return cls(model, int(image_size), int(batch), ranks, threads, *more[1:])
        except ValueError:
            pass
        raise UserError(
            f"--cases {text}: allowed: {ALL}, or network:pixels:batch, network:pixels:batch:ranks x threads or "
            f"network:pixels:batch:ranks x threads:precision, as {STEP_CASES[0]}"
        )

    def title(self, cluster: Cluster) -> str:
        """Return the name of the case in the table."""
        ranks, threads = cluster.world_size, cluster.engine.threads
        workers = f"{ranks} rank{'s' * (ranks > 1)}"
        if cluster.device == "cpu":
            workers += f" of {threads} thread{'s' * (threads > 1)}"
        precision = f", {self.precision}" if self.precision else ""
        return f"{self.model}, {self.image_size} px, batch {self.batch}, {workers}{precision}"

    def overrides(self, place: Sequence[str]) -> tuple[str, ...]:
        """Return the changes of the cluster: those of the user, and the case's own."""
        own = {
            "cluster.ranks_per_node": self.ranks,
            "cluster.engine.threads": self.threads,
            "cluster.engine.precision": self.precision,
        }
        return (*place, *(f"{key}={value}" for key, value in own.items() if value is not None))

    def run(
        self, seconds: float, cluster_name: str = "laptop", place: Sequence[str] = ()
    ) -> tuple[Figures, list[Figures]]:
        """Start the ranks on a cluster, changed by ``place``; return the figures of the start, and samples of steps."""
        overrides = self.overrides(place)
        cluster = load_cluster(cluster_name, overrides)
        recipe = [
            *(_GREY if self.model.startswith("mnist") else ()),
            f"model.name={self.model}",
            f"model.image_size={self.image_size}",
            f"batch.global_size={cluster.world_size * self.batch}",
        ]
        words = ["--cluster", cluster_name]
        words += [word for override in (*recipe, *overrides) for word in ("--set", override)]
        command = command_of(Program.STEP_OURS, *words, "--seconds", str(seconds))
        found = read_samples(run_ranks(command, cluster=cluster_name, overrides=overrides))
        return found["start"][0], found["step"]


def measure(options: argparse.Namespace) -> Report:
    """See `Bench`."""
    place = options.overrides
    titles = {case: case.title(load_cluster(options.cluster, case.overrides(place))) for case in _cases(options)}
    measured: dict[_StepCase, list[Figures]] = defaultdict(list)
    for number, case in turns(list(titles), options.rounds):
        logger.info("start %d of %d: %s", number + 1, options.rounds, titles[case])
        start, samples = case.run(options.seconds, options.cluster, place)
        steps = {figure: median(sample[figure] for sample in samples) for figure in samples[0]}
        measured[case].append({**start, **steps})
    rows = [row for case, starts in measured.items() for row in _rows(titles[case], starts)]
    notes = [
        "a figure of a start is the median of its steps; forward, backward and update: one after another; step_ms and "
        "images_per_s: as a run queues them",
        "warm_up_ms: the synthetic step of a start-up; first_step_ms: the step after it, the first one of a run",
        "evaluation_ms: inference of a batch, with batch norm folded into the convolutions (fold_ms, once an "
        "evaluation); unfolded_evaluation_ms: with batch norm",
        "an image takes 6 operations for each multiply-add of train.networks.arch; the peak is what the same ranks and "
        "threads reach in the engine's product of float32 matrices of 1536 x 1536",
    ]
    return make_report(rows, notes)


def _cases(options: argparse.Namespace) -> list[_StepCase]:
    """Return the cases that the options ask for, each once."""
    usual = STEP_CASES if options.cluster == "laptop" else CLUSTER_CASES
    cases: list[_StepCase] = []
    for text in options.cases or usual:
        cases += (
            _every_network(load_cluster(options.cluster, options.overrides)) if text == ALL else [_StepCase.parse(text)]
        )
    return list(dict.fromkeys(cases))


def _every_network(cluster: Cluster) -> list[_StepCase]:
    """Return a case of each network for each precision that the cluster's engine has on its GPUs, or on this CPU."""
    name, is_cpu = cluster.engine.name, cluster.device == "cpu"
    precisions = possible_precisions(name, cpu_flags()) if is_cpu else ENGINES[name].precisions
    size, batch = _USUAL_SIZE[cluster.device], _USUAL_BATCH[cluster.device]
    return [
        _StepCase(name, min(max(size, least), most), batch, precision=precision)
        for name, (least, most) in IMAGE_SIZES.items()
        for precision in precisions
    ]


def _rows(title: str, starts: Sequence[Figures]) -> list[BenchRow]:
    """Return the rows of a case, with the verdict on folding where there is an evaluation without it."""
    rows = summarize(title, starts)
    figure, unfolded = "evaluation_ms", "unfolded_evaluation_ms"
    if unfolded in starts[0]:
        folding = {title: [{figure: start[figure]} for start in starts]}
        rows += ratio_rows({**folding, "unfolded": [{figure: start[unfolded]} for start in starts]}, "unfolded")
    return rows
