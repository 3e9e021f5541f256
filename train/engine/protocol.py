"""What a run asks of a framework: a few verbs on opaque arrays, a network, an optimizer. Imports no framework.

An array is whatever the framework computes with. Outside `train.engine` arrays are only added, multiplied, cut and set
by slices, and handed back to these verbs. Verbs that queue work return before the work is done.
"""

import importlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np

from configs.optimizers import HyperParameters, OptimizerBlock
from configs.registry import ENGINES
from configs.schema import Cluster, Recipe
from train.comm.shares import Shares
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


class TrainableNetwork(Protocol):
    """The network as one rank holds it, with its loss."""

    @property
    def parameters(self) -> Sequence[Parameter]:
        """Return the trainable tensors, first layer first."""

    @property
    def weights(self) -> Sequence[Array]:
        """Return the arrays that the network computes with, in the order of ``parameters``."""

    @property
    def masters(self) -> Sequence[Array]:
        """Return the weights in float32; where a weight is float32 already, the very same array."""

    @property
    def gradients(self) -> Sequence[Array]:
        """Return the sums over images that backward leaves, in the order of ``parameters``."""

    @property
    def image_shape(self) -> tuple[int, ...]:
        """Return the shape of one image, without the batch axis, in the layout of the cluster file."""

    @property
    def label_shape(self) -> tuple[int, ...]:
        """Return the shape of one image's label, see `configs.schema.Recipe.label_shape`."""

    @property
    def statistics(self) -> Sequence[Array]:
        """Return the batch-norm running means and variances, by layer; waits for the last backward."""

    def forward(self, images: Array, labels: Array) -> Array:
        """Queue the forward pass of one micro-batch and return the sum of its losses, shape (1,)."""

    def backward(self, arrived: Callable[[int], None] | None = None) -> None:
        """Queue the backward pass of the last `forward`; gradients are sums over images.

        Args:
            arrived: Called with the index of each gradient that is complete, once each, as soon as work on the gradient
                may be queued: during the backward pass under an eager framework, after it is queued under another. A
                reduction that is queued in the call may overlap with the rest of the backward pass.
        """

    def inference(self) -> Callable[[Array], Array]:
        """Return the function from images to logits, shape (batch, classes), of the network as it is now.

        The function queues and returns at once. Weights or statistics that change later have no effect on it, or make
        it wrong: call `inference` again.
        """

    def zero_gradients(self) -> None:
        """Clear the gradients before a new sum over micro-batches."""

    def follow_masters(self) -> None:
        """Queue the copies of the masters into the weights of 16 bits."""

    def seed(self, seed: int) -> None:
        """Set the 31-bit seed from which layers draw until the next call, see `train.networks.layer.Kind.draws`."""

    @property
    def may_overflow(self) -> bool:
        """Return whether a step whose summed gradients are not finite is skipped, because float16 may overflow."""

    def load_weights(self, weights: Mapping[str, np.ndarray]) -> None:
        """Set every parameter from float32 arrays in OIHW, and the running statistics where ``weights`` has them."""

    def read_weights(self) -> dict[str, np.ndarray]:
        """Copy every parameter to the host in float32 and OIHW; waits."""

    def each_weight(self) -> Iterator[tuple[str, np.ndarray]]:
        """Yield the items of `read_weights` one by one, so that only one copy exists at a time."""

    def read_statistics(self) -> dict[str, np.ndarray]:
        """Copy the running statistics to the host, float32; waits for the last backward."""

    def to_oihw(self, stored: np.ndarray) -> np.ndarray:
        """Return a host copy of an array that has a weight's shape, such as a momentum, as one in OIHW."""

    def from_oihw(self, values: np.ndarray) -> np.ndarray:
        """Undo `to_oihw`."""


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

    def fused_optimizer(
        self,
        config: OptimizerBlock,
        network: TrainableNetwork,
        *,
        rescale: float,
        arrivals: Sequence[int],
        shares: Shares,
    ) -> Optimizer | None:
        """Return the engine's own implementation of an optimizer; None if it has none.

        The arguments are those of `train.engine.build.build_optimizer`.
        """

    def read_parameters(self, path: Path) -> dict[str, np.ndarray]:
        """Read a file of named parameters that MXNet has written, which no other library reads.

        Raises:
            UserError: The file is damaged, or this is not MXNet.
        """

    def export_formats(
        self, network: TrainableNetwork, prefix: Path, names: Mapping[str, str]
    ) -> Iterator[tuple[str, Predict]]:
        """Write the network in every format that the framework can write, below ``prefix``.

        Args:
            network: A float32 network in NCHW on the CPU.
            prefix: Beginning of the paths of the files; its folder exists.
            names: This program's name -> that in a file of nothing but tensors, for each tensor.

        Yields:
            Name of the format, and a function from normalised images to logits of the network loaded from its files;
            first ``trained``, the network itself.
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

    def lerp(self, start: Array, end: Array, share: float) -> Array:
        """Queue ``start`` + ``share`` x (``end`` - ``start``), up to rounding."""

    def mean(self, array: Array, axes: Sequence[int]) -> Array:
        """Queue the mean over some axes, which stay with length 1."""

    def stack(self, arrays: Sequence[Array], axis: int) -> Array:
        """Queue the join of arrays of one shape along a new axis."""

    def unstack(self, array: Array, count: int, axis: int) -> Sequence[Array]:
        """Queue the ``count`` slices along an axis, which is left out of them."""

    def to_host(self, array: Array) -> np.ndarray:
        """Copy an array to the host; waits for it."""

    def to_number(self, array: Array) -> float:
        """Return the value of an array of one element; waits for it."""

    def to_numbers(self, arrays: Sequence[Array]) -> list[float]:
        """Return the values of float32 arrays of shape (1,); waits for them, and copies them at once."""

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
            unless: An array of shape (1,); where it is 1, all targets stay as they are.
        """

    def norm(self, arrays: Sequence[Array]) -> Array:
        """Queue the L2 norm of all elements of some arrays, computed in float32, shape (1,)."""

    def first_element(self, array: Array) -> Array:
        """Queue a copy of the first element, shape (1,)."""

    def clear_unless_finite(self, arrays: Sequence[Array]) -> Array:
        """Queue the search for values that are not finite; if one is found, set all the arrays to 0.

        Returns:
            Whether one was found, 1 or 0, float32, shape (1,).
        """

    def first_not_finite(self, arrays: Sequence[Array]) -> int | None:
        """Return the number of the first array with a value that is infinite or not a number, or None; waits."""

    def digests(self, arrays: Sequence[Array]) -> list[int]:
        """Return of each array the sum of its numbers' bits, read as whole numbers, modulo 2^64; waits.

        Arrays of which one bit differs have different digests, on every device.
        """

    def overwrite(self, target: Array, source: Array) -> None:
        """Queue a copy of ``source`` into ``target``, converted to the type of ``target``."""

    def log_softmax(self, array: Array) -> Array:
        """Queue the logarithms of the softmax along the last axis."""

    def softplus(self, array: Array) -> Array:
        """Queue log(1 + e^x) of each x, in a form in which no exponential overflows."""

    def column_scale(self, factors: Sequence[float]) -> Callable[[Array], Array]:
        """Return the function that queues the product of each column of an array [B, columns] and its factor."""

    def pick(self, array: Array, columns: Array) -> Array:
        """Queue the value of each row [B, columns] in its column: float32 whole numbers, shape (B,)."""

    def argmax(self, array: Array) -> Array:
        """Queue the place of the largest value along the last axis, as float32."""

    def capture(self, work: Work) -> Work:
        """Return a function that queues what ``work`` queues on fixed arrays.

        A device that has graphs records one now, and does not call ``work`` again.
        """

    def wait(self, *arrays: Array) -> None:
        """Wait until arrays are computed."""

    def wait_all(self) -> None:
        """Wait until everything queued is done."""

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
