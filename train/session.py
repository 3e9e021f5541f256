"""Put a run together on one rank: what starts beside what, and what is written at its end.

The communicator comes up in its own thread as soon as it can; pipelines, network and weights are made meanwhile,
because rank and size come from the launcher's environment and nobody has to ask.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from configs.load import load_run, resolve_path
from configs.plan import RunPlan, plan_run
from configs.schema import Adam, Cluster, Recipe
from data.shards import stream_seed
from logs.folder import CONFIG_FILE, Summary, write_json, write_summary
from logs.metrics import METRICS_FILE, RANKS_FILE, MetricsWriter, NullMetrics
from logs.mlperf import EventLog, MlperfLog, NullLog
from train.arch import build_network
from train.buckets import plan_buckets
from train.comm import Communicator, Connect, bring_up
from train.devices import run_ranks_here
from train.hyperparameters import logged_hyperparameters
from train.identity import Identity
from train.images import images_of, require_cold
from train.init import checksum, initial_weights, require_equal
from train.schedule import LrSchedule, resolve_schedule
from train.spread import gather_ranks, slowest_rank
from train.startup import Ledger, import_mxnet
from train.trace import Tracer, tracer_of
from train.usage import Usage
from train.watchdog import Watchdog

if TYPE_CHECKING:
    from data.source import EvaluationSource, TrainingSource
    from train.loop import Result
    from train.timing import Clock

__all__ = ["Model", "build_model", "dropout_seed", "opened_log", "run"]


@dataclass(frozen=True)
class Model:
    """What is trained, and by what, on this rank."""

    network: Any
    optimizer: Any
    weights: dict[str, np.ndarray]
    buckets: tuple[tuple[int, ...], ...]
    context: Any


def run(folder: Path, identity: Identity, ledger: Ledger) -> int:
    """Train this process's share of the run in ``folder``; give its exit status.

    Raises:
        UserError: Before the run: config, data set or arithmetic do not fit.
        RuntimeError: During the run; the message says what happened.
    """
    recipe, cluster = load_run(folder / CONFIG_FILE)
    return run_ranks_here(cluster, identity, ledger, partial(_run_rank, folder, recipe, cluster))


def _run_rank(
    folder: Path, recipe: Recipe, cluster: Cluster, identity: Identity, ledger: Ledger, connect: Connect
) -> int:
    """Train one rank's share."""
    plan = plan_run(recipe, identity.world_size)
    schedule = resolve_schedule(recipe, plan)
    images = images_of(recipe, cluster, plan, identity)
    with ledger.phase("data set"):
        is_cold = images.prepare()
    with closing(images), opened_log(folder, recipe, cluster, identity, is_cold=is_cold) as log:
        init_begin = time.monotonic()
        with ledger.phase("import of MXNet"):
            import_mxnet()
        with ledger.phase("import of input"):
            images.load()
        pending = bring_up(identity, ledger, connect)
        with ledger.phase("evaluation pipeline"):
            evaluation = images.open_evaluation()
        with ledger.phase("network and weights"):
            model = build_model(recipe, cluster, plan, identity)
        with ledger.phase("wait for communicator"):
            communicator = pending.wait()
        require_cold(communicator, is_cold=is_cold)
        with ledger.phase("warm-up"):
            _warm_up(recipe, cluster, plan, model, communicator)
        with ledger.phase("compare weights"):
            _common_checksum(model, communicator, "before the run")
        log.hyperparameters(logged_hyperparameters(recipe, plan, schedule, model.optimizer.config))
        log.init_stop()
        init_s = time.monotonic() - init_begin
        if identity.rank == 0:
            write_json(folder / "startup.json", ledger.to_json())
        tracer = tracer_of(folder, identity.rank, cluster.trace_steps, plan.total_steps)
        usage = Usage()
        training = _Training(folder, recipe, cluster, plan, schedule, model, communicator, identity.rank, tracer)
        result, clock = training.run(images.open_training, evaluation, log, is_reporter=identity.rank == 0)
    usage.write(folder, communicator, is_writer=identity.rank == 0)
    final_checksum = _common_checksum(model, communicator, "after the run")
    ranks = gather_ranks(communicator, clock.samples)
    if identity.rank == 0:
        tracer.merge()
        write_json(folder / RANKS_FILE, {"ranks": ranks})
        slowest, excess = slowest_rank(ranks)
        summary = _summary(recipe, plan, result, clock, init_s, final_checksum)
        write_summary(folder, replace(summary, slowest_rank=slowest, rank_excess=excess))
    return 0 if result.success else 1


@contextmanager
def opened_log(
    folder: Path, recipe: Recipe, cluster: Cluster, identity: Identity, *, is_cold: bool
) -> Iterator[EventLog]:
    """Open the MLPerf log on rank 0; ``is_cold``: no page of the data set's images, if it has any, is in memory."""
    log: EventLog = MlperfLog(folder) if identity.rank == 0 else NullLog()
    try:
        log.submission(cluster.submission, recipe.mlperf)
        if is_cold:
            log.cache_clear()
        log.init_start()
        log.seed(recipe.run.seed)
        yield log
    finally:
        log.close()


def build_model(recipe: Recipe, cluster: Cluster, plan: RunPlan, identity: Identity) -> Model:
    """Make network, weights, optimizer and bucket plan."""
    import mxnet as mx  # noqa: PLC0415 (seconds; the communicator's thread imports it meanwhile)

    from train.adam import AdamOptimizer  # noqa: PLC0415
    from train.lars import MomentumOptimizer  # noqa: PLC0415
    from train.model import TrainedNetwork  # noqa: PLC0415
    from train.parameters import load_parameters  # noqa: PLC0415

    description = recipe.model
    table = build_network(
        description.name, num_classes=description.num_classes, image_size=description.image_size,
        input_channels=description.input_channels,
    )  # fmt: skip
    context = mx.gpu(identity.local_rank) if cluster.device == "gpu" else mx.cpu(_cpu_number(identity))
    network = TrainedNetwork(
        table, model=description, loss=recipe.loss, engine=cluster.engine, context=context,
        accumulate=plan.accumulation_steps > 1,
    )  # fmt: skip
    weights: dict[str, np.ndarray] = initial_weights(table, description, recipe.run.seed)
    if description.parameters is not None:
        weights = load_parameters(resolve_path(cluster.paths.data) / description.parameters, table, weights)
    network.load_weights(weights)
    arrays = {"weights": network.weights, "gradients": network.gradients, "masters": network.masters}
    rescale, config = 1 / plan.global_batch_size, recipe.optimizer
    optimizer = (
        AdamOptimizer(config, table.parameters, rescale=rescale, **arrays)
        if isinstance(config, Adam)
        else MomentumOptimizer(config, table.parameters, rescale=rescale, **arrays)
    )
    sizes = [gradient.size * np.dtype(gradient.dtype).itemsize for gradient in network.gradients]
    return Model(network, optimizer, weights, plan_buckets(sizes, cluster.communication.bucket_bytes), context)


def dropout_seed(seed: int, rank: int, step: int) -> int:
    """Give what a rank's dropout draws from in a step of a run with ``seed``; MXNet's seeds have 31 bits."""
    return stream_seed(seed, f"dropout, step {step}", rank) % 2**31


def _cpu_number(identity: Identity) -> int:
    """Give devices of one process numbers of their own, so that each gets threads of its own from the engine."""
    return identity.local_rank if identity.launcher == "devices" else 0


def _warm_up(recipe: Recipe, cluster: Cluster, plan: RunPlan, model: Model, communicator: Communicator) -> None:
    import mxnet as mx  # noqa: PLC0415 (slow)

    from train.warmup import warm_up  # noqa: PLC0415

    channels, side = recipe.model.input_channels, recipe.model.image_size
    axes = {"N": plan.per_rank_batch_size, "C": channels, "H": side, "W": side}
    warm_up(
        model.network, model.optimizer, communicator, buckets=model.buckets, weights=model.weights,
        images=mx.nd.zeros([axes[axis] for axis in cluster.engine.layout], ctx=model.context),
    )  # fmt: skip


def _common_checksum(model: Model, communicator: Communicator, when: str) -> int:
    """Digest the weights and compare with the other ranks."""
    own = checksum(model.network.read_weights())
    require_equal(communicator.gather(f"weights {when}", own), when)
    return own


@dataclass(frozen=True)
class _Training:
    """Everything that the loop needs and that start-up made."""

    folder: Path
    recipe: Recipe
    cluster: Cluster
    plan: RunPlan
    schedule: LrSchedule
    model: Model
    communicator: Communicator
    rank: int
    tracer: Tracer

    def run(
        self, open_training: Callable[[], TrainingSource], evaluation: EvaluationSource, log: EventLog, *,
        is_reporter: bool,
    ) -> tuple[Result, Clock]:  # fmt: skip
        """Train; gives the result and the clock that watched."""
        from train.evaluate import Evaluator  # noqa: PLC0415 (MXNet)
        from train.loop import Run, Step, train  # noqa: PLC0415
        from train.metric import metric_of  # noqa: PLC0415
        from train.progress import Progress  # noqa: PLC0415
        from train.timing import NoClock, StepClock  # noqa: PLC0415

        alive = Watchdog(self.cluster.watchdog_s)
        engine, model, plan, goal = self.cluster.engine, self.model, self.plan, self.recipe.run
        ahead = engine.run_ahead_steps
        clock: Clock = StepClock(ahead, goal.log_every_steps) if engine.timing else NoClock(ahead)
        step = Step(
            model.network, model.optimizer, self.communicator, model.buckets, plan.accumulation_steps, clock,
            self._each_step(alive), partial(dropout_seed, self.recipe.run.seed, self.rank),
        )  # fmt: skip
        metrics = MetricsWriter(self.folder / METRICS_FILE) if is_reporter else NullMetrics()
        progress = Progress(
            metrics, clock, global_batch_size=plan.global_batch_size, total_steps=plan.total_steps,
            every_steps=goal.log_every_steps, visible=is_reporter,
        )  # fmt: skip
        try:
            run = Run(
                plan=plan, schedule=self.schedule, step=step, open_training=open_training,
                evaluate=Evaluator(
                    model.network, evaluation, self.communicator, metric_of(self.recipe.loss, self.rank)
                ),
                target_top1=goal.target_top1, log_every_steps=goal.log_every_steps,
                run_ahead_steps=engine.run_ahead_steps,
            )  # fmt: skip
            result = train(run, log=log, progress=progress)
        finally:
            alive.rest()
            self.tracer.close()
            progress.close()
        return result, clock

    def _each_step(self, alive: Callable[[], None]) -> Callable[[], None]:
        def tell() -> None:
            alive()
            self.tracer.step_queued()

        return tell


def _summary(
    recipe: Recipe, plan: RunPlan, result: Result, clock: Clock, init_s: float, final_checksum: int
) -> Summary:
    input_wait, exposed = clock.fractions()
    return Summary(
        recipe=recipe.name,
        status="success" if result.success else "aborted",
        top1=result.score.row.get("top1"),
        mean_auc=result.score.row.get("mean_auc"),
        target=recipe.run.target_top1,
        epochs=result.epochs,
        steps=result.steps,
        world_size=plan.world_size,
        global_batch_size=plan.global_batch_size,
        init_s=init_s,
        run_s=result.run_s,
        images_per_s=result.steps * plan.global_batch_size / clock.stepping_s,
        input_wait_fraction=input_wait,
        comm_exposed_fraction=exposed,
        weights_checksum=f"{final_checksum:016x}",
        seed=recipe.run.seed,
        failure=result.failure,
    )
