"""Image files in class folders, read where they lie: DALI's reader of files, and a list of them with their labels."""

import os
import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from configs.errors import UserError
from configs.reading import read_bytes
from data.forms.form import Sample
from data.forms.in_place import Placed, Span, write_file
from data.images import ImageFile
from data.sources.image_source import shown


class ClassFolders(Placed):
    """One split of class folders; an image is known by its path from the folder that the user gave."""

    suffix, keeps_order = ".lst", True
    reader = "file"
    source = re.compile(r"(?P<sample>.+)")
    not_cleared = "its images are too many files to drop each from the page cache; --in-place of packed files can do so"

    def write_index(self, images: Sequence[tuple[int, ImageFile]]) -> None:
        """See `Placed`: a line for each image, its path and its label."""
        lines = [(os.fsencode(os.path.relpath(str(file), self._root)), label) for label, file in images]
        if broken := [path for path, _ in lines if b"\n" in path]:
            name = shown(os.fsdecode(broken[0]))
            raise UserError(f"{self._root}: {name!r}: a line break in a name, which no list can hold; rename the file")
        write_file(self.index, b"".join(b"%s %d\n" % line for line in lines))

    def arguments(self, left_out: frozenset[Sample] = frozenset(), scratch: Path | None = None) -> dict[str, Any]:
        """See `Form`."""
        index = self.index
        if left_out:
            assert scratch is not None
            paths = {os.fsencode(str(sample)) for sample in left_out}
            index = scratch / self.index.name
            index.write_bytes(b"".join(b"%s %s\n" % line for line in self._lines() if line[0] not in paths))
        return {"file_root": str(self._root), "file_list": str(index)}

    def _lines(self) -> Iterator[tuple[bytes, bytes]]:
        for line in read_bytes(self.index).splitlines():
            path, _, label = line.rpartition(b" ")
            yield path, label

    def labels(self, output: Any) -> npt.NDArray[np.float32]:
        """See `Form`."""
        labels: npt.NDArray[np.float32] = output.as_array().astype(np.float32)
        return labels

    def sample(self, source: str) -> Sample:
        """See `Form`."""
        return source

    def name(self, samples: Iterable[Sample]) -> str:
        """See `Form`."""
        return ", ".join(shown(str(self._root / str(sample))) for sample in samples)

    def image(self, sample: Sample) -> bytes:
        """See `Form`."""
        return read_bytes(self._root / str(sample))

    def spans(self) -> Iterator[Span]:
        """See `Placed`."""
        return (Span(name := os.fsdecode(path), self._root / name) for path, _ in self._lines())

    def files(self) -> Iterator[Path]:
        """See `Form`."""
        return (span.file for span in self.spans())
