"""A table of layers and its tensors as an ONNX file. Needs the package onnx and no framework.

PyTorch's own exporter needs the package onnxscript, and every row of a table is one operator of ONNX.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np

from train.networks.arch import Layer, Network

_OPSET, _IR_VERSION = 13, 8
_OPERATORS = {
    "conv": "Conv", "bn": "BatchNormalization", "relu": "Relu", "add": "Add", "concat": "Concat",
    "max_pool": "MaxPool", "avg_pool": "AveragePool", "global_pool": "GlobalAveragePool", "dropout": "Identity",
    "dense": "Gemm",
}  # fmt: skip
_BATCH_NORM = ("gamma", "beta", "moving_mean", "moving_var")


def write_onnx(table: Network, tensors: Mapping[str, np.ndarray], epsilon: float, path: str) -> None:
    """Write the network in inference, from ``data``, images [N, C, H, W], to ``logits``, and check the file.

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
        outputs = ["logits" if layer is table.layers[-1] else layer.name]
        inputs += _tensor_names(layer, tensors)
        attributes = _attributes(layer, epsilon)
        nodes.append(helper.make_node(_OPERATORS[layer.kind], inputs, outputs, name=layer.name, **attributes))
    side = table.image_size
    graph = helper.make_graph(
        nodes,
        table.name,
        [helper.make_tensor_value_info("data", onnx.TensorProto.FLOAT, ["N", table.input_channels, side, side])],
        [helper.make_tensor_value_info("logits", onnx.TensorProto.FLOAT, ["N", table.num_classes])],
        [numpy_helper.from_array(np.ascontiguousarray(values), name) for name, values in tensors.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", _OPSET)], ir_version=_IR_VERSION)
    onnx.checker.check_model(model)
    onnx.save(model, path)


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
