"""How well a run tells each class: the confusion matrix of few classes, the worst of many."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import median

from logs.classes import ClassResults
from logs.show.reported_run import ReportedRun

_MOST_TABLES = 4
"""Of more runs, the page shows no classes: it is about the comparison of runs."""
_WORST = 10
_FAINTEST, _STRONGEST = 0.12, 0.75
"""How strongly a cell is coloured, of the smallest and of the largest share of its kind."""


@dataclass(frozen=True)
class Cell:
    """A cell of a confusion matrix.

    Attributes:
        count: The images of the row's class that were taken for the column's class.
        is_right: Whether the two are the same class.
        strength: From 0, not coloured, to 1.
        words: The cell as a sentence, for its tooltip.
    """

    count: int
    is_right: bool
    strength: float
    words: str


@dataclass(frozen=True)
class ClassTable:
    """What the page shows of the classes of one run.

    Attributes:
        run: The run's name.
        epoch: The epoch after which the evaluation came.
        names: Name of each class.
        summary: A sentence on all classes.
        rows: Of each class its name, its cells, and the share of its images that were recognised. Empty if the classes
            are too many for a matrix.
        worst: Name, images, recognised images and their share, of the classes that are recognised least.
    """

    run: str
    epoch: int
    names: Sequence[str]
    summary: str
    rows: Sequence[tuple[str, Sequence[Cell], str]]
    worst: Sequence[tuple[str, int, int, str]]


def class_tables(runs: Sequence[ReportedRun]) -> Iterator[ClassTable]:
    """Yield the table of each run that has counts by class, unless the runs are many."""
    for run in runs if len(runs) <= _MOST_TABLES else ():
        if run.classes is not None:
            yield _table(run.name, run.classes)


def _table(run: str, found: ClassResults) -> ClassTable:
    shares = {index: share for index in range(len(found.names)) if (share := found.accuracy(index)) is not None}
    order = sorted(shares, key=lambda index: (shares[index], -found.images[index]))
    worst = [
        (found.names[index], found.images[index], found.correct[index], f"{shares[index]:.1%}")
        for index in order[:_WORST]
        if shares[index] < 1
    ]
    return ClassTable(run, found.epoch, found.names, _summary(found, shares, order), list(_rows(found)), worst)


def _summary(found: ClassResults, shares: dict[int, float], order: Sequence[int]) -> str:
    if not order:
        return "No class has an evaluation image."
    low, high = order[0], order[-1]
    words = f"Of {len(shares)} classes, “{found.names[low]}” is recognised least ({shares[low]:.1%} of its images) and "
    words += f"“{found.names[high]}” most ({shares[high]:.1%}); the median class is at {median(shares.values()):.1%}."
    missing = len(found.names) - len(shares)
    if missing:
        words += f" {missing} class{' has' if missing == 1 else 'es have'} no evaluation image."
    return words


def _rows(found: ClassResults) -> Iterator[tuple[str, list[Cell], str]]:
    """Yield the rows of the matrix; a colour is as strong as the cell's share of the row, relative to its kind."""
    table = found.confusion or ()
    totals = [sum(row) or 1 for row in table]
    mistakes = [
        count / total
        for index, (row, total) in enumerate(zip(table, totals, strict=True))
        for other, count in enumerate(row)
        if other != index
    ]
    most = {True: 1.0, False: max(mistakes, default=0.0) or 1.0}
    for index, (row, total) in enumerate(zip(table, totals, strict=True)):
        name, share = found.names[index], found.accuracy(index)
        cells = []
        for other, count in enumerate(row):
            is_right = other == index
            scaled = count / total / most[is_right]
            strength = _FAINTEST + (_STRONGEST - _FAINTEST) * scaled if count else 0.0
            words = f"{count} of {found.images[index]} images of {name} taken for {found.names[other]}"
            cells.append(Cell(count, is_right, round(strength, 3), words))
        yield name, cells, "" if share is None else f"{share:.1%}"
