"""The interface of a form in which images lie on a disk: what DALI reads, how an image is named, how damage is found.

Whoever opens, checks, verifies, stages or clears a data set asks the object of its form (`data.forms.catalogue`).
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from configs.reading import patiently
from data.images import ImageFile, file_problem
from data.manifest import Manifest, SplitManifest
from data.sources.image_source import shown

Sample = int | str
"""An image of a split, by what DALI's reader says of it: the byte offset of its record, or a text with its path."""


class Form(ABC):
    """One split of a data set in one form.

    Attributes:
        reader: Name of DALI's reader in ``nvidia.dali.fn.readers``.
        source: Matches what DALI's reader says of an image; the group ``sample`` tells it from all others.
        not_staged: Why the data set cannot be copied to the disk of a node; None if it can.
        not_cleared: Why the images cannot be dropped from the page cache; None if they can.
        where: What a message names if it cannot name an image.
        index: The file that lists the images.
    """

    reader: ClassVar[str]
    source: ClassVar[re.Pattern[str]]
    not_staged: ClassVar[str | None] = None
    not_cleared: ClassVar[str | None] = None
    where: Path
    index: Path

    @abstractmethod
    def arguments(self, left_out: frozenset[Sample] = frozenset(), scratch: Path = Path()) -> dict[str, Any]:
        """Return the files and indexes that DALI's reader is to read, as its arguments.

        Args:
            left_out: Images that are not read.
            scratch: Folder for an index without them, if there are any.
        """

    def labels(self, output: Any) -> npt.NDArray[np.float32]:
        """Return the labels [B, number of labels] of a batch, from the second output of DALI's reader."""
        labels: npt.NDArray[np.float32] = output.as_array().astype(np.float32, copy=False)
        return labels

    def sample(self, source: str) -> Sample:
        """Return the image of which DALI says ``source``, the group of the pattern above."""
        return source

    @abstractmethod
    def samples(self) -> Iterator[Sample]:
        """Yield all images in the order of the index."""

    @abstractmethod
    def file(self, sample: Sample) -> ImageFile:
        """Return where an image lies."""

    def name(self, samples: Iterable[Sample]) -> str:
        """Return where images lie, for a message."""
        return ", ".join(shown(str(self.file(sample))) for sample in samples)

    def image(self, sample: Sample) -> bytes:
        """Return an encoded image, or raise ValueError if the bytes around it are damaged."""
        file = self.file(sample)
        return patiently(file, file.read_bytes)

    def is_damaged(self, sample: Sample) -> bool:
        """Return whether an image cannot be trained on, whenever it is read."""
        problem = file_problem(self.file(sample), is_decoded=True)
        return problem is not None and problem.is_content

    @abstractmethod
    def files(self) -> Iterator[Path]:
        """Yield the files that hold the images."""

    @abstractmethod
    def quick_problem(self, split: SplitManifest) -> str | None:
        """Return in what a look at lengths and times shows that the files have changed; None if in nothing.

        Raises:
            Unreadable: A file cannot be read, so that nothing is known of it.
        """

    @abstractmethod
    def verify(self, manifest: Manifest, workers: int) -> Iterator[str]:
        """Read every byte, decode every image, and yield what is wrong, a line each."""
