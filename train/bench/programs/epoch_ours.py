"""One rank of ``bench epoch``: a run of this program that records when each part of an epoch happens."""

import os
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from configs.load import load_both
from configs.plan import plan_run
from data.input.batches import TrainingSource
from logs.metrics import METRICS_FILE, MetricsWriter, NullMetrics
from logs.mlperf import MlperfLog, NullLog
from train.bench.programs.marks import BATCH, DRAINED, EPOCH, EVALUATED, EVALUATING, QUEUED, Moments, gaps, mark
from train.bench.samples import run_task, write_samples
from train.compose import compose
from train.dataset import images_of
from train.engine.protocol import Array
from train.loop import TrainingRun, train
from train.measure.progress import Progress, StepLoss, Where
from train.measure.timing import StepClock
from train.rank.failure import record_failure
from train.rank.identity import Identity, read_identity
from train.rank.startup import Ledger
from train.rank.watchdog import Watchdog, die_with_parent
from train.schedule import resolve_schedule


def main(recipe: str, overrides: Sequence[str]) -> None:
    """Train a recipe, changed by ``overrides``, and write the gaps between epochs on rank 0."""
    die_with_parent()
    identity = read_identity(os.environ)
    with tempfile.TemporaryDirectory(prefix="bench-epoch-") as folder:
        moments = _train(recipe, overrides, identity, Path(folder))
    write_samples(identity, "gaps", [gaps(moments)])


def _train(name: str, overrides: Sequence[str], identity: Identity, folder: Path) -> Moments:
    """Train a run as `train.session` does, with a clock, a progress report and a source that mark moments."""
    recipe, cluster = load_both(name, "laptop", overrides)
    images = images_of(recipe, cluster, plan_run(recipe, identity.world_size), identity)
    rank = compose(recipe, cluster, identity, Ledger(), images=images)
    assert rank.training is not None
    moments: Moments = []
    ahead, every = cluster.engine.run_ahead_steps, recipe.run.log_every_steps
    clock = _MarkingClock(moments, rank.engine, ahead, every)
    is_reporter = identity.rank == 0
    progress = _MarkingProgress(
        moments,
        MetricsWriter(folder / METRICS_FILE) if is_reporter else NullMetrics(),
        clock,
        global_batch_size=rank.plan.global_batch_size,
        total_steps=rank.plan.total_steps,
        every_steps=every,
        visible=is_reporter,
    )
    watchdog = Watchdog(cluster.watchdog_s, partial(record_failure, folder, identity))
    run = TrainingRun(
        plan=rank.plan,
        schedule=resolve_schedule(recipe, rank.plan),
        target_top1=None,
        step=rank.make_step(clock, watchdog),
        source=_MarkingSource(moments, rank.training),
        evaluate=rank.make_evaluator(watchdog),
        log_every_steps=every,
        run_ahead_steps=ahead,
    )
    log = MlperfLog(folder) if is_reporter else NullLog()
    train(run, log=log, progress=progress)
    watchdog.rest()
    progress.close()
    log.close()
    return moments


class _MarkingClock(StepClock):
    def __init__(self, moments: Moments, *parts: Any) -> None:
        super().__init__(*parts)
        self._moments = moments

    @contextmanager
    def input(self) -> Iterator[None]:
        with super().input():
            yield
        mark(self._moments, BATCH)

    def step_queued(self, loss: Array) -> None:
        super().step_queued(loss)
        mark(self._moments, QUEUED)

    @contextmanager
    def pause(self) -> Iterator[None]:
        mark(self._moments, EVALUATING)
        with super().pause():
            yield
        mark(self._moments, EVALUATED)


class _MarkingProgress(Progress):
    def __init__(self, moments: Moments, *parts: Any, **settings: Any) -> None:
        super().__init__(*parts, **settings)
        self._moments = moments

    def steps(self, losses: Sequence[StepLoss], at: Where = "interval's end") -> None:
        if at == "end":
            mark(self._moments, DRAINED)
        super().steps(losses, at)


class _MarkingSource:
    def __init__(self, moments: Moments, source: TrainingSource) -> None:
        self._moments, self._source = moments, source
        self.next_batch, self.state, self.close = source.next_batch, source.state, source.close

    def begin_epoch(self, epoch: int) -> None:
        mark(self._moments, EPOCH)
        self._source.begin_epoch(epoch)


if __name__ == "__main__":
    run_task(main)
