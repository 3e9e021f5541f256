"""MXNet behind `train.engine.protocol.Engine`."""

import ctypes
import json
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import mxnet as mx
import numpy as np

from configs.optimizers import OptimizerBlock
from configs.plan import plan_run
from configs.schema import Cluster, Recipe
from logs.environment import cpu_flags
from train.engine.mxnet.bfloat16 import prepare_bfloat16
from train.engine.mxnet.network import TrainedNetwork
from train.engine.mxnet.optimizers import FUSED, HostMomentum, operator_parts
from train.engine.protocol import Engine, Operator, Optimizer, Predict, TrainableNetwork
from train.networks.arch import Network
from train.rank.identity import Identity

_COMMUNICATION = ("horovod_", "shared_memory_")
_HOUSEKEEPING = ("DeleteVariable",)

_FEATURES = ("CUDA", "CUDNN", "NCCL", "ONEDNN", "MKLDNN")


class MxnetEngine(Engine):
    """The device of one rank under MXNet.

    Args:
        cluster: Precision, layout and device.
        identity: Which of the node's devices this rank uses.

    Raises:
        UserError: The precision is bfloat16, and this machine's CPU cannot compute in it.
    """

    def __init__(self, cluster: Cluster, identity: Identity) -> None:
        if cluster.engine.precision == "bfloat16":
            prepare_bfloat16(cpu_flags())
        self._settings, self._world_size = cluster.engine, identity.world_size
        is_gpu = cluster.device == "gpu"
        # CPU devices of one process have different numbers, so that MXNet's engine gives each threads of its own.
        cpu_number = identity.local_rank if identity.launcher == "devices" else 0
        self.context = mx.gpu(identity.local_rank) if is_gpu else mx.cpu(cpu_number)
        self._host = mx.cpu() if is_gpu else self.context

    def build_network(self, table: Network, recipe: Recipe, *, accumulate: bool) -> TrainableNetwork:
        batch_size = plan_run(recipe, self._world_size).per_rank_batch_size
        return TrainedNetwork(self, table, recipe, self._settings, accumulate=accumulate, batch_size=batch_size)

    def fused_optimizer(self, config: OptimizerBlock, network: TrainableNetwork) -> Callable[..., Optimizer] | None:
        is_whole = all(weight is master for weight, master in zip(network.weights, network.masters, strict=True))
        if config.fused == "momentum" and is_whole and self.context.device_type == "cpu":
            return HostMomentum
        return FUSED.get(config.fused)

    def export_formats(
        self, network: TrainableNetwork, prefix: Path, _names: Mapping[str, str]
    ) -> Iterator[tuple[str, Predict]]:
        # MXNet's own format and ONNX have this program's names.
        assert isinstance(network, TrainedNetwork)
        network.export(prefix)
        with warnings.catch_warnings():
            # This loader gives the images no type, and then warns that it cannot tell their type.
            warnings.simplefilter("ignore", UserWarning)
            loaded = mx.gluon.SymbolBlock.imports(f"{prefix}-symbol.json", ["data"], f"{prefix}-0000.params")
        yield "MXNet", lambda images: loaded(images).asnumpy()

    def zeros(self, shape: Sequence[int]) -> Any:
        return mx.nd.zeros(tuple(shape), ctx=self.context)

    def from_host(self, values: np.ndarray) -> Any:
        return mx.nd.array(values, dtype=values.dtype, ctx=self.context)

    def from_dali(self, tensor: Any, *, is_on_host: bool) -> Any:
        """Copy a tensor of DALI, of its type, into a new array on this rank's device.

        The array is new for every batch, because MXNet's engine still reads a batch some steps after it was returned.
        Reusing a ring of arrays was no faster (two cores: 0.06 ms for 32x3x32x32, 1.0 ms for 16x3x224x224). From a GPU
        this waits for the copy, because the CUDA streams of MXNet and DALI are not synchronised with each other.
        """
        interface = tensor.__array_interface__ if is_on_host else tensor.__cuda_array_interface__
        place = self._host if is_on_host else self.context
        array = mx.nd.empty(tuple(tensor.shape()), ctx=place, dtype=np.dtype(interface["typestr"]).name)
        pointer = ctypes.c_void_p()
        mx.base.check_call(mx.base._LIB.MXNDArrayGetData(array.handle, ctypes.byref(pointer)))
        tensor.copy_to_external(pointer)
        return array.as_in_context(self.context)

    def take(self, array: Any, rows: np.ndarray) -> Any:
        return mx.nd.take(array, mx.nd.array(rows, dtype="int32").as_in_context(array.context))

    def lerp(self, start: Any, end: Any, share: float) -> Any:
        return end * share + start * (1 - share)

    def stack(self, arrays: Sequence[Any], axis: int) -> Any:
        return mx.nd.stack(*arrays, axis=axis)

    def unstack(self, array: Any, count: int, axis: int) -> Sequence[Any]:
        return list(array.split(num_outputs=count, axis=axis, squeeze_axis=True))

    def to_host(self, array: Any) -> np.ndarray:
        values: np.ndarray = array.asnumpy()
        return values

    def to_number(self, array: Any) -> float:
        return float(array.asscalar())

    def to_float32(self, array: Any) -> Any:
        return array.astype("float32", copy=False)

    def copy(self, array: Any) -> Any:
        return array.copy()

    def flag(self, like: Any, *, is_set: bool) -> Any:
        return like.ones_like() if is_set else like.zeros_like()

    def product(self, left: Any, right: Any) -> Any:
        # Mx.nd.dot would call OpenBLAS instead of oneDNN.
        return mx.nd.FullyConnected(left, right, no_bias=True, num_hidden=right.shape[0])

    def gemm(self, left: Any, right: Any, array: Any, *, alpha: float, beta: float) -> Any:
        return mx.nd.linalg.gemm(left, right, array, alpha=alpha, beta=beta)

    def clear(self, arrays: Sequence[Any]) -> None:
        mx.nd.reset_arrays(*arrays, num_arrays=len(arrays))

    def scale_add(
        self,
        targets: Sequence[Any],
        kept: float | Sequence[float],
        sources: Sequence[Any],
        scale: float | Sequence[float],
        *,
        unless: Any = None,
    ) -> None:
        # One operator for many tensors where each has numbers of its own.
        assert unless is None, "no network of this engine may overflow"
        if isinstance(kept, float) or isinstance(scale, float):
            for target, source in zip(targets, sources, strict=True):
                mx.nd.elemwise_add(target * kept, source * scale, out=target)
        else:
            self._scale_add_each(targets, kept, sources, scale)

    def _scale_add_each(
        self, targets: Sequence[Any], kept: Sequence[float], sources: Sequence[Any], scales: Sequence[float]
    ) -> None:
        """Queue t = k t + s u by descents along -u: the operator has t = (1 - r d) t - r u with r = -s."""
        decays = [(share - 1) / scale if scale else 0.0 for share, scale in zip(kept, scales, strict=True)]
        for part in operator_parts(list(zip(targets, sources, scales, decays, strict=True))):
            mx.nd.multi_sgd_update(
                *(array for target, source, *_ in part for array in (target, source)),
                lrs=tuple(-scale for _, _, scale, _ in part),
                wds=tuple(decay for *_, decay in part),
                num_weights=len(part),
                out=[target for target, *_ in part],
            )

    def norm(self, arrays: Sequence[Any]) -> Any:
        singles = [array.astype("float32", copy=False) for array in arrays]
        sums = [mx.nd.multi_sum_sq(*part, num_arrays=len(part)) for part in operator_parts(singles)]
        return mx.nd.concat(*sums, dim=0).sum().sqrt()

    def first_element(self, array: Any) -> Any:
        return array.reshape(-1)[:1].copy()

    def overwrite(self, target: Any, source: Any) -> None:
        source.copyto(target)

    def softplus(self, array: Any) -> Any:
        operators = mx.sym if isinstance(array, mx.sym.Symbol) else mx.nd
        return array.relu() + operators.Activation(-array.abs(), act_type="softrelu")

    def column_scale(self, factors: Sequence[float]) -> Callable[[Any], Any]:
        # A symbol can hold no list of numbers, so the graph joins them (1,000: 8 ms on a CPU).

        def scaled(array: Any) -> Any:
            operators = mx.sym if isinstance(array, mx.sym.Symbol) else mx.nd
            place = {} if operators is mx.sym else {"ctx": array.context}
            row = operators.concat(*[operators.full((1, 1), factor, **place) for factor in factors], dim=1)
            return operators.broadcast_mul(array, row)

        return scaled

    def pick(self, array: Any, columns: Any) -> Any:
        return array.pick(columns, axis=-1)

    def wait(self, *arrays: Any) -> None:
        for array in arrays:
            array.wait_to_read()

    def wait_all(self) -> None:
        mx.nd.waitall()

    def features(self) -> dict[str, Any]:
        built = mx.runtime.Features()
        return {
            "gpus": mx.context.num_gpus(),
            **{key: built.is_enabled(key) for key in _FEATURES if key in built},
        }

    def begin_trace(self, path: Path) -> None:
        """Record with MXNet's profiler; Horovod's reductions are operators of the same engine and appear too."""
        mx.nd.waitall()
        mx.profiler.set_config(profile_symbolic=True, profile_imperative=True, filename=str(path))
        mx.profiler.set_state("run")

    def end_trace(self) -> None:
        mx.nd.waitall()
        mx.profiler.set_state("stop")
        mx.profiler.dump(finished=True)

    def read_trace(self, path: Path) -> list[Operator]:
        return read_operators(json.loads(path.read_text(encoding="utf-8")))


open_engine = MxnetEngine


def read_operators(profile: dict[str, Any]) -> list[Operator]:
    """Return the operators in a file of MXNet's profiler, ordered by their beginnings."""
    # A begin is followed by its own end, whatever runs beside it; a second pair ("b", "e") repeats each.
    begins = [event for event in profile["traceEvents"] if event["ph"] == "B"]
    ends = [event for event in profile["traceEvents"] if event["ph"] == "E"]
    operators = [
        Operator(begin["name"], begin["ts"], end["ts"], begin["name"].startswith(_COMMUNICATION))
        for begin, end in zip(begins, ends, strict=True)
        if begin["name"] not in _HOUSEKEEPING
    ]
    return sorted(operators, key=lambda operator: operator.begin_us)
