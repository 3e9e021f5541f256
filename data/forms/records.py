"""Images in a RecordIO file with an index, which DALI's reader for MXNet reads: packed by the program, or in place."""

import hashlib
import re
from collections.abc import Iterator, Sequence
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import Any

from configs.reading import patiently, read_bytes
from configs.sync import write_synced
from data.forms.form import Form, Sample
from data.forms.in_place import Placed, Span
from data.images import ImageFile, Problem, file_problem
from data.manifest import InPlace, Manifest, SplitManifest, SplitName
from data.parallel import in_order
from data.recordio import RecordFile, StoredRecord, index_rows


class RecordForm(Form):
    """How images in a file of records are read and named; an image is known by the byte offset of its record."""

    reader = "mxnet"
    source = re.compile(r".+ at index (?P<sample>\d+)")

    def arguments(self, left_out: frozenset[Sample] = frozenset(), scratch: Path = Path()) -> dict[str, Any]:
        """See `Form`."""
        index = self.index
        if left_out:
            rows = [f"{key}\t{offset}\n" for key, offset in index_rows(self.index) if offset not in left_out]
            index = scratch / self.index.name
            index.write_text("".join(rows), encoding="ascii")
        return {"path": [str(self.where)], "index_path": [str(index)]}

    def sample(self, source: str) -> Sample:
        """See `Form`."""
        return int(source)

    def samples(self) -> Iterator[int]:
        """See `Form`."""
        return (offset for _, offset in index_rows(self.index))

    @cached_property
    def _keys(self) -> dict[int, int]:
        return {offset: key for key, offset in index_rows(self.index)}

    def file(self, sample: Sample) -> ImageFile:
        """See `Form`."""
        # The index may have been replaced since DALI read it.
        return StoredRecord(self.where, self._keys.get(int(sample), -1), int(sample))

    def files(self) -> Iterator[Path]:
        """See `Form`."""
        yield self.where


class Packed(RecordForm):
    """One split of a packed data set, ``SPLIT.rec`` and ``SPLIT.idx``."""

    def __init__(self, folder: Path, split: SplitName) -> None:
        self.where, self.index, self._split = folder / f"{split}.rec", folder / f"{split}.idx", split

    def quick_problem(self, split: SplitManifest) -> str | None:
        """See `Form`: the lengths of the files are compared with the manifest."""
        for file, wanted in ((self.where, split.rec_bytes), (self.index, split.idx_bytes)):
            try:
                found = patiently(file, file.stat).st_size
            except OSError as error:
                return f"{file.name}: {error.strerror}"
            if found != wanted:
                return f"{file.name}: is {found:,} bytes long, the manifest says {wanted:,}"
        return None

    def verify(self, manifest: Manifest, workers: int) -> Iterator[str]:
        """See `Form`; records are found by the index, so nothing is told of them where the index is another one."""
        split = manifest.split(self._split)
        if (quick := self.quick_problem(split)) is not None:
            yield quick
        try:
            index, records = read_bytes(self.index), RecordFile(self.where)
        except OSError:  # as `quick_problem` has told
            return
        if (found := hashlib.sha256(index).hexdigest()) != split.idx_sha256:
            yield f"{self.index.name}: sha256 is {found}, the manifest says {split.idx_sha256}; no record was read"
            return
        digest = hashlib.sha256()

        def samples() -> Iterator[int]:
            for begin, end in pairwise([*self.samples(), records.size_bytes]):
                digest.update(records.bytes_at(begin, end))
                yield begin

        def judge(sample: int) -> Problem | None:
            return file_problem(self.file(sample), is_decoded=True)

        judged = in_order(judge, samples(), workers=workers, title=f"verifying {self._split}", total=split.records)
        for sample, problem in zip(self.samples(), judged, strict=True):
            if problem is not None:
                yield f"{self.name([sample])}: {problem.text}"
        if digest.hexdigest() != split.rec_sha256:
            yield f"{self.where.name}: sha256 is {digest.hexdigest()}, the manifest says {split.rec_sha256}"


class PlacedRecords(RecordForm, Placed):
    """A file of records in place, with a copy of its index; DALI's reader reads in the order of the file."""

    suffix, keeps_order = ".idx", False

    def __init__(self, folder: Path, split: SplitName, place: InPlace) -> None:
        super().__init__(folder, split, place)
        (name,) = place.train if split == "train" else place.eval
        self.where = Path(place.root) / name

    def write_index(self, labels: Sequence[Any], files: Sequence[ImageFile]) -> None:
        """See `Placed`."""
        records = [file for file in files if isinstance(file, StoredRecord)]
        write_synced(self.index, b"".join(b"%d\t%d\n" % (file.key, file.offset) for file in records))

    def spans(self) -> Iterator[Span]:
        """See `Placed`; a record ends where the next one of the index begins."""
        for (key, begin), (_, end) in pairwise([*index_rows(self.index), (0, None)]):
            assert begin is not None
            yield Span(begin, StoredRecord(self.where, key, begin), self.where, begin, end)
