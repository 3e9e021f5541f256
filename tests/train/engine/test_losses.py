"""The losses of every engine, and their gradients, against the definitions in NumPy: the logits are the images."""

from typing import Any

import numpy as np
import pytest

from tests.engines import each_engine, small_network
from tests.oracles import smoothed_cross_entropy
from train.networks.arch import Network, Rows

CLASSES = 10
LOGITS = np.random.default_rng(1).standard_normal((16, CLASSES)).astype(np.float32)

SEVERAL_LABELS = (
    "loss={kind: sigmoid, label_smoothing: 0}", "run.target_top1=null",
    "data={name: none, source: synthetic, train_samples: 64, eval_samples: 16, crop: {kind: none}}",
)  # fmt: skip


def _identity(name: str, *overrides: str) -> tuple[Any, Any]:
    """Give an engine and a network whose logits are its images, of one pixel and ten channels."""
    rows = Rows(input_channels=CLASSES, image_size=1)
    rows.dense("classifier", "data", CLASSES)
    table = Network("identity", 1, CLASSES, CLASSES, tuple(rows.layers))
    engine, _, network = small_network(name, *overrides, table=table)
    network.load_weights({"classifier_weight": np.eye(CLASSES, dtype=np.float32), "classifier_bias": np.zeros(CLASSES)})
    return engine, network


def _losses(name: str, logits: np.ndarray, labels: np.ndarray, *overrides: str) -> tuple[list[float], np.ndarray]:
    """Return the loss of each image, and the gradient of their sum by the logits, summed over the images."""
    engine, network = _identity(name, *overrides)
    losses, gradient = [], np.zeros(CLASSES)
    for image, label in zip(logits, labels, strict=True):
        batch = engine.from_host(image.reshape(1, CLASSES, 1, 1).astype(np.float32))
        losses.append(engine.to_number(network.forward(batch, engine.from_host(label[None].astype(np.float32)))))
        network.backward()
        gradient += engine.to_host(network.gradients[1])
    return losses, gradient


@each_engine
@pytest.mark.parametrize("kind", ["uniform", "softmax_output"])
@pytest.mark.parametrize("smoothing", [0.0, 0.3])
def test_cross_entropy_weighs_the_label_and_every_other_class(name: str, kind: str, smoothing: float) -> None:
    labels = np.random.default_rng(2).integers(0, CLASSES, len(LOGITS))
    given = f"loss={{label_smoothing: {smoothing}, smoothing: {kind}}}"
    losses, gradient = _losses(name, LOGITS, labels, given)
    np.testing.assert_allclose(losses, smoothed_cross_entropy(LOGITS, labels, smoothing, kind), rtol=1e-5)
    other = smoothing / CLASSES if kind == "uniform" else smoothing / (CLASSES - 1)
    targets = np.full((len(labels), CLASSES), other)
    targets[range(len(labels)), labels] = 1 - smoothing + (other if kind == "uniform" else 0)
    probabilities = np.exp(LOGITS) / np.exp(LOGITS).sum(axis=1, keepdims=True)
    np.testing.assert_allclose(gradient, (probabilities - targets).sum(axis=0), rtol=1e-4, atol=1e-5)


@each_engine
@pytest.mark.parametrize("smoothing", [0.0, 0.08])
def test_one_hot_sigmoids_sum_the_binary_cross_entropy_of_the_smoothed_label(name: str, smoothing: float) -> None:
    """Composer's label smoothing of one-hot targets is y (1 - a) + a / K, and the batch divides a sum over classes."""
    logits = np.concatenate([LOGITS, np.full((1, CLASSES), 500.0), np.full((1, CLASSES), -500.0)])
    labels = np.random.default_rng(2).integers(0, CLASSES, len(logits))
    losses, gradient = _losses(name, logits, labels, f"loss={{kind: one_hot_sigmoid, label_smoothing: {smoothing}}}")
    targets = np.eye(CLASSES)[labels] * (1 - smoothing) + smoothing / CLASSES
    each = targets * np.logaddexp(0, -logits) + (1 - targets) * np.logaddexp(0, logits)
    np.testing.assert_allclose(losses, each.sum(axis=1), rtol=1e-5)
    expected = np.exp(-np.logaddexp(0, -logits)) - targets
    np.testing.assert_allclose(gradient, expected.sum(axis=0), rtol=1e-4, atol=1e-5)


@each_engine
@pytest.mark.parametrize(("kind", "smoothing"), [("softmax", 0.0), ("softmax", 0.3), ("one_hot_sigmoid", 0.08)])
def test_an_image_mixed_of_two_has_the_mean_of_the_losses_of_both_labels_by_their_shares(
    name: str, kind: str, smoothing: float
) -> None:
    draw = np.random.default_rng(2)
    (first, second), shares = draw.integers(0, CLASSES, (2, len(LOGITS))), draw.random(len(LOGITS))
    given = f"loss={{kind: {kind}, label_smoothing: {smoothing}}}", "data.mixup_alpha=0.2"
    losses, gradient = _losses(name, LOGITS, np.stack([first, second, shares], axis=1), *given)
    hard = shares[:, None] * np.eye(CLASSES)[first] + (1 - shares[:, None]) * np.eye(CLASSES)[second]
    targets = hard * (1 - smoothing) + smoothing / CLASSES
    if kind == "softmax":
        found = np.exp(LOGITS) / np.exp(LOGITS).sum(axis=1, keepdims=True)
        expected = -(targets * np.log(found)).sum(axis=1)
    else:
        found = 1 / (1 + np.exp(-LOGITS))
        expected = -(targets * np.log(found) + (1 - targets) * np.log(1 - found)).sum(axis=1)
    np.testing.assert_allclose(losses, expected, rtol=1e-4)
    np.testing.assert_allclose(gradient, (found - targets).sum(axis=0), rtol=1e-3, atol=1e-5)


@each_engine
def test_labels_of_a_mixed_image_above_a_threshold_count_in_full_and_once(name: str) -> None:
    """As timm's BinaryCrossEntropy: the mixed one-hot targets are compared with the threshold."""
    shares = np.array([0.1, 0.2, 0.5, 0.8, 0.95, 0.1, 0.5, 0.95])
    first, second = np.arange(8), np.array([7, 6, 5, 4, 3, 5, 6, 7])
    given = "loss={kind: one_hot_sigmoid, mixed_label_threshold: 0.3}", "data.mixup_alpha=0.2"
    losses, gradient = _losses(name, LOGITS[:8], np.stack([first, second, shares], axis=1), *given)
    targets = shares[:, None] * np.eye(CLASSES)[first] + (1 - shares[:, None]) * np.eye(CLASSES)[second] > 0.3
    found = 1 / (1 + np.exp(-LOGITS[:8]))
    np.testing.assert_allclose(losses, -np.log(np.where(targets, found, 1 - found)).sum(axis=1), rtol=1e-5)
    np.testing.assert_allclose(gradient, (found - targets).sum(axis=0), rtol=1e-4, atol=1e-5)


@each_engine
@pytest.mark.parametrize("smoothing", [0.0, 0.3])
@pytest.mark.parametrize("is_mixed", [False, True])
def test_weights_of_classes_multiply_the_terms_of_the_cross_entropy(
    name: str, smoothing: float, is_mixed: bool
) -> None:
    """As PyTorch's CrossEntropyLoss(weight, reduction="sum", label_smoothing) defines them."""
    draw = np.random.default_rng(2)
    (first, second), shares = draw.integers(0, CLASSES, (2, len(LOGITS))), draw.random(len(LOGITS))
    weights = draw.uniform(0.2, 5, CLASSES).round(3)
    given = f"loss={{label_smoothing: {smoothing}, class_weights: {weights.tolist()}}}"
    labels = np.stack([first, second, shares], axis=1) if is_mixed else first
    losses, gradient = _losses(name, LOGITS, labels, given, *["data.mixup_alpha=0.2"] * is_mixed)
    share = shares[:, None] if is_mixed else 1
    hard = share * np.eye(CLASSES)[first] + (1 - share) * np.eye(CLASSES)[second]
    targets = weights * (hard * (1 - smoothing) + smoothing / CLASSES)
    found = np.exp(LOGITS) / np.exp(LOGITS).sum(axis=1, keepdims=True)
    np.testing.assert_allclose(losses, -(targets * np.log(found)).sum(axis=1), rtol=1e-4)
    expected = targets.sum(axis=1, keepdims=True) * found - targets
    np.testing.assert_allclose(gradient, expected.sum(axis=0), rtol=1e-3, atol=1e-4)


@each_engine
def test_binary_cross_entropy_is_the_mean_over_classes_and_never_overflows(name: str) -> None:
    logits = np.concatenate([LOGITS[:3], np.full((1, CLASSES), 500.0)])
    labels = (np.arange(4 * CLASSES).reshape(4, CLASSES) % 3 == 0).astype(np.float32)
    losses, gradient = _losses(name, logits, labels, *SEVERAL_LABELS)
    each = np.logaddexp(0, logits.astype(np.float64)) - logits * labels
    np.testing.assert_allclose(losses, each.mean(axis=1), rtol=1e-5)
    expected = (1 / (1 + np.exp(-logits.astype(np.float64))) - labels) / CLASSES
    np.testing.assert_allclose(gradient, expected.sum(axis=0), rtol=1e-4, atol=1e-6)
