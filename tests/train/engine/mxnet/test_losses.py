"""The losses against their definitions; cross-entropy's tests stand beside the network's."""

import mxnet as mx
import numpy as np

from configs.schema import Loss
from train.engine.mxnet.losses import losses_of


def test_binary_cross_entropy_is_the_mean_over_classes_and_never_overflows() -> None:
    logits = np.array([[0.0, 2.0, -3.0], [500.0, -500.0, 500.0]])
    labels = np.array([[1.0, 0.0, 1.0], [1.0, 0.0, 0.0]])
    ours = losses_of(mx.nd, mx.nd.array(logits), mx.nd.array(labels), 3, Loss(kind="sigmoid")).asnumpy()
    probability = 1 / (1 + np.exp(-logits[0]))
    first = -(labels[0] * np.log(probability) + (1 - labels[0]) * np.log(1 - probability)).mean()
    np.testing.assert_allclose(ours, [first, 500 / 3], rtol=1e-5)


def test_its_gradient_is_probability_less_label() -> None:
    logits, labels = mx.nd.array([[0.5, -1.0]]), mx.nd.array([[1, 0]])
    logits.attach_grad()
    with mx.autograd.record():
        losses = losses_of(mx.nd, logits, labels, 2, Loss(kind="sigmoid"))
    losses.backward()
    expected = (logits.sigmoid() - labels) / 2
    np.testing.assert_allclose(logits.grad.asnumpy(), expected.asnumpy(), rtol=1e-5)
