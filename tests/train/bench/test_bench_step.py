"""The parts of a step are measured on two real ranks, and malformed cases are refused."""

from __future__ import annotations

import pytest

from configs.load import load_cluster
from train.bench.bench_step import _StepCase


@pytest.mark.ranks
def test_two_ranks_measure_every_part_of_a_step() -> None:
    (sample, *_) = _StepCase("resnet8", 16, 2).run(0.01, "laptop", ["cluster.engine.threads=1"])
    assert set(sample) == {
        "forward_ms",
        "backward_ms",
        "update_ms",
        "step_ms",
        "images_per_s",
        "gflop_per_s",
        "peak_fraction",
    }
    assert min(sample.values()) > 0
    assert sample["images_per_s"] == pytest.approx(4 / sample["step_ms"] * 1e3)


def test_a_case_without_ranks_takes_those_of_the_cluster_and_its_changes() -> None:
    case = _StepCase.parse("resnet50:224:32")
    assert case.overrides(["cluster.num_nodes=4"]) == ("cluster.num_nodes=4",)
    assert case.title(load_cluster("abci-v100", ["cluster.num_nodes=4"])) == "resnet50, 224 px, batch 32, 16 ranks"
    case = _StepCase.parse("resnet50:64:16:2x1")
    assert case.overrides([]) == ("cluster.ranks_per_node=2", "cluster.engine.threads=1")
    assert case.title(load_cluster("laptop")) == "resnet50, 64 px, batch 16, 2 ranks of 1 thread"


@pytest.mark.parametrize("text", ["resnet50", "resnet50:64:16:2", "resnet50:x:16:2x1"])
def test_a_malformed_case_is_refused_in_one_line(text: str) -> None:
    with pytest.raises(ValueError, match=f"--cases {text}: allowed: network:pixels:batch"):
        _StepCase.parse(text)
