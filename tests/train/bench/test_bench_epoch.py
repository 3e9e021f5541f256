"""Gaps agree with moments chosen by hand, and Python's share of a step can be measured."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from train.bench import bench_epoch
from train.bench.__main__ import _parse
from train.bench.bench_epoch import _python_step
from train.bench.launching import run_ranks
from train.bench.programs.marks import BATCH, DRAINED, EPOCH, EVALUATED, EVALUATING, QUEUED, gaps

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
