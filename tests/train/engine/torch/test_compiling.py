"""``engine.compile``: compiled steps beside eager ones, when gradients arrive, and what is compiled when."""

import shutil
from typing import Any

import pytest

from tests.engines import forward_backward, random_batch, small_network
from tests.programs import python
from train.networks.arch import Network, Rows

torch = pytest.importorskip("torch")

COMPILE = "cluster.engine.compile=true"
SMALL_BUCKETS = "cluster.communication={bucket_bytes: 64}"

needs_compiler = pytest.mark.skipif(shutil.which("g++") is None, reason="no C++ compiler")


def _table() -> Network:
    """Give a residual block and a convolution of four channels on 8 px, with dropout."""
    rows = Rows(3, 8)
    stem = rows.conv_bn("stem", "data", 4, relu=True)
    inner = rows.add("inner", "conv", stem, out_channels=4, kernel=3)
    joined = rows.add("relu", "relu", rows.add("add", "add", inner, stem))
    last = rows.conv_relu("last", joined, 8, kernel=3)
    dropped = rows.add("dropout", "dropout", rows.add("pool", "global_pool", last), rate=0.5)
    rows.dense("classifier", dropped, 10)
    return Network("made", 8, 3, 10, tuple(rows.layers))


def _apart(one: Any, other: Any) -> float:
    return float((one - other).norm() / other.norm())


@needs_compiler
@pytest.mark.slow
@pytest.mark.parametrize(
    ("precision", "layout", "batch_norm", "accumulate", "most"),
    [
        ("bfloat16", "NHWC", "framework", True, 0.05),
        ("float32", "NHWC", "fused", False, 1e-5),
    ],
)  # fmt: skip
def test_compiled_steps_are_the_eager_ones_and_compile_once(
    precision: str, layout: str, batch_norm: str, accumulate: bool, most: float
) -> None:
    def made(*more: str) -> tuple[Any, Any]:
        settings = {"precision": precision, "layout": layout, "batch_norm": batch_norm}
        engine, _, network = small_network(
            "torch", SMALL_BUCKETS, *more, table=_table(), accumulate=accumulate, **settings
        )
        return engine, network

    (engine, eager), (_, compiled) = made(), made(COMPILE)
    arrived: list[int] = []
    for number, stance in enumerate(("default", "fail_on_recompile", "fail_on_recompile")):
        batch = random_batch(engine, eager, seed=number)
        for network in (eager, compiled):
            network.seed(number)
        expected = forward_backward(eager, *batch)
        with torch.compiler.set_stance(stance):
            loss = compiled.forward(*batch)
            arrived.clear()
            compiled.backward(arrived.append)
        assert float(loss) == pytest.approx(float(expected), rel=most)
        for one, other in zip(compiled.gradients, eager.gradients, strict=True):
            assert one.stride() == other.stride()
            assert _apart(one, other) < most
        for one, other in zip(compiled.statistics, eager.statistics, strict=True):
            assert _apart(one, other) < most
    last = len(compiled.parameters) - 1
    assert sorted(arrived) == list(range(last + 1))
    assert arrived.index(last) < arrived.index(0), "the last stage's gradients do not wait for the first stage"


@pytest.mark.medium
def test_eager_runs_do_not_wait_for_the_import_of_the_compiler() -> None:
    code = "import sys, train.engine.torch.engine; print([name for name in sys.modules if name == 'torch._dynamo'])"
    done = python("-c", code, check=True)
    assert done.stdout == "[]\n"


@pytest.mark.medium
@pytest.mark.parametrize(
    ("ranks", "usable", "compilers"),
    [(1, 1, 1), (1, 64, 32), (8, 64, 8), (8, 4, 4)],
    ids=["bound to a core", "as many as Inductor would start", "a share for each rank", "bound to a part of the share"],
)
def test_a_rank_starts_no_more_compilers_than_it_may_use_cores(
    ranks: int, usable: int, compilers: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = pytest.importorskip("torch._inductor.config")
    monkeypatch.setattr("os.cpu_count", lambda: 64)
    monkeypatch.setattr("os.sched_getaffinity", lambda _: {*range(usable)})
    with settings.patch(compile_threads=32):
        small_network("torch", COMPILE, f"cluster.ranks_per_node={ranks}")
        assert settings.compile_threads == compilers
