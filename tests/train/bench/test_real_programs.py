"""The programs of the benches on real ranks: every figure is there, and figures that belong together agree."""

import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from configs.load import ROOT
from launch.start.link import can_shape
from train.bench.__main__ import read_command
from train.bench.launching import Finished, Jobs
from train.bench.measure import Report
from train.bench.programs import steps
from train.bench.samples import read_samples
from train.networks.arch import build_network

JOBS = Jobs()

needs_link = pytest.mark.skipif(not can_shape(), reason="this kernel or user cannot shape a loopback")
needs_torch = pytest.mark.skipif(find_spec("torch") is None, reason="no PyTorch: ./run.sh setup --engine torch")


class _WithPeers(Jobs):
    """Starts the programs of the peers in this environment, if it has PyTorch."""

    peers_python = Path(sys.executable)


@dataclass(frozen=True)
class _Noting(Jobs):
    """Starts programs, and keeps what they were and told."""

    done: list[Finished] = field(default_factory=list)

    def run(self, *given: Any, **others: Any) -> Finished:
        self.done.append(super().run(*given, **others))
        return self.done[-1]


def _measure(words: str, jobs: Jobs = JOBS, **others: Any) -> Report:
    measure: Callable[..., Report] = read_command(words.split()).bench.measure
    return measure(jobs, **others)


def _medians(report: Report) -> dict[tuple[str, str], float]:
    return {(row.alternative, row.figure): row.median for row in report.rows}


@pytest.mark.ranks
def test_two_ranks_measure_every_part_of_a_step() -> None:
    jobs = _Noting()
    report = _measure("step --cases resnet8:16:2:2x1 --seconds 0.01 --rounds 1", jobs)
    found = {figure: median for (_, figure), median in _medians(report).items()}
    rates = {"images_per_s", "gflop_per_s", "peak_fraction"}
    parts = {"warm_up_ms", "first_step_ms", "forward_ms", "backward_ms", "update_ms", "step_ms"}
    evaluation = {"fold_ms", "evaluation_ms", "unfolded_evaluation_ms"}
    assert {figure for figure in found if "/" not in figure} == {*parts, *evaluation, *rates}
    assert 0 < found["first_step_ms"] < found["warm_up_ms"], "the warm-up has made the operators"
    assert min(found.values()) > 0
    assert sum(found[name] for name in parts | evaluation) < 1e3 * jobs.done[-1].took_s, "milliseconds of the job"
    assert found["images_per_s"] == pytest.approx(4 / found["step_ms"] * 1e3, rel=0.3)


def test_a_rank_alone_measures_a_step_and_its_rates_belong_together(capfd: pytest.CaptureFixture[str]) -> None:
    tiny = ["model.name=resnet8", "model.image_size=16", "batch.global_size=16", "model.num_classes=10"]
    sets = [*tiny, "cluster.ranks_per_node=1", "cluster.communication.kind=none"]
    steps.main("imagenet-smoke", sets, steps=2, has_parts=True)
    found = read_samples(capfd.readouterr().out)
    (sample,) = found["steps"]
    assert sample["images_per_s"] == pytest.approx(16e3 / sample["step_ms"])
    # An image takes two operations for each multiply-add, three times: forward, to the inputs, to the weights.
    operations = 6 * build_network("resnet8", num_classes=10, image_size=16).macs * sample["images_per_s"]
    assert sample["gflop_per_s"] == pytest.approx(operations / 1e9)
    assert 0.01 < sample["peak_fraction"] < 2
    assert found["start"][0].keys() == {"warm_up_ms", "first_step_ms"}
    steps.main("imagenet-smoke", sets, warmup=1, seconds=0.01)
    plain = read_samples(capfd.readouterr().out)["steps"]
    assert {figure for each in plain for figure in each} == {"step_ms", "images_per_s"}


@pytest.mark.ranks
def test_two_ranks_give_milliseconds_and_bandwidth_that_belong_together() -> None:
    jobs = _Noting()
    report = _measure("allreduce --ranks 2 --sizes 4K 1M --rounds 1", jobs)
    took_ms = 1e3 * sum(each.took_s for each in jobs.done)
    rows = {(row.alternative, row.figure): row for row in report.rows}
    assert sum(row.median for row in report.rows if row.figure == "allreduce_ms") < took_ms
    for name, size in (("4 KiB", 4096), ("1 MiB", 1 << 20)):
        gloo = f"2 ranks, flat, gloo, {name}"
        assert rows[gloo, "bus_gb_per_s"].high == pytest.approx(size / rows[gloo, "allreduce_ms"].low / 1e6)
        assert rows[f"2 ranks, flat, shared_memory, {name}", f"allreduce_ms / {gloo}"].median > 0


@pytest.mark.ranks
@pytest.mark.parametrize("mode", ["module", "gluon"])
def test_horovods_example_trains_the_steps_that_it_counts(mode: str, shared_digits: Path) -> None:
    counted = {"image_size": 32, "batch_size": 4, "warmup": 1, "steps": 2}
    task = {"data": f"{shared_digits}/train", "model": "mobilenet0.25", "mode": mode, **counted}
    done = JOBS.ranks("horovod", task, overrides=["cluster.communication.kind=horovod"])
    figures = done.sample
    # Two ranks of 4 images take 2 steps that count, within the time of the job, and none of them in microseconds.
    assert 2 * 4 * 2 / done.took_s < figures["images_per_s"] < 2 * 4 / 1e-4


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
    report = _measure(words, _WithPeers())
    rates = {name: median for (name, figure), median in _medians(report).items() if figure == "images_per_s"}
    assert {name.partition(",")[0] for name in rates} == {"ours", "PyTorch"}
    assert min(rates.values()) > 0
    (tried,) = (note for note in report.notes if note.startswith("ours, seconds of each form"))
    assert tried.count("process") == 3, "MXNet, and PyTorch in two orders of memory"


@pytest.mark.slow
@needs_torch
@pytest.mark.ranks
def test_both_sides_of_the_race_reach_the_target_of_the_digits() -> None:
    found = _medians(_measure("race --quick", _WithPeers()))
    reached = {name.partition(",")[0]: median for (name, figure), median in found.items() if figure == "reached"}
    assert reached == {"ours": 1, "PyTorch": 1}


def test_what_the_peers_program_imports_of_ours_needs_nothing_but_numpy() -> None:
    ours = "data.recordio, data.shards, train.bench.rank, train.bench.samples, train.networks.arch, train.rank.identity"
    build = "train.networks.arch.build_network('resnet8', num_classes=10, image_size=8)"
    program = f"import sys; sys.modules.update(pydantic=None, yaml=None); import {ours}; {build}"
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
