"""The layers of a network's table as MXNet symbols."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import mxnet as mx

from configs.schema import EngineSettings, Model
from train.engine.mxnet.bfloat16 import as_bfloat16, as_float32
from train.networks.arch import Network
from train.networks.layer import Layer

_SMALL_POOL = 4
"""Largest side of the input of a global pool that is pooled as it is; larger ones become one long row.

On a CPU, oneDNN 2.4 may choose an order of its own for the gradient of a global pool of 6 x 6 or more pixels. Reference
code then computes that gradient and those of the batch norms before it: a step of `resnet8` at 28 px took 54 ms instead
of 23 (32 images, one core of an Intel Xeon). After a reshape, the gradient has the usual order. Pools of 4 x 4 and less
are not affected, and the reshape would cost them up to 5 %.
"""

_LARGEST_POOL = 8
"""Largest side of the input of a global pool that oneDNN pools.

From 9 x 9 pixels on, oneDNN 2.4 orders the gradient of one long row, too, as it likes, and the gradients of a residual
block then cannot be added: resnet20 failed at 33 px and more ("could not create a primitive descriptor for a sum
primitive"). MXNet's own mean keeps the order.
"""


TRAINING_ROWS = 880_801
"""Most images of a batch norm in training. *Source*: the guard in PyTorch's ``aten/native/Normalization.cpp``; whether
cuDNN 8.9.6 still has this limit was not tried. Larger batch norms are computed in NCHW."""


class Settings(NamedTuple):
    """What the operators of every layer depend on.

    Attributes:
        model: Constants of batch norm.
        engine: Precision and layout.
        batch_size: Most images of a micro-batch.
        has_casts: Whether float32 tensors are cast to the precision of the layers, if ranks hold them in float32.
    """

    model: Model
    engine: EngineSettings
    batch_size: int = 1
    has_casts: bool = True

    @property
    def is_cast(self) -> bool:
        """Return whether the layers compute with casts of the tensors."""
        return self.has_casts and self.engine.precision != self.engine.gradient_precision


def logits_symbol(network: Network, settings: Settings) -> Any:
    """Return the symbol from float32 images to float32 logits, with batch norm as in training."""
    exact = _float32_stem(network) if settings.engine.precision == "bfloat16" else ()

    def made(layer: Layer, inputs: Sequence[Any]) -> Any:
        found = layer_symbol(layer, inputs, settings._replace(has_casts=layer not in exact))
        return as_bfloat16(found) if exact and layer is exact[-1] else found

    return network_symbol(network, settings, made, has_exact_stem=bool(exact))


def _float32_stem(network: Network) -> Sequence[Layer]:
    """Return the layers that compute in float32 where the others compute in bfloat16.

    oneDNN 2.4 has no fast convolution in bfloat16 for the few channels of images. What it takes has an output in the
    usual order, whose batch norm reference code then computes: with both layers in float32, forward and backward pass
    of ResNet-50 take 217.9 ms instead of 233.5 at 64 px (16 images), and 1,083 instead of 1,173 at 224 px (8 images;
    one core of an AMD EPYC, November 2026).
    """
    first, second = network.layers[:2]
    readers = [layer for layer in network.layers if not {"data", first.name}.isdisjoint(layer.inputs)]
    is_stem = first.name in network.foldable_convolutions() and readers == [first, second]
    return (first, second) if is_stem else ()


def tensor_symbol(name: str, settings: Settings) -> Any:
    """Return the symbol of a weight or bias, cast to the precision of the layers if ranks hold it in float32."""
    return as_bfloat16(mx.sym.Variable(name, dtype="float32")) if settings.is_cast else mx.sym.Variable(name)


def network_symbol(
    network: Network, settings: Settings, made: Callable[..., Any], *, has_exact_stem: bool = False
) -> Any:
    """Return the symbol from float32 images to float32 logits; in 16 bits, the layers between infer their types.

    Args:
        network: The table of layers.
        settings: Have the precision.
        made: Takes a layer and the symbols of its inputs, and returns that of its output.
        has_exact_stem: Whether the first layers take the float32 images as they are.
    """
    data = mx.sym.Variable("data", dtype="float32")
    precision = settings.engine.precision
    if precision != "float32" and not has_exact_stem:
        data = as_bfloat16(data) if precision == "bfloat16" else mx.sym.cast(data, "float16")
    outputs = {"data": data}
    for layer in network.layers:
        outputs[layer.name] = made(layer, [outputs[name] for name in layer.inputs])
    found = outputs[network.layers[-1].name]
    if precision == "float32":
        return found
    return as_float32(found) if precision == "bfloat16" else mx.sym.cast(found, "float32")


def layer_symbol(layer: Layer, inputs: Sequence[Any], settings: Settings, **tensors: Any) -> Any:
    """Return the symbol of one layer.

    Args:
        layer: The layer.
        inputs: Symbols of the layers that it reads.
        settings: What all layers depend on.
        tensors: Symbols of the weight and bias of a convolution or dense layer, see `tensor_symbol`; with a bias, a
            convolution has one even if the table says that it has none. Tensors that are not given are named after the
            layer.
    """
    if settings.is_cast:
        held = {each.kind: each.name for each in layer.parameters if not each.is_norm}
        tensors |= {kind: tensor_symbol(name, settings) for kind, name in held.items() if kind not in tensors}
    return OPERATORS[layer.kind.operator](layer, settings, tensors, *inputs)


Operator = Callable[..., Any]
"""Takes a layer, the settings, symbols of its tensors, and symbols of its inputs; returns the symbol of its output."""


def _window(layer: Layer, settings: Settings) -> dict[str, Any]:
    sides = {"kernel": layer.kernel, "stride": layer.stride, "pad": layer.padding}
    return {**{name: (side, side) for name, side in sides.items()}, "layout": settings.engine.layout}


def _convolution(layer: Layer, settings: Settings, tensors: Mapping[str, Any], data: Any) -> Any:
    return mx.sym.Convolution(
        data,
        num_filter=layer.out_channels,
        num_group=layer.groups,
        no_bias=not (layer.has_bias or "bias" in tensors),
        name=layer.name,
        **tensors,
        **_window(layer, settings),
    )


def _batch_norm(layer: Layer, settings: Settings, tensors: Mapping[str, Any], data: Any) -> Any:
    """Return the symbol of a batch norm, with NCHW around it where cuDNN would refuse it in NHWC.

    With the channels last, stock MXNet 1.9.1 makes an image of every pixel (``cudnn_batch_norm-inl.h``).
    """
    layout = settings.engine.layout
    if layout == "NHWC" and settings.batch_size * layer.out_size**2 > TRAINING_ROWS:
        channels_first = settings._replace(engine=settings.engine.model_copy(update={"layout": "NCHW"}))
        made = _batch_norm(layer, channels_first, tensors, mx.sym.transpose(data, axes=(0, 3, 1, 2)))
        return mx.sym.transpose(made, axes=(0, 2, 3, 1))
    return mx.sym.BatchNorm(
        data, eps=settings.model.bn_epsilon, momentum=settings.model.bn_momentum, fix_gamma=False,
        axis=layout.index("C"), name=layer.name, **({"use_global_stats": True} if layer.is_frozen else {}),
    )  # fmt: skip


def _elementwise(layer: Layer, _settings: Settings, _tensors: Mapping[str, Any], data: Any) -> Any:
    """Return the operator of a kind's name. `mx.sym.Activation` has the same kinds.

    On a CPU, that one is oneDNN's. Behind a batch norm, its gradients of sigmoid and tanh are now and then not finite:
    26 of 43 runs of two steps ended so, with equal seeds. Its ReLU is right.
    """
    return getattr(mx.sym, layer.kind.name)(data, name=layer.name)


def _relu6(layer: Layer, _settings: Settings, _tensors: Mapping[str, Any], data: Any) -> Any:
    # A clip alone would have the gradient 1 at 0, where a batch norm leaves every pixel of a channel without variance.
    return mx.sym.clip(mx.sym.Activation(data, act_type="relu"), a_min=0, a_max=6, name=layer.name)


def _silu(layer: Layer, _settings: Settings, _tensors: Mapping[str, Any], data: Any) -> Any:
    return mx.sym.broadcast_mul(data, mx.sym.sigmoid(data), name=layer.name)


def _pool(layer: Layer, settings: Settings, _tensors: Mapping[str, Any], data: Any) -> Any:
    return mx.sym.Pooling(
        data, pool_type=layer.kind.name.removesuffix("_pool"), name=layer.name, **_window(layer, settings)
    )


def _global_pool(layer: Layer, settings: Settings, _tensors: Mapping[str, Any], data: Any) -> Any:
    if settings.engine.layout == "NCHW" and layer.in_size > _LARGEST_POOL:
        return mx.sym.mean(data, axis=(2, 3), keepdims=True, name=layer.name)
    if settings.engine.layout == "NCHW" and layer.in_size > _SMALL_POOL:
        data = mx.sym.reshape(data, shape=(0, 0, -1, 1))
    return mx.sym.Pooling(
        data, pool_type="avg", global_pool=True, kernel=(1, 1), layout=settings.engine.layout, name=layer.name
    )


def _dropout(layer: Layer, settings: Settings, _tensors: Mapping[str, Any], data: Any) -> Any:
    # Of the operators here, only dropout knows no bfloat16.
    values = as_float32(data) if settings.is_cast else data
    shared = {"axes": (1, 2, 3)} if layer.kind.draws == "images" else {}
    # cuDNN's dropout has a random generator of its own, which cannot be seeded again.
    dropped = mx.sym.Dropout(values, p=layer.rate, cudnn_off=True, name=layer.name, **shared)
    return as_bfloat16(dropped) if settings.is_cast else dropped


def _dense(layer: Layer, settings: Settings, tensors: Mapping[str, Any], data: Any) -> Any:
    whole_channels = layer.in_size == 1 or settings.engine.layout == "NCHW"
    flat = data if whole_channels else mx.sym.transpose(data, axes=(0, 3, 1, 2))
    # flatten=True is MXNet's default, but its ONNX export takes a missing flatten for False.
    return mx.sym.FullyConnected(flat, num_hidden=layer.out_channels, flatten=True, name=layer.name, **tensors)


OPERATORS: dict[str, Operator] = {
    "conv": _convolution,
    "bn": _batch_norm,
    "relu": lambda layer, _settings, _tensors, data: mx.sym.Activation(data, act_type="relu", name=layer.name),
    "relu6": _relu6,
    "silu": _silu,
    "sigmoid": _elementwise,
    "add": lambda layer, _settings, _tensors, *inputs: mx.sym.elemwise_add(*inputs, name=layer.name),
    "multiply": lambda layer, _settings, _tensors, *inputs: mx.sym.broadcast_mul(*inputs, name=layer.name),
    "concat": lambda layer, settings, _tensors, *inputs: mx.sym.Concat(
        *inputs, dim=settings.engine.layout.index("C"), name=layer.name
    ),
    "max_pool": _pool,
    "avg_pool": _pool,
    "global_pool": _global_pool,
    "dropout": _dropout,
    "dense": _dense,
}
"""Name of a kind -> operator. Inference has no batch norm, see `train.engine.mxnet.folding`."""
