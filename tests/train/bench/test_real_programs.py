"""The programs of the benches on real ranks: every figure is there, and figures that belong together agree."""

from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from configs.load import ROOT
from launch.start.local import can_shape
from train.bench.__main__ import read_command
from train.bench.launching import Jobs
from train.bench.measure import Report
from train.networks.arch import build_network

JOBS = Jobs()

needs_link = pytest.mark.skipif(not can_shape(), reason="this kernel or user cannot shape a loopback")
needs_torch = pytest.mark.skipif(find_spec("torch") is None, reason="no PyTorch: ./run.sh setup --engine torch")


def _measure(words: str, jobs: Jobs = JOBS, **others: Any) -> Report:
    measure: Callable[..., Report] = read_command(words.split()).bench.measure
    return measure(jobs, **others)


def _medians(report: Report) -> dict[tuple[str, str], float]:
    return {(row.alternative, row.figure): row.median for row in report.rows}


@pytest.mark.ranks
def test_two_ranks_measure_every_part_of_a_step_and_rates_that_belong_together() -> None:
    sets = ["model.name=resnet8", "model.image_size=16", "batch.global_size=4", "model.num_classes=10"]
    task = {"recipe": "imagenet-smoke", "overrides": sets, "steps": 2, "seconds": 0.01, "has_parts": True}
    done = JOBS.ranks("steps", task)
    ((start,), (first, *_)) = (done.samples[name] for name in ("start", "steps"))
    parts_ms = {"forward_ms", "backward_ms", "update_ms", "fold_ms", "evaluation_ms", "unfolded_evaluation_ms"}
    assert first.keys() == {*parts_ms, "step_ms", "images_per_s", "gflop_per_s", "peak_fraction"}
    assert 0 < start["first_step_ms"] < start["warm_up_ms"], "the warm-up has made the operators"
    assert min(first.values()) > 0
    assert sum(first[name] for name in parts_ms) < 1e3 * done.took_s, "milliseconds of the job"
    assert first["images_per_s"] == pytest.approx(4e3 / first["step_ms"])
    # An image takes two operations for each multiply-add, three times: forward, to the inputs, to the weights.
    operations = 6 * build_network("resnet8", num_classes=10, image_size=16).macs * first["images_per_s"]
    assert first["gflop_per_s"] == pytest.approx(operations / 1e9)
    assert 0.001 < first["peak_fraction"] < 2


@pytest.mark.ranks
@pytest.mark.parametrize(("mode", "ranks"), [("module", 2), ("gluon", 1)])
def test_horovods_example_trains_the_steps_that_it_counts(mode: str, ranks: int, shared_digits: Path) -> None:
    counted = {"image_size": 32, "batch_size": 4, "warmup": 1, "steps": 2}
    task = {"data": f"{shared_digits}/train", "model": "mobilenet0.25", "mode": mode, **counted}
    sets = ["cluster.communication.kind=horovod", f"cluster.ranks_per_node={ranks}"]
    done = JOBS.ranks("horovod", task, overrides=sets)
    figures = done.sample
    # Ranks of 4 images take 2 steps that count, within the time of the job, and none of them in microseconds.
    assert ranks * 4 * 2 / done.took_s < figures["images_per_s"] < ranks * 4 / 1e-4


@needs_link
@pytest.mark.ranks
def test_timed_ranks_send_for_as_long_as_backward_takes_and_hide_no_more_than_the_bound() -> None:
    words = "--ranks 2 --rounds 3 --set cluster.communication.bucket_bytes=1073741824"
    report = _measure(f"overlap {words}", backward_s=0.1)
    way = "2 ranks, communication as long as backward: "
    rows = {(row.alternative.removeprefix(way), row.figure): row for row in report.rows}
    assert rows["none", "step_ms"].low >= 100
    # The link passes 128 KiB of 6.4 MB at once, and a direction may use what the other one leaves.
    assert rows["serial 4096 KiB", "exposed / backward"].median > 0.5
    one, several = (rows[f"overlapped {size} KiB", "hidden_bound"].median for size in (1048576, 4096))
    assert one < several < 1
    hidden = {name for name, figure in rows if figure == "hidden_fraction"}
    assert hidden == {"overlapped 4096 KiB", "overlapped 1048576 KiB"}


@pytest.mark.slow
@pytest.mark.ranks
def test_both_orders_start_a_rank_and_their_phases_lie_within_its_time(tmp_path: Path) -> None:
    text = (ROOT / "configs" / "recipes" / "imagenet-smoke.yaml").read_text(encoding="utf-8")
    recipe = tmp_path / "small.yaml"
    text = text.replace("name: resnet50", "name: resnet8").replace("image_size: 224", "image_size: 32")
    recipe.write_text(text, encoding="utf-8")
    words = "startup --rounds 1 --image-size 32 --batch-size 1 --ranks 1"
    found = _medians(_measure(words, recipe_name=str(recipe)))
    for name in ("ours", "textbook"):
        own = {figure: median for (each, figure), median in found.items() if each == name and "/" not in figure}
        assert 0 < own["rank_to_run_start_s"] < own["command_to_run_start_s"]
        phases = [value for figure, value in own.items() if "_to_" not in figure and not figure.startswith("critical")]
        assert max(phases) < own["rank_to_run_start_s"]
        assert {"import of MXNet_s" if name == "ours" else "imports_s", "warm-up_s"} <= own.keys()
    path = [median for (_, figure), median in found.items() if figure.startswith("critical path: ")]
    assert sum(path) == pytest.approx(found["ours", "command_to_first_step_s"], abs=1e-3)
    assert min(path) > -0.02, "the ledger's clock and the log's differ by their precision only"


_TINY = "peers --model mnist_small_cnn --batch 2 --rounds 1 --steps 1"


@pytest.mark.slow
@needs_torch
@pytest.mark.ranks
def test_ours_and_pytorch_are_measured_in_their_fastest_forms() -> None:
    words = f"{_TINY} --ranks 1 --precision float32 --optimizer lars"
    report = _measure(words)
    rates = {name: median for (name, figure), median in _medians(report).items() if figure == "images_per_s"}
    assert {name.partition(",")[0] for name in rates} == {"ours", "PyTorch"}
    assert min(rates.values()) > 0
    (tried,) = (note for note in report.notes if note.startswith("ours, seconds of each form"))
    assert tried.count("process") == 3, "MXNet, and PyTorch in two orders of memory"


@pytest.mark.slow
@needs_torch
@pytest.mark.ranks
def test_both_sides_of_the_race_reach_the_target_of_the_digits() -> None:
    found = _medians(_measure("race --quick"))
    reached = {name.partition(",")[0]: median for (name, figure), median in found.items() if figure == "reached"}
    assert reached == {"ours": 1, "PyTorch": 1}
