"""PyTorch behind `train.engine.protocol.Engine`.

On a CPU every verb computes before it returns. On a GPU, verbs queue on the device's current stream.
"""

import ctypes
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.profiler import ProfilerActivity, profile

from configs.optimizers import OptimizerBlock
from configs.schema import Cluster, Recipe
from train.comm.torch_communicator import torch_features
from train.engine.protocol import Engine, Operator, Optimizer, Predict, TrainableNetwork, Work
from train.engine.torch.export import export_formats
from train.engine.torch.network import TrainedNetwork, host_copy
from train.engine.torch.optimizers import FUSED, clear_unless_finite, norms
from train.networks.arch import Network
from train.rank.identity import Identity

_WHOLE = {2: torch.int16, 4: torch.int32, 8: torch.int64}
"""Whole numbers by their bytes."""

_KERNELS = ("kernel", "gpu_memcpy", "gpu_memset")
_COMMUNICATION = ("gloo:", "mpi:", "nccl:", "ncclDevKernel", "ncclKernel")
_BEGINNINGS = ("aten::", *_COMMUNICATION)

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3
"""Parameters of glibc's ``mallopt``, by their numbers in malloc.h."""


def _keep_freed_memory() -> None:
    """Let glibc keep freed memory for the next step, instead of giving it back to the kernel.

    Otherwise a step of ResNet-50 in float32 gets 130 MB of zeroed pages from the kernel, which takes 50 to 80 of its
    580 ms (AMD EPYC, one thread, 16 images of 64 px, 2026-11). Other C libraries do not have the function.
    """
    with suppress(AttributeError):
        libc = ctypes.CDLL(None)
        libc.mallopt(_M_TRIM_THRESHOLD, 2**31 - 1)
        # Up to 2.34, glibc refuses more than 32 MiB.
        _ = libc.mallopt(_M_MMAP_THRESHOLD, 1 << 30) or libc.mallopt(_M_MMAP_THRESHOLD, 32 << 20)


class TorchEngine(Engine):
    """The device of one rank under PyTorch.

    Args:
        cluster: Precision, layout, threads and device.
        identity: Which of the node's devices this rank uses.
    """

    def __init__(self, cluster: Cluster, identity: Identity) -> None:
        self._cluster = cluster
        torch.set_num_threads(cluster.engine.threads)
        self._is_gpu = cluster.device == "gpu"
        if not self._is_gpu:
            _keep_freed_memory()
        self.device = torch.device("cuda", identity.local_rank) if self._is_gpu else torch.device("cpu")
        self._graph_pool: Any = None
        # `train.compose` refuses a rank without a GPU of its own in one line; CUDA would do so here by a traceback.
        if self._is_gpu and identity.local_rank < torch.cuda.device_count():
            torch.cuda.set_device(self.device)
            # Copies of batches wait for nothing but themselves, so they have a stream of their own.
            self._input_stream = torch.cuda.Stream(self.device)
            # The warm-up, before the clock starts, tries the algorithms of every convolution; with 0 all, not only ten.
            torch.backends.cudnn.benchmark = not cluster.engine.deterministic
            torch.backends.cudnn.benchmark_limit = 0
            # An operator that has no such kernel warns: its bits are compared all the same.
            torch.use_deterministic_algorithms(cluster.engine.deterministic, warn_only=True)
            # float32 means float32: TF32 has ten bits of fraction. Ask for 16 bits by engine.precision.
            torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = False

    def build_network(self, table: Network, recipe: Recipe, *, accumulate: bool) -> TrainableNetwork:
        return TrainedNetwork(self, table, recipe, self._cluster, accumulate=accumulate)

    def fused_optimizer(self, config: OptimizerBlock, network: TrainableNetwork) -> Callable[..., Optimizer] | None:
        if config.fused == "momentum" and self._is_gpu and self._cluster.engine.batch_norm == "fused":
            from train.engine.torch.fused_momentum import FusedMomentum  # noqa: PLC0415 (registers operators)

            return FusedMomentum
        return FUSED.get(config.fused)

    def export_formats(
        self, network: TrainableNetwork, prefix: Path, names: Mapping[str, str]
    ) -> Iterator[tuple[str, Predict]]:
        return export_formats(network, prefix, names)

    def zeros(self, shape: Sequence[int]) -> Any:
        return torch.zeros(tuple(shape), device=self.device)

    def from_host(self, values: np.ndarray) -> Any:
        return torch.from_numpy(np.array(values, order="C")).to(self.device)

    def from_dali(self, tensor: Any, *, is_on_host: bool) -> Any:
        """See `Engine`.

        The host waits for a copy from a GPU, which is all that the copy's stream does. The array belongs to that
        stream, so PyTorch does not hand its memory to the next batch before the steps that read it are done.
        """
        # DALI names a type as the struct module does (float16 is "=e"), not as NumPy.
        interface = tensor.__array_interface__ if is_on_host else tensor.__cuda_array_interface__
        dtype, shape = torch.from_numpy(np.empty(0, interface["typestr"])).dtype, tuple(tensor.shape())
        if is_on_host:
            values = torch.empty(shape, dtype=dtype, pin_memory=self._is_gpu)
            tensor.copy_to_external(ctypes.c_void_p(values.data_ptr()))
            return values.to(self.device, non_blocking=True)
        with torch.cuda.stream(self._input_stream):
            array = torch.empty(shape, device=self.device, dtype=dtype)
        tensor.copy_to_external(ctypes.c_void_p(array.data_ptr()), ctypes.c_void_p(self._input_stream.cuda_stream))
        array.record_stream(torch.cuda.current_stream(self.device))
        return array

    def take(self, array: Any, rows: np.ndarray) -> Any:
        # The host would wait for a copy to a GPU from memory that is not pinned.
        numbers = torch.empty(rows.shape, dtype=torch.int64, pin_memory=self._is_gpu)
        numbers.copy_(torch.from_numpy(rows))
        return array.index_select(0, numbers.to(array.device, non_blocking=True))

    def lerp(self, start: Any, end: Any, share: float) -> Any:
        return start.lerp(end, share)

    def stack(self, arrays: Sequence[Any], axis: int) -> Any:
        return torch.stack(tuple(arrays), dim=axis)

    def unstack(self, array: Any, count: int, axis: int) -> Sequence[Any]:
        slices: Sequence[Any] = array.unbind(axis)
        assert len(slices) == count
        return slices

    def to_host(self, array: Any) -> np.ndarray:
        # Bfloat16, which NumPy does not have, becomes float32.
        return host_copy(array.float() if array.dtype == torch.bfloat16 else array)

    def to_number(self, array: Any) -> float:
        return float(array.item())

    def to_numbers(self, arrays: Sequence[Any]) -> list[float]:
        return [float(value) for value in torch.cat(list(arrays)).tolist()]

    def to_float32(self, array: Any) -> Any:
        return array.float()

    def copy(self, array: Any) -> Any:
        return self._marked(array.clone())

    def flag(self, like: Any, *, is_set: bool) -> Any:
        return torch.full_like(like, float(is_set))

    def product(self, left: Any, right: Any) -> Any:
        return torch.nn.functional.linear(left, right)

    def gemm(self, left: Any, right: Any, array: Any, *, alpha: float, beta: float) -> Any:
        return torch.addmm(array, left, right, alpha=alpha, beta=beta)

    def overwrite_each(self, targets: Sequence[Any], sources: Sequence[Any]) -> None:
        # One launch for many tensors.
        if targets:
            torch._foreach_copy_(list(targets), list(sources))

    def clear(self, arrays: Sequence[Any]) -> None:
        torch._foreach_zero_(list(arrays))

    def scale_add(
        self,
        targets: Sequence[Any],
        kept: float | Sequence[float],
        sources: Sequence[Any],
        scale: float | Sequence[float],
        *,
        unless: Any = None,
    ) -> None:
        # One launch an operator for many tensors.
        if not targets:
            return
        if isinstance(kept, float) and unless is None:
            torch._foreach_mul_(targets, kept)
            torch._foreach_add_(targets, sources, alpha=scale)
            return
        # A change is small beside its target, and so is its rounding.
        changes = torch._foreach_mul(targets, 1 - kept if isinstance(kept, float) else [1 - share for share in kept])
        torch._foreach_sub_(changes, torch._foreach_mul(sources, scale))
        if unless is not None:
            torch._foreach_mul_(changes, (1 - unless).reshape(()))
        torch._foreach_sub_(targets, changes)

    def norm(self, arrays: Sequence[Any]) -> Any:
        # One launch for many tensors of one type.
        types = dict.fromkeys(array.dtype for array in arrays)
        parts = [norms([array for array in arrays if array.dtype == dtype]) for dtype in types]
        return torch.linalg.vector_norm(torch.cat(parts)).reshape(1)

    def first_element(self, array: Any) -> Any:
        return self._marked(array[(slice(0, 1),) * array.ndim].flatten().clone())

    def _marked(self, array: Any) -> Any:
        """Note in an array where the queue of a GPU stands now, so that `wait` need not wait for what comes later."""
        if self._is_gpu:
            array.queued = torch.cuda.current_stream(self.device).record_event()
        return array

    def clear_unless_finite(self, arrays: Sequence[Any]) -> Any:
        return clear_unless_finite(arrays, torch.ones(1, device=self.device))

    def digests(self, arrays: Sequence[Any]) -> list[int]:
        # A GPU sums where the arrays are.
        if not arrays:
            return []
        sums = [each.detach().view(_WHOLE[each.element_size()]).sum(dtype=torch.int64) for each in arrays]
        return [each % 2**64 for each in torch.stack(sums).tolist()]

    def overwrite(self, target: Any, source: Any) -> None:
        target.copy_(source)

    def softplus(self, array: Any) -> Any:
        # PyTorch's own softplus leaves out what is small beside x.
        return -torch.nn.functional.logsigmoid(-array)

    def column_scale(self, factors: Sequence[float]) -> Callable[[Any], Any]:
        row = torch.tensor(factors, device=self.device)
        return lambda array: array * row

    def pick(self, array: Any, columns: Any) -> Any:
        return array.gather(1, columns.long()[:, None]).reshape(-1)

    def wait(self, *arrays: Any) -> None:
        """Wait until arrays are computed; of a GPU's array without a mark, for everything queued."""
        if not self._is_gpu:
            return
        if all(hasattr(array, "queued") for array in arrays):
            for array in arrays:
                array.queued.synchronize()
        else:
            torch.cuda.current_stream(self.device).synchronize()

    def wait_all(self) -> None:
        if self._is_gpu:
            torch.cuda.synchronize(self.device)

    def capture(self, work: Work) -> Work:
        """Return the replay of a CUDA graph of what ``work`` queues; on a CPU, ``work``.

        All graphs share one piece of memory for what they compute, because they are replayed one after another. Other
        threads, such as those of DALI and NCCL, may call CUDA meanwhile.
        """
        if not self._is_gpu:
            return work
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self._graph_pool, capture_error_mode="thread_local"):
            work()
        self._graph_pool = graph.pool()
        replay: Work = graph.replay
        return replay

    def features(self) -> dict[str, Any]:
        return {
            "gpus": torch.cuda.device_count(),
            "CUDA": torch.backends.cuda.is_built(),
            "CUDNN": torch.backends.cudnn.is_available(),
            "MKLDNN": torch.backends.mkldnn.is_available(),
            **{name.upper(): is_there for name, is_there in torch_features().items()},
        }

    def begin_trace(self, path: Path) -> None:
        # Reductions over torch.distributed are operators too.
        self.wait_all()
        activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if self._is_gpu else [])]
        self._profile, self._trace = profile(activities=activities), path
        self._profile.start()

    def end_trace(self) -> None:
        self.wait_all()
        self._profile.stop()
        self._profile.export_chrome_trace(str(self._trace))
        del self._profile

    def read_trace(self, path: Path) -> list[Operator]:
        return read_operators(path)


open_engine = TorchEngine


def read_operators(path: Path) -> list[Operator]:
    """Return the operators in a file of PyTorch's profiler, ordered by their beginnings.

    They are the kernels of a GPU, where there are some, else the operators that no other operator called.
    """
    content = json.loads(path.read_text(encoding="utf-8"))
    base_us = content.get("baseTimeNanoseconds", 0) / 1000
    events = [event for event in content["traceEvents"] if event.get("ph") == "X"]
    kernels = [event for event in events if event.get("cat") in _KERNELS]
    called = (event for event in events if event["name"].startswith(_BEGINNINGS))
    operators = [_operator(event, base_us) for event in kernels or _outermost(called)]
    return sorted(operators, key=lambda operator: operator.begin_us)


def _outermost(events: Iterable[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """Yield the events that lie within no other event of their thread."""
    end, thread = 0.0, None
    for event in sorted(events, key=lambda each: (str(each["tid"]), each["ts"], -each["dur"])):
        if event["tid"] != thread or event["ts"] >= end:
            end, thread = event["ts"] + event["dur"], event["tid"]
            yield event


def _operator(event: dict[str, Any], base_us: float) -> Operator:
    name, begin_us = event["name"], base_us + event["ts"]
    is_communication = name.startswith(_COMMUNICATION)
    return Operator(name.removeprefix("aten::"), round(begin_us), round(begin_us + event["dur"]), is_communication)
