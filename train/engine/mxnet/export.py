"""Writing a trained network as MXNet parameters and as ONNX, and loading each format again."""

import importlib
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import mxnet as mx
import numpy as np

from train.engine.mxnet.network import TrainedNetwork

Predict = Callable[[Any], np.ndarray]
"""Takes normalised images [N, C, H, W] and returns logits."""


def export_formats(network: TrainedNetwork, prefix: Path) -> Iterator[tuple[str, Predict]]:
    """Write each format; yield its name and a function that predicts with the network loaded from its files.

    Args:
        network: A float32 network in NCHW on the CPU.
        prefix: Beginning of the paths of the files; its folder exists.

    Yields:
        First ``trained``, the network itself, then ``MXNet`` and ``ONNX``.
    """
    import onnxruntime  # noqa: PLC0415 (slow)

    shape = (1, *network.image_shape)
    predict = network.inference()
    yield "trained", lambda images: predict(images).asnumpy()

    network.export(prefix)
    files = f"{prefix}-symbol.json", f"{prefix}-0000.params"
    with warnings.catch_warnings():
        # This loader gives the images no type, and then warns that it cannot tell their type.
        warnings.simplefilter("ignore", UserWarning)
        loaded = mx.gluon.SymbolBlock.imports(files[0], ["data"], files[1])
    yield "MXNet", lambda images: loaded(images).asnumpy()

    _register_converters()
    onnx = f"{prefix}.onnx"
    mx.onnx.export_model(*files, [shape], np.float32, onnx, dynamic=True, dynamic_input_shapes=[("N", *shape[1:])])
    _freeze(onnx)
    session = onnxruntime.InferenceSession(onnx, providers=["CPUExecutionProvider"])
    yield "ONNX", lambda images: session.run(None, {"data": images.asnumpy()})[0]


def _register_converters() -> None:
    """Register MXNet's converters to ONNX: MXNet skips them at import where onnx is hidden, see `import_mxnet`."""
    for opset in (12, 13):
        importlib.reload(importlib.import_module(f"mxnet.onnx.mx2onnx._op_translations._op_translations_opset{opset}"))


def _freeze(path: str) -> None:
    """Remove the weights from the list of inputs, where MXNet's exporter puts them, so that a runtime may fold them."""
    import onnx  # noqa: PLC0415 (slow)

    model = onnx.load(path)
    images = [each for each in model.graph.input if each.name == "data"]
    del model.graph.input[:]
    model.graph.input.extend(images)
    onnx.checker.check_model(model)
    onnx.save(model, path)
