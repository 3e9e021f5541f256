"""Two real ranks measure a step in every variant, and the operators of one by kind."""

from pathlib import Path

import pytest

from train.bench import bench_roofline
from train.bench.__main__ import _parse
from train.bench.bench_roofline import measure
from train.bench.programs.roofline_ours import kind_of
from train.engine.protocol import Operator


@pytest.mark.ranks
def test_steps_and_kinds_of_operators_are_measured_beside_the_floor(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bench_roofline, "_IMAGES", 8)  # to pack 256 takes longer than to measure
    options = ["roofline", "--model", "resnet8", "--image-sizes", "32", "--batch", "2", "--rounds", "1"]
    options += ["--set", f"cluster.paths.data={tmp_path}"]
    rows = {(row.alternative, row.figure): row.median for row in measure(_parse(options)).rows}
    for variant in ("alone", "apart", "summed", "read"):
        assert rows[f"32 px, step {variant}", "wall_ms"] > 0
        assert rows[f"32 px, step {variant}", "processor_ms"] > 0
    assert rows["32 px, step alone", "processor_ms"] > rows["32 px, step apart", "processor_ms"] / 10, (
        "it computes, too"
    )
    assert 0.1 < rows["32 px, core", "copied_gb_per_s"] < 1000
    assert 0.1 < rows["32 px, core", "peak_gflop_per_s"] < 10_000
    for kind in ("convolution", "batch norm", "activation, addition, pooling", "classifier and loss", "update"):
        floor, apart = rows[f"32 px, {kind}", "floor_ms"], rows[f"32 px, {kind}", "apart_ms"]
        assert floor > 0
        assert rows[f"32 px, {kind}", "floor_share"] == pytest.approx(floor / apart)
        assert rows[f"32 px, {kind}", "summed_ms"] > 0
    assert rows["32 px, convolution", "floor_ms"] > rows["32 px, classifier and loss", "floor_ms"]
    assert rows["32 px, core", "peak_gflop_per_s"] > rows["32 px, core", "copied_gb_per_s"] / 10


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("_backward_Convolution", "convolution"),
        ("_backward_BatchNorm", "batch norm"),
        ("preloaded_multi_sgd_mom_update", "update"),
        ("multi_sum_sq", "update"),
        ("_backward_log_softmax", "classifier and loss"),
        ("CopyCPU2CPU", "copies"),
        ("_plus_scalar", "other"),
    ],
)
def test_operators_have_kinds(name: str, kind: str) -> None:
    assert kind_of(Operator(name, 0, 1, is_communication=False)) == kind


def test_one_rank_is_refused() -> None:
    with pytest.raises(ValueError, match="got 1 ranks on cpu, allowed: two or more on the CPU"):
        measure(_parse(["roofline", "--set", "cluster.ranks_per_node=1"]))
