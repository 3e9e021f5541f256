"""The classes of ImageNet's validation images where these lie flat: files with the classes, which are looked for.

The devkit is ILSVRC2012_devkit_t12 of image-net.org. Its numbers of classes, 1 to 1,000, follow no order of names; its
meta.mat has the WordNet id of each. *Source*: the devkit's readme.txt.
"""

import csv
import io
import tarfile
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path

from configs.errors import UserError
from configs.reading import is_file, read_bytes
from data.sources.class_folders import Listing
from data.sources.image_source import name_some, shown

_LEVELS_ABOVE = 3
_NUMBERS, _SYNSETS = "ILSVRC2012_validation_ground_truth.txt", "meta.mat"

Labels = dict[str, str]
"""Name of an image without its suffix -> class."""


def with_labels(part: Path, flat: Listing) -> Listing:
    """Return the listing of a flat part with the classes from a file that lies in its folder or up to three above.

    Raises:
        UserError: There is no such file, or it cannot be read.
    """
    path, read = _find(part)
    try:
        labels = read(path)
    except UserError:
        raise
    except Exception as error:  # noqa: BLE001 (what SciPy, csv and tarfile raise depends on the place of the damage)
        why = " ".join(f"{type(error).__name__}: {error}".split())
        raise UserError(f"{path}: the labels cannot be read ({why}); copy or download the file again") from None
    images = [image._replace(class_name=labels.get(image.name.rpartition(".")[0], "")) for image in flat.images]
    if unknown := [shown(image.name) for image in images if not image.class_name]:
        flat.problems.append(f"{part}: images without a label in {path}: {name_some(unknown)}; remove them")
    known = sorted((image for image in images if image.class_name), key=lambda image: image[:2])
    names = tuple(sorted({image.class_name for image in known}))
    return Listing(f"flat, labels from {path.name}", names, known, flat.problems)


def _find(part: Path) -> tuple[Path, Callable[[Path], Labels]]:
    folders = part.absolute().parents[: 1 + _LEVELS_ABOVE]
    for folder in folders:
        for name, read in _READERS.items():
            if is_file(folder / name):
                return folder / name, read
    wanted = ", ".join(_READERS)
    where = f"{folders[0]} or the {_LEVELS_ABOVE} folders above"
    remedy = "sort them into a folder for each class; of ImageNet, put a file of Kaggle or image-net.org there instead"
    raise UserError(f"{part}: images without class folders, and no labels in {where} ({wanted}); {remedy}")


def _read_kaggle(path: Path) -> Labels:
    """Read Kaggle's table: the id of an image, then boxes, each a class and four coordinates."""
    rows = [*csv.DictReader(io.StringIO(read_bytes(path).decode("utf-8-sig"), newline=""), strict=True)]
    if twice := [image for image, times in Counter(row["ImageId"] for row in rows).items() if times > 1]:
        raise UserError(f"{path}: named twice: {name_some(twice)}; remove one row of each")
    return {row["ImageId"]: (row["PredictionString"] or "").partition(" ")[0] for row in rows}


def _read_synsets(path: Path) -> Labels:
    return _numbered(read_bytes(path).decode().split())


def _read_devkit(path: Path) -> Labels:
    return _from_devkit(read_bytes(path), read_bytes(path.with_name(_SYNSETS)))


def _read_devkit_archive(path: Path) -> Labels:
    with tarfile.open(path) as archive:
        members = {Path(member.name).name: archive.extractfile(member) for member in archive if member.isreg()}
        return _from_devkit(*(file.read() for name in (_NUMBERS, _SYNSETS) if (file := members[name])))


def _from_devkit(numbers: bytes, synsets: bytes) -> Labels:
    from scipy.io import loadmat  # noqa: PLC0415 (slow, and for the devkit alone)

    names = {int(number): str(name) for number, name, *_ in loadmat(io.BytesIO(synsets), squeeze_me=True)["synsets"]}
    return _numbered(names[int(number)] for number in numbers.split())


def _numbered(classes: Iterable[str]) -> Labels:
    return {f"ILSVRC2012_val_{number:08d}": name for number, name in enumerate(classes, start=1)}


_READERS: dict[str, Callable[[Path], Labels]] = {
    "LOC_val_solution.csv": _read_kaggle,
    "ILSVRC2012_devkit_t12.tar.gz": _read_devkit_archive,
    f"ILSVRC2012_devkit_t12/data/{_NUMBERS}": _read_devkit,
    _NUMBERS: _read_devkit,
    "imagenet_2012_validation_synset_labels.txt": _read_synsets,
    "ILSVRC2012_validation_synset_labels.txt": _read_synsets,
}
"""A file with the classes, where it may lie in a folder that is searched -> what reads it."""
