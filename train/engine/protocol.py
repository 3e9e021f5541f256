"""What a run asks of a framework: a few verbs on opaque arrays, a network, an optimizer. Imports no framework.

An array is whatever the framework computes with. Outside `train.engine` arrays are only added, multiplied, cut and set
by slices, and handed back to these verbs. Verbs that queue work return before the work is done.
"""

import importlib
import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np

from configs.optimizers import HyperParameters, OptimizerBlock
from configs.registry import ENGINES
from configs.schema import Cluster, Recipe
from train.networks.arch import Network
from train.networks.layer import Parameter
from train.rank.identity import Identity

Array = Any
"""An array of the framework, on the rank's device unless said otherwise."""

Work = Callable[[], None]
"""Queues work."""

Predict = Callable[[Array], np.ndarray]
"""Takes normalised images [N, C, H, W] and returns logits."""


class Operator(NamedTuple):
    """One operator that ran while the engine traced; times in microseconds since 1970."""

    name: str
    begin_us: int
    end_us: int
    is_communication: bool


class TrainableNetwork:
    """The network as one rank holds it, with its loss. What every engine does alike is done here.

    In 16 bits, convolutions and dense layers compute with weights of that type, or with casts of the weights. A weight
    of 16 bits has a float32 master, which is initialised, updated and included in checksums. Parameters of batch norm,
    logits and loss are float32. Gradients are sums over images, never means, which keeps them within the range of
    float16 without a loss scale.

    Args:
        engine: Has the arrays.
        table: The layers.
        recipe: Constants of batch norm, and the shape of labels.
        layout: The axes of images, such as NCHW.

    Attributes:
        parameters: The trainable tensors, first layer first.
        weights: The arrays that the network computes with, in the order of ``parameters``.
        masters: The weights in float32; where a weight is float32 already, the very same array.
        gradients: The sums over images that backward leaves, in the order of ``parameters``.
        image_shape: Shape of one image, without the batch axis, in the layout.
        label_shape: Shape of one image's label, see `configs.schema.Recipe.label_shape`.
        may_overflow: Whether a step whose summed gradients are not finite is skipped, because float16 may overflow.
    """

    weights: Sequence[Array]
    masters: Sequence[Array]
    gradients: Sequence[Array]
    may_overflow: bool = False

    def __init__(self, engine: "Engine", table: Network, recipe: Recipe, layout: str) -> None:
        self.engine, self.network, self.model = engine, table, recipe.model
        self.parameters: tuple[Parameter, ...] = table.parameters
        axes = {"C": table.input_channels, "H": table.image_size, "W": table.image_size}
        self.image_shape = tuple(axes[axis] for axis in layout if axis != "N")
        self.label_shape = recipe.label_shape
        self._statistics: dict[str, Array] = {}
        # Of frozen layers: in float32, and as the network computes with them.
        self._constants: dict[str, Array] = {}
        self._held_constants: dict[str, Array] = {}

    def forward(self, images: Array, labels: Array) -> Array:
        """Queue the forward pass of one micro-batch and return the sum of its losses, shape (1,)."""
        raise NotImplementedError

    def backward(self, arrived: Callable[[int], None] | None = None) -> None:
        """Queue the backward pass of the last `forward`; gradients are sums over images.

        Args:
            arrived: Called with the index of each gradient that is complete, once each, as soon as work on the gradient
                may be queued: during the backward pass under an eager framework, after it is queued under another. A
                reduction that is queued in the call may overlap with the rest of the backward pass.
        """
        raise NotImplementedError

    def inference(self) -> Callable[[Array], Array]:
        """Return the function from images to logits, shape (batch, classes), of the network as it is now.

        The function queues and returns at once. Weights or statistics that change later have no effect on it, or make
        it wrong: call `inference` again.
        """
        raise NotImplementedError

    def seed(self, seed: int) -> None:
        """Set the 31-bit seed from which layers draw until the next call, see `train.networks.layer.Kind.draws`.

        The draws are the same on any number of threads.
        """
        raise NotImplementedError

    @property
    def statistics(self) -> Sequence[Array]:
        """Return the batch-norm running means and variances, by layer; waits for the last backward."""
        self._settle()
        return list(self._statistics.values())

    def _settle(self) -> None:
        """Wait for the last backward, if the framework does not order reads of the statistics after it."""

    def zero_gradients(self) -> None:
        """Clear the gradients before a new sum over micro-batches."""
        self.engine.clear(self.gradients)

    def leave_gradients(self) -> None:
        """Leave gradients from now on where they are computed: whoever reads them finds them in ``gradients`` anew."""

    def follow_masters(self) -> None:
        """Queue the copies of the masters into the weights of 16 bits."""
        self._round(self.weights, self.masters)

    def _round(self, copies: Iterable[Array], masters: Iterable[Array]) -> None:
        pairs = [pair for pair in zip(copies, masters, strict=True) if pair[0] is not pair[1]]
        self.engine.overwrite_each([copy for copy, _ in pairs], [master for _, master in pairs])

    def _weights(self) -> dict[str, Array]:
        """Return the float32 weights, and the tensors of frozen layers, by name, as they are stored."""
        return {**dict(zip((each.name for each in self.parameters), self.masters, strict=True)), **self._constants}

    def load_weights(self, weights: Mapping[str, np.ndarray]) -> None:
        """Set every parameter from float32 arrays in OIHW, and the running statistics where ``weights`` has them.

        Without statistics in ``weights``, means are set to 0 and variances to 1.
        """
        engine, held = self.engine, self._weights()
        assert weights.keys() - self._statistics.keys() == held.keys()
        # Copied from a new array, because oneDNN may keep the old array in a memory order of its own.
        for name, master in held.items():
            engine.overwrite(master, engine.from_host(self.from_oihw(weights[name])))
        self.follow_masters()
        self._round(self._held_constants.values(), self._constants.values())
        self._settle()
        for each in self.network.statistics:
            values = weights[each.name] if each.name in weights else np.full(each.shape, each.initial, np.float32)
            engine.overwrite(self._statistics[each.name], engine.from_host(values))

    def read_weights(self) -> dict[str, np.ndarray]:
        """Copy every parameter to the host in float32 and OIHW; waits."""
        return dict(self.each_weight())

    def each_weight(self) -> Iterator[tuple[str, np.ndarray]]:
        """Yield the items of `read_weights` one by one, so that only one copy exists at a time."""
        for name, array in self._weights().items():
            yield name, self.to_oihw(self.engine.to_host(array))

    def read_statistics(self) -> dict[str, np.ndarray]:
        """Copy the running statistics to the host, float32; waits for the last backward."""
        return dict(zip(self._statistics, map(self.engine.to_host, self.statistics), strict=True))

    def to_oihw(self, stored: np.ndarray) -> np.ndarray:
        """Return a host copy of an array that has a weight's shape, such as a momentum, as one in OIHW.

        Its memory keeps its order: whoever needs another one makes it, as the thread that writes a checkpoint does.
        """
        return stored

    def from_oihw(self, values: np.ndarray) -> np.ndarray:
        """Undo `to_oihw`."""
        return values


class Optimizer(Protocol):
    """The optimizer of one rank."""

    @property
    def config(self) -> Any:
        """Return the recipe's block that the optimizer was made from."""

    @property
    def momenta(self) -> Sequence[Array]:
        """Return the float32 state: the first moment of every tensor, then the second, then what is of no tensor."""

    def update(self, hyper: HyperParameters) -> Array | None:
        """Queue the update of all weights for one step.

        Returns:
            Whether the update was skipped because gradients are not finite, 1 or 0, float32, shape (1,): weights and
            state are then as before, on every rank. None: this optimizer skips no update.
        """

    def reset(self) -> None:
        """Set the state to what it was before the first step."""


class FixedOptimizer(Optimizer, Protocol):
    """An optimizer whose update depends on no number of the host, see `train.static_step`."""

    def hold(self, hyper: HyperParameters) -> None:
        """Queue a copy of the numbers of a step to the device, for `apply`."""

    def apply(self) -> Array | None:
        """Queue the update of all weights by the numbers that were held last; return what `update` returns."""


class Engine(Protocol):
    """A framework on one rank's device."""

    def build_network(self, table: Network, recipe: Recipe, *, accumulate: bool) -> TrainableNetwork:
        """Return the network of a table of layers; ``accumulate`` adds each backward to the gradients."""

    def fused_optimizer(self, config: OptimizerBlock, network: TrainableNetwork) -> Callable[..., Optimizer] | None:
        """Return the class of the engine's own implementation of an optimizer; None if it has none.

        Its arguments are those of `train.ideas.update_rule.RuleOptimizer`.
        """

    def export_formats(
        self, network: TrainableNetwork, prefix: Path, names: Mapping[str, str]
    ) -> Iterator[tuple[str, Predict]]:
        """Write the network in every format that the framework alone can write, below ``prefix``.

        Args:
            network: A float32 network in NCHW on the CPU.
            prefix: Beginning of the paths of the files; its folder exists.
            names: This program's name -> that in a file of nothing but tensors, for each tensor.

        Yields:
            Name of the format, and a function from normalised images to logits of the network loaded from its files.
        """

    def zeros(self, shape: Sequence[int]) -> Array:
        """Return a float32 array of zeros."""

    def from_host(self, values: np.ndarray) -> Array:
        """Return an array with the values and the type of a host array."""

    def from_dali(self, tensor: Any, *, is_on_host: bool) -> Array:
        """Copy a dense float32 tensor of DALI into a new array on the rank's device; it may be overwritten afterwards.

        Args:
            tensor: The tensor.
            is_on_host: Whether the tensor is in the memory of the host instead of that of the rank's GPU.
        """

    def take(self, array: Array, rows: np.ndarray) -> Array:
        """Queue a copy of the ``rows`` (whole numbers) of an array's first axis."""

    def flip(self, array: Array, axis: int) -> Array:
        """Queue a copy of an array with the order along an axis reversed."""
        return array.flip(axis)

    def lerp(self, start: Array, end: Array, share: float) -> Array:
        """Queue ``start`` + ``share`` x (``end`` - ``start``), up to rounding."""

    def stack(self, arrays: Sequence[Array], axis: int) -> Array:
        """Queue the join of arrays of one shape along a new axis."""

    def unstack(self, array: Array, count: int, axis: int) -> Sequence[Array]:
        """Queue the ``count`` slices along an axis, which is left out of them."""

    def to_host(self, array: Array) -> np.ndarray:
        """Copy an array to the host; waits for it."""

    def to_number(self, array: Array) -> float:
        """Return the value of an array of one element; waits for it."""

    def to_numbers(self, arrays: Sequence[Array]) -> list[float]:
        """Return the values of float32 arrays of shape (1,); waits for them, and may copy them at once."""
        return [self.to_number(array) for array in arrays]

    def to_float32(self, array: Array) -> Array:
        """Return the array in float32: itself where it is float32 already."""

    def copy(self, array: Array) -> Array:
        """Queue a copy."""

    def flag(self, like: Array, *, is_set: bool) -> Array:
        """Return an array of the shape and type of ``like``, of ones if ``is_set``, else of zeros."""

    def product(self, left: Array, right: Array) -> Array:
        """Queue ``left`` times the transpose of ``right``, as a fully connected layer computes it."""

    def gemm(self, left: Array, right: Array, array: Array, *, alpha: float, beta: float) -> Array:
        """Queue ``alpha`` times the product of two matrices, plus ``beta`` times an array."""

    def overwrite_each(self, targets: Sequence[Array], sources: Sequence[Array]) -> None:
        """Queue `overwrite` for many pairs of arrays."""
        for target, source in zip(targets, sources, strict=True):
            self.overwrite(target, source)

    def clear(self, arrays: Sequence[Array]) -> None:
        """Queue zeros into arrays."""

    def scale_add(
        self,
        targets: Sequence[Array],
        kept: float | Sequence[float],
        sources: Sequence[Array],
        scale: float | Sequence[float],
        *,
        unless: Array | None = None,
    ) -> None:
        """Queue t = k t + s u in place for many float32 tensors, up to rounding.

        Args:
            targets: The t.
            kept: The k: one number for all tensors, or one for each.
            sources: The u.
            scale: The s, in the form of ``kept``.
            unless: An array as `clear_unless_finite` returns it; where it is 1, all targets stay as they are.
        """

    def norm(self, arrays: Sequence[Array]) -> Array:
        """Queue the L2 norm of all elements of some arrays, computed in float32, shape (1,)."""

    def first_element(self, array: Array) -> Array:
        """Queue a copy of the first element, shape (1,)."""

    def clear_unless_finite(self, arrays: Sequence[Array]) -> Array:
        """Queue the search for values that are not finite; if one is found, set all the arrays to 0.

        An engine of which no network may overflow need not have it.

        Returns:
            Whether one was found, 1 or 0, float32, shape (1,).
        """
        raise AssertionError("a network of this engine may not overflow")

    def first_not_finite(self, arrays: Sequence[Array]) -> int | None:
        """Return the number of the first array with a value that is infinite or not a number, or None; waits."""
        # 75 M numbers take 0.1 s of one core of an EPYC by sums of squares, 2 s by MXNet's multi_all_finite.
        if not arrays or math.isfinite(self.to_number(self.norm(arrays))):
            return None
        # Values above 1e19 are finite, and their squares are not.
        return next((n for n, each in enumerate(arrays) if not np.isfinite(self.to_host(each)).all()), None)

    def digests(self, arrays: Sequence[Array]) -> list[int]:
        """Return of each array the sum of its numbers' bits, read as whole numbers, modulo 2^64; waits.

        Arrays of which one bit differs have different digests, on every device.
        """
        hosts = [np.ravel(self.to_host(each)) for each in arrays]
        return [int(each.view(f"i{each.itemsize}").sum(dtype=np.int64)) % 2**64 for each in hosts]

    def overwrite(self, target: Array, source: Array) -> None:
        """Queue a copy of ``source`` into ``target``, converted to the type of ``target``."""

    def log_softmax(self, array: Array) -> Array:
        """Queue the logarithms of the softmax along the last axis."""
        return array.log_softmax(-1)

    def softplus(self, array: Array) -> Array:
        """Queue log(1 + e^x) of each x, in a form in which no exponential overflows."""

    def column_scale(self, factors: Sequence[float]) -> Callable[[Array], Array]:
        """Return the function that queues the product of each column of an array [B, columns] and its factor."""

    def pick(self, array: Array, columns: Array) -> Array:
        """Queue the value of each row [B, columns] in its column: float32 whole numbers, shape (B,)."""

    def argmax(self, array: Array) -> Array:
        """Queue the place of the largest value along the last axis, as float32."""
        return self.to_float32(array.argmax(-1))

    def capture(self, work: Work) -> Work:
        """Return a function that queues what ``work`` queues on fixed arrays.

        A device that has graphs records one now, and does not call ``work`` again.
        """
        return work

    def wait(self, *arrays: Array) -> None:
        """Wait until arrays are computed."""

    def wait_all(self) -> None:
        """Wait until everything queued is done."""

    def finish(self) -> float:
        """Wait until everything queued is done; return the moment at which it was, in seconds of `time.monotonic`."""
        self.wait_all()
        return time.monotonic()

    def features(self) -> dict[str, Any]:
        """Return what the framework was built with and sees: at least ``gpus``, the number of GPUs it can use."""

    def begin_trace(self, path: Path) -> None:
        """Wait for everything queued, then record operators into ``path``."""

    def end_trace(self) -> None:
        """Wait for everything queued, then end recording and write the file."""

    def read_trace(self, path: Path) -> list[Operator]:
        """Read the operators of a recorded file, ordered by their beginnings."""


def open_engine(cluster: Cluster, identity: Identity) -> Engine:
    """Import the framework and return it on this rank's device."""
    entry = ENGINES[cluster.engine.name]
    engine: Engine = importlib.import_module(entry.module).open_engine(cluster, identity)
    return engine
