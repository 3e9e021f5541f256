"""A folder of JPEG or PNG images with a folder for each class: train/<class>/* and val/<class>/*, or <class>/* alone.

The parts may be called training, and val, valid, validation or test. Without images for evaluation, --eval-share
PERCENT of each class are held out (20), chosen by --seed. In place of the folders there may be train.tar and val.tar,
which are not unpacked. Of ImageNet, SOURCE may hold the tars as they were downloaded (ILSVRC2012_img_train.tar), or be
the top of Kaggle's tree; a flat val gets its labels from LOC_val_solution.csv, from the devkit (ILSVRC2012_devkit_t12),
or from imagenet_2012_validation_synset_labels.txt, in its folder or up to three above.
Photographs whose shorter side is above 512 px, as from a phone, are scaled to 256 px and turned upright; of smaller
images, as ImageNet's, the bytes are kept. --size N sets another shorter side, --size keep keeps the bytes, --quality
sets the quality of scaled JPEGs.
"""

import hashlib
import os
import re
from collections import Counter, defaultdict
from collections.abc import Sequence
from pathlib import Path

from configs.arguments import counted
from configs.errors import UserError
from configs.reading import Unreadable, is_file, is_folder, patiently
from data.images import ImageFile
from data.manifest import InPlace
from data.sources.class_folders import PARTS, Layout, ListedImage, Listing, find_layout, is_part, list_classes
from data.sources.flat_labels import with_labels
from data.sources.image_source import (
    Settings,
    Source,
    file_split,
    fingerprint,
    name_some,
    planned,
    shown,
)
from data.sources.tars import list_tar

LAYOUT = "a folder of images for each class (in train and val, in their tars, or alone)"
OPTIONS = ("size", "quality", "eval_share")

_HELD_OUT_PERCENT = 20
"""Share of each class that is held out for evaluation, if the user names none."""

_IMBALANCE = 10


def recognises(name: str) -> bool:
    """See `SourceModule`."""
    return is_folder(Path(name)) and find_layout(Path(name)) is not None


def open_source(name: str, settings: Settings) -> Source:
    """See `SourceModule`; labels count the sorted names of the class folders of train."""
    folder, layout = Path(name), find_layout(Path(name))
    assert layout is not None
    if is_part(folder.absolute()):
        parent = folder.absolute().parent
        raise UserError(f"{folder}: is one part of a data set, whose other part lies beside it; give {parent}")
    train, evaluation, problems, notes = _read_layout(folder, layout, settings)
    names = tuple(sorted({image.class_name for image in train}))
    files = [[image.file for image in part] for part in (train, evaluation)]
    settings, form, told = planned(settings, [*files[0], *files[1]])
    numbers = {each: number for number, each in enumerate(names)}
    labels = [[numbers.get(image.class_name, 0) for image in part] for part in (train, evaluation)]
    num_bytes = [sum(image.size_bytes for image in part) for part in (train, evaluation)]
    listing = {
        split: [(image.name, label, image.size_bytes) for image, label in zip(part, numbered, strict=True)]
        for split, part, numbered in zip(("train", "val"), (train, evaluation), labels, strict=True)
    }
    kept = () if settings.size is None else (form,)
    return Source(
        kind="folders",
        description=f"class folders {folder.resolve().name}, {form}",
        fingerprint=fingerprint("folders", names, listing, *kept),
        class_names=names,
        train=file_split(files[0], labels[0], settings, num_bytes[0]),
        eval=file_split(files[1], labels[1], settings, num_bytes[1]),
        problems=tuple(problems),
        notes=(*notes, *told, *_notes_on_counts(names, labels[0])),
        place=InPlace(form="class_folders", root=str(folder.absolute()))
        if settings.in_place and all(isinstance(file, Path) for part in files for file in part)
        else None,
    )


def _list_part(path: Path, *, is_root: bool = False) -> Listing:
    return list_tar(path) if is_file(path) else list_classes(path, is_root=is_root)


def _read_layout(
    folder: Path, layout: Layout, settings: Settings
) -> tuple[list[ListedImage], list[ListedImage], list[str], list[str]]:
    """Return training images, evaluation images, problems and notes."""
    listed = _list_part(layout.train, is_root=layout.train == folder)
    names, problems, notes = listed.class_names, listed.problems, list[str]()
    problems += [f"{layout.train}: {name}: a class folder without an image; fill or remove it" for name in listed.empty]
    if listed.is_flat:
        raise UserError(f"{layout.train}: its images lie in no class folders; unpack it, and sort them by class")
    # As train2017 and test_images are called; a class may be called so beside others.
    words = {re.split(r"[\d_]", name.casefold())[0] for name in names}
    # As folders_part_1 and folders_part_2, beside a table that has the labels.
    stems = {re.sub(r"\d+", "", name.casefold()) for name in names}
    is_cut = len(stems) == 1 and any(re.search("image|part_", each) for each in stems)
    if layout.train == folder and (is_cut or words <= {*PARTS, "testing", "unlabeled"}):
        problems.append(f"{folder}: images lie directly in {name_some(names)}; move them into a folder for each class")
    elif len(names) == 1:
        problems.append(f"{layout.train}: one class ({names[0]}), allowed: at least two; add the folder of another one")
    if layout.eval is None:
        share = settings.eval_share or _HELD_OUT_PERCENT
        held = _held_out(listed.images, share, settings.seed)
        train = [image for number, image in enumerate(listed.images) if number not in held]
        evaluation = [image for number, image in enumerate(listed.images) if number in held]
        told = f"{share} % of each class is held out for evaluation (--eval-share)"
        if not problems and not evaluation:
            problems.append(f"{layout.train}: no class has two different images, one of them for evaluation; add some")
    else:
        if settings.eval_share is not None:
            raise UserError(
                f"--eval-share {settings.eval_share}: {layout.eval} has the evaluation images; leave it out"
            )
        tests = _list_part(layout.eval)
        if tests.is_flat:
            tests = with_labels(layout.eval, tests)
        train, evaluation, told = listed.images, tests.images, f"{layout.eval.name}: {tests.form}"
        problems += [*tests.problems, *_problems_of_evaluation(layout.eval, names, tests)]
        if both := _in_both(train, evaluation):
            named = f"{name_some(both)} ({counted(len(both), 'image')})"
            notes.append(f"{layout.eval}: also in train: {named}: the accuracy counts images seen in training")
    return train, evaluation, problems, [f"{layout.train.absolute().name}: {listed.form}; {told}", *notes]


def _held_out(images: Sequence[ListedImage], percent: int, seed: int) -> set[int]:
    """Return the numbers of the images that are for evaluation.

    The choice follows from the seed and the names, so that it hardly changes when images are added. Files with the same
    content stay together. A class with at least two different images has at least one on each side.

    Args:
        images: The images that there are.
        percent: Share of each class for evaluation, 1 to 90.
        seed: Seed of the choice.
    """
    lengths = Counter(image.size_bytes for image in images)
    groups: dict[str, dict[object, list[int]]] = defaultdict(lambda: defaultdict(list))
    for number, image in enumerate(images):
        content = number if lengths[image.size_bytes] == 1 else _content(image.file, number)
        groups[image.class_name][content].append(number)
    held: set[int] = set()
    for name, same in groups.items():
        wanted = len(held) + max(1, round(sum(map(len, same.values())) * percent / 100))
        order = sorted(same.values(), key=lambda group: _digest(os.fsencode(f"{seed}/{name}/{images[group[0]].name}")))
        for group in order[:-1]:
            if len(held) < wanted:
                held.update(group)
    return held


def _in_both(train: Sequence[ListedImage], evaluation: Sequence[ListedImage]) -> list[str]:
    """Return the names of the images that both have: contents are read where class, name and length are equal."""
    tests = {image[:3]: image.file for image in evaluation}
    alike = [(image, tests[image[:3]]) for image in train if image[:3] in tests]
    both = [image for image, test in alike if _content(image.file, 0) == _content(test, 1)]
    return [shown(f"{image.class_name}/{image.name}") for image in both]


def _content(file: ImageFile, number: int) -> object:
    """Return what is equal where files are."""
    try:
        return _digest(patiently(file, file.read_bytes))
    except (OSError, Unreadable):  # which the check of the source tells
        return number


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def _problems_of_evaluation(folder: Path, names: Sequence[str], tests: Listing) -> list[str]:
    """Return what is wrong with the classes of the evaluation part, a line each."""
    if not tests.images and not tests.problems:
        return [f"{folder}: no image in its class folders; fill them, or remove {folder} to have images held out"]
    unknown = sorted(set(tests.class_names) - set(names))
    named = name_some([*map(ascii, unknown)])
    return [f"{folder}: classes that train does not have: {named}; rename or remove"] if unknown else []


def _notes_on_counts(names: Sequence[str], labels: Sequence[int]) -> list[str]:
    """Return a note if a class has many times the training images of another one."""
    counts = Counter(labels)
    most, least = (choose(range(len(names)), key=counts.__getitem__, default=0) for choose in (max, min))
    if counts[most] < _IMBALANCE * counts[least] or not names:
        return []
    uneven = f"{counts[most]:,} of {shown(names[most])}, {counts[least]:,} of {shown(names[least])}"
    told = "a network may name the frequent ones too often; loss.class_weights=balanced weighs all classes alike"
    return [f"uneven classes ({uneven}): {told}"]
