"""The programs of the benches on real ranks: every figure is there, and figures that belong together agree."""

import json
import shutil
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from launch.start.local import can_shape
from tests.runs import FinishedRun
from tests.train.bench.answering import Answering, Started
from train.bench.__main__ import read_command
from train.bench.launching import Finished, Jobs
from train.bench.measure import Report

JOBS = Jobs()

needs_link = pytest.mark.skipif(not can_shape(), reason="this kernel or user cannot shape a loopback")
needs_torch = pytest.mark.skipif(find_spec("torch") is None, reason="no PyTorch: ./run.sh setup --engine torch")


def _measure(words: str, jobs: Jobs = JOBS, **others: Any) -> Report:
    measure: Callable[..., Report] = read_command(words.split())[0].measure
    return measure(jobs, **others)


def _medians(report: Report) -> dict[tuple[str, str], float]:
    return {(row.alternative, row.figure): row.median for row in report.rows}


@pytest.mark.ranks
def test_two_ranks_measure_every_part_of_a_step_and_rates_that_belong_together() -> None:
    sets = ["model.name=resnet8", "model.image_size=16", "batch.global_size=4", "model.num_classes=10"]
    task = {"recipe": "imagenet-smoke", "overrides": sets, "steps": 2, "seconds": 0.01, "has_parts": True}
    done = JOBS.ranks("steps", task)
    ((start,), (first, *_)) = (done.samples[name] for name in ("start", "steps"))
    parts_ms = {"forward_ms", "backward_ms", "update_ms", "fold_ms", "evaluation_ms"}
    assert first.keys() == {*parts_ms, "step_ms", "images_per_s"}
    assert 0 < start["first_step_ms"] < start["warm_up_ms"], "the warm-up has made the operators"
    assert min(first.values()) > 0
    assert sum(first[name] for name in parts_ms) < 1e3 * done.took_s, "milliseconds of the job"
    assert first["images_per_s"] == pytest.approx(4e3 / first["step_ms"])


@pytest.mark.ranks
def test_horovods_example_trains_the_steps_that_it_counts(shared_digits: Path) -> None:
    counted = {"image_size": 32, "batch_size": 4, "warmup": 1, "steps": 2}
    task = {"data": f"{shared_digits}/train", "model": "mobilenet0.25", **counted}
    done = JOBS.ranks("horovod", task, overrides=["cluster.communication.kind=horovod"])
    figures = done.sample
    # Two ranks of 4 images take 2 steps that count, within the time of the job, and none of them in microseconds.
    assert 2 * 4 * 2 / done.took_s < figures["images_per_s"] < 2 * 4 / 1e-4


@pytest.fixture
def once() -> Callable[[Started], Finished]:
    """Return a function that starts a program for real, but each name once."""
    ended: dict[str, Finished] = {}

    def start(started: Started) -> Finished:
        if started.name not in ended:
            ended[started.name] = JOBS.run(started.words).check()
        return ended[started.name]

    return start


@needs_link
@pytest.mark.ranks
def test_timed_ranks_send_for_as_long_as_backward_takes_and_hide_a_share_of_it() -> None:
    words = "--ranks 2 --rounds 3 --set cluster.communication.bucket_bytes=1073741824"
    report = _measure(f"overlap {words}", backward_s=0.1)
    way = "2 ranks: "
    rows = {(row.alternative.removeprefix(way), row.figure): row for row in report.rows}
    assert rows["none", "step_ms"].low >= 100
    # The link passes 128 KiB of 6.4 MB at once, and a direction may use what the other one leaves.
    assert rows["serial", "exposed / backward"].median > 0.5
    hidden = {name for name, figure in rows if figure == "hidden_fraction"}
    assert hidden == {"serial", "overlapped 4096 KiB", "overlapped 1048576 KiB"}


@pytest.mark.slow
@pytest.mark.ranks
def test_the_phases_of_a_start_lie_within_its_time(two_epoch_run: FinishedRun) -> None:
    """The start is that of a run that is there already."""
    begun_s = json.loads((two_epoch_run.folder / "startup.json").read_text(encoding="utf-8"))["started_time"] - 1

    def answer(started: Started) -> Any:
        if "--run-dir" not in started.words:
            return {}
        shutil.copytree(two_epoch_run.folder, started.after("--run-dir"))
        return Finished(started.words, 0, "", begun_s, 9.0)

    found = _medians(_measure("startup --rounds 1 --set cluster.ranks_per_node=1", Answering(answer=answer)))
    own = {figure: median for (_, figure), median in found.items()}
    assert 0 < own["rank_to_run_start_s"] < own["command_to_run_start_s"] < own["command_to_first_step_s"]
    phases = [value for figure, value in own.items() if "_to_" not in figure]
    assert max(phases) < own["rank_to_run_start_s"]
    assert "warm-up_s" in own


@needs_torch
@pytest.mark.slow
@pytest.mark.ranks
def test_the_fastest_forms_of_ours_and_of_pytorch_are_measured(once: Callable[[Started], Finished]) -> None:
    """One form of each is started; the others are said to be slow."""

    def answer(started: Started) -> Any:
        told = str([started.sets, started.task])
        is_one = not started.name or "layout=NHWC" in told or "'is_compiled': True" in told
        slow = {"images_per_s": 1e-3, "warm_at": 0.0, "ended_at": 1e6, "steps": 2}
        return once(started) if is_one else {"slow": [slow]}

    words = "peers --model mnist_small_cnn --batch 2 --rounds 1 --steps 1 --ranks 1 --precision float32"
    report = _measure(words, Answering(answer=answer))
    rates = {name: median for (name, figure), median in _medians(report).items() if figure == "images_per_s"}
    fastest = {name.partition(",")[0]: rate for name, rate in rates.items() if rate > 1}
    assert fastest.keys() == {"ours", "PyTorch"}
    assert max(fastest.values()) < 1e5, "no step of two images takes microseconds"


@needs_torch
@pytest.mark.slow
@pytest.mark.ranks
def test_pytorch_reaches_the_target_of_the_digits(two_epoch_run: FinishedRun) -> None:
    """The forms are not tried, and ours is a run that is there already."""

    def answer(started: Started) -> Any:
        if "--run-dir" in started.words:
            shutil.copytree(two_epoch_run.folder, started.after("--run-dir"))
            return {}
        if not started.name or started.task["race"]["eval_epochs"]:
            return JOBS.run(started.words).check()
        moments = {"begun_at": 0.0, "warm_at": 1.0, "ended_at": 2.0 + started.task["form"]["is_compiled"]}
        return {"PyTorch": [{**moments, "epochs": 1, "steps": 2, "reached": 0.0}]}

    found = _medians(_measure("race --quick", Answering(answer=answer)))
    reached = {name.partition(",")[0]: median for (name, figure), median in found.items() if figure == "reached"}
    assert reached == {"ours": 1, "PyTorch": 1}
