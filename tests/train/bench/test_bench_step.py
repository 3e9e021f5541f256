"""The parts of a step are measured on two real ranks, and malformed cases are refused."""

import argparse
import time
from collections.abc import Collection

import pytest

from configs.load import load_cluster
from configs.networks import NETWORKS
from configs.registry import CAST_FLAGS
from train.bench import bench_step
from train.bench.bench_step import _cases, _rows, _StepCase


@pytest.mark.ranks
def test_two_ranks_measure_every_part_of_a_step() -> None:
    begin = time.monotonic()
    start, (sample, *_) = _StepCase("resnet8", 16, 2).run(0.01, "laptop", ["cluster.engine.threads=1"])
    took_ms = 1e3 * (time.monotonic() - begin)
    assert start.keys() == {"warm_up_ms", "first_step_ms"}
    assert 0 < start["first_step_ms"] < start["warm_up_ms"], "the warm-up has made the operators"
    assert set(sample) == {
        "forward_ms",
        "backward_ms",
        "update_ms",
        "step_ms",
        "images_per_s",
        "gflop_per_s",
        "peak_fraction",
        "fold_ms",
        "evaluation_ms",
        "unfolded_evaluation_ms",
    }
    assert min(sample.values()) > 0
    parts_ms = [value for name, value in [*start.items(), *sample.items()] if name.endswith("_ms")]
    assert sum(parts_ms) < took_ms, "milliseconds of the job"
    assert sample["images_per_s"] == pytest.approx(4 / sample["step_ms"] * 1e3)


def test_a_case_without_ranks_takes_those_of_the_cluster_and_its_changes() -> None:
    case = _StepCase.parse("resnet50:224:32")
    assert case.overrides(["cluster.num_nodes=4"]) == ("cluster.num_nodes=4",)
    assert case.title(load_cluster("abci-v100", ["cluster.num_nodes=4"])) == "resnet50, 224 px, batch 32, 16 ranks"
    case = _StepCase.parse("resnet50:64:16:2x1")
    assert case.overrides([]) == ("cluster.ranks_per_node=2", "cluster.engine.threads=1")
    assert case.title(load_cluster("laptop")) == "resnet50, 64 px, batch 16, 2 ranks of 1 thread"
    case = _StepCase.parse("resnet50:64:16:2x1:bfloat16")
    assert case.overrides([])[2:] == ("cluster.engine.precision=bfloat16",)
    assert case.title(load_cluster("laptop")).endswith("2 ranks of 1 thread, bfloat16")


@pytest.mark.parametrize(
    ("cluster", "engine", "flags", "precisions", "alexnet"),
    [
        ("laptop", "mxnet", {"avx2"}, {"float32"}, (64, 16)),
        ("laptop", "mxnet", CAST_FLAGS, {"float32", "bfloat16"}, (64, 16)),
        ("laptop", "torch", {"avx2"}, {"float32", "bfloat16"}, (64, 16)),
        ("dgx-a100", "mxnet", CAST_FLAGS, {"float32", "float16"}, (224, 128)),
    ],
)
def test_all_cases_are_every_network_at_every_precision_of_the_device(
    cluster: str,
    engine: str,
    flags: Collection[str],
    precisions: set[str],
    alexnet: tuple[int, int],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(bench_step, "cpu_flags", lambda: flags)
    overrides = [f"cluster.engine.name={engine}"]
    cases = _cases(argparse.Namespace(cases=["all", "all"], cluster=cluster, overrides=overrides))
    assert {(case.model, case.precision) for case in cases} == {
        (name, each) for name in NETWORKS for each in precisions
    }
    assert len(cases) == len(NETWORKS) * len(precisions)
    sizes = {case.model: (case.image_size, case.batch) for case in cases}
    assert sizes["alexnet"] == alexnet
    assert sizes["mnist_small_cnn"][0] == 28


def test_folding_has_a_verdict_beside_the_evaluation_with_batch_norm() -> None:
    starts = [{"evaluation_ms": 8.0 + each, "unfolded_evaluation_ms": 10.0 + each} for each in range(5)]
    *_, row = _rows("resnet8", starts)
    assert (row.alternative, row.figure, row.verdict) == ("resnet8", "evaluation_ms / unfolded", "faster")
    assert not any("/" in row.figure for row in _rows("resnet8", [{"evaluation_ms": 8.0}] * 5))


@pytest.mark.parametrize("text", ["resnet50", "resnet50:64:16:2", "resnet50:x:16:2x1", "resnet50:64:16:2x1:float32:1"])
def test_a_malformed_case_is_refused_in_one_line(text: str) -> None:
    with pytest.raises(ValueError, match=f"--cases {text}: allowed: all, or network:pixels:batch"):
        _StepCase.parse(text)
