"""The arithmetic of a run: what divides, what does not, and how many steps there are."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from configs.blocks.training import Batch
from configs.errors import ConfigError
from configs.load import load_recipe
from configs.plan import RunPlan, plan_run, schedule_remarks

RECORD = [
    "batch.global_size=86016",
    "data.train_samples=1281167",
    "run.epochs=90",
    "run.eval_every_epochs=4",
    "run.eval_first_epoch=2",
    "schedule.warmup_epochs=36",
]

BY_EPOCH = ["schedule.changes_every=epoch", "schedule.warmup_start_lr=0.1"]
NO_WARMUP = load_recipe("digits", ["schedule.warmup_epochs=0", "run.epochs=12", "run.eval_first_epoch=1"])


def _plan(overrides: list[str], world_size: int) -> RunPlan:
    return plan_run(load_recipe("digits", overrides), world_size)


def _cut(world_size: int, batch: Batch, epochs: int = 12) -> RunPlan:
    """Plan a recipe loaded once: parsing YAML for every example of a property would be most of the test."""
    run = NO_WARMUP.run.model_copy(update={"epochs": epochs})
    return plan_run(NO_WARMUP.model_copy(update={"batch": batch, "run": run}), world_size)


def test_the_record_takes_1340_steps_of_15_or_14_an_epoch() -> None:
    plan = _plan(RECORD, 2048)
    assert plan.per_rank_batch_size == 42
    assert plan.steps_per_epoch == 15
    assert plan.total_steps == 1340
    short = [epoch for epoch in range(1, 91) if len(plan.epoch_steps(epoch)) == 14]
    assert short == [9, 17, 26, 34, 42, 51, 59, 68, 76, 84]
    assert plan.eval_epochs == (*range(2, 91, 4),)
    assert plan.warmup_steps == 540


@given(st.integers(1, 64), st.integers(1, 8), st.integers(1, 12))
def test_epochs_tile_the_steps_without_gap_or_overlap(per_rank: int, world_size: int, epochs: int) -> None:
    plan = _cut(world_size, Batch(global_size=per_rank * world_size), epochs)
    steps = [step for epoch in range(1, epochs + 1) for step in plan.epoch_steps(epoch)]
    assert steps == list(range(plan.total_steps))
    assert plan.eval_epochs[-1] == epochs


@given(st.integers(1, 96), st.integers(1, 4), st.none() | st.integers(1, 6), st.none() | st.integers(1, 6))
def test_a_cut_is_what_the_recipe_says_or_refused(
    total: int, world_size: int, span: int | None, accumulation: int | None
) -> None:
    batch = Batch(global_size=total, bn_span=span, accumulation_steps=accumulation)
    cuts = [
        (images, steps)
        for images in ([span] if span else range(1, total + 1))
        for steps in ([accumulation] if accumulation else range(1, total + 1) if span else [1])
        if images * steps * world_size == total
    ]
    shared = [
        (images, 1)
        for images in range(1, total + 1)
        if span and accumulation in (None, 1) and images * world_size == total and images < span
        if span % images == 0 and world_size % (span // images) == 0
    ]
    if cuts or shared:
        plan = _cut(world_size, batch)
        assert [(plan.per_rank_batch_size, plan.accumulation_steps)] == (cuts or shared)
        assert span in (None, plan.norm_span)
        assert plan.norm_ranks == 1 if cuts else span == plan.norm_ranks * plan.per_rank_batch_size
    else:
        with pytest.raises(ConfigError, match=r"^batch\.global_size"):
            _cut(world_size, batch)


@pytest.mark.parametrize(
    ("overrides", "world_size", "message"),
    [
        ([], 3, "batch.global_size: got 64, allowed: a multiple of 3 ranks = 3; set batch.global_size to 63 or 66"),
        (["batch.accumulation_steps=5"], 2, "2 ranks x 5 accumulation steps = 10; set batch.global_size to 60 or 70"),
        (["batch.bn_span=48"], 2, "2 ranks x 48 images per rank (batch.bn_span) = 96; set batch.global_size to 96"),
        (["batch.bn_span=16", "batch.accumulation_steps=4"], 2, "exactly 2 ranks x 16 images per rank"),
        ([], 128, "128 ranks = 128; set batch.global_size to 128"),
        (["batch.bn_span=48"], 1, "= 48; set batch.global_size to 48 or 96"),
        (["schedule.warmup_epochs=6"], 2, "schedule.warmup_epochs: got 6.0, allowed: fewer steps than the run has"),
        (
            ["batch.bn_span=16", "batch.accumulation_steps=1"],
            2,
            "x 1 accumulation steps = 32; set batch.global_size to 32",
        ),
        (["data.train_samples=1", "batch.global_size=2"], 2, "at least one image per rank (2 ranks)"),
    ],
)
def test_arithmetic_that_does_not_divide_is_refused_with_numbers_that_do(
    overrides: list[str], world_size: int, message: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        _plan(overrides, world_size)
    assert message in str(caught.value)


def test_max_steps_ends_the_run_early_but_leaves_the_schedule_alone() -> None:
    plan = _plan(["run.max_steps=2"], 2)
    assert (plan.total_steps, plan.last_epoch, plan.eval_epochs) == (2, 1, (1,))
    assert plan.decay_steps == _plan([], 2).decay_steps


@given(st.integers(1, 12), st.integers(1, 5), st.integers(1, 14))
def test_evaluations_are_due_from_the_first_on_at_equal_distances_and_after_the_last_epoch(
    epochs: int, every: int, first: int
) -> None:
    run = NO_WARMUP.run.model_copy(update={"epochs": epochs, "eval_every_epochs": every, "eval_first_epoch": first})
    due = [each for each in range(1, epochs + 1) if (each >= first and (each - first) % every == 0) or each == epochs]
    assert list(plan_run(NO_WARMUP.model_copy(update={"run": run}), 2).eval_epochs) == due


@pytest.mark.parametrize(
    ("samples", "world_size", "batch", "epochs", "per_epoch", "total"),
    [
        (100, 3, 30, 4, 4, 14),  # 33 images per rank: 3.3 steps of 10, 13.2 in all
        (100, 2, 200, 4, 1, 2),  # 50 images per rank in steps of 100
        (10, 2, 1000, 2, 1, 1),
        (64, 2, 64, 3, 1, 3),
        (65, 1, 64, 3, 2, 4),
    ],
)
def test_a_rank_reads_its_whole_share_in_steps_that_may_be_longer_than_an_epoch(
    samples: int, world_size: int, batch: int, epochs: int, per_epoch: int, total: int
) -> None:
    keys = [f"data.train_samples={samples}", f"batch.global_size={batch}", f"run.epochs={epochs}"]
    plan = _plan([*keys, "schedule.warmup_epochs=0", "run.eval_first_epoch=1"], world_size)
    assert (plan.samples_per_rank, plan.steps_per_epoch, plan.total_steps) == (samples // world_size, per_epoch, total)
    assert plan.decay_steps == total
    told = plan.stepless_epochs
    assert (told is None) == (batch <= samples)
    assert told is None or f"{epochs} epochs takes {total} step{'s' * (total > 1)};" in told


@pytest.mark.parametrize(
    ("epochs", "steps"), [(0, 0), (0.02, 0), (0.03, 1), (0.5, 10), (0.55, 10), (1, 19), (5.9, 112)]
)
def test_a_warm_up_is_the_nearest_number_of_nominal_steps(epochs: float, steps: int) -> None:
    """An epoch has 19 steps; 9.5 is rounded to the even number. All six epochs have 113 steps."""
    plan = _plan([f"schedule.warmup_epochs={epochs}"], 2)
    assert (plan.warmup_steps, plan.decay_steps) == (steps, 113 - steps)


def test_epochs_of_the_schedule_that_are_not_those_of_the_images_are_told_with_the_values_that_are() -> None:
    def told(words: str, images: int) -> list[str]:
        recipe = load_recipe("imagenet-b256", [words, f"data.train_samples={images}", "batch.global_size=32"])
        return schedule_remarks(recipe, plan_run(recipe, 1))

    # 48 images are 1.5 steps of 32 and count as 2: epoch 30 is step 60, after which 60 x 32 / 48 = 40 epochs are read.
    warmup, boundaries, late = told("schedule.warmup_epochs=5", 48)
    assert "schedule.warmup_epochs" in warmup
    assert " 6.667 epochs" in warmup
    assert warmup.endswith(" give 3.75")
    assert len(told("schedule.warmup_epochs=3.75", 48)) == 2, "the advice was followed"
    assert len(told("schedule.warmup_epochs=1", 48)) == 2, "half a step"
    assert "schedule.decay.boundaries" in boundaries
    assert " 40, 80, 106.7 epochs" in boundaries
    assert boundaries.endswith(" 22.5, 45, 60"), "of 2 steps each: steps 45, 90 and 120, of 1.5 an epoch"
    assert "boundaries: 80 comes into effect after step 160, and the run has 135 steps" in late
    assert told("schedule.warmup_epochs=3", 64) == told("schedule.warmup_epochs=0.2", 32 * 10**6 - 1) == []


@pytest.mark.parametrize(
    ("sets", "told"),
    [
        (
            ["schedule.decay={name: step, boundaries: [3, 100]}"],
            ["schedule.decay.boundaries: 100 .* step 1,900, .* 113 "],
        ),
        (["schedule.decay={name: step, boundaries: [5.9]}"], []),
        (["schedule.decay={name: step, boundaries: [6]}"], [r"boundaries: 6 .* step 114, .*run\.epochs=6"]),
        (["schedule.decay={name: step, boundaries: [5]}", "run.max_steps=8"], []),
        (["schedule.decay={name: step, boundaries: [5]}", *BY_EPOCH], []),
        (
            ["schedule.decay={name: step, boundaries: [5, 5.6]}", *BY_EPOCH],
            [r"boundaries: 5\.6 .* 113 "],
        ),
        (["optimizer.average_half_life_steps=9", "optimizer.average_every_steps=56"], []),
        (
            ["optimizer.average_half_life_steps=9", "optimizer.average_every_steps=57"],
            ["average_every_steps: 57 .* 113,"],
        ),
        (["optimizer.average_every_steps=57"], []),
    ],
)
def test_a_key_that_asks_for_something_after_the_last_of_113_steps_is_told(sets: list[str], told: list[str]) -> None:
    """An epoch has 19 nominal steps. An average moves away from the weights with its second update, in step 112."""
    recipe = load_recipe("digits", sets)
    lines = [line for line in schedule_remarks(recipe, plan_run(recipe, 2)) if " never does" in line]
    assert len(lines) == len(told)
    assert all(map(re.search, told, lines)), lines


def test_a_warm_up_ends_at_least_a_step_before_the_run() -> None:
    keys = ["schedule.warmup_epochs=null", "run.epochs=1", "run.eval_first_epoch=1"]
    assert plan_run(load_recipe("digits", [*keys, "schedule.warmup_steps=18"]), 2).decay_steps == 1
    with pytest.raises(ConfigError, match=r"got 19, allowed: fewer steps than the run has \(19, by run\.epochs: 1\)"):
        plan_run(load_recipe("digits", [*keys, "schedule.warmup_steps=19"]), 2)
