"""A table of layers as a network in PyTorch, with its loss. This module knows no rank and no data.

With layout NHWC, images arrive as [N, H, W, C], and weights and activations have that order in memory (PyTorch's
``channels_last``). The shapes of weights and gradients are those of OIHW in both layouts.
"""

from collections import defaultdict, deque
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
from torch.nn import functional

from configs.plan import plan_run
from configs.schema import Cluster, Recipe
from train.comm.neighbours import like
from train.engine.protocol import Array, TrainableNetwork
from train.engine.torch.compiling import compiler
from train.engine.torch.folding import FoldedInference
from train.engine.torch.layers import Layers, Operator
from train.engine.torch.shared_norm import SharedStatistics, shared_norm
from train.ideas.loss import Losses, losses_of
from train.networks.arch import Network
from train.networks.layer import Layer, Parameter
from train.networks.stages import BN_RELU, fuse_norms, stages_of

_IMAGE_AXES = 4

_VECTOR_SIZE = 8
"""Numbers that a kernel of a GPU may read at once: 16 bytes of 16-bit numbers, at an address that 16 divides.

With 10 classes, a bias of 40 bytes moved everything after it, and a step in NHWC ended in "misaligned address" (H200).
"""

_LINE_SIZE = 64
"""Numbers of 16 bits in 128 bytes."""

_GATHERED_BYTES = 4 << 20
"""Gradients that wait to be copied together; they take memory twice. One copy each would be 161 launches of a step."""


def host_copy(array: Array) -> np.ndarray:
    """Return a copy of a tensor in main memory, with its axes in the same order of memory; waits for the tensor.

    A copy in another order takes several times as long, and steps wait for that of a checkpoint.
    """
    copy: np.ndarray = array.cpu().numpy()
    return copy if array.is_cuda else copy.copy(order="K")


class TrainedNetwork(TrainableNetwork):
    """The network as one rank holds it: parameters, gradients, batch-norm statistics.

    The masters are neighbours in memory where the gradients are, in the same order.

    Args:
        engine: The engine, with PyTorch's device.
        table: The table of layers.
        recipe: Constants of batch norm, the loss, and the shape of labels.
        cluster: Precision, layout, number type of sums over the ranks, and the number of accumulated micro-batches that
            may be queued on a GPU.
        accumulate: Add each backward to the gradients instead of replacing them; the sums are always float32.
    """

    def __init__(self, engine: Any, table: Network, recipe: Recipe, cluster: Cluster, *, accumulate: bool) -> None:
        super().__init__(engine, table, recipe, cluster.engine.layout)
        self._device, self._accumulate, settings = engine.device, accumulate, cluster.engine
        self._is_alone = cluster.world_size == 1
        # Without a span, a rank may be alone in the place of one of many, whose batch the ranks cannot divide.
        norm_ranks = plan_run(recipe, cluster.world_size).norm_ranks if recipe.batch.bn_span else 1
        self._shared_statistics = SharedStatistics(norm_ranks) if norm_ranks > 1 else None
        self._is_nhwc, self._run_ahead = settings.layout == "NHWC", settings.run_ahead_steps
        self._dtype: torch.dtype = getattr(torch, settings.precision)
        self.may_overflow = self._dtype == torch.float16
        self._sum_dtype: torch.dtype = torch.float32 if accumulate else getattr(torch, cluster.sum_precision)
        self._generator = torch.Generator(self._device)
        self._queued: deque[Any] = deque()
        self._loss: Any = None
        self._batch_statistics: dict[str, Sequence[Array]] = {}
        self._masks: dict[str, Array] = {}
        self._allocate()
        self._divide(cluster, losses_of(engine, recipe))

    def _divide(self, cluster: Cluster, losses: Losses) -> None:
        """Make the parts of the forward pass: one, or several that are compiled, of which the last has the loss."""
        stages = stages_of(self.network, cluster, self._sum_dtype.itemsize)
        operators: dict[str, Operator] = {"bn": self._normalise, "dropout": self._drop}
        if cluster.engine.batch_norm == "fused":
            # Importing it registers the operators, which other runs need not wait for.
            from train.engine.torch.fused_norm import batch_norm  # noqa: PLC0415

            self._batch_norm = batch_norm
            operators |= dict.fromkeys(("bn", BN_RELU.name), self._normalise_fused)
            stages = [fuse_norms(rows) for rows in stages]
        *first, last = (Layers(rows, operators) for rows in stages)
        self._first_stages: list[Callable[..., Array]] = list(first)
        self._losses: Losses = lambda values, labels: losses(last(values, self._tensors).float(), labels)
        if cluster.engine.compile:
            compiled = compiler(cluster.ranks_per_node)
            self._first_stages = [compiled(stage) for stage in first]
            self._losses = compiled(self._losses)

    def _allocate(self) -> None:
        are_float32 = [each.is_norm for each in self.parameters]
        types = [torch.float32 if is_float32 else self._dtype for is_float32 in are_float32]
        sum_types = [torch.float32 if each else self._sum_dtype for each in are_float32]
        self.masters = self._neighbours(sum_types, torch.float32)
        self.weights = self._copies(types)
        self._gradients = self._neighbours(sum_types)
        # The leaves of the graph share the memory of the weights, which everybody else may then change in place.
        self._leaves = {
            each.name: weight.detach().requires_grad_()
            for each, weight in zip(self.parameters, self.weights, strict=True)
        }
        self._fresh: defaultdict[torch.dtype, list[tuple[Array, Array]]] = defaultdict(list)
        self._fresh_bytes = 0
        self._missing: set[int] = set()
        self._arrived: Callable[[int], None] | None = None
        self._leaves_gradients = False
        for index, leaf in enumerate(self._leaves.values()):
            leaf.register_post_accumulate_grad_hook(partial(self._receive, index))
        self._allocate_statistics()
        self._allocate_constants()

    def _copies(self, types: Sequence[torch.dtype]) -> list[Array]:
        """Return the weights: a master of the wanted type itself, copies of the others in one piece of memory.

        A copy begins at an address that 128 divides, which suits cuDNN, so these are no neighbours.
        """
        are_copies = [dtype != master.dtype for dtype, master in zip(types, self.masters, strict=True)]
        spans = [
            -(-each.size // _LINE_SIZE) * _LINE_SIZE if is_copy else 0
            for each, is_copy in zip(self.parameters, are_copies, strict=True)
        ]
        parts = torch.zeros(sum(spans), dtype=self._dtype, device=self._device).split(spans)
        rows = zip(parts, self.parameters, self.masters, are_copies, strict=True)
        return [like(part[: each.size], master) if is_copy else master for part, each, master, is_copy in rows]

    def _allocate_constants(self) -> None:
        """Make the tensors of frozen layers, in float32 and as the network computes with them."""
        for each in self.network.constants:
            made = self._stored(torch.zeros(each.size, device=self._device), each)
            self._constants[each.name] = made
            self._held_constants[each.name] = made.to(torch.float32 if each.is_norm else self._dtype)
        self._tensors = {**self._leaves, **self._held_constants}

    def _allocate_statistics(self) -> None:
        """Make the running statistics: first the means of all layers, then the variances, in one piece of memory."""
        self._norms = [layer for layer in self.network.layers if layer.statistics and not layer.is_frozen]
        widths = [layer.out_channels for layer in self._norms]
        self._running = torch.zeros(2 * sum(widths), device=self._device)
        means, variances = self._running.split([sum(widths)] * 2)
        variances.fill_(1)
        for layer, mean, variance in zip(self._norms, means.split(widths), variances.split(widths), strict=True):
            self._statistics |= {each.name: held for each, held in zip(layer.statistics, (mean, variance), strict=True)}

    def _stored(self, memory: Array, parameter: Parameter) -> Array:
        """Return a piece of memory as a tensor of a parameter's shape, in the order of the layout."""
        if not self._is_nhwc or len(parameter.shape) != _IMAGE_AXES:
            return memory.view(parameter.shape)
        out, channels, height, width = parameter.shape
        return memory.view(out, height, width, channels).permute(0, 3, 1, 2)

    def _neighbours(self, types: Sequence[torch.dtype], stored_as: torch.dtype | None = None) -> list[Array]:
        """Return a tensor of zeros for every parameter; those of one type lie in one piece of memory, last first.

        A tensor whose size `_VECTOR_SIZE` does not divide has memory of its own, so that it moves no other one. If
        ``stored_as`` is None, a tensor is stored as its own type.
        """
        made: dict[int, Array] = {}
        groups: defaultdict[tuple[torch.dtype, int | None], list[int]] = defaultdict(list)
        for index in reversed(range(len(types))):
            is_odd = self.parameters[index].size % _VECTOR_SIZE != 0
            groups[types[index], index if is_odd else None].append(index)
        for (dtype, _), indices in groups.items():
            sizes = [self.parameters[index].size for index in indices]
            pieces = torch.split(torch.zeros(sum(sizes), dtype=stored_as or dtype, device=self._device), sizes)
            made |= {
                index: self._stored(piece, self.parameters[index]) for index, piece in zip(indices, pieces, strict=True)
            }
        return [made[index] for index in range(len(types))]

    @property
    def gradients(self) -> Sequence[Array]:  # type: ignore[override]
        """Sums over images, of all gradients that have arrived.

        Those of one type are neighbours in memory, last layer first, so that most buckets are one piece of memory. One
        whose size is odd, such as the bias of 10 classes, lies apart.
        """
        self._collect()
        return self._gradients

    def seed(self, seed: int) -> None:
        self._generator.manual_seed(seed)

    def _drop(self, layer: Layer, _tensors: Mapping[str, Array], values: Array) -> Array:
        shape = values.shape if layer.kind.draws == "elements" else (-1, 1, 1, 1)
        return values * self._masks[layer.name].view(shape)

    def _draw_masks(self, batch_size: int) -> None:
        """Draw the factors of what is dropped, outside the parts that are compiled: Dynamo knows no generator."""
        for layer in self.network.layers:
            if layer.kind.draws:
                shape = (batch_size, layer.output_elements if layer.kind.draws == "elements" else 1)
                kept = torch.empty(shape, dtype=self._dtype, device=self._device)
                self._masks[layer.name] = kept.bernoulli_(1 - layer.rate, generator=self._generator).div_(
                    1 - layer.rate
                )

    def _normalise(self, layer: Layer, tensors: Mapping[str, Array], values: Array) -> Array:
        if layer.is_frozen:
            gamma, beta, mean, variance = (tensors[name] for name in layer.tensor_shapes)
            return functional.batch_norm(values, mean, variance, gamma, beta, eps=self.model.bn_epsilon)
        gamma, beta = (tensors[each.name] for each in layer.parameters)
        if self._shared_statistics is not None:
            normalised, *self._batch_statistics[layer.name] = shared_norm(
                values, gamma, beta, self.model.bn_epsilon, self._shared_statistics
            )
            return normalised
        # What torch.nn.functional.batch_norm calls. It alone returns the batch's statistics.
        normalised, mean, inverse_std, *_ = torch._batch_norm_impl_index(
            values, gamma, beta, None, None, True, 0.0, self.model.bn_epsilon, torch.backends.cudnn.enabled
        )
        # They are float32 already, unless torch.compile made the operator.
        self._batch_statistics[layer.name] = (mean.float(), inverse_std.float())
        return normalised

    def _normalise_fused(
        self, layer: Layer, tensors: Mapping[str, Array], values: Array, addend: Array | None = None
    ) -> Array:
        if layer.is_frozen:
            return self._normalise(layer, tensors, values)
        gamma, beta = (tensors[each.name] for each in layer.parameters)
        epsilon, has_relu = self.model.bn_epsilon, layer.kind == BN_RELU
        output, mean, inverse_std = self._batch_norm(values, gamma, beta, addend, epsilon, has_relu=has_relu)
        self._batch_statistics[layer.name] = (mean, inverse_std)
        return output

    def _move_statistics(self) -> None:
        """Move the running statistics towards those of the batch.

        The variance is that of the batch itself, as in MXNet. PyTorch's own running variance would be an estimate for
        all images, n / (n - 1) times larger. A running statistic stays as it is where that of the batch is not finite:
        float16 overflowed, and the optimizer skips the step.
        """
        if not self._batch_statistics:
            return
        # As the running ones lie in memory.
        means, inverse_stds = zip(*(self._batch_statistics[norm.name] for norm in self._norms), strict=True)
        self._batch_statistics.clear()
        changes = torch.cat([*means, *inverse_stds])
        changes[len(changes) // 2 :].pow_(-2).sub_(self.model.bn_epsilon)
        changes.sub_(self._running).nan_to_num_(nan=0.0, posinf=0.0, neginf=0.0)
        self._running.add_(changes, alpha=1 - self.model.bn_momentum)

    def forward(self, images: Array, labels: Array) -> Array:
        self._draw_masks(len(images))
        values = self._channels_first(images).to(self._dtype)
        for stage in self._first_stages:
            values = stage(values, self._tensors)
        losses = self._losses(values, labels.to(self._device))
        self._move_statistics()
        self._loss = losses.sum().reshape(1)
        return self._loss.detach()

    def _channels_first(self, images: Array) -> Array:
        """Return images as [N, C, H, W], whatever their order in memory."""
        images = images.to(self._device)
        return images.permute(0, 3, 1, 2) if self._is_nhwc else images

    def backward(self, arrived: Callable[[int], None] | None = None) -> None:
        loss, self._loss = self._loss, None
        self._arrived, self._missing = arrived, set(range(len(self.parameters)))
        loss.backward()
        for index in sorted(self._missing, reverse=True):
            if not self._accumulate:
                self._gradients[index].zero_()
            self._announce(index)
        # The callback belongs to a step, which holds this network and may hold CUDA graphs. In a cycle, these would
        # outlive the run, and NCCL does not end before the last graph that has its sums.
        self._arrived = None
        self._collect()
        self._bound_queue()

    def _receive(self, index: int, leaf: Array) -> None:
        """Take a gradient out of the graph, as the hook of its leaf."""
        gradient, leaf.grad = leaf.grad, None
        assert gradient is not None
        if self._leaves_gradients:
            self._gradients[index] = gradient
        else:
            self._fresh[gradient.dtype].append((self._gradients[index], gradient))
            self._fresh_bytes += gradient.nbytes
            if self._fresh_bytes >= _GATHERED_BYTES:
                self._collect()
        self._announce(index)

    def leave_gradients(self) -> None:
        # Where ranks or micro-batches are summed, the sums have memory of their own.
        self._leaves_gradients = self._is_alone and not self._accumulate

    def _collect(self) -> None:
        """Bring the gradients that have left the graph into the memory that is reduced and read."""
        for pairs in self._fresh.values():
            sums, fresh = (list(column) for column in zip(*pairs, strict=True))
            if self._accumulate:
                torch._foreach_add_(sums, fresh)
            else:
                torch._foreach_copy_(sums, fresh)
        self._fresh.clear()
        self._fresh_bytes = 0

    def _announce(self, index: int) -> None:
        self._missing.discard(index)
        if self._arrived is not None:
            self._arrived(index)

    def _bound_queue(self) -> None:
        """Wait for an older micro-batch where many are accumulated, because the images of a queue take memory.

        The replays of a CUDA graph share its memory.
        """
        if self._accumulate and self._device.type == "cuda" and not torch.cuda.is_current_stream_capturing():
            self._queued.append(torch.cuda.current_stream(self._device).record_event())
            if len(self._queued) > self._run_ahead:
                self._queued.popleft().synchronize()

    def inference(self) -> Callable[[Array], Array]:
        tensors = {**self._weights(), **self._statistics}
        folded = FoldedInference(self.network, tensors, epsilon=self.model.bn_epsilon, dtype=self._dtype)

        def predict(images: Array) -> Array:
            with torch.inference_mode():
                return folded(self._channels_first(images))

        return predict
