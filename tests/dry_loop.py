"""A full-size run without its training: the real loop, plan, recipe and log, and a network that computes nothing.

Here and not in the program on purpose: what it writes are the logs of runs that never were, which no door may make.
They name their submitter ``rehearsal``.
"""

import math
import struct
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

from configs.load import dump, load_cluster
from configs.plan import Position, RunPlan, plan_run
from configs.registry import installed_engine
from configs.schema import Recipe
from data.input.batches import TrainingBatch
from logs.disk import write_json
from logs.environment import environment
from logs.folder import CONFIG_FILE, RunFolder, Summary
from logs.metrics import METRICS_FILE, MetricsWriter, NullMetrics
from logs.mlperf import EventLog
from train.checkpoint import Checkpoints
from train.comm.buckets import BucketPlan
from train.comm.communicator import SingleProcess
from train.engine.protocol import Engine, Optimizer, TrainableNetwork
from train.evaluate import Score
from train.loop import Result, TrainingRun, train
from train.measure.progress import Progress
from train.measure.timing import Clock
from train.rank.identity import Identity
from train.schedule import HyperParameters, logged_hyperparameters, resolve_schedule
from train.session import opened_log
from train.step import Step

ORG = "rehearsal"


class NumberEngine:
    """The verbs of an engine whose arrays are numbers, which are there at once."""

    def copy(self, array: float) -> float:
        return array

    def flag(self, like: float, *, is_set: bool) -> float:
        return float(is_set)

    def first_element(self, array: float) -> float:
        return array

    def first_not_finite(self, arrays: Sequence[float]) -> int | None:
        return next((number for number, each in enumerate(arrays) if not math.isfinite(each)), None)

    def digests(self, arrays: Sequence[float]) -> list[int]:
        return [int.from_bytes(struct.pack("<d", each), "little") for each in arrays]

    def wait(self, *arrays: float) -> None:
        pass

    def to_numbers(self, arrays: Sequence[float]) -> list[float]:
        return list(arrays)


class Blank:
    """A network, an optimizer, a source and a keeper of checkpoints in one; counts what it is asked for.

    Args:
        bad_step: The step whose loss is not a number.
        fails_at: The batch that cannot be read.
        overflows: Steps whose loss is not a number and whose update is skipped. If None, the optimizer skips none.
        spoils: A step whose update puts a number that is not finite into a part of the state, and what part: "weight",
            "momentum" or "statistic". The losses do not show it.
    """

    def __init__(
        self, *, bad_step: int | None = None, fails_at: int | None = None, overflows: Collection[int] | None = None,
        spoils: tuple[int, str] | None = None,
    ) -> None:  # fmt: skip
        self.gradients: Sequence[Any] = [0.0, 0.0]
        self.masters, self.momenta, self.statistics = [1.0, 1.0], [0.0, 0.0], [0.0]
        self.parameters = [SimpleNamespace(name=name) for name in ("first", "second")]
        self.bad_step, self.fails_at, self.overflows, self.spoils = bad_step, fails_at, overflows, spoils
        self.batches = self.cleared = 0
        self.rates: list[float] = []
        self.seeds: list[int] = []
        self.epochs: list[int] = []

    def begin_epoch(self, epoch: int) -> None:
        self.epochs.append(epoch)

    def next_batch(self) -> TrainingBatch:
        if self.batches == self.fails_at:
            raise OSError("record 7 is torn")
        self.batches += 1
        return TrainingBatch(None, None)

    def evaluated(self, source: Any, at: Position, score: Score) -> None:
        pass

    def stopped(self, source: Any, at: Position) -> None:
        pass

    def state(self) -> bytes:
        return b""

    def close(self) -> None:
        pass

    def forward(self, _images: Any, _labels: Any) -> Any:
        step = self.batches - 1
        return float("nan") if step == self.bad_step or step in (self.overflows or ()) else 64.0

    def backward(self, arrived: Callable[[int], None] | None = None) -> None:
        if arrived is not None:
            for index in reversed(range(len(self.gradients))):
                arrived(index)

    def zero_gradients(self) -> None:
        self.cleared += 1

    def seed(self, seed: int) -> None:
        self.seeds.append(seed)

    def reset(self) -> None:
        pass

    def read_statistics(self) -> dict[str, float]:
        return {"mean": self.statistics[0]}

    def update(self, hyper: HyperParameters) -> float | None:
        self.rates.append(hyper.lr)
        if self.spoils is not None and self.batches - 1 == self.spoils[0]:
            state = {"weight": self.masters, "momentum": self.momenta, "statistic": self.statistics}
            state[self.spoils[1]][-1] = -math.inf
        return None if self.overflows is None else float(self.batches - 1 in self.overflows)


def dry_train(  # noqa: PLR0913
    recipe: Recipe, world_size: int, tops: Sequence[float], *, log: EventLog, blank: Blank, metrics: NullMetrics,
    stop_from: float = math.inf, clock: Clock | None = None, **changes: Any,
) -> tuple[Result, RunPlan]:  # fmt: skip
    """Run the loop; its evaluations give ``tops`` (0 to 1) in turn, and nothing of a step is computed.

    It is told to stop after ``stop_from`` batches; ``changes`` replace parts of the `TrainingRun`.
    """
    plan, every, answers = plan_run(recipe, world_size), recipe.run.log_every_steps, iter(tops)
    engine = cast(Engine, NumberEngine())
    clock = clock or Clock(engine, 2, every)
    progress = Progress(
        metrics, clock, global_batch_size=plan.global_batch_size, total_steps=plan.total_steps,
        every_steps=every, visible=False,
    )  # fmt: skip
    total = recipe.data.eval_samples

    def evaluate() -> Score:
        correct = round(next(answers) * total)
        row = {"top1": correct / total, "correct": correct, "total": total}
        return Score("top-1", correct / total, row, f"{correct} of {total}")

    run = TrainingRun(
        plan=plan, schedule=resolve_schedule(recipe, plan),
        step=Step(
            engine, cast(TrainableNetwork, blank), cast(Optimizer, blank), SingleProcess(), BucketPlan(((1,), (0,))),
            plan.accumulation_steps, clock, on_step=lambda _: None, told_to_stop=lambda: blank.batches > stop_from,
        ),
        source=blank, evaluate=evaluate,
        goal=recipe.run, run_ahead_steps=2, checkpoints=cast(Checkpoints, blank),
    )  # fmt: skip
    result = train(replace(run, **changes), log=log, progress=progress)
    progress.close()
    return result, plan


@cache
def _environment() -> dict[str, Any]:
    """Return this process's surroundings; to find them takes processes and seconds for fifteen runs."""
    return environment()


def dry_run(folder: Path, recipe: Recipe, tops: Sequence[float]) -> Path:
    """Write the folder of a run whose evaluations gave ``tops``, on as many GPUs as its ``batch.bn_span`` asks for."""
    assert recipe.batch.bn_span
    nodes = recipe.batch.global_size // recipe.batch.bn_span // 8
    here = [f"cluster.engine.name={installed_engine()}", "cluster.communication.allreduce=flat"]
    overrides = [f"cluster.num_nodes={nodes}", f"cluster.submission.org={ORG}", *here]
    cluster = load_cluster("dgx-a100", overrides)
    folder.mkdir(parents=True)
    (folder / CONFIG_FILE).write_text(dump(recipe, cluster))
    write_json(folder / "environment.json", _environment())
    plan = plan_run(recipe, cluster.world_size)
    first = Identity(0, cluster.world_size, 0, 8, "rehearsal", "none")
    metrics = MetricsWriter(folder / METRICS_FILE)
    with opened_log(folder, recipe, cluster, first, is_cold=True) as log:
        for each in logged_hyperparameters(recipe, plan, resolve_schedule(recipe, plan), recipe.optimizer).items():
            log.emit("point", *each)
        log.emit("stop", "init_stop")
        result, _ = dry_train(recipe, cluster.world_size, tops, log=log, blank=Blank(), metrics=metrics)
    summary = Summary(
        recipe.name, "success" if result.success else "aborted", top1=result.score.value,
        target=recipe.run.target_top1, epochs=result.epochs, steps=result.steps, world_size=cluster.world_size,
        global_batch_size=recipe.batch.global_size, init_s=0.0, run_s=result.run_s, images_per_s=0.0,
        input_wait_fraction=0.0, comm_exposed_fraction=0.0, seed=recipe.run.seed, failure=result.failure,
    )  # fmt: skip
    RunFolder(folder).write_summary(summary)
    return folder
