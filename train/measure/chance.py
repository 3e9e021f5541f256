"""A run that learns nothing is ended early: top-1 at chance, twice in a row, when the warm-up is over. Pure."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from configs.plan import RunPlan
from configs.schema import Recipe
from train.evaluate import Score

__all__ = ["ChanceWatch", "Judge", "judge_of", "never_stuck"]

_DEVIATIONS = 3.0
"""How far above chance, in standard deviations of guessing, is no more chance: one guesser of 700 gets there."""

Judge = Callable[[int, Score], str | None]
"""Told the 0-based step and the score of each evaluation; gives why going on is of no use, if it is not."""


@dataclass
class ChanceWatch:
    """Judge evaluations by top-1.

    Attributes:
        num_classes: Width of the classifier.
        warmup_steps: Evaluations before the end of the warm-up do not count.
        in_a_row: How many so far were at chance.
    """

    num_classes: int
    warmup_steps: int
    in_a_row: int = 0

    def __call__(self, step: int, score: Score) -> str | None:
        """See `Judge`."""
        chance, total = 1 / self.num_classes, score.row["total"]
        most = total * chance + _DEVIATIONS * math.sqrt(total * chance * (1 - chance))
        is_chance = step + 1 > self.warmup_steps and score.row["correct"] <= most
        self.in_a_row = self.in_a_row + 1 if is_chance else 0
        if self.in_a_row < 2:  # noqa: PLR2004 (one may be bad luck)
            return None
        return (
            f"stuck at chance at step {step}: {score} of {self.num_classes} classes, twice in a row after the warm-up; "
            "lower schedule.base_lr, lengthen the warm-up, or look at the data"
        )


def never_stuck(_step: int, _score: Score) -> str | None:
    """Judge nothing."""
    return None


def judge_of(recipe: Recipe, plan: RunPlan) -> Judge:
    """Choose: a run without a target may learn nothing, and of several labels an image none is a guess."""
    if recipe.run.target_top1 is None or recipe.loss.kind == "sigmoid":
        return never_stuck
    return ChanceWatch(recipe.model.num_classes, plan.warmup_steps)
