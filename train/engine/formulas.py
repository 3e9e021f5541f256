"""The formulas that both engines share, on the arrays of either. Pure: imports no framework.

Each engine has operators of its own for LARS. *Source*: You, Gitman, Ginsburg, arXiv:1708.03888, equations 5 and 6,
with the trust ratio T = eta |w| / (|g| + wd_T |w| + epsilon), v = m v - lr T (g + wd w), w = w + v. T is 1 where a norm
is 0. For SGD with decoupled decay see `configs.optimizers.Sgd`.
"""

from collections.abc import Callable, Collection, Mapping
from typing import Any

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


def corrected_adam(
    rate: Any, epsilon: Any, beta_1: float, beta_2: float, time: Any, sqrt: Callable[[Any], Any]
) -> tuple[Any, Any]:
    """Return rate and epsilon of Adam with the corrections of bias, so that the moments need none.

    *Source*: Kingma and Ba, arXiv:1412.6980, algorithm 1: m = b1 m + (1-b1) g, v = b2 v + (1-b2) g^2,
    w = w - lr (m / (1-b1^t)) / (sqrt(v / (1-b2^t)) + epsilon) in step t = 1, 2, ..., with g the gradient plus wd w.
    With c = sqrt(1-b2^t), the last line is w - (lr c / (1-b1^t)) m / (sqrt(v) + epsilon c). t is the step of the
    schedule, so no counter has to be saved. A decoupled decay comes off the weights first.
    """
    correction = sqrt(1 - beta_2**time)
    return rate * correction / (1 - beta_1**time), epsilon * correction
