"""What MXNet's engine writes of a trained network gives the same logits when it is loaded again."""

from pathlib import Path

import numpy as np
import onnx

from configs.load import load_both
from tests.engines import cpu_engine
from train.engine.init import initial_weights
from train.networks.arch import build_network


def test_every_format_gives_the_logits_of_the_network_and_holds_its_weights_as_constants(tmp_path: Path) -> None:
    recipe, _ = load_both("digits", "laptop", ["model.name=resnet8", "model.image_size=16", "model.bn_epsilon=1e-3"])
    engine, draw = cpu_engine(), np.random.default_rng(3)
    table = build_network("resnet8", num_classes=recipe.model.num_classes, image_size=16)
    network = engine.build_network(table, recipe, accumulate=False)
    network.load_weights(initial_weights(table, recipe.model, 1))
    images = engine.from_host(draw.standard_normal((2, *network.image_shape)).astype(np.float32))
    logits = {title: predict(images) for title, predict in engine.export_formats(network, tmp_path / "network")}
    assert list(logits) == ["trained", "MXNet", "ONNX"]
    assert logits["trained"].std() > 0
    for title, values in logits.items():
        np.testing.assert_allclose(values, logits["trained"], rtol=1e-3, atol=1e-4, err_msg=title)
    assert [each.name for each in onnx.load(tmp_path / "network.onnx").graph.input] == ["data"]
