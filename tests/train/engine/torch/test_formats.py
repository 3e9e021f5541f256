"""The files that PyTorch's engine writes, without PyTorch's own exporter, which takes seconds."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from tests.train.engine.torch.test_inference import _network

torch = pytest.importorskip("torch")


def test_the_state_and_the_program_are_those_of_the_network_for_any_number_of_images(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    written: list[Any] = []

    def save(module: Any, path: str) -> None:
        written.append((module, path))

    def trace(module: Any, images: tuple[Any, ...], *, dynamic_shapes: Any) -> Any:
        written.append((tuple(images[0].shape), dynamic_shapes))
        return module

    load = SimpleNamespace(module=lambda: written[-1][0])
    exporter = SimpleNamespace(
        Dim=lambda name, min: (name, min), export=trace, save=save, load=lambda _: load
    )  # fmt: skip
    monkeypatch.setitem(torch.__dict__, "export", exporter)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    engine, network, images = _network("resnet8", 16)
    logits = {title: predict(images) for title, predict in engine.export_formats(network, tmp_path / "network")}
    assert list(logits) == ["trained", "PyTorch state", "PyTorch program"]
    for title, values in logits.items():
        expected = logits["trained"]
        np.testing.assert_allclose(values, expected, rtol=1e-3, atol=1e-4 * expected.std(), err_msg=title)
    shapes = ({0: ("batch", 1)},)
    assert written[0] == ((2, 3, 16, 16), shapes), "from one image, one would become the only number of images"
    assert written[1][1] == str(tmp_path / "network.pt2")
    read = engine.read_parameters(tmp_path / "network.pt")
    held = network.read_weights() | network.read_statistics()
    assert set(read) == set(held)
    assert all(np.array_equal(read[name], values) for name, values in held.items())
    assert "no ONNX file is written: not installed: onnx, onnxruntime" in caplog.text
