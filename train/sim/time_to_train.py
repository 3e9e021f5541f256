"""The time of a whole run: its start, the epochs to the target, and the timed run from run_start to run_stop."""

import math
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import NamedTuple

import numpy as np

from train.sim.hardware import program_numbers, read_table

_COLD_NODES = 8
"""With more nodes, the first epoch's reading of a cold data set becomes shorter in proportion."""
ROUNDS = Path(__file__).with_name("rounds.yaml")
LARGEST_CONVERGED = 86_016
"""Images a step of the largest batch with which anybody is known to have reached 75.9 % (the 2019 record)."""


@dataclass(frozen=True)
class Era:
    """What some rounds have in common; rounds.yaml says what each value means."""

    rounds: tuple[str, ...]
    epochs: dict[int, float]
    warmup_s: float
    pre_s: float
    excess_s: float
    cold_s: float
    switch_s: float
    evaluation_share: float
    bucket_bytes: int
    graphs: bool
    separate_sums: bool


@cache
def era_of(mlperf_round: str) -> Era:
    """Return the era of a round; the last one, if it is empty or unknown."""
    eras: tuple[Era, ...] = read_table(ROUNDS, "eras", Era)
    return next((each for each in eras if mlperf_round in each.rounds), eras[-1])


def epochs_to_target(global_batch: float, mlperf_round: str = "") -> int:
    """Return the whole epochs to the target, interpolated between known points in the logarithm of the batch.

    Args:
        global_batch: Images a step. Below the smallest known batch, the epochs of that batch apply. Above the largest
            known batch, each doubling adds as many epochs as the steepest known doubling, from 32,768 images, so that a
            huge batch does not look free.
        mlperf_round: MLPerf round of the recipe. If empty or unknown, the table of rounds from 1.0 on applies.
    """
    known, newest = era_of(mlperf_round).epochs, era_of("").epochs
    batches, epochs = [math.log(batch) for batch in known], list(known.values())
    at = math.log(global_batch)
    if at > batches[-1]:
        return math.ceil(epochs[-1] + (newest[65536] - newest[32768]) * (at - batches[-1]) / math.log(2))
    return round(float(np.interp(at, batches, epochs)))


IMAGENET = 1_281_167
"""Images of an epoch."""


class RunTime(NamedTuple):
    """Parts of a timed run, seconds."""

    epochs_s: float
    first_epoch_excess_s: float
    evaluations_s: float
    pre_s: float

    @property
    def total_s(self) -> float:
        """From run_start to run_stop."""
        return sum(self)


def run_time(  # noqa: PLR0913 (three are of a data set)
    images_per_s: float,
    epochs: int,
    nodes: int,
    *,
    mlperf_round: str = "",
    images: int = IMAGENET,
    eval_images: int = 50_000,
    evaluations: int | None = None,
) -> RunTime:
    """Return the time of a run of ``epochs`` at a constant rate on ``nodes`` nodes.

    For published logs the sum of the parts agrees with the logged time within half a second. If ``evaluations`` is
    None, there is one after every fourth epoch.
    """
    era = era_of(mlperf_round)
    evaluations = evaluations_of(epochs) if evaluations is None else evaluations
    return RunTime(
        pre_s=era.pre_s,
        first_epoch_excess_s=era.excess_s + era.cold_s * min(1.0, _COLD_NODES / nodes),
        epochs_s=epochs * images / images_per_s,
        evaluations_s=evaluations * evaluation_time(images_per_s, mlperf_round, eval_images),
    )


def evaluation_time(images_per_s: float, mlperf_round: str = "", images: int = 50_000) -> float:
    """Return the seconds of one evaluation: inference on the validation set, and a fixed part.

    *Source*: evaluation rate against training rate of the public points, by era.

    Args:
        images_per_s: Rate of training.
        mlperf_round: MLPerf round of the software. If empty or unknown, that of rounds from 1.0 on.
        images: Images of the validation set.
    """
    return era_of(mlperf_round).evaluation_share * images / images_per_s + 0.02


def evaluations_of(epochs: int) -> int:
    """Return the evaluations of a run of ``epochs``: one after every fourth epoch, and one after the last."""
    return -(-epochs // 4)


class StartupTime(NamedTuple):
    """Phases of a start in seconds.

    Attributes:
        launch_s: Launch of the processes and their imports.
        communicator_s: Until all ranks are connected.
        pipeline_s: Input pipeline, network and optimizer states.
    """

    launch_s: float
    communicator_s: float
    pipeline_s: float

    @property
    def total_s(self) -> float:
        """Less than the sum of the phases, because the communicator starts while the pipeline is built."""
        return self.launch_s + max(self.communicator_s, self.pipeline_s)


def predict_startup(ranks: int, *, on_cpu: bool = False) -> StartupTime:
    """Predict the start of ``ranks`` processes; ``on_cpu`` are those on one machine without GPUs."""
    if on_cpu:
        return StartupTime(**program_numbers("startup_on_cpu"))
    found = program_numbers("startup")
    return StartupTime(
        launch_s=found["launch_s"] + found["launch_doubling_s"] * math.log2(ranks),
        communicator_s=found["communicator_s"] + found["communicator_rank_s"] * ranks if ranks > 1 else 0.0,
        pipeline_s=found["pipeline_s"],
    )


def predict_init(ranks: int, mlperf_round: str, *, has_compiler: bool) -> float:
    """Return the seconds from init_start to run_start of MLPerf's programs, which log init_start after their imports.

    Args:
        ranks: Number of processes.
        mlperf_round: MLPerf round of the program.
        has_compiler: Whether a compiler makes one program of the whole step.
    """
    startup = predict_startup(ranks)
    warmup_s = program_numbers("startup")["compile_s"] if has_compiler else era_of(mlperf_round).warmup_s
    return startup.total_s - startup.launch_s + warmup_s
