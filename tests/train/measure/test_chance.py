"""Top-1 at chance ends a run, but not too early, and not by bad luck."""

from configs.load import load_recipe
from configs.plan import plan_run
from train.evaluate import top1_score
from train.measure.chance import ChanceWatch, never_stop, stop_rule_of


def test_two_evaluations_at_chance_after_the_warm_up_end_it_with_the_step() -> None:
    watch = ChanceWatch(num_classes=10, warmup_steps=40)
    assert watch(19, top1_score(60, 600)) is None
    assert watch(39, top1_score(60, 600)) is None, "still warming up"
    assert watch(59, top1_score(60, 600)) is None, "one may be bad luck"
    stuck = watch(79, top1_score(59, 600))
    assert stuck == (
        "stuck at chance at step 79: top-1 0.0983 of 10 classes, twice in a row after the warm-up; lower "
        "schedule.base_lr, lengthen the warm-up, or look at the data"
    )


def test_one_better_than_guessing_starts_the_count_anew() -> None:
    watch = ChanceWatch(num_classes=10, warmup_steps=0)
    # 600 guesses get 60 right, give or take 7.3.
    assert [
        watch(step, top1_score(correct, 600)) for step, correct in ((1, 82), (2, 83), (3, 82), (4, 83), (5, 60))
    ] == [None] * 5
    assert watch(6, top1_score(60, 600))


def test_three_deviations_of_guessing_are_chance_and_one_answer_more_is_learning() -> None:
    # 36 guesses of two classes get 18 right, with a standard deviation of sqrt(36 / 4) = 3.
    for correct, is_stuck in ((27, True), (28, False)):
        watch = ChanceWatch(num_classes=2, warmup_steps=0)
        assert [bool(watch(step, top1_score(correct, 36))) for step in range(2)] == [False, is_stuck]


def test_half_a_percent_of_a_thousand_classes_is_learning() -> None:
    watch = ChanceWatch(num_classes=1000, warmup_steps=0)
    assert not any(watch(step, top1_score(100, 50_000)) for step in range(5))
    assert [bool(watch(step, top1_score(50, 50_000))) for step in range(2)] == [False, True]


def test_a_run_without_a_target_or_with_several_labels_may_learn_nothing() -> None:
    for name, overrides, watch in (
        ("digits", [], ChanceWatch(num_classes=10, warmup_steps=19)),
        ("digits", ["run.target_top1=null"], never_stop),
        ("chexnet", [], never_stop),
    ):
        recipe = load_recipe(name, overrides)
        assert stop_rule_of(recipe, plan_run(recipe, 2)) == watch
