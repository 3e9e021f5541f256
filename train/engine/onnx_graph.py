"""A table of layers and its tensors as an ONNX file. Needs the package onnx and no framework.

Every row of a table is one operator of ONNX. PyTorch's own exporter needs the package onnxscript; MXNet's puts the
weights among the inputs of the graph.
"""

import importlib.util
import logging
import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from train.networks.arch import Layer, Network

logger = logging.getLogger(__name__)

OPSET, INPUT, OUTPUT = 13, "data", "logits"
"""Version of ONNX's operators, and the names of the only input and the only output of a graph."""

_IR_VERSION = 8
_OPERATORS = {
    "conv": "Conv", "bn": "BatchNormalization", "relu": "Relu", "sigmoid": "Sigmoid", "add": "Add", "multiply": "Mul",
    "concat": "Concat",
    "max_pool": "MaxPool", "avg_pool": "AveragePool", "global_pool": "GlobalAveragePool", "dropout": "Identity",
    "dense": "Gemm",
}  # fmt: skip
_BATCH_NORM = ("gamma", "beta", "moving_mean", "moving_var")


def export_onnx(
    table: Network, tensors: Mapping[str, np.ndarray], epsilon: float, prefix: Path
) -> Iterator[tuple[str, Callable[[np.ndarray], np.ndarray]]]:
    """Write ``PREFIX.onnx``, load it again, and yield ``ONNX`` and its function from images to logits.

    Nothing is written or yielded if the packages onnx and onnxruntime are not installed; the log says so. The arguments
    are those of `write_onnx`.
    """
    if missing := [name for name in ("onnx", "onnxruntime") if importlib.util.find_spec(name) is None]:
        logger.warning("no ONNX file is written: not installed: %s", ", ".join(missing))
        return
    import onnxruntime  # noqa: PLC0415 (slow)

    path = f"{prefix}.onnx"
    write_onnx(table, tensors, epsilon, path)
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    yield "ONNX", lambda images: session.run(None, {INPUT: images})[0]


def write_onnx(table: Network, tensors: Mapping[str, np.ndarray], epsilon: float, path: str) -> None:
    """Write the network in inference, from ``data``, images [N, C, H, W], to ``logits``, and check it.

    The file gets its name when it is whole.

    Args:
        table: The layers.
        tensors: Float32 weights in OIHW and running statistics, by name.
        epsilon: Added to the variance in batch norm.
        path: The file.
    """
    import onnx  # noqa: PLC0415 (slow)
    from onnx import helper, numpy_helper  # noqa: PLC0415

    nodes = []
    for layer in table.layers:
        inputs = list(layer.inputs)
        if layer.kind == "dense":
            nodes.append(helper.make_node("Flatten", inputs, [f"{layer.name}_input"], axis=1))
            inputs = [f"{layer.name}_input"]
        outputs = [OUTPUT if layer is table.layers[-1] else layer.name]
        inputs += _tensor_names(layer, tensors)
        attributes = _attributes(layer, epsilon)
        nodes.append(helper.make_node(_OPERATORS[layer.kind], inputs, outputs, name=layer.name, **attributes))
    side = table.image_size
    graph = helper.make_graph(
        nodes,
        table.name,
        [helper.make_tensor_value_info(INPUT, onnx.TensorProto.FLOAT, ["N", table.input_channels, side, side])],
        [helper.make_tensor_value_info(OUTPUT, onnx.TensorProto.FLOAT, ["N", table.num_classes])],
        [numpy_helper.from_array(np.ascontiguousarray(values), name) for name, values in tensors.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=_IR_VERSION)
    onnx.checker.check_model(model)
    partial = f"{path}.{os.getpid()}"
    onnx.save(model, partial)
    Path(partial).replace(path)


def _tensor_names(layer: Layer, tensors: Mapping[str, np.ndarray]) -> list[str]:
    kinds = _BATCH_NORM if layer.kind == "bn" else ("weight", "bias")
    return [name for kind in kinds if (name := f"{layer.name}_{kind}") in tensors]


def _attributes(layer: Layer, epsilon: float) -> dict[str, Any]:
    if layer.kind == "bn":
        return {"epsilon": epsilon}
    if layer.kind == "concat":
        return {"axis": 1}
    if layer.kind == "dense":
        return {"transB": 1}
    if layer.kind not in ("conv", "max_pool", "avg_pool"):
        return {}
    window = {
        "kernel_shape": [layer.kernel] * 2,
        "strides": [layer.stride] * 2,
        "pads": [layer.padding] * 4,
    }
    return window | ({"count_include_pad": 1} if layer.kind == "avg_pool" else {})
