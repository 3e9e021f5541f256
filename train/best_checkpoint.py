"""The best checkpoint of a run (``checkpoint.best``): after which evaluation it is written, and what is said of it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from configs.plan import Position
from logs.checkpoints import CheckpointFolder, SavedState, step_of

if TYPE_CHECKING:
    from train.evaluate import Score

_BEST = "best"


class BestMark:
    """Marks the checkpoint after the best evaluation so far, of equal ones the first.

    A run that has marked one marks each better one to its end, because that one is what `export` and `predict` take.

    Args:
        marks: Whether the cluster file asks for it.
        resumed: The checkpoint from which the run goes on. If None, it begins.

    Attributes:
        facts: What every checkpoint says of the one that is marked.
    """

    def __init__(self, *, marks: bool = False, resumed: SavedState | None = None) -> None:
        best = None if resumed is None else resumed.meta.get(_BEST)
        self.facts: dict[str, Any] = {} if best is None else {_BEST: best}
        self._marks = marks or best is not None

    def of(self, at: Position, score: Score | None) -> str | None:
        """Return the mark of a checkpoint after the evaluation that ended at a position; None if it has none."""
        if score is None or not self._marks:
            return None
        metric = next(iter(score.row))  # top1 or mean_auc
        if self.facts and score.value <= self.facts[_BEST][metric]:
            return None
        self.facts = {_BEST: {"epoch": at.epoch - 1, "step": at.step, metric: score.value}}
        return _BEST

    def summed_up(self, folder: CheckpointFolder) -> dict[str, Any]:
        """Return fields of the run's summary on the checkpoint that is marked, if it is on the disk."""
        best = self.facts.get(_BEST)
        marked = folder.marked() if best else None  # A folder that cannot be listed ends no run that marks nothing.
        if marked is None or best is None or step_of(marked) != best["step"]:
            return {}
        return {_BEST: {**best, "checkpoint": marked.name}}
