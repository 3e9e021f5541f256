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
from typing import TYPE_CHECKING

from configs.load import load_run
from configs.plan import Position, RunPlan, plan_run
from configs.resume_check import essence
from configs.schema import Cluster, Recipe
from logs.checkpoints import origin_of
from logs.folder import CONFIG_FILE, STARTUP_FILE, Summary, write_json, write_summary
from logs.metrics import METRICS_FILE, RANKS_FILE, MetricsWriter, NullMetrics
from logs.mlperf import EventLog, MlperfLog, NullLog
from train.checkpoint import Checkpoints, CheckpointWriter, NullWriter, Origin
from train.comm.communicator import Communicator, Connect, bring_up
from train.comm.devices import run_ranks_here
from train.dataset import images_of, require_cold
from train.engine.init import checksum, require_equal
from train.engine.mxnet.build import Model, build_model, dropout_seed
from train.engine.mxnet.trace import Tracer, tracer_of
from train.measure.chance import judge_of
from train.measure.rank_times import gather_ranks, slowest_rank
from train.measure.rank_usage import Usage
from train.rank.failure import record_failure
from train.rank.identity import Identity
from train.rank.signals import StopSignals
from train.rank.startup import Ledger, import_mxnet
from train.rank.watchdog import Watchdog
from train.schedule import LrSchedule, logged_hyperparameters, resolve_schedule

if TYPE_CHECKING:
    from data.input.batches import EvaluationSource, TrainingSource
    from train.loop import Result
    from train.measure.timing import Clock

__all__ = ["opened_log", "run"]


def run(folder: Path, identity: Identity, ledger: Ledger, signals: StopSignals) -> int:
    """Train this process's share of the run in ``folder``, from its checkpoint on if it is to; give its exit status.

    Raises:
        UserError: Before the run: config, data set, arithmetic or checkpoint do not fit.
        RunStopped: A rank was told to stop, and the state is kept.
        RuntimeError: During the run; the message says what happened.
    """
    recipe, cluster = load_run(folder / CONFIG_FILE)
    return run_ranks_here(cluster, identity, ledger, partial(_run_rank, _Job(folder, recipe, cluster, signals)))


@dataclass(frozen=True)
class _Job:
    """What the ranks of this process have in common."""

    folder: Path
    recipe: Recipe
    cluster: Cluster
    signals: StopSignals


def _run_rank(job: _Job, identity: Identity, ledger: Ledger, connect: Connect) -> int:
    """Train one rank's share."""
    folder, recipe, cluster = job.folder, job.recipe, job.cluster
    plan = plan_run(recipe, identity.world_size)
    schedule = resolve_schedule(recipe, plan)
    images = images_of(recipe, cluster, plan, identity)
    with ledger.phase("data set"):
        checksums, is_cold = images.prepare()
    # Not before: copying a data set takes as long as it takes.
    alive = Watchdog(cluster.communication.timeout_s, partial(record_failure, folder, identity))
    whose = {**essence(recipe, cluster), "data set": checksums}
    origin = Origin.of(origin_of(folder), whose, plan)
    goes_on_from = origin.resumed_from_step
    with closing(images), opened_log(folder, recipe, cluster, identity, goes_on_from, is_cold=is_cold) as log:
        init_begin = time.monotonic()
        with ledger.phase("import of MXNet"):
            import_mxnet()
        with ledger.phase("import of input"):
            images.load()
        pending = bring_up(identity, ledger, connect)
        with ledger.phase("evaluation pipeline"):
            evaluation = images.open_evaluation()
        with ledger.phase("network and weights"):
            model = build_model(recipe, cluster, plan, identity, origin.weights(identity.rank))
        with ledger.phase("wait for communicator"):
            communicator = pending.wait()
        require_cold(communicator, is_cold=is_cold)
        with ledger.phase("warm-up"):
            _warm_up(recipe, cluster, plan, model, communicator)
            origin.put_back(model.optimizer.momenta)
        with ledger.phase("compare weights"):
            _common_checksum(model, communicator, "before the run")
            hosts = communicator.gather_bytes("hosts", identity.host.encode())
        log.hyperparameters(logged_hyperparameters(recipe, plan, schedule, model.optimizer.config))
        log.init_stop()
        init_s = time.monotonic() - init_begin
        if identity.rank == 0:
            write_json(folder / STARTUP_FILE, {**ledger.to_json(), "hosts": [host.decode() for host in hosts]})
        tracer = tracer_of(folder, identity.rank, cluster.trace_steps, plan.total_steps)
        usage = Usage()
        policy, is_synchronous = cluster.checkpoint, cluster.communication.is_synchronous
        checkpoints = Checkpoints(
            model.network, model.optimizer, communicator,
            CheckpointWriter(folder, policy.keep) if identity.rank == 0 else NullWriter(),
            # Ranks that go their own ways have no state in common before the end.
            whose, policy.every_epochs if is_synchronous else None, origin.position, alive,
        )  # fmt: skip
        training = _Training(
            folder, recipe, cluster, plan, schedule, model, communicator, identity.rank, tracer, checkpoints, origin
        )
        if is_synchronous:
            job.signals.wait_for_step()
        alive.expect(cluster.watchdog_s)
        result, clock = training.run(
            partial(images.open_training, origin.source_state(identity.rank)), evaluation, log,
            is_reporter=identity.rank == 0, alive=alive, told_to_stop=job.signals.told_to_stop,
        )  # fmt: skip
    usage.write(folder, communicator, is_writer=identity.rank == 0)
    training.conclude(result, clock, init_s)
    alive.rest()
    return 0 if result.success else 1


@contextmanager
def opened_log(
    folder: Path, recipe: Recipe, cluster: Cluster, identity: Identity, goes_on_from: int | None = None, *,
    is_cold: bool,
) -> Iterator[EventLog]:  # fmt: skip
    """Open the MLPerf log on rank 0; ``is_cold``: no page of the data set's images, if it has any, is in memory."""
    log: EventLog = MlperfLog(folder, goes_on=goes_on_from is not None) if identity.rank == 0 else NullLog()
    try:
        if goes_on_from is not None:
            log.resumed(goes_on_from)
        log.submission(cluster.submission, recipe.mlperf)
        if is_cold:
            log.cache_clear()
        log.init_start()
        log.seed(recipe.run.seed)
        yield log
    finally:
        log.close()


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
    own = checksum(model.network.each_weight())
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
    checkpoints: Checkpoints
    origin: Origin

    def run(
        self, open_training: Callable[[], TrainingSource], evaluation: EvaluationSource, log: EventLog, *,
        is_reporter: bool, alive: Watchdog, told_to_stop: Callable[[], bool],
    ) -> tuple[Result, Clock]:  # fmt: skip
        """Train; gives the result and the clock that watched."""
        from train.evaluate import Evaluator  # noqa: PLC0415 (MXNet)
        from train.loop import Run, Step, train  # noqa: PLC0415
        from train.measure.progress import Progress  # noqa: PLC0415
        from train.measure.timing import NoClock, StepClock  # noqa: PLC0415
        from train.metric import metric_of  # noqa: PLC0415

        engine, model, plan, goal = self.cluster.engine, self.model, self.plan, self.recipe.run
        ahead = engine.run_ahead_steps
        clock: Clock = StepClock(ahead, goal.log_every_steps) if engine.timing else NoClock(ahead)
        step = Step(
            model.network, model.optimizer, self.communicator, model.buckets, plan.accumulation_steps, clock,
            self._each_step(alive), partial(dropout_seed, self.recipe.run.seed, self.rank), told_to_stop,
        )  # fmt: skip
        start = self.origin.position
        goes_on = None if self.origin.checkpoint is None else start
        metrics = MetricsWriter(self.folder / METRICS_FILE, goes_on) if is_reporter else NullMetrics()
        progress = Progress(
            metrics, clock, global_batch_size=plan.global_batch_size, total_steps=plan.total_steps,
            every_steps=goal.log_every_steps, visible=is_reporter,
        )  # fmt: skip
        try:
            run = Run(
                plan=plan, schedule=self.schedule, step=step, open_training=open_training,
                evaluate=Evaluator(
                    model.network, evaluation, self.communicator, metric_of(self.recipe.loss, self.rank), alive
                ),
                target_top1=goal.target_top1, log_every_steps=goal.log_every_steps,
                run_ahead_steps=engine.run_ahead_steps, judge=judge_of(self.recipe, plan),
                checkpoints=self.checkpoints, start=start,
            )  # fmt: skip
            result = train(run, log=log, progress=progress)
        finally:
            self.tracer.close()
            progress.close()
        return result, clock

    def conclude(self, result: Result, clock: Clock, init_s: float) -> None:
        """Compare the ranks, keep the network, write the summary."""
        final_checksum = _common_checksum(self.model, self.communicator, "after the run")
        ranks = gather_ranks(self.communicator, clock.samples)
        self.checkpoints.finished(Position(result.epochs + 1, result.steps))
        if self.rank:
            return
        self.tracer.merge()
        write_json(self.folder / RANKS_FILE, {"ranks": ranks})
        slowest, excess = slowest_rank(ranks)
        summary = _summary(self.recipe, self.plan, result, clock, init_s, final_checksum)
        resumed = self.origin.resumed_from_step
        write_summary(
            self.folder, replace(summary, slowest_rank=slowest, rank_excess=excess, resumed_from_step=resumed)
        )

    def _each_step(self, alive: Watchdog) -> Callable[[int], None]:
        def tell(step: int) -> None:
            alive(step)
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
        images_per_s=clock.steps * plan.global_batch_size / clock.stepping_s,
        input_wait_fraction=input_wait,
        comm_exposed_fraction=exposed,
        weights_checksum=f"{final_checksum:016x}",
        seed=recipe.run.seed,
        failure=result.failure,
    )
