"""Gaps agree with moments chosen by hand, and Python's share of a step can be measured."""

import re
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from train.bench import bench_epoch
from train.bench.__main__ import _parse, main
from train.bench.bench_epoch import _python_step
from train.bench.launching import run_ranks
from train.bench.programs.marks import BATCH, DRAINED, EPOCH, EVALUATED, EVALUATING, QUEUED, gaps
from train.comm.communicator import SingleProcess
from train.networks.arch import build_network

_GAPS = {
    "between_steps_ms",
    "between_epochs_ms",
    "before_evaluation_ms",
    "evaluation_s",
    "after_evaluation_ms",
}


def test_gaps_are_distinguished_and_the_start_of_the_first_epoch_does_not_count() -> None:
    moments = [
        (EPOCH, 0.0),
        (BATCH, 5.0),
        (QUEUED, 6.0),
        (BATCH, 6.001),
        (QUEUED, 7.0),
        (EPOCH, 7.001),
        (BATCH, 7.003),
        (QUEUED, 8.0),
        (BATCH, 8.002),
        (QUEUED, 9.0),
        (BATCH, 9.009),
        (QUEUED, 9.5),
        (DRAINED, 10.0),
        (EVALUATING, 10.004),
        (EVALUATED, 12.004),
        (EPOCH, 12.005),
        (BATCH, 12.014),
        (QUEUED, 13.0),
    ]
    assert gaps(moments) == pytest.approx(
        {
            "between_steps_ms": 2,
            "between_epochs_ms": 3,
            "before_evaluation_ms": 4,
            "evaluation_s": 2,
            "after_evaluation_ms": 10,
        }
    )


def test_pythons_share_of_a_step_is_measured_without_an_engine(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    figures = _python_step()
    # In a step, Python passes 161 tensors to their buckets. That takes far less time than a real step.
    assert 0.01 < figures["python_step_ms"] < 100
    assert caplog.messages == [], "the progress is told, which takes longer than the step"


def test_pythons_share_is_a_steps_milliseconds_with_every_tensor_of_resnet_50(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    reduced: list[int] = []

    class Counting(SingleProcess):
        def reduce(self, name: str, arrays: Sequence[Any], priority: int = 0) -> None:
            reduced.append(len(arrays))

    moments = iter([10.0, 10.25])
    monkeypatch.setattr(bench_epoch, "time", SimpleNamespace(perf_counter=lambda: next(moments)))
    monkeypatch.setattr(bench_epoch, "SingleProcess", Counting)
    monkeypatch.setattr(bench_epoch, "_STEPS", 5)
    assert _python_step() == {"python_step_ms": 50.0}
    sizes = [4 * each.size for each in build_network("resnet50", num_classes=1000, image_size=224).parameters]
    assert len(sizes) == 161
    assert sum(reduced) == 5 * (161 + 2), "the loss and the wish to stop are summed too"
    assert len(reduced) > 5, "in buckets, and not in one"


def test_epochs_that_no_run_can_have_are_refused_before_anything_is_packed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(bench_epoch, "pack_dataset", lambda *_: pytest.fail("packed"))
    assert main(["bench", "epoch", "--epochs", "1"]) == 2
    assert capsys.readouterr().err.startswith("error: ")


@pytest.mark.slow
@pytest.mark.ranks
def test_two_ranks_tell_the_gaps_of_a_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, shared_digits: Path) -> None:
    monkeypatch.setattr(bench_epoch, "_SIDE", "8")
    usual, small = bench_epoch._overrides, ["model.name=resnet8", f"cluster.paths.data={shared_digits.parent}"]
    monkeypatch.setattr(bench_epoch, "_overrides", lambda options: [*usual(options), *small])
    found = bench_epoch._ours(_parse(["epoch", "--epochs", "3"]), tmp_path / "gaps.json")
    assert found.keys() == _GAPS
    assert min(found.values()) > 0
    assert found["evaluation_s"] < 60


@pytest.mark.ranks
def test_two_ranks_train_as_the_textbook_does_and_tell_the_same_gaps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, shared_digits: Path
) -> None:
    monkeypatch.setattr(bench_epoch, "_SIDE", "32")
    told: list[str] = []
    monkeypatch.setattr(bench_epoch, "run_ranks", lambda *words, **others: told.append(run_ranks(*words, **others)))
    found = bench_epoch._textbook(_parse(["epoch", "--epochs", "3"]), shared_digits, tmp_path / "gaps.json")
    assert found.keys() == _GAPS
    assert min(found.values()) > 0
    numbers = re.findall(r"(training accuracy|top-1) (\S+)", told[0])
    # Two ranks tell three epochs and one evaluation each, in which the network has learnt something.
    assert sorted(name for name, _ in numbers) == ["top-1"] * 2 + ["training accuracy"] * 6
    assert all(0.05 < float(value) < 1 for _, value in numbers)
    assert "Horovod has been shut down" not in told[0], "a rank ended with sums of its last step to do"
