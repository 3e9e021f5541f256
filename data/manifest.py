"""``manifest.json``: the contents of a data set, the source of the images, and the checksums of the files."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import Field, ValidationError

from configs.errors import UserError
from configs.reading import read_bytes
from configs.registry import SOURCES, SOURCES_WITH_LABEL_VECTORS
from configs.section import Section
from configs.sync import write_synced

SplitName = Literal["train", "eval"]
SPLITS: tuple[SplitName, SplitName] = ("train", "eval")
MANIFEST_FILE = "manifest.json"


class SourceManifest(Section):
    """The source that was packed; equal fingerprints mean the same images, packed with the same settings."""

    kind: Literal[tuple(SOURCES)]  # type: ignore[valid-type]
    description: str
    fingerprint: str


class SplitManifest(Section):
    """One ``.rec`` file and its index; ``class_counts`` says how many images have each class.

    Of a data set in place, ``rec_bytes`` are those of all files that hold images, and ``rec_sha256`` is the digest of
    the index and the checksums of the images.
    """

    records: int = Field(ge=1)
    rec_bytes: int = Field(ge=1)
    rec_sha256: str = Field(pattern=r"^[0-9a-f]{64}$")
    idx_bytes: int = Field(ge=1)
    idx_sha256: str = Field(pattern=r"^[0-9a-f]{64}$")
    class_counts: tuple[int, ...]


class InPlace(Section):
    """Where the images lie that were not packed.

    Attributes:
        form: A key of `data.forms.catalogue`.
        root: Folder that the user gave.
        train: Files from there that hold several images each, of the training part.
        eval: Those of the evaluation part.
    """

    form: str
    root: str
    train: tuple[str, ...] = ()
    eval: tuple[str, ...] = ()


class Manifest(Section):
    """The whole data set.

    Attributes:
        seed: Decides the order of the training records, and the pixels of generated images.
        packed_side: Shorter side to which the images were scaled, px. None if the bytes of files were kept, or if an
            older version packed the data set.
        in_place: Where the images lie. If None, they are packed in the folder of the manifest.
    """

    format_version: Literal[1]
    source: SourceManifest
    seed: int
    class_names: tuple[str, ...]
    packed_side: int | None = Field(None, ge=1)
    in_place: InPlace | None = None
    train: SplitManifest
    eval: SplitManifest

    @property
    def has_label_vectors(self) -> bool:
        """Whether the label of an image is a 0 or 1 for each class, instead of one class."""
        return self.source.kind in SOURCES_WITH_LABEL_VECTORS

    def split(self, name: SplitName) -> SplitManifest:
        """Return the training or the evaluation split."""
        return self.train if name == "train" else self.eval

    def save(self, folder: Path) -> None:
        """Write ``manifest.json`` into the folder of a data set; returns when it is on the disk."""
        write_synced(folder / MANIFEST_FILE, f"{self.model_dump_json(indent=1)}\n".encode())


def load_manifest(folder: Path, name: str = MANIFEST_FILE) -> Manifest:
    """Read the manifest of a data set.

    Args:
        folder: The folder of the data set, or another one that has a copy of the manifest.
        name: Name of the file.

    Raises:
        UserError: The folder has no manifest, or the manifest cannot be read or is damaged.
    """
    path = folder / name
    try:
        return Manifest.model_validate_json(read_bytes(path))
    except OSError as error:
        raise UserError(f"{path}: {error.strerror}; ./run.sh prepare did not make this folder") from None
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"]) or "the file"
        raise UserError(f"{path}: damaged: {where}: {first['msg']}; the data set must be prepared again") from None
