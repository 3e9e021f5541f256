"""Forward passes written from the papers in plain NumPy and float64, for images small enough. Imports nothing of ours.

*Sources*: He et al., arXiv:1512.03385 (table 1 and section 4.2), with the strides of version 1.5, which stand in the
3x3 convolution of a bottleneck and in its projection (the MLPerf reference); Szegedy et al., arXiv:1409.4842 (table 1);
Ioffe and Szegedy, arXiv:1502.03167 (algorithm 1).
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

Array = np.ndarray


def convolve(x: Array, weight: Array, *, stride: int = 1, padding: int = 0) -> Array:
    """Correlate images (N, C, H, W) with filters (O, C / G, K, K); each of G groups of filters has its own channels."""
    windows = _windows(np.pad(x, ((0, 0), (0, 0), (padding, padding), (padding, padding))), weight.shape[-1], stride)
    groups = x.shape[1] // weight.shape[1]
    pairs = zip(np.split(windows, groups, 1), np.split(weight.astype(np.float64), groups), strict=True)
    return np.concatenate([np.einsum("nchwij,ocij->nohw", *pair, optimize=True) for pair in pairs], axis=1)


def max_pool(x: Array, kernel: int, stride: int, padding: int) -> Array:
    """Take the largest number of each window; what lies outside the image never is."""
    sides = ((0, 0), (0, 0), (padding, padding), (padding, padding))
    return np.asarray(_windows(np.pad(x, sides, constant_values=-np.inf), kernel, stride).max(axis=(-2, -1)))


def relu(x: Array) -> Array:
    """Set what is below 0 to 0."""
    return np.maximum(x, 0)


def _windows(x: Array, kernel: int, stride: int) -> Array:
    rows = np.lib.stride_tricks.sliding_window_view(x, kernel, axis=2)
    every = np.lib.stride_tricks.sliding_window_view(rows, kernel, axis=3)
    return np.asarray(every[:, :, ::stride, ::stride])


@dataclass
class Forward:
    """One pass through a network whose tensors are given by name.

    Attributes:
        tensors: Parameters, and for inference the running statistics, by the names of the program's checkpoints.
        epsilon: Of every batch norm.
        is_training: Batch norm takes the batch's own mean and variance, unless its name begins with one of ``frozen``.
        batch_statistics: Mean and variance of each batch norm's input, by the layer's name; filled in training.
    """

    tensors: Mapping[str, Array]
    epsilon: float = 1e-5
    is_training: bool = False
    frozen: tuple[str, ...] = ()
    batch_statistics: dict[str, tuple[Array, Array]] = field(default_factory=dict)

    def __getitem__(self, name: str) -> Array:
        """Return a tensor in float64."""
        return self.tensors[name].astype(np.float64)

    def conv_bn(self, x: Array, name: str, *, stride: int = 1, padding: int = 0) -> Array:
        """Convolve without a bias, then normalise."""
        x = convolve(x, self[f"{name}_weight"], stride=stride, padding=padding)
        if self.is_training and not name.startswith(self.frozen):
            mean, variance = x.mean(axis=(0, 2, 3)), x.var(axis=(0, 2, 3))
            self.batch_statistics[f"{name}_bn"] = mean, variance
        else:
            mean, variance = self[f"{name}_bn_moving_mean"], self[f"{name}_bn_moving_var"]
        scale = self[f"{name}_bn_gamma"] / np.sqrt(variance + self.epsilon)
        return np.asarray(x * _channels(scale) + _channels(self[f"{name}_bn_beta"] - mean * scale))

    def conv_relu(self, x: Array, name: str, *, stride: int = 1, padding: int = 0) -> Array:
        """Convolve with a bias, then ReLU."""
        x = convolve(x, self[f"{name}_weight"], stride=stride, padding=padding)
        return relu(x + _channels(self[f"{name}_bias"]))

    def classify(self, x: Array) -> Array:
        """Average each channel over the image; give logits."""
        return np.asarray(x.mean(axis=(2, 3)) @ self["classifier_weight"].T + self["classifier_bias"])


def _channels(x: Array) -> Array:
    return x[None, :, None, None]


def resnet8(forward: Forward, images: Array) -> Array:
    """Give the logits of the paper's network for small images with one block in each of its three stages."""
    x = relu(forward.conv_bn(images.astype(np.float64), "stem", padding=1))
    for stage in (1, 2, 3):
        name, stride = f"stage{stage}_block1", 1 if stage == 1 else 2
        inner = relu(forward.conv_bn(x, f"{name}_conv1", stride=stride, padding=1))
        inner = forward.conv_bn(inner, f"{name}_conv2", padding=1)
        x = relu(inner + (x if stage == 1 else forward.conv_bn(x, f"{name}_projection", stride=stride)))
    return forward.classify(x)


def googlenet(forward: Forward, images: Array) -> Array:
    """Give the logits of GoogLeNet at inference, without auxiliary heads and local response norm."""
    x = forward.conv_relu(images.astype(np.float64), "conv1", stride=2, padding=3)
    x = max_pool(x, 3, 2, 1)
    x = forward.conv_relu(forward.conv_relu(x, "conv2_reduce"), "conv2", padding=1)
    x = max_pool(x, 3, 2, 1)
    for module in ("3a", "3b", "4a", "4b", "4c", "4d", "4e", "5a", "5b"):
        if module in ("4a", "5a"):
            x = max_pool(x, 3, 2, 1)
        x = _inception(forward, x, f"inception{module}")
    return forward.classify(x)


def _inception(forward: Forward, x: Array, name: str) -> Array:
    three = forward.conv_relu(forward.conv_relu(x, f"{name}_3x3_reduce"), f"{name}_3x3", padding=1)
    five = forward.conv_relu(forward.conv_relu(x, f"{name}_5x5_reduce"), f"{name}_5x5", padding=2)
    pooled = forward.conv_relu(max_pool(x, 3, 1, 1), f"{name}_projection")
    return np.concatenate([forward.conv_relu(x, f"{name}_1x1"), three, five, pooled], axis=1)
