"""A table of layers and its tensors as an ONNX file. Needs the package onnx and no framework.

Every row of a table is one or two operators of ONNX. PyTorch's own exporter needs the package onnxscript; MXNet's puts
the weights among the inputs of the graph.
"""

import importlib.util
import logging
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from train.networks.arch import Network
from train.networks.layer import Layer

logger = logging.getLogger(__name__)

OPSET, INPUT, OUTPUT = 13, "data", "logits"
"""Version of ONNX's operators, and the names of the only input and the only output of a graph."""

_IR_VERSION = 8


class Node(NamedTuple):
    """An operator of a graph; ``output`` is the name of what it computes, the layer's own for the last of a layer."""

    operator: str
    inputs: Sequence[str]
    output: str
    attributes: Mapping[str, Any] = {}


Operator = Callable[[Layer, Sequence[str], float], list[Node]]


def _plain(operator: str, **attributes: Any) -> Operator:
    """Return the function of a kind that is one operator of ONNX, with the same attributes for every layer."""
    return lambda layer, inputs, _epsilon: [Node(operator, inputs, layer.name, attributes)]


def _window(operator: str, **attributes: Any) -> Operator:
    """Return the function of a kind that is one operator of ONNX with a window."""

    def nodes(layer: Layer, inputs: Sequence[str], _epsilon: float) -> list[Node]:
        window = {"kernel_shape": [layer.kernel] * 2, "strides": [layer.stride] * 2, "pads": [layer.padding] * 4}
        return [Node(operator, inputs, layer.name, window | attributes)]

    return nodes


def _convolution(layer: Layer, inputs: Sequence[str], epsilon: float) -> list[Node]:
    return _window("Conv", group=layer.groups)(layer, inputs, epsilon)


def _relu6(layer: Layer, inputs: Sequence[str], _epsilon: float) -> list[Node]:
    bounds = {f"{layer.name}_least": 0.0, f"{layer.name}_most": 6.0}
    constants = [Node("Constant", [], name, {"value_float": value}) for name, value in bounds.items()]
    return [*constants, Node("Clip", [*inputs, *bounds], layer.name)]


def _silu(layer: Layer, inputs: Sequence[str], _epsilon: float) -> list[Node]:
    gate = f"{layer.name}_gate"
    return [Node("Sigmoid", inputs, gate), Node("Mul", [*inputs, gate], layer.name)]


def _batch_norm(layer: Layer, inputs: Sequence[str], epsilon: float) -> list[Node]:
    return [Node("BatchNormalization", inputs, layer.name, {"epsilon": epsilon})]


def _dense(layer: Layer, inputs: Sequence[str], _epsilon: float) -> list[Node]:
    data, *tensors = inputs
    flat = f"{layer.name}_input"
    return [Node("Flatten", [data], flat, {"axis": 1}), Node("Gemm", [flat, *tensors], layer.name, {"transB": 1})]


OPERATORS: dict[str, Operator] = {
    "conv": _convolution,
    "bn": _batch_norm,
    "relu": _plain("Relu"),
    "relu6": _relu6,
    "silu": _silu,
    "sigmoid": _plain("Sigmoid"),
    "add": _plain("Add"),
    "multiply": _plain("Mul"),
    "concat": _plain("Concat", axis=1),
    "max_pool": _window("MaxPool"),
    "avg_pool": _window("AveragePool", count_include_pad=1),
    "global_pool": _plain("GlobalAveragePool"),
    "dropout": _plain("Identity"),
    "dense": _dense,
}
"""Name of a kind -> function from a layer, the names of its inputs and tensors, and epsilon to its operators."""


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

    nodes, renamed = [], {table.layers[-1].name: OUTPUT}
    for layer in table.layers:
        names = [*layer.inputs, *layer.tensor_shapes]
        for node in OPERATORS[layer.kind.operator](layer, names, epsilon):
            outputs, name = [renamed.get(node.output, node.output)], layer.name if node.output == layer.name else None
            nodes.append(helper.make_node(node.operator, node.inputs, outputs, name=name, **node.attributes))
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
