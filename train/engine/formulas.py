"""The formulas that both engines share, on the arrays of either. Pure: imports no framework."""

from collections.abc import Callable, Collection, Mapping

from train.engine.protocol import Array
from train.networks.layer import Layer


def folded_batch_norm(
    mean: Array, variance: Array, gamma: Array, beta: Array, epsilon: float, sqrt: Callable[[Array], Array]
) -> tuple[Array, Array]:
    """Return scale and shift of each channel by which a batch norm can be replaced in inference.

    In inference, batch norm is y = (x - mean) s + beta with s = gamma / sqrt(variance + epsilon), for each channel.
    After a convolution whose output nothing else reads, the batch norm disappears: the convolution's weight is
    multiplied by the scale s, and its bias becomes the shift beta - (mean - bias) s. Any other batch norm (DenseNet has
    them after concatenations) becomes one multiplication by the scale and one addition of the shift beta - mean s.

    Args:
        mean: The running means, less the bias that the convolution before has.
        variance: The running variances.
        gamma: The factors of the channels.
        beta: What is added to the channels.
        epsilon: Added to the variance.
        sqrt: The framework's square root.
    """
    scale = gamma / sqrt(variance + epsilon)
    return scale, beta - mean * scale


def norm_vectors(
    norm: Layer, tensors: Mapping[str, Array], folds: Collection[str]
) -> tuple[Array, Array, Array, Array]:
    """Return what `folded_batch_norm` takes of a batch norm: mean, variance, gamma and beta.

    Args:
        norm: The row of the batch norm.
        tensors: Float32 weights and running statistics by name.
        folds: The convolutions whose output only a batch norm reads, see `Network.foldable_convolutions`.
    """
    mean, variance, gamma, beta = (
        tensors[f"{norm.name}_{kind}"] for kind in ("moving_mean", "moving_var", "gamma", "beta")
    )
    source = norm.inputs[0]
    bias = tensors.get(f"{source}_bias") if source in folds else None
    return (mean if bias is None else mean - bias), variance, gamma, beta
