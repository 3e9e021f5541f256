"""Data sets in place: beside an index for DALI, the facts by which a change of the images is noticed; class folders.

``SPLIT.npz`` has length and time of change of each file that holds images, and a CRC-32 for each image, over all bytes
that belong to it.
"""

import hashlib
import io
import os
import re
import zipfile
import zlib
from abc import abstractmethod
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import numpy as np
import numpy.typing as npt

from configs.errors import UserError
from configs.reading import Unreadable, patiently, read_bytes
from configs.sync import write_synced
from data.forms.form import Form, Sample
from data.images import ImageFile, Problem, file_problem, found_by
from data.manifest import InPlace, Manifest, SplitManifest, SplitName
from data.parallel import chunked, in_order
from data.sources.image_source import shown

_LOOKS_AT_ONCE, _FILES_PER_LOOK = 16, 1000
"""Threads that ask for lengths and times, of a file server perhaps, and how many files each takes at a time."""

_UNSOUND = (OSError, EOFError, ValueError, LookupError, zipfile.BadZipFile)


class Span(NamedTuple):
    """An image and all bytes of a file that belong to it.

    Attributes:
        sample: The image.
        image: Where it lies.
        file: The file with these bytes.
        begin: First byte.
        end: First byte after them; None is the end of the file.
    """

    sample: Sample
    image: ImageFile
    file: Path
    begin: int = 0
    end: int | None = None


class Placed(Form):
    """One split of a data set in place.

    Args:
        folder: Of the index and the facts.
        split: The split.
        place: Where the images lie.
    """

    suffix: ClassVar[str]
    """Of the index."""

    keeps_order: ClassVar[bool]
    """Whether DALI reads the images in the order of the index, whatever their places in files are."""

    not_staged = "its images are read where they lie"

    def __init__(self, folder: Path, split: SplitName, place: InPlace) -> None:
        self._split, self._place, self._root = split, place, Path(place.root)
        self._facts, self.index = folder / f"{split}.npz", folder / f"{split}{self.suffix}"
        self.where = self._root

    @abstractmethod
    def write_index(self, labels: Sequence[Any], files: Sequence[ImageFile]) -> None:
        """Write the index of images with their labels, in an order in which DALI's reader can read them."""

    @abstractmethod
    def spans(self) -> Iterator[Span]:
        """Yield all images, in the order of the index, with all bytes that are read for them."""

    def index_files(self) -> list[Path]:
        """Return the files of the index."""
        return [self.index]

    def samples(self) -> Iterator[Sample]:
        """See `Form`."""
        return (span.sample for span in self.spans())

    def examine(
        self, total: int, workers: int, title: str, *, is_decoded: bool = True
    ) -> Iterator[tuple[int, Problem | None]]:
        """Read all images, in several processes; yield the checksum of each, and what is wrong with it.

        Args:
            total: Number of images, for the progress.
            workers: Number of processes.
            title: Words before the progress.
            is_decoded: Whether to decode the pixels, too.
        """

        def judge(span: Span) -> tuple[int, Problem | None]:
            checksum = 0

            def read() -> None:
                nonlocal checksum
                with span.file.open("rb") as file:
                    file.seek(span.begin)
                    checksum = zlib.crc32(file.read(-1 if span.end is None else span.end - span.begin))

            problem = found_by(read, span.file) or file_problem(span.image, is_decoded=is_decoded)
            return checksum, problem

        return in_order(judge, self.spans(), workers=workers, title=f"{title} {self._split}", total=total)

    def look(self) -> npt.NDArray[np.int64]:
        """Return length and time of change, ns, of each file that holds images [number of files, 2]."""
        with ThreadPoolExecutor(_LOOKS_AT_ONCE) as pool:
            return np.concatenate([*pool.map(_look, chunked(self.files(), _FILES_PER_LOOK))])

    def write_facts(
        self, looked: npt.NDArray[np.int64], checksums: Sequence[int], class_counts: Sequence[int]
    ) -> SplitManifest:
        """Write what `quick_problem` and `verify` compare, and return what the manifest says of the split.

        Args:
            looked: What `look` returned before the images were read.
            checksums: Of the images, in the order of the index.
            class_counts: Images of each class.
        """
        crcs, file = np.array(checksums, np.uint32), io.BytesIO()
        np.savez(file, looked=looked, crcs=crcs)
        write_synced(self._facts, file.getvalue())
        index = self._index_bytes()
        return SplitManifest(
            records=len(crcs),
            rec_bytes=int(looked[:, 0].sum()),
            rec_sha256=hashlib.sha256(index + crcs.tobytes()).hexdigest(),
            idx_bytes=len(index),
            idx_sha256=hashlib.sha256(index).hexdigest(),
            class_counts=tuple(class_counts),
        )

    def _index_bytes(self) -> bytes:
        return b"".join(map(read_bytes, self.index_files()))

    def _load_facts(self) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.uint32]]:
        with np.load(io.BytesIO(read_bytes(self._facts)), allow_pickle=False) as facts:
            return facts["looked"], facts["crcs"]

    def quick_problem(self, split: SplitManifest) -> str | None:
        """See `Form`: length and time of change of each file are compared."""
        try:
            found = sum(patiently(path, path.stat).st_size for path in self.index_files())
            if found != split.idx_bytes:
                return f"{self.index.name}: is {found:,} bytes long, the manifest says {split.idx_bytes:,}"
            before, crcs = self._load_facts()
            now = self.look()
            if len(crcs) != split.records or now.shape != before.shape:
                return f"{self._facts.name}: is of another index; both were written together"
        except Unreadable:
            raise
        except _UNSOUND as error:
            return (
                f"{getattr(error, 'filename', None) or self._facts.name}: {getattr(error, 'strerror', None) or error}"
            )
        changed = np.flatnonzero((before != now).any(axis=1))
        if not len(changed):
            return None
        file = next(each for number, each in enumerate(self.files()) if number == changed[0])
        more = f"; files that have changed: {len(changed):,}" if len(changed) > 1 else ""
        return f"{file}: was changed since ./run.sh prepare{more}"

    def verify(self, manifest: Manifest, workers: int) -> Iterator[str]:
        """See `Form`; each image whose bytes have changed is named."""
        split = manifest.split(self._split)
        quick = self.quick_problem(split)
        if quick is not None:
            yield quick
        try:
            index, (_, crcs) = self._index_bytes(), self._load_facts()
        except _UNSOUND:
            return
        if hashlib.sha256(index).hexdigest() != split.idx_sha256:
            yield f"{self.index.name}: sha256 is not that of the manifest"
        if hashlib.sha256(index + crcs.tobytes()).hexdigest() != split.rec_sha256:
            yield f"{self._facts.name}: its checksums and the index are not those of the manifest"
            return
        examined = self.examine(split.records, workers, "verifying")
        for span, crc, (checksum, problem) in zip(self.spans(), crcs, examined, strict=False):
            name = shown(str(span.image))
            if problem is not None:
                yield f"{name}: {problem.text}"
            elif checksum != crc:
                yield f"{name}: other bytes than at ./run.sh prepare (CRC-32 {checksum:08x})"


class ClassFolders(Placed):
    """One split of class folders; an image is known by its path from the folder that the user gave."""

    suffix, keeps_order = ".lst", True
    reader = "file"
    source = re.compile(r"(?P<sample>.+)")
    not_cleared = "its images are too many files to drop each from the page cache; --in-place of packed files can do so"

    def write_index(self, labels: Sequence[Any], files: Sequence[ImageFile]) -> None:
        """See `Placed`: a line for each image, its path and its label."""
        paths = [os.fsencode(os.path.relpath(str(file), self._root)) for file in files]
        if broken := [path for path in paths if b"\n" in path]:
            name = shown(os.fsdecode(broken[0]))
            raise UserError(f"{self._root}: {name!r}: a line break in a name, which no list can hold; rename the file")
        write_synced(self.index, b"".join(b"%s %d\n" % line for line in zip(paths, labels, strict=True)))

    def arguments(self, left_out: frozenset[Sample] = frozenset(), scratch: Path = Path()) -> dict[str, Any]:
        """See `Form`."""
        index = self.index
        if left_out:
            paths = {os.fsencode(str(sample)) for sample in left_out}
            index = scratch / self.index.name
            index.write_bytes(b"".join(b"%s %s\n" % line for line in self._lines() if line[0] not in paths))
        # To map a small file and to touch its pages takes longer than to read it.
        return {"file_root": str(self._root), "file_list": str(index), "dont_use_mmap": True}

    def _lines(self) -> Iterator[tuple[bytes, bytes]]:
        for line in read_bytes(self.index).split(b"\n")[:-1]:  # A name may hold other ends of lines.
            path, _, label = line.rpartition(b" ")
            yield path, label

    def file(self, sample: Sample) -> ImageFile:
        """See `Form`."""
        return self._root / str(sample)

    def spans(self) -> Iterator[Span]:
        """See `Placed`."""
        return (Span(name := os.fsdecode(path), self.file(name), self._root / name) for path, _ in self._lines())

    def files(self) -> Iterator[Path]:
        """See `Form`."""
        return (span.file for span in self.spans())


def _look(files: Sequence[Path]) -> npt.NDArray[np.int64]:
    stats = [patiently(file, partial(os.stat, file)) for file in files]
    return np.array([(each.st_size, each.st_mtime_ns) for each in stats], np.int64)
