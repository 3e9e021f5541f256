"""Inference without batch norm: running statistics, gamma and beta become part of the convolutions.

`train.engine.formulas.folded_batch_norm` has the formula. On a CPU, a batch norm that is not folded becomes a depthwise
convolution of one pixel, which multiplies and adds in one pass.

No batch norm is left for two reasons. Stock MXNet 1.9.1 hands an NHWC batch norm to cuDNN as one spatial batch norm of
N H W images, and cuDNN 8.9.6 refuses more than 65,535 of them in inference; ResNet-50's stem exceeds that from 6 images
of 224 px on. And inference without batch norm is faster on every device.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import mxnet as mx
from mxnet import gluon

from train.engine.formulas import folded_batch_norm, norm_vectors
from train.engine.mxnet.symbols import Settings, layer_symbol, network_symbol, tensor_symbol
from train.networks.arch import Network
from train.networks.layer import Layer

_SCALE, _SHIFT = "_folded_scale", "_folded_shift"
_WEIGHT, _BIAS = "_folded_weight", "_folded_bias"


class FoldedInference:
    """The network from images to logits, with every batch norm folded.

    Args:
        network: The table of layers.
        settings: What the operators depend on.
        held: The training network's parameters and running statistics by name; layers without batch norm share them.
        masters: Float32 weights by name, from which the folded weights are computed.
        context: MXNet device.
    """

    def __init__(
        self, network: Network, settings: Settings, *, held: Mapping[str, Any], masters: Mapping[str, Any], context: Any
    ) -> None:
        self._epsilon, self._held, self._masters = settings.model.bn_epsilon, held, masters
        self._channel_axis = settings.engine.layout.index("C")
        self._folds = network.foldable_convolutions()
        self._norms = [layer for layer in network.layers if layer.kind.is_affine]
        self._is_depthwise = context.device_type == "cpu" and settings.engine.layout == "NCHW"
        self._block = self._build(network, settings, context)

    def _build(self, network: Network, settings: Settings, context: Any) -> Any:
        symbol = folded_symbol(network, settings, is_depthwise=self._is_depthwise)
        shared = gluon.ParameterDict()
        for name in symbol.list_arguments():
            if name in self._held:
                shared._params[name] = self._held[name]
        block = gluon.SymbolBlock(symbol, [mx.sym.Variable("data", dtype="float32")], params=shared)
        self._own = {
            name: each for name, each in block.collect_params().items() if name not in self._held and name != "data"
        }
        for name, values in self._folded().items():
            self._own[name].shape = values.shape
            self._own[name].grad_req = "null"
            self._own[name].initialize(mx.init.Zero(), ctx=context)
        block.hybridize(static_alloc=True, static_shape=True)
        return block

    def fold(self) -> None:
        """Queue the computation of the folded weights from the weights and the statistics as they are now."""
        for name, values in self._folded().items():
            values.copyto(self._own[name].data())

    def _folded(self) -> dict[str, Any]:
        """Return the folded weights, and scale and shift of each batch norm that is not folded."""
        statistics = {each.name: self._held[each.name].data() for norm in self._norms for each in norm.statistics}
        channels = [-1 if axis == self._channel_axis else 1 for axis in range(4)]
        made = {}
        for norm in self._norms:
            source = norm.inputs[0]
            vectors = norm_vectors(norm, {**statistics, **self._masters}, self._folds)
            scale, shift = folded_batch_norm(*vectors, self._epsilon, mx.nd.sqrt)
            if source in self._folds:
                weight = self._masters[f"{source}_weight"]
                made[source + _WEIGHT] = mx.nd.broadcast_mul(weight, scale.reshape((-1, 1, 1, 1)))
                made[source + _BIAS] = shift
            elif self._is_depthwise:
                made[norm.name + _SCALE], made[norm.name + _SHIFT] = scale.reshape((-1, 1, 1, 1)), shift
            else:
                made[norm.name + _SCALE], made[norm.name + _SHIFT] = (each.reshape(channels) for each in (scale, shift))
        return made

    def __call__(self, images: Any) -> Any:
        """Queue inference and return the logits, shape (batch, classes)."""
        return self._block(images)


def folded_symbol(network: Network, settings: Settings, *, is_depthwise: bool = False) -> Any:
    """Return the symbol from float32 images to float32 logits that has no batch norm.

    Args:
        network: The table of layers.
        settings: What the operators depend on.
        is_depthwise: Make a batch norm that is not folded a depthwise convolution; needs NCHW.
    """
    folds = network.foldable_convolutions()

    def scaled(layer: Layer, data: Any) -> Any:
        scale, shift = (tensor_symbol(layer.name + suffix, settings) for suffix in (_SCALE, _SHIFT))
        if not is_depthwise:
            return mx.sym.broadcast_add(mx.sym.broadcast_mul(data, scale), shift)
        width = layer.out_channels
        return mx.sym.Convolution(data, scale, shift, kernel=(1, 1), num_filter=width, num_group=width)

    def made(layer: Layer, inputs: Sequence[Any]) -> Any:
        if layer.name in folds:
            weight, bias = (tensor_symbol(layer.name + suffix, settings) for suffix in (_WEIGHT, _BIAS))
            return layer_symbol(layer, inputs, settings, weight=weight, bias=bias)
        if not layer.kind.is_affine:
            return layer_symbol(layer, inputs, settings)
        return inputs[0] if layer.inputs[0] in folds else scaled(layer, inputs[0])

    return network_symbol(network, settings, made)
