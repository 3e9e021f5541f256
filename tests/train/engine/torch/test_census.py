"""What a step does on a GPU under PyTorch, traced without one: reads, copies, allreduces, kernels.

    ./run.sh test tests/train/engine/torch/test_census.py --census-table docs/gpu.md

traces what the table of the page has, and writes it.
"""

import itertools
import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from configs.load import ROOT
from tests.programs import python

torch = pytest.importorskip("torch")
HAS_GPU = pytest.mark.skipif(torch.cuda.is_available(), reason="a GPU cannot be imitated beside itself")
NO_COMPILER = pytest.mark.skipif(shutil.which("g++") is None, reason="no C++ compiler")
pytestmark = [pytest.mark.slow, HAS_GPU, NO_COMPILER, pytest.mark.xdist_group("census")]

_HERE = Path(__file__).parent / "fake_cuda"
_PAGE = ROOT / "docs" / "gpu.md"
_TRACES = (
    "imagenet-b256:float16:0", "imagenet-b256:bfloat16:7", "mlperf-b3264:float16:0",
    "imagenet-b256:float16:0:none:fused", "mlperf-b3264:float16:0:none:fused",
)  # fmt: skip
_OF_PAGE = (
    "imagenet-b256:float16:0", "imagenet-b256:bfloat16:0", "mlperf-b3264:float16:0", "mlperf-b3264:bfloat16:0",
    "imagenet-b256:float16:0:none:fused", "mlperf-b3264:float16:0:none:fused",
    "imagenet-b256:float16:0:none:framework:256", "imagenet-b256:float16:0:none:fused:256",
)  # fmt: skip
"""Each takes three seconds; those of them that no other test reads are traced only where the page is written."""
_H200_BYTES_PER_S = 4.2e12
"""Bytes/s that kernels without arithmetic reach on an H200."""
_MOST_BESIDE_GRAPHS = 20
"""Launches of a step beside its graphs: copies of the batch, of the numbers of the step and of the losses."""
_MOST_OF_AN_EVALUATION = 53 + 49 + 16 + 53 + 20
"""Launches of an evaluation of one batch of ResNet-50: its convolutions, ReLUs and additions, a multiplication for the
folded weight of each convolution, and a few."""
_GRADIENTS = 25_557_032
"""Parameters of ResNet-50 (He et al., arXiv:1512.03385, with 1000 classes)."""

_GRAPHS = ("imagenet-b256:float16:0:step", "mlperf-b3264:float16:0:compute")

Census = dict[str, Any]


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> dict[str, Any]:
    """Compile the device that computes nothing, and trace a step of each recipe, type and rank on it."""
    traces = [*_TRACES, *_GRAPHS]
    traces += [each for each in _OF_PAGE if request.config.getoption("--census-table") and each not in traces]
    guard, package = tmp_path_factory.mktemp("guard") / "guard.so", Path(torch.__file__).parent
    libraries = [f"-L{package}/lib", f"-Wl,-rpath,{package}/lib", "-lc10", "-ltorch_cpu"]
    flags = ["-std=c++20", "-O0", "-shared", "-fPIC", f"-I{package}/include"]
    subprocess.run(["g++", *flags, "-o", guard, _HERE / "guard.cpp", *libraries], check=True)
    done = python("-m", "tests.train.engine.torch.fake_cuda.census", str(guard), *traces, check=True)
    lines = done.stdout.splitlines()
    return dict(zip((*traces, "compiled"), map(json.loads, lines), strict=True))


@pytest.fixture
def census(told: dict[str, Any]) -> dict[str, Census]:
    """Return trace -> what the step does."""
    return {trace: told[trace] for trace in _TRACES}


def test_a_step_is_compiled_in_stages_without_the_batch_norm_of_cudnn(told: dict[str, Any]) -> None:
    """Of resnet8, the classifier has more than a bucket of 64 KiB, and so have the three convolutions before it."""
    forward = [("forward", 6, 0), ("forward", 3, 0), ("forward", 0, 0)]
    backward = [("backward", convolutions, 0) for _, convolutions, _ in reversed(forward)]
    assert [tuple(program) for program in told["compiled"]] == [*forward, *backward]


def test_the_host_reads_and_copies_nothing_within_a_step_and_waits_for_an_older_one_only(
    census: dict[str, Census],
) -> None:
    for trace, found in census.items():
        assert (found["host"], found["waits"]) == ([], ["event"]), trace
        assert found["host_of_take"] == [], "a batch of synthetic images is taken before each step"
        assert found["gradients_lie_as_weights"], trace


def test_allreduces_begin_within_backward_in_the_same_order_on_every_rank(census: dict[str, Census]) -> None:
    for trace, found in census.items():
        assert {phase for phase, *_ in found["sums"]} == {"backward"}, trace
        # The loss and the number of ranks that were told to stop travel with the gradients.
        assert sum(count for *_, count in found["sums"]) == _GRADIENTS + 2, trace
        assert len(found["sums"]) > 1, "one allreduce overlaps nothing"
    first, last = (census[f"imagenet-b256:{each}"]["sums"] for each in ("float16:0", "bfloat16:7"))
    assert [(phase, count) for phase, _, count in first] == [(phase, count) for phase, _, count in last]


def test_an_update_takes_few_launches(census: dict[str, Census]) -> None:
    # One for each operator and type of gradients, a few for the rates, and for LARS those of norms and trust ratios.
    for trace, found in census.items():
        launches, most = sum(found["launches"]["update"].values()), 25 if trace.startswith("imagenet") else 50
        # With fused batch norms, a kernel for each of two types of gradients in the place of the operators.
        assert launches <= most - 9 * ("fused" in trace), trace


def test_an_evaluation_takes_few_launches_and_next_to_none_beside_a_graph(told: dict[str, Any]) -> None:
    for trace in (*_TRACES, *_GRAPHS):
        within, beside = told[trace]["launches_of_evaluation"]
        assert 53 + 49 + 16 + 53 < within + beside <= _MOST_OF_AN_EVALUATION, trace
        assert (within == 0) if trace in _TRACES else (beside == 2), "copies of images and logits"


def test_what_a_graph_replays_reads_nothing_and_waits_for_nothing_and_little_is_launched_beside_it(
    told: dict[str, Any],
) -> None:
    for trace in _GRAPHS:
        found, usual = told[trace], told[trace.rpartition(":")[0]]
        captured, has_sums = found["captured"], trace.endswith(":step")
        assert len(captured) == (1 if has_sums else 2), trace
        assert [(each["host"], each["waits"]) for each in captured] == [([], [])] * len(captured), trace
        assert captured[0]["operators"]["forward"] == usual["operators"]["forward"], trace
        assert "zeros" not in captured[0]["operators"]["start"], "a replay would set the results to 0"
        assert sum(captured[-1]["launches"]["apply"].values()) > 0, trace
        assert (found["host"], found["waits"]) == ([], ["event"]), trace
        beside = sum(sum(kinds.values()) for kinds in found["launches"].values())
        assert beside <= _MOST_BESIDE_GRAPHS, trace
        sums = (captured[0] if has_sums else found)["sums"]
        assert [each[1:] for each in sums] == [each[1:] for each in usual["sums"]], trace


def test_no_graph_outlives_its_step_or_the_ranks_group_which_nccl_would_wait_for(told: dict[str, Any]) -> None:
    for trace in _GRAPHS:
        assert told[trace]["graphs_left"] == 0, "without the garbage collector"
        assert told[trace]["graphs_at_end"] == [0], "a graph in a cycle, which the collector had been told to forget"


def test_float16_takes_the_batch_norm_of_cudnn(census: dict[str, Census]) -> None:
    for trace, found in census.items():
        if ":float16:" in trace and "fused" not in trace:
            assert found["operators"]["forward"]["cudnn_batch_norm"] == 53, trace


def test_our_kernels_leave_no_addition_and_no_relu_and_move_a_quarter_less(census: dict[str, Census]) -> None:
    usual, fused = (census[f"imagenet-b256:float16:0{each}"] for each in ("", ":none:fused"))
    with_additions, forward = (found["operators"]["forward"] for found in (usual, fused))
    assert forward["batch_norm"] == 53
    assert not any("relu" in name for name in forward)
    assert with_additions["add_"] - forward["add_"] == 16, "one in each block"
    apart, together = (sum(found["bytes"].values()) - found["bytes"]["convolution"] for found in (usual, fused))
    assert together < 0.75 * apart
    assert usual["bytes"]["convolution"] == fused["bytes"]["convolution"]


def test_an_update_by_lars_moves_little_more_than_it_must(census: dict[str, Census]) -> None:
    # Reads weights and gradients twice and velocities once; writes weights, their copies and velocities.
    least = _GRADIENTS * (2 * (4 + 2) + 4 + 4 + 2 + 4)
    # Gradients are also searched for what is not finite, and cleared then; the census takes the copies as read, too.
    assert least <= census["mlperf-b3264:float16:0:none:fused"]["bytes_of_update"] < 1.4 * least


def test_the_page_has_the_launches_of_a_step(told: dict[str, Any], request: pytest.FixtureRequest) -> None:
    rows = [_row(trace, told[trace]) for trace in _OF_PAGE if trace in told]
    text = _PAGE.read_text(encoding="utf-8")
    head, title, rest = text.partition("| recipe, type | images | convolutions |")
    names, line, *old = rest.split("\n")
    after = itertools.dropwhile(lambda each: each.startswith("| `"), old)
    if name := request.config.getoption("--census-table"):
        Path(name).write_text("\n".join([head + title + names, line, *rows, *after]), encoding="utf-8")
    elif torch.__version__.startswith("2.13."):
        assert set(rows) <= {*old}


def _row(trace: str, found: Census) -> str:
    recipe, precision, *rest = trace.split(":")
    images = dict(enumerate(rest)).get(3, "32")
    launches = found["launches"]

    def count(kind: str, *phases: str) -> int:
        return sum(launches[phase].get(kind, 0) for phase in phases or launches)

    forward = found["operators"]["forward"]
    norms = "cuDNN" if "cudnn_batch_norm" in forward else "fused" if "batch_norm" in forward else "PyTorch"
    apart = [count("other", *phases) for phases in (("forward", "start"), ("backward",), ("complete",), ("update",))]
    norm = count("batch norm")
    moved = sum(count for kind, count in found["bytes"].items() if kind != "convolution")
    cells = [f"`{recipe}`, {precision}", images, count("convolution"), f"{norm}, {norms}", *apart, norm + sum(apart)]
    cells += [f"{moved / 1e9:.1f}", f"{1e3 * moved / _H200_BYTES_PER_S:.1f}"]
    return f"| {' | '.join(map(str, [*cells, len(found['sums']), len(found['host']), len(found['waits'])]))} |"
