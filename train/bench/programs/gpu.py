"""The rank of ``bench gpu``: whether a device computes as the CPU does, what it copies, and where its time goes.

The first question is that of `kernels`: both begin with the same weights and the same images, so what differs is the
arithmetic of the kernels.
"""

import os
import re
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import cache

import numpy as np
import torch

from configs.load import load_both
from configs.optimizers import HyperParameters
from configs.plan import plan_run
from data.input.synthetic import open_repeated
from train.bench.bench_gpu import KERNEL_CASES, KernelCase
from train.bench.samples import Figures, write_samples
from train.compose import compose
from train.dataset import images_of
from train.engine.init import initial_weights
from train.engine.protocol import open_engine
from train.measure.timing import Clock
from train.networks.arch import Network, Rows
from train.networks.kinds import KINDS
from train.probe import open_rank
from train.rank.identity import Identity, read_identity
from train.rank.startup import Ledger
from train.warmup import warm_up

_ALONE = Identity(0, 1, 0, 1, "here", "none")
"""The only rank."""

_ON_CPU = (
    "cluster.device=cpu",
    "cluster.engine.precision=float32",
    "cluster.engine.layout=NCHW",
    "cluster.engine.compile=false",
    "cluster.engine.batch_norm=framework",
    "cluster.engine.cuda_graphs=none",
    "batch.accumulation_steps=null",
)
"""The place of the exact results: one batch, every kernel launched by itself."""

_MACHINE_SAMPLES, _REPEATS = 5, 20
"""Samples of the machine, and copies and products of each one."""

_WARMUP, _STEPS = 3, 5
_NAME_LENGTH = 100
"""Characters of a kernel's name: templates of C++ have hundreds."""

_GROUPS: Mapping[str, str] = {
    "batch norm": r"batch_?norm|bn_|_bn|welford",
    "pool": r"pool",
    "convolutions": r"conv|implicit|cutlass|xmma|wgrad|dgrad|fprop|gemm",
    "update": r"foreach|multi_tensor|lars|sgd|adam|momentum|_sum_squares",
    "copies": r"memcpy|memset|copy|cat",
    "elementwise": r"elementwise|threshold|relu|add|mul",
    "others": "",
}
"""Group -> what a kernel's name contains; the first one that fits."""

_Results = dict[str, np.ndarray]
"""Name of a result -> all its numbers as one vector."""


def kernels(title: str, case: str, place: Sequence[str], kind: str) -> None:
    """Write the errors of a case.

    Args:
        title: Names the samples.
        case: A key of `KERNEL_CASES`.
        place: Changes of the cluster ``laptop``, the device among them.
        kind: The number type, see `errors`.
    """
    write_samples(_ALONE, title, [errors(KERNEL_CASES[case], place, kind)])


def errors(case: KernelCase, place: Sequence[str], kind: str) -> Figures:
    """Return how far a case on a device is from what it should be.

    Args:
        case: What is computed.
        place: Changes of the cluster ``laptop``, the device among them.
        kind: float32, float16 or bfloat16.

    Returns:
        ``logits_error`` of an evaluation, and ``loss_error``, ``gradient_error`` and ``statistics_error``, of what is
        added to the running statistics, in the first step. Of two steps also ``update_error`` and
        ``second_update_error`` of what is added to the weights by the first and by both, and ``evaluation_error``, of
        what both add to the loss of an evaluation. Each is |a - b| / |b|, b being float32 on the CPU.
    """
    exact, found = _exact(case), _COMPUTE[case.check](case, [*place, f"cluster.engine.precision={kind}"])
    return {f"{name}_error": distance(found[name], exact[name]) for name in exact if exact[name].any()}


@cache
def _exact(case: KernelCase) -> _Results:
    """Return what a case should leave."""
    return _COMPUTE[case.check](case, _ON_CPU)


def _steps(case: KernelCase, place: Sequence[str]) -> _Results:
    """Return what two steps of a run leave, between two evaluations."""
    recipe, cluster = load_both(case.recipe, "laptop", [*case.overrides, *place])
    plan = plan_run(recipe, 1)
    images = images_of(recipe, cluster, plan, _ALONE)
    rank = compose(recipe, cluster, _ALONE, Ledger(), plan=plan, images=images)
    engine, network, training, evaluation = rank.engine, rank.model.network, rank.training, rank.evaluation
    assert training is not None
    assert evaluation is not None
    warm_up(rank.model, rank.communicator, plan.per_rank_batch_size)
    weights, statistics = _vector(network.read_weights().values()), _vector(network.read_statistics().values())
    predict, evaluate = network.inference(), rank.make_evaluator(lambda: None)
    left = {"logits": _vector(engine.to_host(predict(shown))[:valid] for shown, _, valid in evaluation.batches())}
    loss_before = evaluate().row["eval_loss"]
    clock = Clock(engine, cluster.engine.run_ahead_steps)
    step = rank.make_step(clock, lambda _: None)
    training.begin_epoch(1)
    for number, name in enumerate(("update", "second_update")):
        loss = step(number, training, HyperParameters(case.lr, 0.9, 1e-4, number)).summed
        left.setdefault("loss", engine.to_host(loss))
        left.setdefault("gradient", _vector(map(engine.to_host, network.gradients)))
        left.setdefault("statistics", _vector(network.read_statistics().values()) - statistics)
        left[name] = _vector(network.read_weights().values()) - weights
    return {**left, "evaluation": np.array([evaluate().row["eval_loss"] - loss_before])}


def _layers(case: KernelCase, place: Sequence[str]) -> _Results:
    """Return what a forward and a backward pass leave of a network that has every kind of layer."""
    rows = Rows(3, 32)
    wide = rows.add("pool", "max_pool", rows.conv_relu("wide", "data", 16, kernel=7, stride=2), kernel=3, stride=2)
    pooled = rows.conv_relu("projected", rows.add("near", "max_pool", wide, kernel=3), 8)
    rows.activation = "relu6"
    lean = rows.conv_bn("depthwise", wide, 16, kernel=3, groups=16, relu=True)
    rows.activation = "silu"
    lean = rows.conv_bn("grouped", lean, 8, kernel=3, groups=4, relu=True)
    branches = [rows.conv_relu("narrow", wide, 8), rows.conv_relu("far", wide, 8, kernel=5), pooled, lean]
    dense = rows.add("mean", "avg_pool", rows.add("joined", "concat", *branches), kernel=2, stride=2)
    residual = rows.conv_bn("conv", rows.add("relu", "relu", rows.add("bn", "bn", dense)), 32, kernel=3)
    gate = rows.add("gate", "sigmoid", rows.add("averaged", "global_pool", residual))
    residual = rows.add("branch", "dropout", rows.add("product", "multiply", residual, gate), rate=0.0)
    added = rows.add("kept", "dropout", rows.add("added", "add", residual, dense), rate=0.0)
    halved = rows.add("halved", "max_pool", added, kernel=2, stride=2, padding=0)
    rows.dense("classifier", rows.dense_relu("hidden", halved, 64), 10)
    of_images = replace(KINDS["dropout"], draws="images")
    layers = [replace(each, kind=of_images) if each.name == "branch" else each for each in rows.layers]
    table = Network("layers", 32, 3, 10, tuple(layers))
    recipe, cluster = load_both(case.recipe, "laptop", [*case.overrides, *place])
    engine = open_engine(cluster, _ALONE)
    network = engine.build_network(table, recipe, accumulate=False)
    network.load_weights(initial_weights(table, recipe.model, seed=1))
    statistics = _vector(network.read_statistics().values())
    images = np.random.default_rng(0).standard_normal((32, 3, 32, 32), np.float32)
    stored = engine.from_host(images if network.image_shape == (3, 32, 32) else images.transpose(0, 2, 3, 1))
    logits = engine.to_host(network.inference()(stored))
    loss = engine.to_host(network.forward(stored, engine.from_host(np.arange(32, dtype=np.float32) % 10)))
    network.backward()
    return {
        "logits": _vector([logits]),
        "loss": loss,
        "gradient": _vector(map(engine.to_host, network.gradients)),
        "statistics": _vector(network.read_statistics().values()) - statistics,
    }


_COMPUTE: Mapping[str, Callable[..., _Results]] = {"steps": _steps, "layers": _layers}


def _vector(arrays: Iterable[np.ndarray]) -> np.ndarray:
    return np.concatenate([np.zeros(0), *(each.ravel().astype(np.float64) for each in arrays)])


def distance(found: np.ndarray, exact: np.ndarray) -> float:
    """Return |found - exact| / |exact|; infinite if a value is none."""
    distance = np.linalg.norm(found - exact) / np.linalg.norm(exact)
    return float(distance) if np.isfinite(distance) else float("inf")


def machine(device: str, copy_bytes: int, side: int) -> None:
    """Write the bytes that copies read and write in a second, the operations of products, and a GPU's clock.

    Args:
        device: ``cuda`` or ``cpu``.
        copy_bytes: Bytes of a copy.
        side: Side of the square matrices: float16 on a GPU, float32 on a CPU.
    """
    is_gpu = device == "cuda"
    source = torch.ones(copy_bytes, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    factor = torch.randn(side, side, device=device, dtype=torch.float16 if is_gpu else torch.float32)

    def seconds(action: Callable[[], object]) -> float:
        begin = time.perf_counter()
        for _ in range(_REPEATS):
            action()
        if is_gpu:
            torch.cuda.synchronize()
        return (time.perf_counter() - begin) / _REPEATS

    samples = []
    for _ in range(1 + _MACHINE_SAMPLES):
        copy_s, product_s = seconds(lambda: target.copy_(source)), seconds(lambda: torch.mm(factor, factor))
        sample = {"copied_bytes_per_s": 2 * copy_bytes / copy_s, "flop_per_s": 2 * side**3 / product_s}
        if is_gpu:
            with suppress(Exception):  # nvidia-ml-py may be missing, or the driver may not tell
                sample["clock_mhz"] = float(torch.cuda.clock_rate())
        samples.append(sample)
    write_samples(_ALONE, "copies and products", samples[1:])


def profile(recipe: str, overrides: Sequence[str], most: int) -> None:
    """Write milliseconds and launches a step of all kernels, of their groups, and of those that take the longest.

    Args:
        recipe: A name or a file.
        overrides: Changes of the recipe and of the cluster ``laptop``.
        most: Number of kernels to name; on a CPU, of operators.
    """
    rank = open_rank(*load_both(recipe, "laptop", overrides), read_identity(os.environ))
    steps, is_gpu = rank.steps(open_repeated(rank.random_batch())), torch.cuda.is_available()
    rank.slowest_s(lambda: steps(_WARMUP))
    activity = torch.profiler.ProfilerActivity.CUDA if is_gpu else torch.profiler.ProfilerActivity.CPU
    with torch.profiler.profile(activities=[activity]) as recorded:
        rank.slowest_s(lambda: steps(_STEPS))
    # Kernel or group -> microseconds, and launches.
    spent_us, launches, groups = Counter[str](), Counter[str](), ["all kernels", *(f"all: {each}" for each in _GROUPS)]
    for event in recorded.key_averages():
        microseconds = event.self_device_time_total if is_gpu else event.self_cpu_time_total
        name = event.key[:_NAME_LENGTH]
        group = next(each for each, words in _GROUPS.items() if re.search(words, name, re.IGNORECASE))
        if microseconds:  # A call of the driver takes none on the device.
            for each in (name, groups[0], f"all: {group}"):
                spent_us[each] += microseconds
                launches[each] += event.count
    longest = [name for name, _ in spent_us.most_common() if name not in groups]
    for name in [*groups, *longest[:most]]:
        figures = {"kernel_ms": spent_us[name] / 1e3 / _STEPS, "launches": launches[name] / _STEPS}
        write_samples(rank.parts.identity, name, [figures])
