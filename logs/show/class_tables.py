"""How well a run tells each class: a sentence, the classes that are recognised worst, the colours of the matrix."""

from collections.abc import Sequence
from statistics import median

from configs.arguments import counted
from logs.classes import ClassResults

_WORST = 10
_FAINTEST, _STRONGEST = 0.12, 0.75
"""How strongly a cell is coloured, of the smallest and of the largest share of its kind."""


def class_summary(found: ClassResults) -> str:
    """Return a sentence on all classes."""
    order = _worst_first(found)
    if not order:
        return "No class has an evaluation image."
    (low, low_share), *_, (high, high_share) = [order[0], *order]
    words = f"Of {len(order)} classes, “{found.names[low]}” is recognised least ({low_share:.1%} of its images) and "
    words += f"“{found.names[high]}” most ({high_share:.1%}); the median class is at "
    words += f"{median(share for _, share in order):.1%}."
    missing = len(found.names) - len(order)
    if missing:
        words += f" {counted(missing, 'class has', 'classes have')} no evaluation image."
    return words


def worst_classes(found: ClassResults) -> list[tuple[int, float]]:
    """Return number and share of the recognised images of the classes that are recognised least."""
    return [(index, share) for index, share in _worst_first(found)[:_WORST] if share < 1]


def _worst_first(found: ClassResults) -> list[tuple[int, float]]:
    """Return number and share of the recognised images of each class that has images."""
    shares = {index: share for index in range(len(found.names)) if (share := found.accuracy(index)) is not None}
    return sorted(shares.items(), key=lambda each: (each[1], -found.images[each[0]]))


def cell_strengths(table: Sequence[Sequence[int]]) -> list[list[float]]:
    """Return how strongly each cell of a confusion matrix is coloured, from 0 to 1.

    A colour is as strong as the cell's share of its row; of mistakes, relative to the largest share of a mistake.
    """
    shares = [[count / (sum(row) or 1) for count in row] for row in table]
    mistakes = (share for index, row in enumerate(shares) for other, share in enumerate(row) if other != index)
    most = max(mistakes, default=0.0) or 1.0
    return [
        [
            round(_FAINTEST + (_STRONGEST - _FAINTEST) * share / (1 if other == index else most), 3) if share else 0.0
            for other, share in enumerate(row)
        ]
        for index, row in enumerate(shares)
    ]
