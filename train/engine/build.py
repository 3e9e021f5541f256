"""The trained parts of one rank, put together: network, initial weights, bucket plan and optimizer."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module

import numpy as np

from configs.ideas.part import Part, Place, parts_of
from configs.load import resolve_path
from configs.optimizers import OptimizerBlock
from configs.plan import RunPlan
from configs.registry import ENGINES
from configs.schema import Cluster, Recipe
from data.shards import stream_seed
from train.comm.buckets import BucketPlan, bucket_cap, plan_reductions
from train.comm.shares import ALONE, Shares
from train.engine.init import initial_weights
from train.engine.parameters import load_parameters
from train.engine.protocol import Engine, Optimizer, TrainableNetwork
from train.networks.arch import Network, float32_gradients, gradient_bytes, network_of


@dataclass(frozen=True)
class ModelParts:
    """What one rank trains.

    Attributes:
        network: The network with its loss.
        optimizer: Updates the network's weights.
        weights: The initial weights by name, float32 in OIHW.
        buckets: Which gradients are reduced together, and in which order.
        parts: What the recipe's ideas compute.
        train_sides: Sides of the training images, px, largest first. If empty, the network's own.
        eval_side: Side of the images of evaluations, px. If None, the network's own.
        image_type: Number type of the images: float32 or float16.
    """

    network: TrainableNetwork
    optimizer: Optimizer
    weights: dict[str, np.ndarray]
    buckets: BucketPlan
    parts: tuple[Part, ...] = ()
    train_sides: tuple[int, ...] = ()
    eval_side: int | None = None
    image_type: str = "float32"


def build_model(
    engine: Engine,
    recipe: Recipe,
    cluster: Cluster,
    plan: RunPlan,
    saved: Mapping[str, np.ndarray] | None = None,
    *,
    shares: Shares = ALONE,
) -> ModelParts:
    """Build network, weights, bucket plan and optimizer.

    Args:
        engine: The framework, on this rank's device.
        recipe: The network, its loss and its optimizer.
        cluster: Bucket sizes and update groups.
        plan: Batches.
        saved: Weights and running statistics of a checkpoint. If None, the recipe's seeded or given ones.
        shares: Divides among the ranks what an optimizer computes of whole tensors.
    """
    model, communication = recipe.model, cluster.communication
    table = network_of(model)
    # The running statistics move at each micro-batch, and at each step as much as bn_momentum says.
    kept = model.bn_momentum ** (1 / plan.accumulation_steps)
    moved = recipe.model_copy(update={"model": model.model_copy(update={"bn_momentum": kept})})
    network = engine.build_network(table, moved, accumulate=plan.accumulation_steps > 1)
    weights = _first_weights(engine, recipe, cluster, table) if saved is None else dict(saved)
    network.load_weights(weights)
    is_half = cluster.sum_precision != "float32" and plan.accumulation_steps == 1
    width = 2 if is_half else 4
    sizes, apart = gradient_bytes(table.parameters, width), float32_gradients(table.parameters, width)
    cap = bucket_cap(sizes, communication.bucket_bytes, communication.bucket_fraction)
    buckets = plan_reductions(sizes, cap, communication.deferred_fraction, apart)
    arrivals = buckets.arrivals(cluster.engine.update_groups)
    optimizer = build_optimizer(
        engine, recipe.optimizer, network, rescale=1 / plan.global_batch_size, arrivals=arrivals, shares=shares
    )
    sides = {span.recipe.model.image_size for span in recipe.spans}
    is_read = recipe.data.source != "synthetic" and ENGINES[cluster.engine.name].computes
    return ModelParts(
        network,
        optimizer,
        weights,
        buckets,
        parts=parts_of(Place(recipe, cluster, plan, shares.rank, engine, network)),
        train_sides=tuple(sorted(sides, reverse=True)),
        eval_side=recipe.evaluated.model.image_size,
        image_type="float16" if is_read and cluster.engine.precision == "float16" else "float32",
    )


def build_optimizer(
    engine: Engine,
    config: OptimizerBlock,
    network: TrainableNetwork,
    *,
    rescale: float,
    arrivals: Sequence[int] = (),
    shares: Shares = ALONE,
) -> Optimizer:
    """Return the optimizer that updates a network's weights in place: the engine's own, or else that of the block.

    The arguments are those of `train.ideas.update_rule.RuleOptimizer`.
    """
    module, _, name = config.part.rpartition(".")
    make = engine.fused_optimizer(config, network) or getattr(import_module(module), name)
    made: Optimizer = make(engine, config, network, rescale=rescale, arrivals=arrivals, shares=shares)
    return made


def _first_weights(engine: Engine, recipe: Recipe, cluster: Cluster, table: Network) -> dict[str, np.ndarray]:
    """Draw the weights from the seed; a file of parameters, if the recipe names one, replaces them.

    The short tensors of a rehearsal begin as the drawn ones, whatever the recipe names.
    """
    if cluster.rehearsal is not None:
        return initial_weights(table, recipe.model, recipe.run.seed, cluster.rehearsal.shrink)
    drawn = initial_weights(table, recipe.model, recipe.run.seed)
    if recipe.model.parameters is None:
        return drawn
    path = resolve_path(cluster.paths.data) / recipe.model.parameters
    return load_parameters(path, table, drawn)


def layer_seed(seed: int, rank: int, step: int) -> int:
    """Return the 31-bit seed from which a rank's layers draw in a step of a run with ``seed``."""
    return stream_seed(seed, f"dropout, step {step}", rank) % 2**31
