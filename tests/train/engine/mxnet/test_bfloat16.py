"""bfloat16 on a CPU: refused where it cannot be, near float32 where it can, with weights that stay float32."""

import os
from collections.abc import Iterator
from contextlib import nullcontext

import numpy as np
import pytest

from configs.errors import UserError
from configs.load import load_both
from logs.environment import cpu_flags
from tests.engines import ALONE, forward_backward, random_batch, small_network
from train.engine.init import checksum, initial_weights
from train.engine.mxnet import bfloat16
from train.engine.mxnet.bfloat16 import prepare_bfloat16
from train.engine.protocol import open_engine
from train.networks.arch import network_of

AVX512 = frozenset({"avx512f", "avx512bw", "avx512dq", "avx512vl"})
needs_avx512 = pytest.mark.skipif(not cpu_flags() >= AVX512, reason="this CPU has no AVX-512")


@pytest.fixture(autouse=True)
def _unlimited(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Keep what the engine sets for oneDNN from the ranks that later tests start."""
    monkeypatch.setenv("DNNL_MAX_CPU_ISA", "")
    monkeypatch.delenv("DNNL_MAX_CPU_ISA")
    yield
    os.environ.pop("DNNL_MAX_CPU_ISA", None)


@pytest.mark.parametrize(
    ("flags", "given", "grants", "expected"),
    [
        (AVX512, None, True, None),
        (AVX512 | {"amx_bf16"}, None, True, "AVX512_CORE_AMX"),
        (AVX512 | {"amx_bf16"}, None, False, None),
        (AVX512 | {"amx_bf16"}, "AVX512_CORE", True, "AVX512_CORE"),
    ],
    ids=["no AMX", "AMX", "the kernel refuses", "the user chose"],
)
def test_onednn_gets_amx_only_where_cpu_and_kernel_have_it(
    flags: frozenset[str], given: str | None, grants: bool, expected: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bfloat16, "_may_use_tiles", lambda: grants)
    if given is not None:
        monkeypatch.setenv("DNNL_MAX_CPU_ISA", given)
    prepare_bfloat16(flags)
    assert os.environ.get("DNNL_MAX_CPU_ISA") == expected


@needs_avx512
@pytest.mark.parametrize(
    ("name", "side", "apart"),
    [
        ("resnet8", 16, 0.05),
        ("mnist_small_cnn", 28, 0.1),
        pytest.param("googlenet", 32, 0.2, marks=pytest.mark.medium),
    ],
)
def test_a_step_comes_near_that_of_float32(name: str, side: int, apart: float) -> None:
    """Dense layers, dropout, and concatenations are among the three networks."""
    channels = 1 if name.startswith("mnist") else 3
    shape = [f"model.name={name}", f"model.image_size={side}", f"model.input_channels={channels}"]
    random = np.random.default_rng(3)
    images, labels = random.standard_normal((8, channels, side, side), np.float32), random.integers(0, 10, 8)
    found = []
    for precision in ("float32", "bfloat16"):
        recipe, cluster = load_both("digits", "laptop", [*shape, f"cluster.engine.precision={precision}"])
        engine, table = open_engine(cluster, ALONE), network_of(recipe.model)
        network = engine.build_network(table, recipe, accumulate=False)
        weights = initial_weights(table, recipe.model, seed=1)
        network.load_weights(weights)
        assert checksum(network.read_weights().items()) == checksum(weights.items())
        network.seed(1)
        batch = engine.from_host(images), engine.from_host(labels.astype(np.float32))
        loss = engine.to_host(forward_backward(network, *batch))
        gradients = [engine.to_host(each) for each in network.gradients]
        assert {each.dtype for each in gradients} == {np.dtype(np.float32)}
        logits = engine.to_host(network.inference()(batch[0]))
        found.append((loss, np.concatenate([each.ravel() for each in gradients]), logits))
    # bfloat16 has 8 significant bits: one rounding is off by up to 0.4 %.
    for whole, half, limit in zip(*found, (0.02, apart, 0.03), strict=True):
        assert 0 < np.linalg.norm(half - whole) < limit * np.linalg.norm(whole)


@pytest.mark.medium
@needs_avx512
def test_the_first_batch_norm_is_computed_in_float32_and_the_others_are_not() -> None:
    moved = []
    for precision in ("float32", "bfloat16"):
        engine, _, network = small_network("mxnet", precision=precision)
        forward_backward(network, *random_batch(engine, network))
        moved.append(network.read_statistics())
    whole, half = moved
    apart = [float(np.linalg.norm(half[key] - whole[key]) / np.linalg.norm(whole[key])) for key in whole]
    # Running means, then running variances: the first two are those of the stem.
    assert max(apart[:2]) < 1e-6
    assert min(apart[2:]) > 1e-4


@pytest.mark.parametrize(("precision", "asks"), [("bfloat16", True), ("float32", False)])
def test_only_a_rank_in_bfloat16_asks_what_its_cpu_computes_before_its_first_operator(
    monkeypatch: pytest.MonkeyPatch, precision: str, asks: bool
) -> None:
    monkeypatch.setattr("train.engine.mxnet.engine.cpu_flags", lambda: {"sse2"})
    cluster = load_both("digits", "laptop", [])[1]
    settings = cluster.engine.model_copy(update={"precision": precision, "name": "mxnet"})
    refused = pytest.raises(UserError, match="has no avx512bw, avx512dq, avx512f, avx512vl") if asks else nullcontext()
    with refused:
        open_engine(cluster.model_copy(update={"engine": settings}), ALONE)
