"""The losses of a micro-batch, in array operations that every engine has. `configs.ideas.loss` has the kinds."""

from collections.abc import Callable

from configs.schema import Recipe
from train.engine.protocol import Array, Engine

Losses = Callable[[Array, Array], Array]
"""Takes float32 logits [B, classes] and labels of the shape `Recipe.label_shape`; returns losses in nats, [B]."""


def losses_of(engine: Engine, recipe: Recipe) -> Losses:
    """Return the function from logits and labels to the losses of a recipe's ``loss`` block."""
    loss = recipe.loss
    label, other = loss.smoothed(recipe.model.num_classes)
    has_pairs, threshold = recipe.label_shape != (), loss.mixed_label_threshold
    # "balanced" is a list by the time a run is trained; an export has no images whose classes it could count.
    weigh = engine.column_scale(loss.class_weights) if isinstance(loss.class_weights, tuple) else None

    def binary_cross_entropy(logits: Array, labels: Array) -> Array:
        return (engine.softplus(logits) - logits * labels).mean(axis=-1)

    def summed_binary_cross_entropy(logits: Array, labels: Array) -> Array:
        expected = (label - other) * picked(logits, labels) + other * logits.sum(axis=-1)
        return engine.softplus(logits).sum(axis=-1) - expected

    def cross_entropy(logits: Array, labels: Array) -> Array:
        likely = engine.log_softmax(logits)
        if weigh is not None:
            likely = weigh(likely)
        if not other:
            return -picked(likely, labels)
        return -(label - other) * picked(likely, labels) - other * likely.sum(axis=-1)

    def picked(values: Array, labels: Array) -> Array:
        """Return the value of each image's label; of two labels, the mean by their shares, or the sum above one."""
        if not has_pairs:
            return engine.pick(values, labels)
        first, second, share = engine.unstack(labels, 3, axis=1)
        other_share = 1 - share
        if threshold is not None:
            share, other_share = share > threshold, other_share > threshold
            # A class that is both labels counts once.
            other_share = other_share * (share * (first == second) == 0)
        return share * engine.pick(values, first) + other_share * engine.pick(values, second)

    if loss.has_label_vectors:
        return binary_cross_entropy
    return cross_entropy if loss.activation == "softmax" else summed_binary_cross_entropy
