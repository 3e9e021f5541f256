"""A folder of MNIST-style IDX files: train-images-idx3-ubyte, train-labels-idx1-ubyte, t10k-..., also .gz.

The grey images become RGB JPEGs; --size enlarges them, --quality sets the JPEG quality. --train N and --eval N take the
first N images, and repeat them if there are fewer. --labels gives every image the labels that a table lists for its
class; a recipe for that data set needs data.source: table.
"""

import gzip
import struct
import zlib
from pathlib import Path

import numpy as np

from configs.errors import UserError
from configs.reading import is_file, read_bytes
from data.images import DEFAULT_QUALITY
from data.sources.image_source import (
    Pixels,
    Settings,
    Source,
    SourceSplit,
    array_split,
    check_size,
    fingerprint,
    sha256_of,
)
from data.sources.parts import problems_of_labels
from data.sources.tables import read_table

LAYOUT = "train-images-idx3-ubyte[.gz] and its three companions"
OPTIONS = ("size", "quality", "train", "eval", "labels")

_UNSIGNED_BYTES = 0x08


def recognises(name: str) -> bool:
    """See `SourceModule`."""
    return _find(Path(name), "train-images", 3) is not None


def open_source(name: str, settings: Settings) -> Source:
    """See `SourceModule`."""
    folder = Path(name)
    arrays = {
        split: _read_split(folder, stem, count)
        for split, stem, count in (("train", "train", settings.train), ("eval", "t10k", settings.eval))
    }
    quality = settings.quality or DEFAULT_QUALITY
    height, width = arrays["train"][0].shape[1:]
    size = settings.size or min(height, width)
    check_size(size, min(height, width))
    digests = [sha256_of(array) for pair in arrays.values() for array in pair]
    labels = [pair[1].tolist() for pair in arrays.values()]
    count = 1 + max(map(max, labels))
    trained = count if settings.train else 1 + max(labels[0])  # The first images need not have all classes.
    source = Source(
        kind="idx",
        description=f"IDX files {folder.resolve().name}, {size} px, JPEG quality {quality}",
        fingerprint=fingerprint("idx", *digests, size, quality),
        class_names=tuple(map(str, range(count))),
        train=array_split(*arrays["train"], size, quality),
        eval=array_split(*arrays["eval"], size, quality),
        problems=tuple(problems_of_labels(folder, trained, labels[1])),
    )
    return source if settings.labels is None else _with_labels(source, folder, settings.labels)


def _with_labels(source: Source, folder: Path, path: Path) -> Source:
    """Return the same images, each with the labels that the table at ``path`` has for its class.

    Raises:
        UserError: The table cannot be read, or does not name exactly the classes of the source.
    """
    table, classes = read_table(path), source.class_names
    if tuple(sorted(table)) != tuple(sorted(classes)):
        raise UserError(f"{path}: names {', '.join(sorted(table))}, allowed: each of the classes {', '.join(classes)}")
    names = tuple(sorted({label for labels in table.values() for label in labels}))
    vectors = [tuple(int(name in table[each]) for name in names) for each in classes]

    def relabelled(split: SourceSplit) -> SourceSplit:
        return SourceSplit([vectors[label] for label in split.labels], split.jpeg, size=split.size)  # type: ignore[index]

    return Source(
        kind="table",
        description=f"IDX files {folder.resolve().name} with the labels of {path.name}",
        fingerprint=fingerprint("idx labels", source.fingerprint, names, vectors),
        class_names=names,
        train=relabelled(source.train),
        eval=relabelled(source.eval),
    )


def _read_split(folder: Path, stem: str, count: int | None) -> tuple[Pixels, Pixels]:
    """Return images [N, H, W] and labels [N] of ``train`` or ``t10k``, both uint8.

    The first ``count`` of them are taken, beginning anew where there are fewer; if it is None, all of them once.

    Raises:
        UserError: A file is missing, truncated or of another kind, or the two do not match.
    """
    images = _read(folder, f"{stem}-images", 3)
    labels = _read(folder, f"{stem}-labels", 1)
    if len(images) != len(labels) or not images.size:
        found = " x ".join(map(str, images.shape[1:]))
        counts = f"{len(images):,} images of {found} px, {len(labels):,} labels"
        raise UserError(f"{folder}: {stem} has {counts}; fetch the files again")
    taken = np.arange(len(labels) if count is None else count) % len(labels)
    return images[taken], labels[taken]


def _read(folder: Path, stem: str, dimensions: int) -> Pixels:
    """Return the array of one file.

    *Source*: the description of the format on the MNIST page. A file is a big-endian word (0, 0, type, dimensions), a
    word for the length of each dimension, then the data.

    Raises:
        UserError: The file is missing, truncated or of another kind.
    """
    path = _find(folder, stem, dimensions)
    if path is None:
        raise UserError(f"{folder}: {stem}-idx{dimensions}-ubyte[.gz] is missing; a set has four files")
    raw = read_bytes(path)
    try:
        raw = gzip.decompress(raw) if path.suffix == ".gz" else raw
        magic, *shape = struct.unpack_from(f">{1 + dimensions}I", raw)
        if magic != _UNSIGNED_BYTES << 8 | dimensions:
            raise ValueError(f"begins with {magic:#010x}")
        return np.frombuffer(raw, np.uint8, offset=4 + 4 * dimensions).reshape(shape)
    except (OSError, EOFError, ValueError, struct.error, zlib.error) as error:
        told = f"is no IDX file of bytes in {dimensions} dimensions, or is cut off ({error}); fetch it again"
        raise UserError(f"{path}: {told}") from None


def _find(folder: Path, stem: str, dimensions: int) -> Path | None:
    """Return the file, spelt ``stem-idx`` or ``stem.idx``, plain or gzipped; None if there is none."""
    names = (f"{stem}{mark}idx{dimensions}-ubyte{suffix}" for suffix in ("", ".gz") for mark in "-.")
    return next((folder / name for name in names if is_file(folder / name)), None)
