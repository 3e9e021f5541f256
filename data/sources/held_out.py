"""Choose which images of each class are held out for evaluation, where a source has no evaluation part."""

import hashlib
import os
from collections import Counter, defaultdict
from collections.abc import Sequence

from configs.reading import Unreadable, patiently
from data.images import ImageFile
from data.sources.class_folders import ListedImage

DEFAULT_PERCENT = 20
"""Share of each class that is held out, if the user names none."""


def hold_out(images: Sequence[ListedImage], percent: int, seed: int) -> list[bool]:
    """Return which images are for evaluation.

    The choice follows from the seed and the names, so that it hardly changes when images are added. Files with the same
    content stay together. A class with at least two different images has at least one on each side.

    Args:
        images: The images that there are.
        percent: Share of each class for evaluation, 1 to 90.
        seed: Seed of the choice.
    """
    groups: dict[str, dict[object, list[int]]] = defaultdict(lambda: defaultdict(list))
    for number, content in enumerate(_contents(images)):
        groups[images[number].class_name][content].append(number)
    is_held_out = [False] * len(images)
    for name, same in groups.items():
        wanted = max(1, round(sum(map(len, same.values())) * percent / 100))
        order = sorted(same.values(), key=lambda group: _digest(os.fsencode(f"{seed}/{name}/{images[group[0]].name}")))
        taken = 0
        for group in order[:-1]:
            if taken >= wanted:
                break
            taken += len(group)
            for number in group:
                is_held_out[number] = True
    return is_held_out


def _contents(images: Sequence[ListedImage]) -> list[object]:
    """Return something for each image that is equal where files are; only files of equal length are read."""
    lengths = Counter(image.size_bytes for image in images)
    return [
        number if lengths[image.size_bytes] == 1 else _content(image.file, number)
        for number, image in enumerate(images)
    ]


def _content(file: ImageFile, number: int) -> object:
    try:
        return _digest(patiently(file, file.read_bytes))
    except (OSError, Unreadable):  # which the check of the source tells
        return number


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()
