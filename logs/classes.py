"""How well a run tells each class: ``classes.json``, written by rank 0 after the last evaluation."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from configs.reading import is_file
from logs.disk import read_as, write_json

CLASSES_FILE = "classes.json"
_WORST = 10


@dataclass(frozen=True)
class ClassResults:
    """Counts of the last evaluation's images by class.

    Attributes:
        epoch: The epoch after which the evaluation came.
        names: Name of each class; its number where the data set has no name for it, as for an output without images.
        images: By class, the images whose label it is.
        predicted: By class, the images whose most likely class it is.
        correct: By class, the images that are in both.
        confusion: A row for each class of a label, with a column for each class predicted. None if the classes are too
            many for a table.
    """

    epoch: int
    names: tuple[str, ...]
    images: tuple[int, ...]
    predicted: tuple[int, ...]
    correct: tuple[int, ...]
    confusion: tuple[tuple[int, ...], ...] | None = None

    def __post_init__(self) -> None:
        numbered = map(str, range(len(self.names), len(self.images)))
        object.__setattr__(self, "names", (*self.names, *numbered))
        table = () if self.confusion is None else (self.confusion, *self.confusion)
        if any(len(row) != len(self.names) for row in (self.images, self.predicted, self.correct, *table)):
            raise ValueError(f"{len(self.names)} classes have another number of values")

    def accuracy(self, index: int) -> float | None:
        """Return the share of a class's images that were recognised; None if there is none of them."""
        return self.correct[index] / self.images[index] if self.images[index] else None

    @property
    def worst(self) -> list[tuple[int, float]]:
        """Number and share of the classes that are recognised least, of those that are not always recognised."""
        shares = [(index, self.accuracy(index)) for index in range(len(self.names))]
        found = [(index, share) for index, share in shares if share is not None and share < 1]
        return sorted(found, key=lambda each: (each[1], -self.images[each[0]]))[:_WORST]


def write_classes(folder: Path, epoch: int, names: Sequence[str], counts: Mapping[str, Any]) -> None:
    """Write ``classes.json``.

    Args:
        folder: The run folder.
        epoch: The epoch after which the evaluation came.
        names: Name of each class that has one.
        counts: ``images``, ``predicted``, ``correct`` and perhaps ``confusion``, see `ClassResults`.
    """
    write_json(folder / CLASSES_FILE, asdict(ClassResults(epoch, tuple(names), **counts)))


def read_classes(folder: Path) -> ClassResults | None:
    """Return the counts in ``classes.json``; None if there is no such file, as in the folder of an older run.

    Raises:
        UserError: The file cannot be read, or is not what `write_classes` writes.
    """
    path = folder / CLASSES_FILE
    return read_as(ClassResults, path) if is_file(path) else None
