"""A table of layers as an MXNet network with its loss. This module knows no rank and no data.

Training has a block from images and labels to the loss of each image. Inference has a block of its own, without batch
norm (`train.engine.mxnet.folding`). Blocks are hybridized with static shapes, so a step takes few engine pushes.

With float16, convolutions and the classifier compute with float16 weights. Each of these weights has a float32 master,
which is initialised, updated and included in checksums. Parameters of batch norm, logits and loss are float32.
Gradients are sums over images, never means, which keeps them within the range of float16 without a loss scale.
"""

from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import mxnet as mx
import numpy as np
from mxnet import autograd, gluon

from configs.schema import EngineSettings, Recipe
from train.engine.mxnet.folding import FoldedInference
from train.engine.mxnet.host_operator import restore_order
from train.engine.mxnet.symbols import logits_symbol
from train.ideas.loss import Losses
from train.networks.arch import Network
from train.networks.layer import Parameter

Array = Any
"""An MXNet NDArray; MXNet carries no types."""

_IMAGE_AXES = 4


class TrainedNetwork:
    """The network as one rank holds it: parameters, gradients, batch-norm statistics.

    Args:
        network: The table of layers.
        recipe: Constants of batch norm, and the shape of labels.
        losses: Computes the losses of logits.
        engine: Precision, layout, and the number of accumulated micro-batches that may be queued.
        context: MXNet device.
        accumulate: Add each backward to the gradients instead of replacing them; the sums are always float32.
        batch_size: Most images of a micro-batch, see `train.engine.mxnet.symbols.logits_symbol`.

    Attributes:
        weights: Arrays that the network computes with, in the order of ``parameters``.
        masters: The weights in float32; where a weight is float32 already, the very same array.
        gradients: Sums over images that backward leaves.
        image_shape: Shape of one image in the engine's layout.
        label_shape: Shape of one image's label.
    """

    def __init__(  # noqa: PLR0913 (an engine calls this, by keyword)
        self,
        network: Network,
        recipe: Recipe,
        losses: Losses,
        engine: EngineSettings,
        *,
        context: Any,
        accumulate: bool,
        batch_size: int = 1,
    ) -> None:
        model = recipe.model
        self.network, self.model = network, model
        self.label_shape = recipe.label_shape
        axes = {"C": network.input_channels, "H": network.image_size, "W": network.image_size}
        self.image_shape = tuple(axes[axis] for axis in engine.layout if axis != "N")
        self.parameters: tuple[Parameter, ...] = network.parameters
        self._layout, self._run_ahead, self._context = engine.layout, engine.run_ahead_steps, context
        self._has_dropout = network.draws
        self._accumulate = accumulate
        self._queued: deque[Any] = deque()
        self._has_inferred = False
        logits = logits_symbol(network, model, engine, batch_size)
        images, labels = mx.sym.Variable("data", dtype="float32"), mx.sym.Variable("label", dtype="float32")
        self._training = gluon.SymbolBlock(losses(logits, labels), [images, labels])
        self._exported = gluon.SymbolBlock(logits, [images], params=self._training.collect_params())
        self._held = {each.name: each for each in self._training.collect_params().values()}
        self._allocate()
        self._folded = FoldedInference(
            network,
            model,
            engine,
            held=self._held,
            masters=self._weights(),
            context=context,
        )

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
        constants = {each.name: self._held[each.name].data() for each in self.network.constants}
        self._frozen = list(constants.values())
        self._constants = {name: each.astype("float32", copy=False) for name, each in constants.items()}

    def _weights(self) -> dict[str, Array]:
        """Return the float32 weights, and the tensors of frozen layers, by name."""
        return {**dict(zip((each.name for each in self.parameters), self.masters, strict=True)), **self._constants}

    @property
    def statistics(self) -> Sequence[Array]:
        """Return the batch-norm running means and variances, by layer; waits for the last backward."""
        self._settle()
        return list(self._statistics.values())

    def _settle(self) -> None:
        """Wait for the last backward, which updates the running statistics.

        On a CPU, MXNet's batch norm updates the statistics in its backward without telling the engine, so the engine
        does not order reads and writes of the statistics after the update. The engine does know the gradients, which
        the same operators compute.
        """
        for gradient in self.gradients:
            gradient.wait_to_read()

    @property
    def may_overflow(self) -> bool:
        """Return False: under MXNet, an overflow ends the run by its loss."""
        return False

    def follow_masters(self) -> None:
        """See `train.engine.protocol.TrainableNetwork`."""
        for weight, master in zip(self.weights, self.masters, strict=True):
            if weight is not master:
                master.copyto(weight)

    def seed(self, seed: int) -> None:
        """Set the 31-bit seed from which dropout draws until the next call; the same on any number of threads."""
        if self._has_dropout:
            mx.random.seed(seed, ctx=self._context)

    def losses(self, images: Array, labels: Array) -> Array:
        """Queue the forward pass of one micro-batch; return its losses, shape (batch,), which have a ``backward``."""
        with autograd.record():
            return self._training(images, labels)

    def forward(self, images: Array, labels: Array) -> Array:
        """Queue the forward pass of one micro-batch and return the sum of its losses, shape (1,)."""
        if self._has_inferred and self._context.device_type == "cpu":
            restore_order([*self.weights, *self._frozen])
        self._has_inferred = False
        self._losses = self.losses(images.as_in_context(self._context), labels.as_in_context(self._context))
        loss = self._losses.sum()
        if self._accumulate:
            self._queued.append(loss)
        return loss

    def backward(self, arrived: Callable[[int], None] | None = None) -> None:
        """Queue the backward pass of the last `forward`; gradients are sums over images.

        The call returns before the engine has computed anything. With accumulation it waits when the queue is full,
        because queued micro-batches take memory. MXNet's engine starts a reduction when its gradients are computed, so
        ``arrived`` is called for all gradients, last first, when the whole backward pass is queued.
        """
        self._losses.backward()
        for total, gradient in self._half_sums:
            mx.nd.elemwise_add(total, gradient.astype("float32"), out=total)
        if len(self._queued) > self._run_ahead:
            self._queued.popleft().wait_to_read()
        if arrived is not None:
            for index in reversed(range(len(self.gradients))):
                arrived(index)

    def inference(self) -> Callable[[Array], Array]:
        """Fold batch norm into the weights as they are now; return the function from images to logits.

        The function queues inference and returns logits of shape (batch, classes). Call `inference` again after the
        weights or the statistics have changed.
        """
        self._settle()
        self._folded.fold()
        self._has_inferred = True
        return lambda images: self._folded(images.as_in_context(self._context))

    def unfolded_inference(self) -> Callable[[Array], Array]:
        """Return the function from images to logits with every batch norm, as it is exported."""
        self._settle()
        self._has_inferred = True
        return lambda images: self._exported(images.as_in_context(self._context))

    def export(self, prefix: Path) -> None:
        """Write ``PREFIX-symbol.json`` and ``PREFIX-0000.params`` for MXNet's own loaders, with batch norm unfolded."""
        self.unfolded_inference()(mx.nd.zeros((1, *self.image_shape), ctx=self._context)).wait_to_read()
        self._exported.export(str(prefix))

    def zero_gradients(self) -> None:
        """Clear the gradients before a new sum over micro-batches."""
        mx.nd.reset_arrays(*self.gradients, num_arrays=len(self.gradients))

    def load_weights(self, weights: Mapping[str, np.ndarray]) -> None:
        """Set every parameter from float32 arrays in OIHW, and the running statistics where ``weights`` has them.

        Without statistics in ``weights``, means are set to 0 and variances to 1.
        """
        held = self._weights()
        assert set(weights) - set(self._statistics) == set(held)
        for name, master in held.items():
            # Copied from a new array, because oneDNN may keep the old array in a memory order of its own.
            mx.nd.array(self.from_oihw(weights[name])).copyto(master)
        self.follow_masters()
        for constant, master in zip(self._frozen, self._constants.values(), strict=True):
            if constant is not master:
                master.copyto(constant)
        self._settle()
        for name, _, initial in self.network.statistics:
            self._statistics[name][:] = weights.get(name, initial)

    def read_statistics(self) -> dict[str, np.ndarray]:
        """Copy the running statistics to the host, float32; waits for the last backward."""
        self._settle()
        return {name: statistic.asnumpy() for name, statistic in self._statistics.items()}

    def read_weights(self) -> dict[str, np.ndarray]:
        """Copy every parameter in float32 to the host, in OIHW; waits for the engine."""
        return dict(self.each_weight())

    def each_weight(self) -> Iterator[tuple[str, np.ndarray]]:
        """Yield the items of `read_weights` one by one, so that only one copy exists at a time."""
        for name, array in self._weights().items():
            yield name, self.to_oihw(array.asnumpy())

    def to_oihw(self, stored: np.ndarray) -> np.ndarray:
        """Return a host copy of an array that has a weight's shape, such as a momentum, as one in OIHW.

        Its memory keeps its order: whoever needs another one makes it, as the thread that writes a checkpoint does.
        """
        is_nhwc = self._layout == "NHWC" and stored.ndim == _IMAGE_AXES
        return stored.transpose(0, 3, 1, 2) if is_nhwc else stored

    def from_oihw(self, values: np.ndarray) -> np.ndarray:
        """Return values in the order that a convolution of the layout stores: OHWI for NHWC, else OIHW."""
        is_nhwc = self._layout == "NHWC" and values.ndim == _IMAGE_AXES
        return np.ascontiguousarray(values.transpose(0, 2, 3, 1)) if is_nhwc else values
