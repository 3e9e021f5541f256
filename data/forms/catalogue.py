"""Find the form of a data set."""

from itertools import chain
from pathlib import Path

from configs.reading import exists, is_file
from data.forms.form import Form
from data.forms.in_place import ClassFolders, Placed
from data.forms.records import Packed, PlacedRecords
from data.forms.webdataset import Shards
from data.manifest import MANIFEST_FILE, SPLITS, InPlace, SplitName, load_manifest

_PLACED: dict[str, type[Placed]] = {"class_folders": ClassFolders, "records": PlacedRecords, "webdataset": Shards}


def form_of(folder: Path, split: SplitName) -> Form:
    """Return the form of one split of a data set; a folder without a manifest counts as packed.

    Raises:
        UserError: The manifest is damaged.
    """
    # Of records in the folder itself, the manifest has nothing more to say; every rank would wait for it.
    if is_file(folder / f"{split}.rec") or not exists(folder / MANIFEST_FILE):
        return Packed(folder, split)
    place = load_manifest(folder).in_place
    return Packed(folder, split) if place is None else placed(folder, split, place)


def placed(folder: Path, split: SplitName, place: InPlace) -> Placed:
    """Return the form of one split of a data set in place, whose index lies in ``folder`` or is still to be written."""
    return _PLACED[place.form](folder, split, place)


def image_files(folder: Path) -> list[Path]:
    """Return the files that hold the images of a data set: records in the folder, or others elsewhere."""
    forms = [form_of(folder, split) for split in SPLITS]
    return sorted(folder.glob("*.rec")) or [*chain.from_iterable(form.files() for form in forms)]
