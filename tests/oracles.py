"""What the papers say, in plain NumPy and float64: the other side of every comparison. Imports nothing of ours."""

import math
from dataclasses import dataclass

import numpy as np


@dataclass
class LarsOracle:
    """LARS of arXiv:1708.03888 for one tensor, as the MLPerf reference writes it.

    T = eta |w| / (|g| + wd_T |w| + epsilon) where both norms are above 0, else 1; without a trust ratio T is 1.
    """

    momentum: float
    weight_decay: float
    trust_coefficient: float
    epsilon: float
    trust_weight_decay: float
    has_trust_ratio: bool = True

    def steps(self, weight: np.ndarray, gradients: list[np.ndarray], rates: list[float]) -> np.ndarray:
        """Apply the gradients (means over the batch) at the given rates; give the weight."""
        w, v = weight.astype(np.float64), np.zeros_like(weight, np.float64)
        for gradient, lr in zip(gradients, rates, strict=True):
            g = gradient.astype(np.float64)
            trust = 1.0
            w_norm, g_norm = float(np.linalg.norm(w)), float(np.linalg.norm(g))
            if self.has_trust_ratio and w_norm > 0 and g_norm > 0:
                trust = self.trust_coefficient * w_norm / (g_norm + self.trust_weight_decay * w_norm + self.epsilon)
            v = self.momentum * v - lr * trust * (g + self.weight_decay * w)
            w = w + v
        return w


def record_lr(step: int) -> float:
    """Give the learning rate of the 2019 record at 0-based ``step`` (its configuration file, evaluated)."""
    warm = min(step + 1, 540) / 540
    left: float = 1 - min(max(step - 540, 0), 780) / 780
    return float(13 * warm * ((1 - 0.0025) * left**2.2 + 0.0025))


def record_weight_decay_step(step: int) -> float:
    """Give the share of itself that a weight lost per unit of trust ratio in the record's step, lr times decay."""
    warm = min(step, 539) / 540
    left: float = 1 - min(max(step - 540, 0), 780) / 780
    return float(13 * 5e-5 * warm * ((1 - 0.0025) * left**2.2 + 0.0025))


def closed_lr(step: int, base_lr: float, warmup_steps: int, total_steps: int) -> float:
    """Give the rate of NVIDIA's closed runs at 0-based ``step``; they count n from 1 and end at 1e-4."""
    n = step + 1
    if n <= warmup_steps:
        return base_lr * n / warmup_steps
    return 1e-4 + (base_lr - 1e-4) * (1 - (min(n, total_steps) - warmup_steps) / (total_steps - warmup_steps)) ** 2


def google_lr(step: int) -> float:
    """Give the rate of Google's closed run of v2.0 at 0-based ``step``; its code first has a step of rate 0."""
    n = step + 1
    if n * 32768 / 1281167 <= 16:
        return 27.5 * n * 32768 / 1281167 / 16
    return 1e-4 + (27.5 - 1e-4) * (1 - min(n - 625, 1731) / 1731) ** 2


def siat_lr(step: int, base_lr: float, warmup_steps: int, total_steps: int) -> float:
    """Give the rate of SIAT's open runs of v0.7 at 0-based ``step`` (cos_warmup_1980, cos_decay_1980), 0 at the end."""
    if step < warmup_steps:
        return 0.8 + (base_lr - 0.8) * 0.5 * (1 + math.cos(math.pi + math.pi * (step + 1) / warmup_steps))
    left = min(step + 1, total_steps) - warmup_steps
    return base_lr * 0.5 * (1 + math.cos(math.pi * left / (total_steps - warmup_steps)))


def composer_lr(step: int) -> float:
    """Give the rate of MosaicML's open run of v2.0 at 0-based ``step``; Composer first has a step of rate 0."""
    n = step + 1  # of 28 epochs of 625 steps, 8 of them warm-up
    if n < 5000:
        return 2.048 * n / 5000
    return 2.048 * 0.5 * (1 + math.cos(math.pi * min(n - 5000, 12500) / 12500))


def ffcv_lr(step: int, steps: int, epochs: int) -> float:
    """Give FFCV's rate (get_cyclic_lr, peak at epoch 2) at 0-based ``step`` of ``steps``, without its first step."""
    return float(np.interp(epochs * (step + 1) / steps, [0, 2, epochs], [1.7e-4, 1.7, 0]))


def timm_lr(epoch: int, base_lr: float, epochs: int, warmup: int, warmup_lr: float, min_lr: float) -> float:
    """Give the rate of timm's CosineLRScheduler in a 0-based epoch: stepped by epochs, without warmup_prefix."""
    if epoch < warmup:
        return warmup_lr + epoch * (base_lr - warmup_lr) / warmup
    return min_lr + 0.5 * (base_lr - min_lr) * (1 + math.cos(math.pi * epoch / epochs))


def torchvision_lr(epoch: int, base_lr: float, epochs: int, warmup: int, factor: float) -> float:
    """Give the rate of torchvision's train.py in a 0-based epoch: LinearLR, then CosineAnnealingLR down to 0."""
    if epoch < warmup:
        return base_lr * (factor + (1 - factor) * epoch / warmup)
    return 0.5 * base_lr * (1 + math.cos(math.pi * (epoch - warmup) / (epochs - warmup)))


def shampoo_lr(step: int) -> float:
    """Give the rate of Google's open run of v1.0 at 0-based ``step``; its code first has a step of rate 0."""
    n = step + 1
    if n <= 196.25:  # 5 epochs of 39.25 steps; 44 of them are 1,727 steps
        return 16.22 * n / 196.25
    return 16.22 * (1 - min(n - 196.25, 1531.75) / 1531.75) ** 2


def smoothed_cross_entropy(logits: np.ndarray, labels: np.ndarray, smoothing: float, kind: str) -> np.ndarray:
    """Give each row's cross-entropy against its smoothed label distribution."""
    rows, classes = logits.shape
    shifted = logits - logits.max(axis=1, keepdims=True)
    log_p = shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True))
    if kind == "uniform":
        target = np.full((rows, classes), smoothing / classes)
        target[np.arange(rows), labels] += 1 - smoothing
    else:
        target = np.full((rows, classes), smoothing / (classes - 1))
        target[np.arange(rows), labels] = 1 - smoothing
    return np.asarray(-(target * log_p).sum(axis=1))


def orthogonal(matrix: np.ndarray, steps: int) -> np.ndarray:
    """Map the singular values s of a matrix, divided by its norm, as Muon does: s <- 3.4445 s - 4.775 s^3 + 2.0315 s^5.

    An odd polynomial of a matrix, X (a + b X'X + c X'X X'X), acts on its singular values alone.
    """
    left, values, right = np.linalg.svd(matrix, full_matrices=False)
    values = values / np.linalg.norm(matrix)
    for _ in range(steps):
        values = 3.4445 * values - 4.775 * values**3 + 2.0315 * values**5
    return np.asarray(left * values @ right)


def muon_steps(
    weight: np.ndarray, gradients: list[np.ndarray], rates: list[float], momentum: float, decay: float, newton: int
) -> np.ndarray:
    """Apply Muon of Keller Jordan's repository to a weight [outputs, ...]; ``newton`` 0: Nesterov's SGD instead."""
    w, m = weight.astype(np.float64), np.zeros_like(weight, np.float64)
    rows, columns = (len(w), w.size // len(w)) if newton else (1, 1)
    for gradient, lr in zip(gradients, rates, strict=True):
        m = momentum * m + gradient
        step = gradient + momentum * m
        if newton:
            step = max(1, rows / columns) ** 0.5 * orthogonal(step.reshape(rows, -1), newton).reshape(w.shape)
        w = w * (1 - lr * decay) - lr * step
    return w


def torch_sgd_steps(
    weight: np.ndarray, gradients: list[np.ndarray], rates: list[float], *, momentum: float, decay: float
) -> np.ndarray:
    """Apply the momentum SGD of PyTorch's documentation to one tensor: the rate multiplies the whole momentum."""
    w = weight.astype(np.float64)
    v = np.zeros_like(w)
    for gradient, lr in zip(gradients, rates, strict=True):
        v = momentum * v + gradient + decay * w
        w = w - lr * v
    return w


def decoupled_sgd_steps(
    weight: np.ndarray,
    gradients: list[np.ndarray],
    rates: list[float],
    *,
    momentum: float,
    decay: float,
    base_lr: float,
) -> np.ndarray:
    """Apply momentum SGD to one tensor, with the decay of Composer's DecoupledSGDW: w (1 - decay lr / base_lr)."""
    w = weight.astype(np.float64)
    v = np.zeros_like(w)
    for gradient, lr in zip(gradients, rates, strict=True):
        v = momentum * v - lr * gradient
        w = w * (1 - decay * lr / base_lr) + v
    return w


def adam_steps(
    weight: np.ndarray,
    gradients: list[np.ndarray],
    rates: list[float],
    constants: tuple[float, float, float, float],
    *,
    is_decoupled: bool = False,
) -> np.ndarray:
    """Apply algorithm 1 of arXiv:1412.6980 to one tensor, with the decay of the gradient, or of PyTorch's AdamW.

    Constants are beta_1, beta_2, epsilon, weight decay.
    """
    beta_1, beta_2, epsilon, decay = constants
    w = weight.astype(np.float64)
    m, v = np.zeros_like(w), np.zeros_like(w)
    for t, (gradient, lr) in enumerate(zip(gradients, rates, strict=True), start=1):
        g = gradient if is_decoupled else gradient + decay * w
        w = w * (1 - lr * decay) if is_decoupled else w
        m = beta_1 * m + (1 - beta_1) * g
        v = beta_2 * v + (1 - beta_2) * g**2
        w = w - lr * (m / (1 - beta_1**t)) / (np.sqrt(v / (1 - beta_2**t)) + epsilon)
    return w


def lamb_steps(
    weight: np.ndarray, gradients: list[np.ndarray], rates: list[float], constants: tuple[float, float, float, float]
) -> np.ndarray:
    """Apply algorithm 2 of arXiv:1904.00962 to one tensor, with phi(z) = z; constants as for `adam_steps`.

    As in timm's code, a tensor without weight decay has no trust ratio.
    """
    beta_1, beta_2, epsilon, decay = constants
    w = weight.astype(np.float64)
    m, v = np.zeros_like(w), np.zeros_like(w)
    for t, (g, lr) in enumerate(zip(gradients, rates, strict=True), start=1):
        m = beta_1 * m + (1 - beta_1) * g
        v = beta_2 * v + (1 - beta_2) * g**2
        update = (m / (1 - beta_1**t)) / (np.sqrt(v / (1 - beta_2**t)) + epsilon) + decay * w
        w_norm, u_norm = float(np.linalg.norm(w)), float(np.linalg.norm(update))
        w = w - lr * (w_norm / u_norm if decay and w_norm > 0 and u_norm > 0 else 1.0) * update
    return w


def batch_norm(
    x: np.ndarray, gamma: np.ndarray, beta: np.ndarray, addend: np.ndarray | float, epsilon: float
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Ioffe and Szegedy, arXiv:1502.03167, algorithm 1, and an addition; x has a row for each pixel of the batch.

    Returns the output before a ReLU, the mean, and 1 / sqrt(variance + epsilon).
    """
    x = x.astype(np.float64)
    mean, inverse_std = x.mean(0), 1 / np.sqrt(x.var(0) + epsilon)
    return (x - mean) * inverse_std * gamma + beta + addend, mean, inverse_std


def batch_norm_gradients(
    passed: np.ndarray, x: np.ndarray, gamma: np.ndarray, epsilon: float
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Ioffe and Szegedy, section 3: the gradients of x, gamma and beta, given that of the output before a ReLU."""
    x, passed = x.astype(np.float64), passed.astype(np.float64)
    rows, away, inverse_std = len(x), x - x.mean(0), 1 / np.sqrt(x.var(0) + epsilon)
    of_normalised = passed * gamma
    of_variance = (of_normalised * away).sum(0) * -0.5 * inverse_std**3
    of_mean = -(of_normalised * inverse_std).sum(0) - 2 * of_variance * away.mean(0)
    of_x = of_normalised * inverse_std + of_variance * 2 * away / rows + of_mean / rows
    return of_x, (passed * away * inverse_std).sum(0), passed.sum(0)
