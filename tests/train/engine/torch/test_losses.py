"""The losses against their definitions in NumPy."""

import numpy as np
import pytest

from configs.schema import Loss

torch = pytest.importorskip("torch")

LOGITS = np.array([[0.0, 2.0, -3.0], [500.0, -500.0, 500.0]], np.float32)


def _losses(labels: object, loss: Loss) -> np.ndarray:
    from train.engine.torch.losses import losses_of

    found: np.ndarray = losses_of(torch.tensor(LOGITS), torch.tensor(labels), loss).numpy()
    return found


def test_binary_cross_entropy_is_the_mean_over_classes_and_never_overflows() -> None:
    labels = np.array([1.0, 0.0, 1.0])
    probability = 1 / (1 + np.exp(-LOGITS[0].astype(np.float64)))
    first = -(labels * np.log(probability) + (1 - labels) * np.log(1 - probability)).mean()
    found = _losses([[1.0, 0.0, 1.0], [1.0, 0.0, 0.0]], Loss(kind="sigmoid", label_smoothing=0))
    np.testing.assert_allclose(found, [first, 500 / 3], rtol=1e-5)


@pytest.mark.parametrize(
    ("smoothing", "weights"), [("uniform", [0.1, 0.8, 0.1]), ("softmax_output", [0.15, 0.7, 0.15])]
)
def test_smoothing_weighs_the_label_and_every_other_class(smoothing: str, weights: list[float]) -> None:
    loss = Loss.model_validate({"label_smoothing": 0.3, "smoothing": smoothing})
    shifted = LOGITS[0].astype(np.float64)
    expected = -(np.array(weights) * (shifted - np.log(np.exp(shifted).sum()))).sum()
    assert _losses([1.0, 0.0], loss)[0] == pytest.approx(expected, rel=1e-5)


def test_without_smoothing_the_loss_is_the_label_s_own() -> None:
    shifted = LOGITS[0].astype(np.float64)
    expected = np.log(np.exp(shifted).sum()) - shifted[2]
    np.testing.assert_allclose(_losses([2.0, 1.0], Loss(label_smoothing=0)), [expected, 1000 + np.log(2)], rtol=1e-5)
