"""A table of layers as an ONNX file, computed by another library than the one that trained it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest

from tests.train.engine.torch.test_inference import _network, _with_batch_norm
from train.engine.torch.onnx_graph import write_onnx

onnxruntime = pytest.importorskip("onnxruntime")


@pytest.mark.parametrize(("name", "side"), [("resnet8", 16), ("mnist_small_cnn", 28), ("densenet121", 32)])
def test_the_file_gives_the_networks_logits_for_any_number_of_images(name: str, side: int, tmp_path: Path) -> None:
    _, network, images = _network(name, side)
    tensors = {key: values.numpy() for key, values in network.tensors().items()}
    path = str(tmp_path / "network.onnx")
    write_onnx(network.network, tensors, network.model.bn_epsilon, path)
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    expected = _with_batch_norm(network, images)
    for count in (1, 2):
        (logits,) = session.run(["logits"], {"data": images[:count].numpy()})
        np.testing.assert_allclose(logits, expected[:count], rtol=1e-3, atol=1e-4 * expected.std())
    graph = onnx.load(path)
    assert [each.name for each in graph.graph.input] == ["data"], "weights are no inputs"
    assert ([each.version for each in graph.opset_import], graph.ir_version) == ([13], 8)
