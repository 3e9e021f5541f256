"""Choose which images of each class are held out for evaluation, where a source has no evaluation part."""

import hashlib
import os
from collections import Counter, defaultdict
from collections.abc import Sequence
from pathlib import Path

from configs.reading import Unreadable, read_bytes

DEFAULT_PERCENT = 20
"""Share of each class that is held out, if the user names none."""


def hold_out(images: Sequence[tuple[str, str, int]], folder: Path, percent: int, seed: int) -> list[bool]:
    """Return which images are for evaluation.

    The choice follows from the seed and the names, so that it hardly changes when images are added. Files with the same
    content stay together. A class with at least two different images has at least one on each side.

    Args:
        images: (class, file name, bytes) of each image.
        folder: The folder of the class folders.
        percent: Share of each class for evaluation, 1 to 90.
        seed: Seed of the choice.
    """
    groups: dict[str, dict[object, list[int]]] = defaultdict(lambda: defaultdict(list))
    for number, content in enumerate(_contents(images, folder)):
        groups[images[number][0]][content].append(number)
    is_held_out = [False] * len(images)
    for name, same in groups.items():
        wanted = max(1, round(sum(map(len, same.values())) * percent / 100))
        order = sorted(same.values(), key=lambda group: _digest(os.fsencode(f"{seed}/{name}/{images[group[0]][1]}")))
        taken = 0
        for group in order[:-1]:
            if taken >= wanted:
                break
            taken += len(group)
            for number in group:
                is_held_out[number] = True
    return is_held_out


def _contents(images: Sequence[tuple[str, str, int]], folder: Path) -> list[object]:
    """Return something for each image that is equal where files are; only files of equal length are read."""
    lengths = Counter(length for _, _, length in images)
    return [
        number if lengths[length] == 1 else _content(folder / name / file, number)
        for number, (name, file, length) in enumerate(images)
    ]


def _content(path: Path, number: int) -> object:
    try:
        return _digest(read_bytes(path))
    except (OSError, Unreadable):  # which the check of the source tells
        return number


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()
