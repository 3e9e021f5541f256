"""A table of layers as an ONNX file, computed by another library than the one that trained it."""

from pathlib import Path

import numpy as np
import onnx
import pytest

torch = pytest.importorskip("torch")
onnxruntime = pytest.importorskip("onnxruntime")

from tests.train.engine.torch.test_inference import _network, _with_batch_norm  # noqa: E402
from train.engine.torch.export import _Inference  # noqa: E402
from train.engine.torch.folding import FoldedInference  # noqa: E402
from train.engine.torch.onnx_graph import write_onnx  # noqa: E402
from train.networks.table import Network, Rows  # noqa: E402


@pytest.mark.parametrize(
    ("name", "side"),
    [("resnet8", 16), ("mnist_small_cnn", 28), pytest.param("densenet121", 32, marks=pytest.mark.medium)],
)
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


def test_a_batch_norm_after_a_bias_and_a_padded_mean_are_computed_alike_in_training_inference_and_file(
    tmp_path: Path,
) -> None:
    rows, draw = Rows(2, 6), np.random.default_rng(1)
    last = rows.add("stem", "conv", "data", out_channels=4, kernel=3, has_bias=True)
    last = rows.add("pool", "avg_pool", rows.add("norm", "bn", last), kernel=3, stride=2)
    rows.dense("classifier", last, 3)
    table = Network("own", 6, 2, 3, tuple(rows.layers))
    tensors = {each.name: draw.uniform(0.5, 1.5, each.shape) for each in table.parameters}
    tensors |= {f"norm_moving_{moment}": draw.uniform(0.5, 2.0, 4) for moment in ("mean", "var")}
    held = {name: torch.from_numpy(values.astype(np.float32)) for name, values in tensors.items()}
    images = torch.from_numpy(draw.standard_normal((2, 2, 6, 6)).astype(np.float32))
    with torch.no_grad():
        expected = _Inference(table, held, 1e-3)(images)
        folded = FoldedInference(table, held, epsilon=1e-3, dtype=torch.float32)(images)
    np.testing.assert_allclose(folded, expected, rtol=1e-4)
    path = str(tmp_path / "own.onnx")
    write_onnx(table, {name: values.numpy() for name, values in held.items()}, 1e-3, path)
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    np.testing.assert_allclose(session.run(None, {"data": images.numpy()})[0], expected, rtol=1e-4)
