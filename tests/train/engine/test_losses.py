"""The losses of every engine, and their gradients, against the definitions in NumPy: the logits are the images."""

from typing import Any

import numpy as np
import pytest

from tests.engines import each_engine, small_network
from train.networks.arch import Network, Rows

CLASSES = 10
LOGITS = np.random.default_rng(1).standard_normal((16, CLASSES)).astype(np.float32)


def _mixed(labels: np.ndarray) -> np.ndarray:
    """Give the share of each class, where rows are the first label, the second one, and the share of the first."""
    first, second, shares = labels.T[:, :, None]
    return np.asarray(shares * (first == range(CLASSES)) + (1 - shares) * (second == range(CLASSES)))


FIRST, SECOND = np.random.default_rng(2).integers(0, CLASSES, (2, len(LOGITS)))
MIXED = np.stack([FIRST, SECOND, np.random.default_rng(3).random(len(LOGITS))], axis=1)
one_or_mixed = pytest.mark.parametrize(
    ("labels", "hard", "words"),
    [(FIRST, np.eye(CLASSES)[FIRST], []), (MIXED, _mixed(MIXED), ["data.mixup_alpha=0.2"])],
    ids=["one label", "mixed"],
)
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


def _require_softmax(name: str, labels: np.ndarray, targets: np.ndarray, *overrides: str) -> None:
    """See that losses and gradients are those of -sum of t log p, with p the softmax of the logits."""
    losses, gradient = _losses(name, LOGITS, labels, *overrides)
    found = np.exp(LOGITS) / np.exp(LOGITS).sum(axis=1, keepdims=True)
    np.testing.assert_allclose(losses, -(targets * np.log(found)).sum(axis=1), rtol=1e-4)
    expected = targets.sum(axis=1, keepdims=True) * found - targets
    np.testing.assert_allclose(gradient, expected.sum(axis=0), rtol=1e-3, atol=1e-4)


def _require_sigmoid(name: str, logits: np.ndarray, labels: np.ndarray, targets: np.ndarray, *overrides: str) -> None:
    """See that losses and gradients are those of the binary cross-entropy, summed over the classes."""
    losses, gradient = _losses(name, logits, labels, *overrides)
    each = targets * np.logaddexp(0, -logits) + (1 - targets) * np.logaddexp(0, logits)
    np.testing.assert_allclose(losses, each.sum(axis=1), rtol=1e-5)
    expected = np.exp(-np.logaddexp(0, -logits)) - targets
    np.testing.assert_allclose(gradient, expected.sum(axis=0), rtol=1e-4, atol=1e-5)


@each_engine
@one_or_mixed
@pytest.mark.parametrize("smoothing", [0.0, 0.3])
@pytest.mark.parametrize("weights", [None, [0.2, 5, 1.5, 0.7, 3, 2.1, 0.4, 1, 4.4, 0.9]], ids=["", "weighted"])
def test_cross_entropy_weighs_every_class_by_its_smoothed_share_of_the_labels_and_its_own_weight(
    name: str, labels: np.ndarray, hard: np.ndarray, words: list[str], smoothing: float, weights: list[float] | None
) -> None:
    """As PyTorch's CrossEntropyLoss(weight, reduction="sum", label_smoothing) defines them."""
    targets = np.array(weights or 1.0) * (hard * (1 - smoothing) + smoothing / CLASSES)
    given = f"loss={{label_smoothing: {smoothing}, class_weights: {weights or 'null'}}}"
    _require_softmax(name, labels, targets, given, *words)


@each_engine
def test_smoothing_as_mxnet_defines_it_shares_among_the_other_classes_what_the_label_loses(name: str) -> None:
    targets = np.where(np.eye(CLASSES)[FIRST] == 1, 1 - 0.3, 0.3 / (CLASSES - 1))
    _require_softmax(name, FIRST, targets, "loss={label_smoothing: 0.3, smoothing: softmax_output}")


@each_engine
@one_or_mixed
@pytest.mark.parametrize("smoothing", [0.0, 0.08])
def test_one_hot_sigmoids_sum_the_binary_cross_entropy_of_the_smoothed_labels(
    name: str, labels: np.ndarray, hard: np.ndarray, words: list[str], smoothing: float
) -> None:
    """Composer's label smoothing of one-hot targets is y (1 - a) + a / K, and the batch divides a sum over classes."""
    logits = LOGITS.copy()
    logits[0], logits[1] = 500, -500
    targets = hard * (1 - smoothing) + smoothing / CLASSES
    given = f"loss={{kind: one_hot_sigmoid, label_smoothing: {smoothing}}}"
    _require_sigmoid(name, logits, labels, targets, given, *words)


@each_engine
def test_labels_of_a_mixed_image_above_a_threshold_count_in_full_and_once(name: str) -> None:
    """As timm's BinaryCrossEntropy: the mixed one-hot targets are compared with the threshold."""
    shares = np.array([0.1, 0.2, 0.5, 0.8, 0.95, 0.1, 0.5, 0.95])
    labels = np.stack([np.arange(8), [7, 6, 5, 4, 3, 5, 6, 7], shares], axis=1)
    given = "loss={kind: one_hot_sigmoid, mixed_label_threshold: 0.3}", "data.mixup_alpha=0.2"
    _require_sigmoid(name, LOGITS[:8], labels, (_mixed(labels) > 0.3).astype(float), *given)


@each_engine
def test_binary_cross_entropy_is_the_mean_over_classes_and_never_overflows(name: str) -> None:
    logits = np.concatenate([LOGITS[:3], np.full((1, CLASSES), 500.0)])
    labels = (np.arange(4 * CLASSES).reshape(4, CLASSES) % 3 == 0).astype(np.float32)
    losses, gradient = _losses(name, logits, labels, *SEVERAL_LABELS)
    each = np.logaddexp(0, logits.astype(np.float64)) - logits * labels
    np.testing.assert_allclose(losses, each.mean(axis=1), rtol=1e-5)
    expected = (1 / (1 + np.exp(-logits.astype(np.float64))) - labels) / CLASSES
    np.testing.assert_allclose(gradient, expected.sum(axis=0), rtol=1e-4, atol=1e-6)
