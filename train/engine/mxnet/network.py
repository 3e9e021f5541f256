"""A table of layers as an MXNet network with its loss. This module knows no rank and no data.

Training has a block from images and labels to the loss of each image. Inference has a block of its own, without batch
norm (`train.engine.mxnet.folding`). Blocks are hybridized with static shapes, so a step takes few engine pushes.
"""

from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any

import mxnet as mx
import numpy as np
from mxnet import autograd, gluon

from configs.schema import EngineSettings, Recipe
from train.engine.mxnet.folding import FoldedInference
from train.engine.mxnet.host_operator import restore_order
from train.engine.mxnet.symbols import Settings, logits_symbol
from train.engine.protocol import Array, TrainableNetwork
from train.ideas.loss import losses_of
from train.networks.arch import Network

_IMAGE_AXES = 4


class TrainedNetwork(TrainableNetwork):
    """The network as one rank holds it: parameters, gradients, batch-norm statistics.

    Args:
        engine: The engine, with MXNet's device.
        table: The table of layers.
        recipe: Constants of batch norm, the loss, and the shape of labels.
        settings: Precision, layout, and the number of accumulated micro-batches that may be queued.
        accumulate: Add each backward to the gradients instead of replacing them; the sums are always float32.
        batch_size: Most images of a micro-batch, see `train.engine.mxnet.symbols.Settings`.
    """

    def __init__(
        self,
        engine: Any,
        table: Network,
        recipe: Recipe,
        settings: EngineSettings,
        *,
        accumulate: bool,
        batch_size: int = 1,
    ) -> None:
        super().__init__(engine, table, recipe, settings.layout)
        self._layout, self._run_ahead, self._context = settings.layout, settings.run_ahead_steps, engine.context
        self._has_dropout = table.draws
        self._accumulate = accumulate
        self._queued: deque[Any] = deque()
        self._has_inferred = False
        operators = Settings(self.model, settings, batch_size)
        logits = logits_symbol(table, operators)
        images, labels = mx.sym.Variable("data", dtype="float32"), mx.sym.Variable("label", dtype="float32")
        self._training = gluon.SymbolBlock(losses_of(engine, recipe)(logits, labels), [images, labels])
        self._exported = gluon.SymbolBlock(logits, [images], params=self._training.collect_params())
        self._held = {each.name: each for each in self._training.collect_params().values()}
        self._allocate()
        arrays = {"held": self._held, "masters": self._weights()}
        self._folded = FoldedInference(table, operators, **arrays, context=self._context)

    def _allocate(self) -> None:
        shapes = self.network.tensor_shapes
        trained, statistics = ({each.name for each in own} for own in (self.parameters, self.network.statistics))
        for name, held in self._held.items():
            held.shape = self.from_oihw(np.empty(shapes[name], np.bool_)).shape
            held.initialize(mx.init.Zero(), ctx=self._context)
            held.grad_req = "null"
            if name in trained:
                held.grad_req = "add" if self._accumulate and held.dtype != np.float16 else "write"
        for block in (self._training, self._exported):
            block.hybridize(static_alloc=True, static_shape=True)
        self.weights = [self._held[each.name].data() for each in self.parameters]
        self.masters = [weight.astype("float32", copy=False) for weight in self.weights]
        own = [self._held[each.name].grad() for each in self.parameters]
        # In float16, a sum over many micro-batches would soon be too large for the next micro-batch to change it.
        self.gradients = [each.astype("float32", copy=False) for each in own] if self._accumulate else own
        self._half_sums = [pair for pair in zip(self.gradients, own, strict=True) if pair[0] is not pair[1]]
        self._statistics = {name: held.data() for name, held in self._held.items() if name in statistics}
        self._held_constants = {each.name: self._held[each.name].data() for each in self.network.constants}
        self._constants = {name: each.astype("float32", copy=False) for name, each in self._held_constants.items()}

    def _settle(self) -> None:
        """Wait for the last backward, which updates the running statistics.

        On a CPU, MXNet's batch norm updates the statistics in its backward without telling the engine, so the engine
        does not order reads and writes of the statistics after the update. The engine does know the gradients, which
        the same operators compute.
        """
        for gradient in self.gradients:
            gradient.wait_to_read()

    def seed(self, seed: int) -> None:
        if self._has_dropout:
            mx.random.seed(seed, ctx=self._context)

    def forward(self, images: Array, labels: Array) -> Array:
        if self._has_inferred and self._context.device_type == "cpu":
            restore_order([*self.weights, *self._held_constants.values()])
        self._has_inferred = False
        with autograd.record():
            self._losses = self._training(images.as_in_context(self._context), labels.as_in_context(self._context))
        loss = self._losses.sum()
        if self._accumulate:
            self._queued.append(loss)
        return loss

    def backward(self, arrived: Callable[[int], None] | None = None) -> None:
        self._losses.backward()
        for total, gradient in self._half_sums:
            mx.nd.elemwise_add(total, gradient.astype("float32"), out=total)
        if len(self._queued) > self._run_ahead:  # queued micro-batches take memory
            self._queued.popleft().wait_to_read()
        if arrived is not None:  # MXNet's engine starts a reduction when its gradients are computed
            for index in reversed(range(len(self.gradients))):
                arrived(index)

    def inference(self) -> Callable[[Array], Array]:
        self._settle()
        self._folded.fold()
        self._has_inferred = True
        return lambda images: self._folded(images.as_in_context(self._context))

    def export(self, prefix: Path) -> None:
        """Write ``PREFIX-symbol.json`` and ``PREFIX-0000.params`` for MXNet's own loaders, with batch norm unfolded."""
        self._settle()
        self._has_inferred = True
        self._exported(mx.nd.zeros((1, *self.image_shape), ctx=self._context)).wait_to_read()
        self._exported.export(str(prefix))

    def to_oihw(self, stored: np.ndarray) -> np.ndarray:
        is_nhwc = self._layout == "NHWC" and stored.ndim == _IMAGE_AXES
        return stored.transpose(0, 3, 1, 2) if is_nhwc else stored

    def from_oihw(self, values: np.ndarray) -> np.ndarray:
        # A convolution stores OHWI for NHWC, else OIHW.
        is_nhwc = self._layout == "NHWC" and values.ndim == _IMAGE_AXES
        return np.ascontiguousarray(values.transpose(0, 2, 3, 1)) if is_nhwc else values
