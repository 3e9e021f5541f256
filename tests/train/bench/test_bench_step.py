"""The parts of a step are measured on two real ranks, and malformed cases are refused."""

from __future__ import annotations

import pytest

from train.bench.bench_step import _StepCase


@pytest.mark.ranks
def test_two_ranks_measure_every_part_of_a_step() -> None:
    (sample, *_) = _StepCase("resnet8", 16, 2, ranks=2, threads=1).run(seconds=0.01)
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


@pytest.mark.parametrize("text", ["resnet50", "resnet50:64:16:2", "resnet50:x:16:2x1"])
def test_a_malformed_case_is_refused_in_one_line(text: str) -> None:
    with pytest.raises(ValueError, match=f"--cases {text}: allowed: network:pixels:batch"):
        _StepCase.parse(text)
