from dataclasses import replace
from pathlib import Path

import pytest

from logs.judge.rcp import compare_with_reference, reference_for
from logs.read.record import Evaluation, RunRecord


def run(
    epochs: float, batch: int = 3264, status: str = "success", samples: int = 1281167, top1: float = 0.76
) -> RunRecord:
    return RunRecord(
        Path("made"), status=status, global_batch_size=batch, train_samples=samples,  # type: ignore[arg-type]
        evaluations=(Evaluation(epochs, 1.0, top1, None),),
    )  # fmt: skip


@pytest.mark.medium
@pytest.mark.parametrize(
    ("batch", "mean", "least"),
    [(3264, 35.15, 34.31), (33280, 56.375, 55.84), (256, 35.0, 33.80)],
    ids=["measured", "interpolated", "below the smallest"],
)
def test_references_are_those_of_the_official_tool(batch: int, mean: float, least: float) -> None:
    found = reference_for(batch)
    assert found is not None
    assert (found.mean, found.least) == pytest.approx((mean, least), abs=0.006)


@pytest.mark.medium
@pytest.mark.parametrize(
    ("record", "words"),
    [
        (run(90, batch=86016), "no reference reaches batch 86016: a closed submission fails as Missing RCP"),
        (run(12, batch=64, samples=1437), "the reference is for ImageNet"),
        (run(36, status="aborted"), "the run did not reach the accuracy"),
        (run(16, top1=0.749), "the run did not reach the accuracy 0.759"),
        (replace(run(36), global_batch_size=None), "the reference is for ImageNet"),
    ],
)
def test_without_a_comparison_the_words_say_why(record: RunRecord, words: str) -> None:
    found = compare_with_reference(record)
    assert found.outcome == "no reference"
    assert found.words.startswith(words)


def test_each_outcome_begins_at_its_bound() -> None:
    reference = reference_for(3264)
    assert reference is not None
    slow = reference.mean + 2 * reference.deviation
    bounds = ((reference.least, "faster"), (reference.mean, "normal"), (slow, "normal"))
    for epochs, outcome in bounds:
        assert compare_with_reference(run(epochs)).outcome == outcome
    beyond = ((reference.least - 0.01, "too fast"), (reference.mean - 0.01, "faster"), (slow + 0.01, "slower"))
    for epochs, outcome in beyond:
        assert compare_with_reference(run(epochs)).outcome == outcome
    assert f"accepted: {reference.least:.2f} epochs or more" in compare_with_reference(run(30)).words
    # MLPerf takes back what a run gains by fewer epochs than its reference has on average: 35.154 / 34.5.
    assert compare_with_reference(run(34.5)).words.endswith("; the score is multiplied by 1.0190")
