"""One rank of a run, from its config to its summary: checks, start-up, training, conclusion."""

from __future__ import annotations

import gc
import os
import sys
import time
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, closing, contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from configs.compilers import require_compiler
from configs.load import ROOT
from configs.plan import Position, plan_run
from configs.reading import is_file
from configs.registry import require_engine
from configs.resume_check import fixed_settings
from configs.schema import Cluster, Recipe
from logs.classes import write_classes
from logs.disk import dispensable, write_json
from logs.folder import DATASET_FILE, STARTUP_FILE, RunFolder, Summary
from logs.metrics import METRICS_FILE, RANKS_FILE, MetricsWriter, NullMetrics
from logs.mlperf import EventLog, MlperfLog
from train.best_checkpoint import BestMark
from train.checkpoint import Checkpoints, CheckpointWriter, InitialState
from train.comm.communicator import Connect
from train.comm.devices import run_ranks_here
from train.compose import Composition, compose
from train.dataset import images_of, require_cold
from train.engine.init import RanksDiffer, checksum, require_equal
from train.measure.chance import StopRule, stop_rule_of
from train.measure.node_energy import counted, node_meter
from train.measure.rank_pace import RankPace
from train.measure.rank_times import Usage, gather_ranks, slowest_rank
from train.measure.trace import Tracer
from train.networks.arch import network_of
from train.plan.memory import require_memory
from train.rank.failure import record_failure
from train.rank.identity import Identity
from train.rank.peers import Peers
from train.rank.signals import StopSignals
from train.rank.startup import Ledger, gather_starts
from train.rank.watchdog import Watchdog
from train.schedule import logged_hyperparameters, resolve_schedule
from train.warmup import TRIAL, warm_up

if TYPE_CHECKING:
    from data.manifest import Manifest
    from train.evaluate import Evaluator
    from train.loop import Result
    from train.measure.progress import Progress
    from train.measure.timing import Clock

_TRIED = 4096
"""Numbers of each tensor that are compared after the trial: of ResNet-50 a fiftieth."""

_CONCLUSION_S = 600.0
"""Least time for the end of a run: all that is left to do is to write, and a slow disk is no reason to lose the trained
network. A rank that is frozen meanwhile is still noticed by the others, see `train.rank.peers`."""


def run(folder: Path, identity: Identity, ledger: Ledger, signals: StopSignals) -> int:
    """Train this process's share of the run in ``folder``, from its checkpoint if there is one.

    Returns:
        The exit status: 0 if the run succeeded, else 1.

    Raises:
        UserError: Before the run: config, data set, batch arithmetic or checkpoint do not fit.
        RunStopped: A rank was told to stop, and a checkpoint of the state is on disk.
        RuntimeError: During the run; the message says what happened.
    """
    run_folder = RunFolder(folder)
    # The launcher has claimed the folder. Rank 0 holds the claim too, so that it outlasts a launcher that is killed.
    with run_folder.claims.held(_leave_at_once) if identity.rank == 0 else nullcontext():
        return run_ranks_here(run_folder.cluster, identity, ledger, partial(_run_rank, run_folder, signals))


def _leave_at_once(message: str) -> None:
    """End the process without writing into the run folder, which belongs to another run now."""
    sys.stderr.write(f"error: {message}\n")
    os._exit(1)


def _run_rank(run_folder: RunFolder, signals: StopSignals, identity: Identity, ledger: Ledger, connect: Connect) -> int:
    """Train one rank's share and return the exit status."""
    folder, (recipe, cluster) = run_folder.path, _settings(run_folder)
    # This rank's environment may be an image's.
    require_engine(cluster.engine.name)
    require_compiler(cluster)
    require_memory(recipe, cluster)
    plan = plan_run(recipe, identity.world_size)
    images = images_of(recipe, cluster, plan, identity)
    resumes_from, manifest = run_folder.checkpoints.resume_point(), folder / DATASET_FILE
    with ledger.phase("data set"):
        # Rank 0 has written the manifest's copy as the attempt before began to train.
        prepared = images.prepare(manifest.stat().st_mtime_ns if resumes_from and is_file(manifest) else None)
    # The watchdog starts only now, because copying has no time limit.
    watchdog = Watchdog(cluster.communication.timeout_s, partial(record_failure, folder, identity))
    facts = {**fixed_settings(recipe, cluster), "data set": prepared.checksums}
    # The short tensors of a rehearsal have other shapes than the network's.
    shapes = None if cluster.rehearsal else network_of(recipe.model).tensor_shapes
    initial = InitialState.read(resumes_from, facts, plan, shapes)
    resumed_from = initial.resumed_from_step
    recipe = recipe.counted(prepared.class_counts and prepared.class_counts.train)
    with closing(images), opened_log(folder, recipe, cluster, identity, resumed_from, is_cold=prepared.is_cold) as log:
        begin = time.monotonic()
        meter = node_meter(identity, cluster)
        state, weights = initial.source_state(identity.rank), initial.weights(identity.rank)
        rank = compose(
            recipe, cluster, identity, ledger,
            plan=plan, images=images, source_state=state, connect=connect, weights=weights,
        )  # fmt: skip
        require_cold(rank.communicator, is_cold=prepared.is_cold)
        _require_same_copies(rank, prepared.checksums)
        _warm_up(rank, initial, ledger)
        with ledger.phase("compare weights"):
            _common_checksum(rank, "before the run")
            starts = gather_starts(rank.communicator.gather_bytes, rank.identity.host, ledger)
        schedule = resolve_schedule(recipe, rank.plan)
        for each in logged_hyperparameters(recipe, rank.plan, schedule, rank.model.optimizer.config).items():
            log.emit("point", *each)
        log.emit("stop", "init_stop")
        init_s = time.monotonic() - begin
        _write_start(folder, rank, {**ledger.to_json(), **starts}, prepared.manifest)
        # A run that had ended is evaluated once more, and not trained on.
        ending, counts = initial.ending, prepared.class_counts
        stop_rule = (lambda *_: ending) if ending is not None else stop_rule_of(recipe, cluster, plan, counts)
        training = _Training(
            folder=run_folder,
            rank=rank,
            initial=initial,
            stop_rule=stop_rule,
            hosts=starts["hosts"],
            counted=counted(meter, folder, identity, starts, initial.position.step),
            checkpoints=_checkpoints(run_folder, rank, facts, initial, watchdog),
            tracer=Tracer(rank.engine, folder, identity.rank, cluster.trace_steps, rank.plan.total_steps),
            class_names=() if prepared.manifest is None else prepared.manifest.class_names,
            is_cold=prepared.is_cold,
        )
        usage = Usage()
        watchdog.expect(cluster.watchdog_s)
        if cluster.communication.is_synchronous:
            signals.wait_for_step()
            watchdog.follow(Peers(folder, identity, starts["hosts"], cluster.engine.run_ahead_steps))
        evaluate = rank.make_evaluator(watchdog)
        if cluster.device == "gpu":
            # A full collection takes 0.1 to 0.4 s with PyTorch imported, for which all ranks would wait in some step.
            gc.collect()
            gc.freeze()
        result, clock = training.run(evaluate, log, watchdog, signals)
    usage.write(folder, rank.communicator, is_writer=identity.rank == 0)
    status = training.conclude(result, evaluate, clock, init_s)
    watchdog.rest()
    return status


def _require_same_copies(rank: Composition, checksums: Mapping[str, str]) -> None:
    """Raise `RanksDiffer` where hosts have unlike copies of the data set or of the program."""
    parts = (ROOT / part for part in ("configs", "data", "logs", "train") if rank.cluster.num_nodes > 1)
    program = zlib.crc32(b"".join(path.read_bytes() for part in parts for path in sorted(part.rglob("*.py"))))
    # One number holds both: another version of the program may gather no second one.
    sums = rank.communicator.gather("data set", program << 32 | zlib.crc32(repr(checksums).encode()))
    remedy = "; copy that of one host to the others"
    require_equal([each >> 32 for each in sums], "before the run", "programs are", remedy)
    require_equal([each % (1 << 32) for each in sums], "before the run", "data sets are", remedy)


def _settings(run_folder: RunFolder) -> tuple[Recipe, Cluster]:
    """Return recipe and cluster of this attempt; a rehearsal fails in as many attempts as its cluster says."""
    recipe, cluster = run_folder.settings
    if cluster.rehearsal is None:
        return recipe, cluster
    failures = sum(each.outcome == "failed" for each in run_folder.attempts.read())
    return recipe, cluster.model_copy(update={"rehearsal": cluster.rehearsal.after_failures(failures)})


def _warm_up(rank: Composition, initial: InitialState, ledger: Ledger) -> None:
    """Warm up all parts, and then give the optimizer and the ideas the state in which the run begins."""
    with ledger.phase("warm-up"):
        model, size = rank.model, rank.plan.per_rank_batch_size
        warm_up(model, rank.communicator, size, on_update=partial(_require_same_update, rank))
        model.weights.clear()  # 0.1 GB for ResNet-50; the network has them
        initial.restore_optimizer(model, rank.identity.rank)


def _write_start(folder: Path, rank: Composition, ledger: Mapping[str, Any], manifest: Manifest | None) -> None:
    """Write the ledger of the start-up and the data set's manifest, on rank 0."""
    if rank.identity.rank:
        return
    count = sum(each.size for each in rank.model.network.parameters)
    with dispensable():
        write_json(folder / STARTUP_FILE, {**ledger, "parameters": count})
    if manifest is not None:
        with dispensable():  # The data set has it, too.
            write_json(folder / DATASET_FILE, manifest.model_dump(mode="json"))


@contextmanager
def opened_log(
    folder: Path,
    recipe: Recipe,
    cluster: Cluster,
    identity: Identity,
    resumed_from_step: int | None = None,
    *,
    is_cold: bool,
) -> Iterator[EventLog]:
    """Open the MLPerf log, on rank 0, and log everything up to the seed.

    Args:
        folder: The run folder.
        recipe: Has benchmark, division and seed.
        cluster: Says who submits.
        identity: This rank; all ranks but 0 get a log that writes nothing.
        resumed_from_step: Steps done by earlier attempts. If None, this is the first attempt.
        is_cold: Whether no page of the data set is in memory, so that ``cache_clear`` may be logged.
    """
    log: EventLog = MlperfLog(folder, is_resumed=resumed_from_step is not None) if identity.rank == 0 else EventLog()
    try:
        if cluster.rehearsal is not None:
            log.emit("point", "rehearsal", value=True)
        if resumed_from_step is not None:
            log.emit("point", "resumed_from_step", resumed_from_step)
        log.submission(cluster, recipe.mlperf)
        if is_cold:
            log.emit("point", "cache_clear", value=True)
        log.emit("start", "init_start")
        log.emit("point", "seed", recipe.run.seed)
        yield log
    finally:
        log.close()


def _require_same_update(rank: Composition) -> None:
    """Update the weights once more in the warm-up, and compare some of them with the other ranks'.

    Where the libraries of a rank round an update in another way, its weights would drift away from the others' in every
    step. Each rank updates all weights from the same sums, so a part of each tensor shows it. The first update has
    begun with momenta of 0, by which nothing is rounded.

    Raises:
        RanksDiffer: The ranks round differently; the message names the hosts.
    """
    cluster = rank.cluster
    # Asynchronous ranks have weights of their own until the end of the run, and those of a rehearsal never change.
    if rank.identity.world_size == 1 or not cluster.communication.is_synchronous or cluster.rehearsal is not None:
        return
    first = ((each.name, rank.model.weights[each.name].ravel()[:_TRIED]) for each in rank.model.network.parameters)
    if len(set(rank.communicator.gather("first weights", checksum(first)))) > 1:
        return  # The comparison before the run tells of ranks that begin with different weights.
    rank.model.optimizer.update(TRIAL)
    parts = ((name, weight.ravel()[:_TRIED]) for name, weight in rank.model.network.each_weight())
    checksums = rank.communicator.gather("weights of the trial", checksum(parts))
    try:
        require_equal(checksums, "in a trial before the first step")
    except RanksDiffer as error:
        hosts = [each.decode() for each in rank.communicator.gather_bytes("hosts", rank.identity.host.encode())]
        names = ", ".join(dict.fromkeys(hosts))
        raise RanksDiffer(
            f"{error}: their libraries round the same update differently; take hosts of one type of CPU, with the same "
            f"versions and environment variables (the hosts: {names})",
            error.ranks,
        ) from None


def _common_checksum(rank: Composition, when: str) -> int:
    """Return the checksum of the weights after comparing it with the other ranks'.

    Raises:
        RanksDiffer: The ranks hold different weights.
    """
    own = checksum(rank.model.network.each_weight())
    require_equal(rank.communicator.gather(f"weights {when}", own), when)
    return own


def _checkpoints(
    folder: RunFolder, rank: Composition, facts: dict[str, object], initial: InitialState, watchdog: Watchdog
) -> Checkpoints:
    policy, is_synchronous = rank.cluster.checkpoint, rank.cluster.communication.is_synchronous
    return Checkpoints(
        model=rank.model,
        communicator=rank.communicator,
        writer=CheckpointWriter(None if rank.identity.rank else folder.checkpoints, policy.keep),
        fixed_settings=facts,
        # Asynchronous ranks share no state before the end of the run.
        every_epochs=policy.every_epochs if is_synchronous else None,
        saved=initial.position,
        on_save=watchdog,
        changes=initial.changes,
        mark=BestMark(marks=policy.best, resumed=initial.checkpoint),
    )


@dataclass(frozen=True)
class _Training:
    """The training of a rank after start-up: the loop, then the comparison of weights and the summary."""

    folder: RunFolder
    rank: Composition
    initial: InitialState
    stop_rule: StopRule
    hosts: Sequence[str]
    counted: AbstractContextManager[None]
    checkpoints: Checkpoints
    tracer: Tracer
    class_names: Sequence[str]
    is_cold: bool

    def run(self, evaluate: Evaluator, log: EventLog, watchdog: Watchdog, signals: StopSignals) -> tuple[Result, Clock]:
        """Train and return the result and the clock that measured the run."""
        from train.loop import TrainingRun, train  # noqa: PLC0415 (imported while nothing waits)
        from train.measure.progress import Progress  # noqa: PLC0415

        rank, goal = self.rank, self.rank.recipe.run
        assert rank.training is not None
        is_reporter = rank.identity.rank == 0
        clock = rank.make_clock()

        def on_step(step: int) -> None:
            watchdog(step)
            self.tracer.step_queued()

        start = self.initial.position
        resumed_at = None if self.initial.checkpoint is None else start
        progress = Progress(
            MetricsWriter(self.folder / METRICS_FILE, resumed_at) if is_reporter else NullMetrics(),
            clock,
            global_batch_size=rank.plan.global_batch_size,
            total_steps=rank.plan.total_steps,
            every_steps=goal.log_every_steps,
            visible=is_reporter,
        )
        try:
            run = TrainingRun(
                plan=rank.plan,
                schedule=resolve_schedule(rank.recipe, rank.plan),
                step=rank.make_step(clock, on_step, told_to_stop=signals.told_to_stop),
                source=rank.training,
                evaluate=evaluate,
                goal=goal,
                run_ahead_steps=rank.cluster.engine.run_ahead_steps,
                checkpoints=self.checkpoints,
                stop_rule=self.stop_rule,
                start=start,
                on_break=watchdog,
                on_interval=self._make_pace(clock, progress),
            )
            with self.counted:
                result = train(run, log=log, progress=progress)
            if rank.cluster.watchdog_s < _CONCLUSION_S:
                watchdog.expect(_CONCLUSION_S)
        finally:
            self.tracer.close()
            progress.close()
        return result, clock

    def _make_pace(self, clock: Clock, progress: Progress) -> Callable[[int], object]:
        """Return what compares the ranks at the end of an interval; a single or an asynchronous rank waits for none."""
        rank = self.rank
        if len(self.hosts) == 1 or not rank.cluster.communication.is_synchronous:
            return lambda _: None
        return RankPace(
            rank.engine,
            rank.communicator,
            clock,
            rank=rank.identity.rank,
            hosts=self.hosts,
            first_step=self.initial.position.step,
            every_steps=rank.recipe.run.log_every_steps,
            run_ahead_steps=rank.cluster.engine.run_ahead_steps,
            report=progress.compared,
        )

    def conclude(self, result: Result, evaluate: Evaluator, clock: Clock, init_s: float) -> int:
        """Compare the ranks' weights and times, write the last checkpoint, the counts by class and the summary.

        Returns:
            The exit status: 0 if the run succeeded and, on rank 0, its trained network is on the disk, else 1.
        """
        final_checksum = _common_checksum(self.rank, "after the run")
        ranks = gather_ranks(self.rank.communicator, clock.samples)
        by_class = evaluate.by_class(self.rank.recipe.model.num_classes)
        why_lost = self.checkpoints.finished(Position(result.epochs + 1, result.steps), result.failure, result.score)
        if self.rank.identity.rank:
            return 0 if result.success else 1
        if why_lost is not None:
            lost = f"the trained network was not saved: {why_lost}"
            result = replace(result, success=False, failure="; ".join(filter(None, [result.failure, lost])))
        if by_class is not None and self.rank.cluster.rehearsal is None:
            with dispensable():
                write_classes(self.folder.path, result.epochs, self.class_names, by_class)
        with dispensable():
            self.tracer.merge()
        with dispensable():
            write_json(self.folder / RANKS_FILE, {"ranks": ranks})
        slowest, excess = slowest_rank(ranks)
        # A run that was resumed after its last step took none.
        input_wait, exposed = clock.fractions() if clock.steps else (None, None)
        recipe, plan = self.rank.recipe, self.rank.plan
        summary = Summary(
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
            images_per_s=clock.steps * plan.global_batch_size / clock.stepping_s if clock.steps else None,
            input_wait_fraction=input_wait,
            comm_exposed_fraction=exposed,
            weights_checksum=f"{final_checksum:016x}",
            seed=recipe.run.seed,
            failure=result.failure,
            slowest_rank=slowest,
            rank_excess=excess,
            checkpoint_s=self.checkpoints.stall_s,
            is_rehearsal=self.rank.cluster.rehearsal is not None,
            is_saved=why_lost is None,
            resumed_from_step=self.initial.resumed_from_step,
            changes=list(self.initial.changes) or None,
            is_cold=self.is_cold,
            **self.checkpoints.mark.summed_up(self.folder.checkpoints),
        )
        self.folder.write_summary(summary)
        return 0 if result.success else 1
