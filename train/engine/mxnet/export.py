"""Writing a trained network as MXNet parameters and as ONNX, and loading each format again."""

import warnings
from collections.abc import Iterator
from pathlib import Path

import mxnet as mx

from train.engine.mxnet.network import TrainedNetwork
from train.engine.onnx_graph import export_onnx
from train.engine.protocol import Predict


def export_formats(network: TrainedNetwork, prefix: Path) -> Iterator[tuple[str, Predict]]:
    """Write each format; yield its name and a function that predicts with the network loaded from its files.

    Args:
        network: A float32 network in NCHW on the CPU.
        prefix: Beginning of the paths of the files; its folder exists.

    Yields:
        First ``trained``, the network itself, then ``MXNet``, and ``ONNX`` if its packages are installed.
    """
    predict = network.inference()
    yield "trained", lambda images: predict(images).asnumpy()

    network.export(prefix)
    with warnings.catch_warnings():
        # This loader gives the images no type, and then warns that it cannot tell their type.
        warnings.simplefilter("ignore", UserWarning)
        loaded = mx.gluon.SymbolBlock.imports(f"{prefix}-symbol.json", ["data"], f"{prefix}-0000.params")
    yield "MXNet", lambda images: loaded(images).asnumpy()

    tensors = {**network.read_weights(), **network.read_statistics()}
    for name, of_host in export_onnx(network.network, tensors, network.model.bn_epsilon, prefix):
        yield name, lambda images: of_host(images.asnumpy())  # noqa: B023 (there is one at most)
