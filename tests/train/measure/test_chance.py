"""A run that only guesses ends. One that learns, or whose sample cannot tell learning from guessing, does not."""

import math
from collections.abc import Iterable, Sequence

import pytest

from configs.load import load_both
from configs.plan import plan_run
from train.evaluate import Score
from train.measure.chance import ClassCounts, StopRule, never_stop, stop_rule_of

LN_10 = math.log(10)
FLAT = [LN_10 - 0.01, LN_10 + 0.01] * 50
"""Losses of 100 steps of a network that guesses among 10 classes."""


def _rule(*overrides: str, counts: ClassCounts | None = None) -> StopRule:
    """Return the rule of a run of 6 epochs of 100 steps, the first one warm-up, unless overridden."""
    long = ["data.train_samples=6400", "run.epochs=6", "loss.label_smoothing=0", *overrides]
    recipe, cluster = load_both("digits", "laptop", long)
    recipe = recipe.counted(counts and counts.train)
    return stop_rule_of(recipe, cluster, plan_run(recipe, 1), counts)


def _score(correct: int, total: int) -> Score:
    return Score("top-1", correct / total, {"correct": correct, "total": total}, "")


def _told(rule: StopRule, evaluations: Iterable[tuple[int, Sequence[float]]], total: int) -> list[bool]:
    """Return after which evaluations, of (right answers, losses of the steps before it), the rule would end the run."""
    told, done = [], 0
    for correct, losses in evaluations:
        done += len(losses)
        told.append(rule(done - 1, _score(correct, total), losses) is not None)
    return told


def test_three_evaluations_at_chance_with_a_flat_loss_end_the_run_with_figures_and_remedies() -> None:
    rule = _rule()
    said = [rule(100 * epoch - 1, _score(60, 600), FLAT) for epoch in range(1, 5)]
    assert said[:3] == [None] * 3, "the warm-up, then 200 steps of the 500 that follow"
    assert said[3] == (
        "stuck at chance at step 399: for 300 steps, top-1 0.1000 (a constant answer: 0.1000) and a flat training loss "
        "of 2.3026 (a constant answer: 2.3026); try another schedule.base_lr or a longer warm-up, look at images and "
        "labels, or set run.stop_at_chance=false"
    )


@pytest.mark.parametrize(
    ("overrides", "steps", "evaluations"),
    [
        (["run.epochs=9", "data.train_samples=32000"], 500, 5),  # half of 4,500 steps is 2,250
        (["run.epochs=9", "data.train_samples=32000", "schedule.warmup_epochs=3"], 500, 6),  # after 1,500 of warm-up
        (["run.epochs=4", "data.train_samples=32000"], 500, 3),  # 2,000 steps, but two evaluations are too few
        (["run.epochs=30", "data.train_samples=640"], 10, 20),  # 300 steps: half are 150, fewer than 200
        (["run.epochs=10", "data.train_samples=640"], 10, None),  # 100 steps in all
    ],
)
def test_a_run_is_watched_for_half_of_it_and_200_steps_before_it_is_ended(
    overrides: list[str], steps: int, evaluations: int | None
) -> None:
    rule = _rule("schedule.warmup_epochs=0", *overrides)
    epochs = next(int(word.removeprefix("run.epochs=")) for word in overrides if "run.epochs" in word)
    told = _told(rule, [(60, FLAT[:2] * (steps // 2))] * epochs, 600)
    assert (told.index(True) + 1 if True in told else None) == evaluations


@pytest.mark.parametrize(
    ("correct", "total", "overrides", "is_ended"),
    [
        (74, 600, [], True),  # 600 guesses get 60 right, with a standard deviation of 7.35
        (75, 600, [], False),
        (24, 36, ["model.num_classes=2"], True),  # 18, with 3
        (25, 36, ["model.num_classes=2"], False),
        (4, 4, ["model.num_classes=2"], False),  # 2, with 1: nobody who is always right would be believed
        (0, 4, ["model.num_classes=2"], False),
    ],
)
def test_two_deviations_above_a_constant_answer_are_learning_and_a_sample_that_cannot_tell_ends_no_run(
    correct: int, total: int, overrides: list[str], is_ended: bool
) -> None:
    classes = int(overrides[0].partition("=")[2]) if overrides else 10
    flat = [math.log(classes) - 0.01, math.log(classes) + 0.01] * 50
    assert any(_told(_rule(*overrides), [(correct, flat)] * 9, total)) is is_ended


def test_one_evaluation_above_chance_starts_the_count_anew() -> None:
    few, many = (60, FLAT), (90, FLAT)
    assert _told(_rule(), [few, few, few, many, few, few, few], 600) == [False] * 6 + [True]


def test_a_loss_that_falls_or_that_has_fallen_keeps_a_run_whose_evaluation_is_at_chance() -> None:
    falling = [(60, [loss - 0.002 * epoch for loss in FLAT]) for epoch in range(9)]
    assert not any(_told(_rule(), falling, 600)), "by a tenth of what it scatters"
    # Of ln(10), 5 % are 0.115.
    for fallen, is_ended in ((0.12, False), (0.11, True)):
        assert any(_told(_rule(), [(60, [loss - fallen for loss in FLAT])] * 9, 600)) is is_ended
    # After the warm-up, an epoch of 100 steps; of the later ones, 150 count: a standard error of 0.0013.
    for fallen, is_ended in ((0.0015, False), (0.001, True)):
        assert any(_told(_rule(), [(60, FLAT)] * 2 + [(60, [loss - fallen for loss in FLAT])] * 9, 600)) is is_ended
    rising = [(60, [loss + 0.01 * epoch for loss in FLAT]) for epoch in range(9)]
    assert any(_told(_rule(), rising, 600))
    diverged = [(60, [9 - epoch + loss for loss in FLAT]) for epoch in range(4)] + [(60, FLAT)] * 9
    assert _told(_rule(), diverged, 600).index(True) == 6, "the loss has come back to that of guessing, and stays there"


WEIGHED = "model.num_classes=3", "loss={label_smoothing: 0, class_weights: balanced}"


@pytest.mark.parametrize(
    ("settings", "counts", "guess"),
    [
        (["loss.label_smoothing=0.5"], None, LN_10),
        # Ten sigmoids guess at the sum of ten entropies; a class is the label of one image in ten.
        (["loss.kind=one_hot_sigmoid"], None, -math.log(0.1) - 9 * math.log(0.9)),
        # With balanced weights, guessing is that of equal classes.
        (WEIGHED, ClassCounts(train=[800, 100, 100], eval=[60, 360, 180]), math.log(3)),
    ],
)
def test_a_loss_below_that_of_guessing_is_learning(
    settings: Sequence[str], counts: ClassCounts | None, guess: float
) -> None:
    for level, is_ended in ((0.96 * guess, True), (0.94 * guess, False)):
        flat = [(60, [level - 1e-6, level + 1e-6] * 50)] * 9
        assert any(_told(_rule(*settings, counts=counts), flat, 600)) is is_ended


def test_always_naming_the_largest_class_is_no_learning() -> None:
    counts = ClassCounts(train=[800, 100, 100], eval=[60, 360, 180])
    entropy = -0.8 * math.log(0.8) - 0.2 * math.log(0.1)
    for correct, level, is_ended in ((360, entropy, True), (360, 0.9 * entropy, False), (420, entropy, False)):
        rule = _rule("model.num_classes=3", counts=counts)
        assert any(_told(rule, [(correct, [level - 0.01, level + 0.01] * 50)] * 9, 600)) is is_ended


@pytest.mark.parametrize(
    ("name", "overrides", "is_watched"),
    [
        ("digits", [], True),
        ("digits", ["run.stop_at_chance=false"], False),
        ("digits", ["run.target_top1=null"], False),
        ("chexnet", [], False),
        ("digits", ["cluster.communication.kind=parameter_server_async", "cluster.engine.name=mxnet"], False),
    ],
)
def test_a_run_that_may_learn_nothing_is_not_watched(name: str, overrides: list[str], is_watched: bool) -> None:
    recipe, cluster = load_both(name, "laptop", overrides)
    assert (stop_rule_of(recipe, cluster, plan_run(recipe, 2), None) is not never_stop) is is_watched
