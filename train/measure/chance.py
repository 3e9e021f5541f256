"""Ending a run that learns nothing: top-1 at chance level and a flat training loss, for half of the run. Pure."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from statistics import fmean, variance
from typing import NamedTuple

from configs.plan import RunPlan
from configs.schema import Cluster, Recipe
from train.evaluate import Score

StopRule = Callable[[int, Score, Sequence[float]], str | None]
"""Takes the 0-based step of an evaluation, its score, and the mean training loss of each step since the last one;
returns the reason to end the run early, or None. The answer is the same on every rank, because the arguments are."""

_DEVIATIONS = 2.0
"""A top-1 so many standard deviations of guessing above chance is not chance; 1 of 44 guessers gets there."""

_LEAST_EVALUATIONS = 3
_LEAST_STEPS = 200
_LEAST_SHARE = 0.5
"""How long a run must look stuck: so many evaluations and steps, and this share of the steps after the warm-up. A
network that learns may stay on a plateau for long before its top-1 rises; the shortest runs are never ended."""

_LEARNED = 0.05
"""Share of the loss of guessing by which a network that has learned something is below it."""


class ClassCounts(NamedTuple):
    """Images of each class among the training and among the evaluation images."""

    train: Sequence[int]
    eval: Sequence[int]


@dataclass
class ChanceWatch:
    """Ends a run that cannot be told from guessing, neither by its evaluations nor by its training loss.

    A run is stuck if, in the last evaluations after the warm-up, all of this holds: top-1 is no better than that of a
    constant answer or of guessing, the training loss is no lower than without looking at the images, and the loss
    neither falls nor has fallen since its beginning. Too few evaluation images to tell a network that is always right
    from a guesser end no run. A resumed run is watched anew.

    Attributes:
        chance: Top-1 of the best answer without looking at the image: the share of the largest class.
        guess_loss: Training loss of the best prediction without looking at the image, in nats.
        warmup_steps: Steps of the warm-up; evaluations before its end do not count.
        patience_steps: Steps for which a run must look stuck.
        beginning: Losses of the first evaluation after the warm-up.
        window: Losses of the last evaluations in a row at chance level, one sequence for each evaluation.
    """

    chance: float
    guess_loss: float
    warmup_steps: int
    patience_steps: int
    beginning: Sequence[float] = ()
    window: list[Sequence[float]] = field(default_factory=list)

    def __call__(self, step: int, score: Score, losses: Sequence[float]) -> str | None:
        """See `StopRule`."""
        if step + 1 <= self.warmup_steps:
            return None
        self.beginning = self.beginning or losses
        correct, total = int(score.row["correct"]), int(score.row["total"])
        most = total * self.chance + _DEVIATIONS * math.sqrt(total * self.chance * (1 - self.chance))
        if not correct <= most < total:
            self.window.clear()
            return None
        self.window.append(losses)
        while self._is_long_enough(self.window[1:]):
            del self.window[0]
        flat = [loss for losses in self.window for loss in losses]
        if not self._is_long_enough(self.window) or self._learns(flat):
            return None
        return (
            f"stuck at chance at step {step}: for {len(flat)} steps, {score} (a constant answer: {self.chance:.4f}) "
            f"and a flat training loss of {fmean(flat):.4f} (a constant answer: {self.guess_loss:.4f}); try "
            "another schedule.base_lr or a longer warm-up, look at images and labels, or set run.stop_at_chance=false"
        )

    def _is_long_enough(self, window: Sequence[Sequence[float]]) -> bool:
        return len(window) >= _LEAST_EVALUATIONS and sum(map(len, window)) >= self.patience_steps

    def _learns(self, losses: Sequence[float]) -> bool:
        """Return whether the loss falls, has fallen, or is lower than without looking at the images.

        A loss that came down to that of guessing, for example after it had diverged, has not fallen.
        """
        middle = len(losses) // 2
        earlier, later = losses[:middle], losses[middle:]
        if fmean(earlier) - fmean(later) > _scatter(earlier, later):
            return True
        if min(fmean(self.beginning), self.guess_loss) - fmean(later) > _scatter(self.beginning, later):
            return True
        return fmean(later) < (1 - _LEARNED) * self.guess_loss


def _scatter(*parts: Sequence[float]) -> float:
    """Return the standard error of a difference between the means of two parts; a part of one value adds nothing."""
    return math.sqrt(sum(variance(part) / len(part) for part in parts if len(part) > 1))


def never_stop(_step: int, _score: Score, _losses: Sequence[float]) -> str | None:
    """Return None: the run goes on."""
    return None


def stop_rule_of(recipe: Recipe, cluster: Cluster, plan: RunPlan, counts: ClassCounts | None) -> StopRule:
    """Return the rule that may end a run early.

    A run without a target may learn nothing, a rehearsal does not learn, with several labels an image chance level is
    not defined, and asynchronous ranks do not know each other's losses.

    Args:
        recipe: What is trained.
        cluster: Where it is trained.
        plan: The steps of the run.
        counts: Images of each class. If None, all classes are equally large.
    """
    is_asked = recipe.run.target_top1 is not None and recipe.run.stop_at_chance and cluster.rehearsal is None
    if not is_asked or recipe.loss.has_label_vectors or not cluster.communication.is_synchronous:
        return never_stop
    num_classes = recipe.model.num_classes
    train, evaluation = counts or ClassCounts([1] * num_classes, [1] * num_classes)
    return ChanceWatch(
        chance=max(evaluation) / sum(evaluation),
        guess_loss=recipe.loss.constant_loss([count / sum(train) for count in train], num_classes),
        warmup_steps=plan.warmup_steps,
        patience_steps=max(_LEAST_STEPS, math.ceil(_LEAST_SHARE * (plan.total_steps - plan.warmup_steps))),
    )
