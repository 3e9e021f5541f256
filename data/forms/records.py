"""Images in a RecordIO file with an index, which DALI's reader for MXNet reads."""

import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from data.forms.form import Form, Sample
from data.forms.in_place import Placed, Span, write_file
from data.images import ImageFile
from data.manifest import InPlace, SplitName
from data.recordio import RecordFile, StoredRecord, find_wrong_length, index_rows, unpack_image


class RecordForm(Form):
    """How images in a file of records are read and named; an image is known by the byte offset of its record."""

    reader = "mxnet"
    source = re.compile(r".+ at index (?P<sample>\d+)")

    def __init__(self, rec: Path, index: Path) -> None:
        self.where, self.index = rec, index

    def arguments(self, left_out: frozenset[Sample] = frozenset(), scratch: Path | None = None) -> dict[str, Any]:
        """See `Form`."""
        index = self.index
        if left_out:
            assert scratch is not None
            rows = [f"{key}\t{offset}\n" for key, offset in index_rows(self.index) if offset not in left_out]
            index = scratch / self.index.name
            index.write_text("".join(rows), encoding="ascii")
        return {"path": [str(self.where)], "index_path": [str(index)]}

    def labels(self, output: Any) -> npt.NDArray[np.float32]:
        """See `Form`."""
        labels: npt.NDArray[np.float32] = output.as_array()
        return labels

    def sample(self, source: str) -> Sample:
        """See `Form`."""
        return int(source)

    def samples(self) -> Iterator[Sample]:
        """See `Form`."""
        return (offset for _, offset in index_rows(self.index))

    def name(self, samples: Iterable[Sample]) -> str:
        """See `Form`."""
        keys = {offset: key for key, offset in index_rows(self.index)}
        records = (f"record {keys.get(int(offset), 'unknown')} at byte {offset}" for offset in samples)
        return f"{self.where}: {', '.join(records)}"

    @cached_property
    def _records(self) -> RecordFile:
        return RecordFile(self.where)

    def image(self, sample: Sample) -> bytes:
        """See `Form`."""
        return unpack_image(self._records.read(int(sample))).image

    def files(self) -> Iterator[Path]:
        """See `Form`."""
        yield self.where

    def why_stopped(self, limit_s: float) -> str | None:
        """See `Form`."""
        with suppress(OSError, ValueError, LookupError):
            return find_wrong_length(self.where, self.index, limit_s)
        return None


class PlacedRecords(RecordForm, Placed):
    """A file of records in place, with a copy of its index; DALI's reader reads in the order of the file."""

    suffix, keeps_order = ".idx", False

    def __init__(self, folder: Path, split: SplitName, place: InPlace) -> None:
        Placed.__init__(self, folder, split, place)
        (name,) = place.train if split == "train" else place.eval
        self.where = Path(place.root) / name

    def write_index(self, images: Sequence[tuple[int, ImageFile]]) -> None:
        """See `Placed`."""
        records = [file for _, file in images if isinstance(file, StoredRecord)]
        write_file(self.index, b"".join(b"%d\t%d\n" % (file.key, file.offset) for file in records))

    def spans(self) -> Iterator[Span]:
        """See `Placed`; a record ends where the next one of the index begins."""
        offsets = [offset for _, offset in index_rows(self.index)]
        for begin, end in pairwise([*offsets, None]):
            assert begin is not None
            yield Span(begin, self.where, begin, end)

    def image_in(self, span: Span, content: bytes) -> bytes:
        """See `Placed`."""
        return self.image(span.sample)
