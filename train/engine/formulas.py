"""The formulas that both engines share, on the arrays of either. Pure: imports no framework."""

from collections.abc import Callable, Collection, Mapping

from train.engine.protocol import Array
from train.networks.layer import Layer


def folded_batch_norm(
    norm: Layer, tensors: Mapping[str, Array], folds: Collection[str], epsilon: float, sqrt: Callable[[Array], Array]
) -> tuple[Array, Array]:
    """Return scale and shift of each channel by which a batch norm can be replaced in inference.

    In inference, batch norm is y = (x - mean) s + beta with s = gamma / sqrt(variance + epsilon), for each channel.
    After a convolution whose output nothing else reads, the batch norm disappears: the convolution's weight is
    multiplied by the scale s, and its bias becomes the shift beta - (mean - bias) s. Any other batch norm (DenseNet has
    them after concatenations) becomes one multiplication by the scale and one addition of the shift beta - mean s.

    Args:
        norm: The row of the batch norm.
        tensors: Float32 weights and running statistics by name.
        folds: The convolutions whose output only a batch norm reads, see `Network.foldable_convolutions`.
        epsilon: Added to the variance.
        sqrt: The framework's square root.
    """
    mean, variance, gamma, beta = (
        tensors[f"{norm.name}_{kind}"] for kind in ("moving_mean", "moving_var", "gamma", "beta")
    )
    scale = gamma / sqrt(variance + epsilon)
    source = norm.inputs[0]
    bias = tensors.get(f"{source}_bias") if source in folds else None
    return scale, beta - (mean if bias is None else mean - bias) * scale
