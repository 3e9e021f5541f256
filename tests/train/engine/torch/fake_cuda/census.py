"""``python -m tests.train.engine.torch.fake_cuda.census GUARD TRACE ...``: what a step does, a line of JSON a trace.

A trace is ``RECIPE:PRECISION:RANK[:GRAPHS[:NORM[:IMAGES]]]`` with values of ``engine.cuda_graphs`` and of
``engine.batch_norm``; there are 8 ranks of 32 images, unless others are given. The rank's second step is traced on CUDA
tensors that hold no numbers (`guard.cpp` and PyTorch's FakeTensorMode), with the program's own engine, network,
optimizer, communicator and step. What graphs capture is traced apart, and a replay does nothing. The process group is
PyTorch's ``fake`` one, which sums nothing. The last line has the programs of a step that ``torch.compile`` compiles.
"""

import ctypes
import gc
import json
import sys
import warnings
import weakref
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from types import SimpleNamespace
from typing import Any
from unittest import mock

import numpy as np

_THREADS, _BLOCKS = 65_536, 320
"""Elements of a block, and blocks of a launch, of PyTorch's multi-tensor kernels (``MultiTensorApply.cuh``)."""
_TENSORS = {1: 110, 2: 64, 3: 48, 4: 36}
"""Lists of tensors -> tensors of a launch of such a kernel (``depth_to_max_tensors``)."""
_JOINED = 128
"""Tensors of a launch of PyTorch's kernel that joins dense tensors; of others it joins half as many (``Shape.cu``)."""


_TWICE = {"batch_norm": 1, "batch_norm_backward": 2}
"""End of an operator's name -> its first tensors that it reads twice: for sums, and for what follows from these.
tests/train/engine/torch/test_fused_norm.py counts what our own kernels read."""
_OWN = "resnet_records"
_NORM_LAUNCHES = 3
"""Launches of our own batch norms each way; our other operators are one each."""

_RANKS, _IMAGES = 8, 32


def main(guard: str, *traces: str) -> None:
    """Trace steps, and print what each one does."""
    fake = ctypes.CDLL(guard, mode=ctypes.RTLD_GLOBAL)  # before PyTorch, whose own hooks then step back
    import torch  # noqa: F401

    fake.replace_guard()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for trace in traces:
            sys.stdout.write(json.dumps(_trace(*trace.split(":"))) + "\n")
        sys.stdout.write(json.dumps(_compiled()) + "\n")


def _compiled() -> list[tuple[str, int, int]]:
    """Return the programs that Inductor gets of a compiled step of resnet8 in float16, in their order.

    Returns:
        ``forward`` or ``backward``; the convolutions; and the operators of batch norm that Inductor cannot take apart,
        and so not fuse.
    """
    import torch._inductor.lowering  # which decompositions need
    from torch._dynamo.backends.common import aot_autograd
    from torch._inductor.decomposition import select_decomp_table
    from torch._subclasses.fake_tensor import FakeTensorMode

    from train.engine.protocol import open_engine
    from train.networks.arch import network_of
    from train.rank.identity import Identity

    programs: list[tuple[str, int, int]] = []

    def noting(phase: str) -> Callable[[Any, Any], Any]:
        def note(graph: Any, _: Any) -> Any:
            names = [str(node.target) for node in graph.graph.nodes if node.op == "call_function"]
            kinds = ("aten.convolution", "batch_norm")
            convolutions, norms = (sum(kind in name for name in names) for kind in kinds)
            programs.append((phase, convolutions, norms))
            return graph.forward

        return note

    inductor = aot_autograd(
        fw_compiler=noting("forward"), bw_compiler=noting("backward"), decompositions=select_decomp_table()
    )
    small = "model.name=resnet8", "model.image_size=32", "cluster.communication.bucket_bytes=65536"
    recipe, cluster = _settings("imagenet-b256", "float16", "cluster.engine.compile=true", *small)
    with (
        FakeTensorMode(allow_non_fake_inputs=True),
        _no_driver(torch, _Record()),
        mock.patch.object(torch, "compile", partial(torch.compile, backend=inductor)),
    ):
        engine: Any = open_engine(cluster, Identity(0, _RANKS, 0, _RANKS, "here", "torchrun"))
        network = engine.build_network(network_of(recipe.model), recipe, accumulate=False)
        images = torch.empty((_IMAGES, *network.image_shape), device="cuda", dtype=torch.float16)
        network.forward(images, torch.zeros((_IMAGES,), device="cuda"))
        network.backward()
    return programs


def _settings(recipe: str, precision: str, *more: str, images: int = _IMAGES) -> tuple[Any, Any]:
    """Return a recipe and a cluster of GPUs."""
    from configs.load import load_both

    return load_both(recipe, "laptop", [
        "cluster.device=gpu", "cluster.engine.name=torch", "cluster.engine.layout=NHWC",
        f"cluster.engine.precision={precision}", f"cluster.ranks_per_node={_RANKS}",
        "cluster.communication.kind=torch_distributed", "cluster.communication.backend=nccl",
        "cluster.communication.bucket_bytes=16777216", "cluster.communication.bucket_fraction=0",
        "cluster.engine.update_groups=1", "mlperf.division=open", "batch.bn_span=null",
        f"batch.global_size={_RANKS * images}", *more,
    ])  # fmt: skip


def _trace(
    recipe_name: str, precision: str, rank: str, graphs: str = "none", norm: str = "framework", images: str = "32"
) -> dict[str, Any]:
    import torch
    from torch import distributed
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.testing._internal.distributed.fake_pg import FakeStore
    from torch.utils._python_dispatch import TorchDispatchMode
    from torch.utils._pytree import tree_leaves

    from configs.optimizers import HyperParameters
    from configs.plan import plan_run
    from data.input.batches import TrainingBatch
    from train.comm.torch_communicator import TorchCommunicator
    from train.compose import Composition
    from train.engine.build import build_model
    from train.engine.protocol import open_engine
    from train.measure.timing import Clock
    from train.networks.arch import network_of
    from train.rank.identity import Identity

    record = _Record()

    class Watching(TorchDispatchMode):  # type: ignore[misc]
        def __torch_dispatch__(self, operator: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            result = operator(*args, **(kwargs or {}))
            options = kwargs or {}
            if options.get("pin_memory"):
                result.lies_pinned = True
            if not (options.get("non_blocking") and hasattr(args[0], "lies_pinned")):
                record.add(operator, args, tree_leaves((args, kwargs)), tree_leaves(result))
            return result

    changes = [f"cluster.engine.{each}" for each in (f"cuda_graphs={graphs}", f"batch_norm={norm}")]
    recipe, cluster = _settings(recipe_name, precision, *changes, images=int(images))
    plan = plan_run(recipe, _RANKS)
    identity = Identity(int(rank), _RANKS, 0, _RANKS, "here", "torchrun")
    distributed.init_process_group("fake", rank=int(rank), world_size=_RANKS, store=FakeStore())
    with FakeTensorMode(allow_non_fake_inputs=True), _no_driver(torch, record), Watching():
        engine: Any = open_engine(cluster, identity)
        zeros = {each.name: np.zeros(each.shape, np.float32) for each in network_of(recipe.model).parameters}
        model = build_model(engine, recipe, cluster, plan, zeros)  # drawn weights take half a second
        network: Any = model.network
        half = torch.float16 if precision == "float16" else torch.float32
        batch = TrainingBatch(
            torch.empty((int(images), *network.image_shape), device="cuda", dtype=half),
            torch.zeros((int(images),), device="cuda"),
        )
        watched = replace(
            model,
            network=record.watched(network, "forward", "backward"),
            optimizer=record.watched(model.optimizer, "update", "hold", "apply"),
        )
        communicator: Any = record.watched(TorchCommunicator(torch, engine.device, 1), "complete")
        parts = Composition(recipe, cluster, plan, identity, engine, communicator, watched, None, None)
        step = parts.make_step(Clock(engine, 1), lambda _: None)
        source: Any = SimpleNamespace(next_batch=lambda: batch)
        step(0, source, HyperParameters(lr=0.1, momentum=0.9, weight_decay=1e-4))
        record.clear()
        step(1, source, HyperParameters(lr=0.2, momentum=0.9, weight_decay=1e-4))
        strides = [each.stride() for each in network.gradients] == [each.stride() for each in network.masters]
        result = record.result()
        record.clear()
        engine.take(batch.labels, np.arange(_IMAGES))
        taken = record.result()["host"]
        record.clear()
        captured = [*record.captured]
        evaluated = _launches_of_evaluation(engine, network, batch.images, record, is_graph=graphs != "none")
        gc.disable()
        del step
        left = len(record.graphs)
        at_end = record.graphs_at_end(distributed, communicator)
    return result | {
        "gradients_lie_as_weights": strides, "captured": captured, "graphs_left": left, "graphs_at_end": at_end,
        "host_of_take": taken, "launches_of_evaluation": evaluated,
    }  # fmt: skip


def _launches_of_evaluation(
    engine: Any, network: Any, images: Any, record: "_Record", *, is_graph: bool
) -> tuple[int, int]:
    """Return the launches of an evaluation of a batch: of what a graph has captured, and beside a graph."""
    from train.static_step import StaticInference

    if is_graph:
        predict = StaticInference(network, images)
        captured = record.captured[-1]
        record.clear()
        predict(images)
    else:
        captured = {"launches": {}}
        network.inference()(images)
    within, beside = (
        sum(sum(each.values()) for each in found["launches"].values()) for found in (captured, record.result())
    )
    return within, beside


class _Record:
    """What a rank did since the last `clear`."""

    def __init__(self) -> None:
        self.phase = "start"
        self.captured: list[dict[str, Any]] = []
        self.graphs: weakref.WeakSet[Any] = weakref.WeakSet()
        self.clear()

    def clear(self) -> None:
        """Forget everything."""
        self._operators: dict[str, Counter[str]] = {}
        self._launches: dict[str, Counter[str]] = {}
        self._bytes: Counter[str] = Counter()
        self._bytes_of_update = 0
        self._sums: list[tuple[str, str, int]] = []
        self.waits: list[str] = []
        self._host: list[str] = []

    def result(self) -> dict[str, Any]:
        """Return everything as values of JSON."""
        return {
            "operators": self._operators, "launches": self._launches, "sums": self._sums, "waits": self.waits,
            "host": self._host, "bytes": self._bytes, "bytes_of_update": self._bytes_of_update,
        }  # fmt: skip

    def graph(self) -> Any:
        """Return a graph whose replay does nothing."""
        graph = _Graph()
        self.graphs.add(graph)
        return graph

    def graphs_at_end(self, distributed: Any, communicator: Any) -> list[int]:
        """Leave the group with a graph that only a frozen cycle keeps alive; return the graphs that are left then."""
        cycle: list[Any] = [self.graph()]
        cycle.append(cycle)
        del cycle
        gc.freeze()
        left: list[int] = []
        with mock.patch.object(distributed, "destroy_process_group", lambda: left.append(len(self.graphs))):
            communicator.leave()
        distributed.destroy_process_group()
        return left

    @contextmanager
    def capturing(self) -> Iterator[None]:
        """Keep apart what happens meanwhile; forget what was before."""
        self.clear()
        yield
        self.captured.append(self.result())

    def add(self, operator: Any, args: Any, inputs: list[Any], outputs: list[Any]) -> None:
        """Take note of an operator."""
        name = str(operator.overloadpacket).rpartition(".")[2]
        read, made = (
            [each for each in of if hasattr(each, "device") and hasattr(each, "stride")] for of in (inputs, outputs)
        )
        tensors = read + made
        if "allreduce" in name:
            ((buffer,),) = args[:1]
            self._sums.append((self.phase, str(buffer.dtype), buffer.numel()))
            return
        if name in {"_local_scalar_dense", "item", "is_nonzero", "equal"} or len({t.device.type for t in tensors}) > 1:
            self._host.append(f"{self.phase}: {name}")
        if all(tensor.device.type == "cpu" for tensor in tensors) or _only_views(operator, name):
            return
        self._operators.setdefault(self.phase, Counter())[name] += 1
        kind = "convolution" if "convolution" in name else "batch norm" if "batch_norm" in name else "other"
        is_own = operator.namespace == _OWN
        own = _NORM_LAUNCHES if kind == "batch norm" else 1
        self._launches.setdefault(self.phase, Counter())[kind] += own if is_own else _launches(name, args)
        again = next((read[:count] for end, count in reversed(_TWICE.items()) if name.endswith(end)), [])
        if name.endswith("_"):  # It overwrites its first argument, which copies and zeros do not read.
            made = [*args[0]] if isinstance(args[0], (list, tuple)) else [args[0]]
            read = read[len(made) :] if name.endswith(("copy_", "zero_", "fill_")) else read
        elif is_own:
            written = [each for each, at in zip(args, operator._schema.arguments, strict=False) if at.is_write]
            made += [each for each in written if each is not None]
        moved = sum(map(_bytes, read + again + made))
        self._bytes[kind] += moved
        self._bytes_of_update += moved if self.phase == "update" else 0

    def watched(self, target: Any, *verbs: str) -> Any:
        """Return an object that does as ``target`` does, and gives its verbs' names to what happens meanwhile."""
        watched = _Watched(target)
        for verb in verbs:
            setattr(watched, verb, self._named(verb, getattr(target, verb)))
        return watched

    def _named(self, verb: str, method: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any) -> Any:
            before, self.phase = self.phase, verb
            result = method(*args)
            self.phase = before
            return result

        return call


class _Graph:
    def pool(self) -> None:
        """Share no memory."""

    def replay(self) -> None:
        """Do nothing."""


class _Watched:
    def __init__(self, target: Any) -> None:
        self._target = target

    def __getattr__(self, name: str) -> Any:
        return getattr(self._target, name)


def _bytes(tensor: Any) -> int:
    """Return the bytes of a tensor in memory; those of an axis along which it is repeated are there once."""
    sides = [side for side, stride in zip(tensor.shape, tensor.stride(), strict=True) if stride]
    return int(np.prod(sides, dtype=np.int64)) * int(tensor.element_size())


def _only_views(operator: Any, name: str) -> bool:
    return (
        operator.namespace not in ("aten", _OWN)
        or operator.is_view
        or name.startswith(("empty", "new_empty", "detach", "_unsafe_view", "record_stream"))
    )


def _launches(name: str, args: Any) -> int:
    """Return the kernels that an operator launches, as far as PyTorch's sources tell; cuDNN's are counted as one each.

    Multi-tensor operators take their fast route if all tensors of the lists agree in type and order of memory; a copy,
    if each list has one type. On the slow route, they launch one kernel a tensor.
    """
    if name == "convolution_backward":
        return int(sum(args[-1]))  # the gradients that are asked for
    if name == "cat":
        is_dense = all(tensor.is_contiguous() for tensor in args[0])
        return -(-len(args[0]) // (_JOINED if is_dense else _JOINED // 2))
    lists = [each for each in args if isinstance(each, (list, tuple)) and each and hasattr(each[0], "stride")]
    if not name.startswith("_foreach_") or not lists:
        return 1
    types = [{tensor.dtype for tensor in each} for each in lists]
    agree = all(len(each) == 1 for each in types) if "copy" in name else len(set().union(*types)) == 1
    alike = all(len({tensor.stride() for tensor in row}) == 1 for row in zip(*lists, strict=True))
    if not (agree and alike):
        return len(lists[0])
    blocks: int = sum(-(-tensor.numel() // _THREADS) for tensor in lists[0])
    return max(-(-len(lists[0]) // _TENSORS[len(lists)]), -(-blocks // _BLOCKS))


@contextmanager
def _no_driver(torch: Any, record: _Record) -> Iterator[None]:
    """Replace what asks CUDA's driver; waits of the host are noted."""
    event = SimpleNamespace(synchronize=lambda: record.waits.append("event"), wait=lambda *_: None)
    stream = SimpleNamespace(
        record_event=lambda *_: event, synchronize=lambda: record.waits.append("stream"), cuda_stream=0
    )
    generator = SimpleNamespace(manual_seed=lambda _: None)
    from_numpy = torch.from_numpy

    def fake_from_numpy(array: Any) -> Any:
        return torch.empty(array.shape, dtype=from_numpy(array[:0] if array.ndim else array).dtype)

    with (
        mock.patch.multiple(
            torch.cuda, set_device=lambda *_: None, Stream=lambda *_: stream, current_stream=lambda *_: stream,
            synchronize=lambda *_: record.waits.append("device"), is_current_stream_capturing=lambda: False,
            CUDAGraph=record.graph,
            graph=lambda *_, **__: record.capturing(),
        ),
        mock.patch.multiple(torch, Generator=lambda *_: generator, from_numpy=fake_from_numpy),
    ):  # fmt: skip
        yield


if __name__ == "__main__":
    main(*sys.argv[1:])
