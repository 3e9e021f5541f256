"""The parts of a run on one rank, put together in the order in which they can start side by side.

The communicator comes up in a thread of its own as soon as the imports are done. Pipelines, network and weights are
made meanwhile: rank and world size come from the launcher's environment, so nothing waits for the communicator to know
them.

`train.session` and the benches start from here.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from configs.errors import UserError
from configs.machine_limits import gpu_shortage
from configs.plan import RunPlan, plan_run
from configs.registry import ENGINES
from configs.schema import Cluster, Recipe
from data.input.batches import EvaluationSource, TrainingSource
from train.comm.buckets import BucketPlan
from train.comm.communicator import Communicator, Connect, connector, start_communicator
from train.comm.shares import Shares
from train.dataset import Images
from train.engine.build import ModelParts, build_model, layer_seed
from train.engine.protocol import Engine, open_engine
from train.engine.timed.score import InventedTop1
from train.evaluate import Evaluator, metric_of
from train.measure.timing import Clock
from train.rank.identity import Identity
from train.rank.startup import WAITING, Ledger
from train.static_step import StaticInference, StaticStep
from train.step import Step
from train.warmup import blank_batch


@dataclass(frozen=True)
class Composition:
    """The parts of one rank, ready to train.

    Attributes:
        recipe: The maths of the run.
        cluster: The place of the run.
        plan: Batches, steps and epochs.
        identity: This rank.
        engine: The framework, on this rank's device.
        communicator: Connects this rank with the others.
        model: Network, initial weights, bucket plan and optimizer.
        training: This rank's stream of micro-batches, which has read nothing yet; None without images.
        evaluation: This rank's shard of the evaluation images; None without images.
    """

    recipe: Recipe
    cluster: Cluster
    plan: RunPlan
    identity: Identity
    engine: Engine
    communicator: Communicator
    model: ModelParts
    training: TrainingSource | None
    evaluation: EvaluationSource | None

    def make_clock(self) -> Clock:
        """Return the clock that the cluster file asks for."""
        settings = self.cluster.engine
        return Clock(
            self.engine, settings.run_ahead_steps, self.recipe.run.log_every_steps if settings.timing else None
        )

    def make_step(
        self,
        clock: Clock,
        on_step: Callable[[int], object],
        *,
        communicator: Communicator | None = None,
        buckets: BucketPlan | None = None,
        **options: Any,
    ) -> Step:
        """Return the optimizer step of this rank; its graphs, if it has some, are captured now, after the warm-up.

        Args:
            clock: Measures the step.
            on_step: Called with the step's number when the step is queued.
            communicator: Reduces the gradients. If None, the rank's own.
            buckets: The bucket plan. If None, the model's own.
            options: Further arguments of `Step`.
        """
        parts: dict[str, Any] = {
            "engine": self.engine,
            "network": self.model.network,
            "optimizer": self.model.optimizer,
            "communicator": communicator or self.communicator,
            "buckets": buckets or self.model.buckets,
            "accumulation_steps": self.plan.accumulation_steps,
            "clock": clock,
            "on_step": on_step,
            "layer_seed": partial(layer_seed, self.recipe.run.seed, self.identity.rank),
            "parts": self.model.parts,
            **options,
        }
        graphs = self.cluster.engine.cuda_graphs
        if graphs == "none":
            return Step(**parts)
        size = self.plan.per_rank_batch_size
        batches = [blank_batch(self.model, size, side) for side in self.model.train_sides]
        return StaticStep(**parts, batches=batches, has_sums=graphs == "step")

    def make_evaluator(self, on_batch: Callable[[], object]) -> Evaluator:
        """Return the evaluation of this rank's shard; where steps are graphs, so are its inferences, captured now."""
        assert self.evaluation is not None
        network, predict = self.model.network, None
        if self.cluster.engine.cuda_graphs != "none":
            batch = blank_batch(self.model, self.plan.per_rank_batch_size, self.model.eval_side)
            predict = StaticInference(network, batch.images)
        new_metric = metric_of(self.engine, self.recipe.loss)
        if (rehearsal := self.cluster.rehearsal) is not None:
            new_metric = partial(InventedTop1, self.engine, rehearsal.waits.top1)
        return Evaluator(network, self.evaluation, self.communicator, new_metric, on_batch, self.model.parts, predict)


def compose(  # noqa: PLR0913 (each is another part of a run)
    recipe: Recipe,
    cluster: Cluster,
    identity: Identity,
    ledger: Ledger,
    *,
    plan: RunPlan | None = None,
    images: Images | None = None,
    source_state: bytes = b"",
    connect: Connect | None = None,
    weights: Mapping[str, np.ndarray] | None = None,
) -> Composition:
    """Import the libraries and make every part of a rank; returns when the communicator is up.

    Args:
        recipe: The maths of the run.
        cluster: The place of the run.
        identity: This rank, as the launcher numbered it.
        ledger: Records the phases.
        plan: The plan of the run. If None, that of ``recipe`` on the world of ``identity``.
        images: Opens the pipelines. If None, no library that reads images is imported.
        source_state: State of the training stream in a checkpoint; empty for a new run.
        connect: Makes the communicator. If None, as the cluster file says.
        weights: Weights and running statistics of a checkpoint. If None, the recipe's.

    Raises:
        UserError: The recipe does not fit the world size, its parameters cannot be read, or the host has too
            few GPUs.
        WorldMismatch: The communication library sees another world than the launcher.
    """
    plan = plan or plan_run(recipe, identity.world_size)
    with ledger.phase(f"import of {ENGINES[cluster.engine.name].title}"):
        engine = open_engine(cluster, identity)
    _require_gpus(engine, cluster, identity)
    if images is not None:
        with ledger.phase("import of input"):
            images.load()
    pending = start_communicator(identity, ledger, connect or connector(cluster.communication))
    training, evaluation = None, None
    if images is not None:
        with ledger.phase("evaluation pipeline"):
            evaluation = images.open_evaluation(engine)
        # Built before the run starts, since nvJPEG's allocations take seconds. It reads nothing before an epoch begins.
        with ledger.phase("training pipeline"):
            training = images.open_training(engine, source_state)
    with ledger.phase("network and weights"):
        shares = Shares(identity.rank, identity.world_size, pending.result)
        model = build_model(engine, recipe, cluster, plan, weights, shares=shares)
    with ledger.phase(WAITING):
        communicator = pending.result()
    return Composition(recipe, cluster, plan, identity, engine, communicator, model, training, evaluation)


def _require_gpus(engine: Engine, cluster: Cluster, identity: Identity) -> None:
    """Raise, on every rank of the host alike, if the framework does not see a GPU for each of them."""
    if cluster.device == "cpu":
        return
    if shortage := gpu_shortage(engine.features()["gpus"], cluster.ranks_per_node):
        words, remedy = shortage
        raise UserError(f"{ENGINES[cluster.engine.name].title} on {identity.host}: {words}; {remedy}")
