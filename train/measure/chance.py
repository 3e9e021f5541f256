"""Ending a run that learns nothing: top-1 at chance level in two evaluations in a row after the warm-up. Pure."""

import math
from collections.abc import Callable
from dataclasses import dataclass

from configs.plan import RunPlan
from configs.schema import Recipe
from train.evaluate import Score

_DEVIATIONS = 3.0
"""A top-1 so many standard deviations of guessing above chance counts as learning; 1 of 700 guessers reaches it."""

StopRule = Callable[[int, Score], str | None]
"""Takes the 0-based step and the score of each evaluation; returns the reason to end the run early, or None."""


@dataclass
class ChanceWatch:
    """Count evaluations whose top-1 is at chance level.

    Attributes:
        num_classes: Width of the classifier.
        warmup_steps: Steps of the warm-up; evaluations before its end do not count.
        in_a_row: Number of the last evaluations in a row at chance level.
    """

    num_classes: int
    warmup_steps: int
    in_a_row: int = 0

    def __call__(self, step: int, score: Score) -> str | None:
        """See `StopRule`."""
        chance, total = 1 / self.num_classes, score.row["total"]
        most = total * chance + _DEVIATIONS * math.sqrt(total * chance * (1 - chance))
        is_chance = step + 1 > self.warmup_steps and score.row["correct"] <= most
        self.in_a_row = self.in_a_row + 1 if is_chance else 0
        if self.in_a_row < 2:  # noqa: PLR2004 (a single one may be bad luck)
            return None
        return (
            f"stuck at chance at step {step}: {score} of {self.num_classes} classes, twice in a row after the warm-up; "
            "lower schedule.base_lr, lengthen the warm-up, or look at the data"
        )


def never_stop(_step: int, _score: Score) -> str | None:
    """Return None: the run goes on."""
    return None


def stop_rule_of(recipe: Recipe, plan: RunPlan) -> StopRule:
    """Return the rule that may end a run early.

    A run without a target may learn nothing, and with several labels an image chance level is not defined.
    """
    if recipe.run.target_top1 is None or recipe.loss.kind == "sigmoid":
        return never_stop
    return ChanceWatch(recipe.model.num_classes, plan.warmup_steps)
