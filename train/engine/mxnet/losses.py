"""The loss of each image, from logits and labels, on MXNet's symbols or arrays."""

from typing import Any

from configs.schema import Loss


def losses_of(ops: Any, logits: Any, labels: Any, num_classes: int, loss: Loss) -> Any:
    """Return the losses of the recipe's ``loss`` block, shape (batch,)."""
    if loss.kind == "sigmoid":
        return binary_cross_entropy(ops, logits, labels)
    return smoothed_cross_entropy(ops, logits, labels, num_classes, loss)


def binary_cross_entropy(ops: Any, logits: Any, labels: Any) -> Any:
    """Return the binary cross-entropy of each image in nats, the mean over its classes.

    Args:
        ops: ``mx.sym`` or ``mx.nd``.
        logits: Shape (batch, classes); a class's probability is its sigmoid.
        labels: Shape (batch, classes); 1 for each class of an image, else 0.

    Returns:
        Losses, shape (batch,).
    """
    # log(1 + e^x) - x y, in a form in which no exponential overflows.
    softplus = ops.relu(logits) + ops.Activation(-ops.abs(logits), act_type="softrelu")
    return ops.mean(softplus - logits * labels, axis=-1)


def smoothed_cross_entropy(ops: Any, logits: Any, labels: Any, num_classes: int, loss: Loss) -> Any:
    """Return the cross-entropy of each image in nats.

    With a = label_smoothing and K classes: ``uniform`` weighs the label 1-a+a/K and every other class a/K;
    ``softmax_output`` weighs them 1-a and a/(K-1), as MXNet's SoftmaxOutput does.

    Returns:
        Losses, shape (batch,).
    """
    log_probabilities = ops.log_softmax(logits, axis=-1)
    picked = ops.pick(log_probabilities, labels, axis=-1)
    smoothing = loss.label_smoothing
    if not smoothing:
        return -picked
    other = smoothing / num_classes if loss.smoothing == "uniform" else smoothing / (num_classes - 1)
    label = 1 - smoothing + (other if loss.smoothing == "uniform" else 0.0)
    return -(label - other) * picked - other * ops.sum(log_probabilities, axis=-1)
