"""The loss of each image, from float32 logits and labels, on PyTorch's tensors."""

from typing import Any

from torch.nn import functional

from configs.schema import Loss


def losses_of(logits: Any, labels: Any, loss: Loss) -> Any:
    """Return the losses of the recipe's ``loss`` block in nats, shape (batch,).

    ``sigmoid`` is the binary cross-entropy, the mean over an image's classes. With a = label_smoothing and K classes,
    the smoothing ``uniform`` weighs the label 1-a+a/K and every other class a/K; ``softmax_output`` weighs them 1-a and
    a/(K-1), as MXNet's SoftmaxOutput does.

    Args:
        logits: Shape (batch, classes).
        labels: Float32, shape (batch,); with ``sigmoid``, zeros and ones of shape (batch, classes).
        loss: The recipe's block.
    """
    if loss.kind == "sigmoid":
        return functional.binary_cross_entropy_with_logits(logits, labels, reduction="none").mean(dim=-1)
    log_probabilities = functional.log_softmax(logits, dim=-1)
    picked = log_probabilities.gather(1, labels.long().unsqueeze(1)).squeeze(1)
    smoothing, num_classes = loss.label_smoothing, logits.shape[1]
    if not smoothing:
        return -picked
    other = smoothing / num_classes if loss.smoothing == "uniform" else smoothing / (num_classes - 1)
    label = 1 - smoothing + (other if loss.smoothing == "uniform" else 0.0)
    return -(label - other) * picked - other * log_probabilities.sum(dim=-1)
