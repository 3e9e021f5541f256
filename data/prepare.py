"""Make the folder of a data set from a source: the images are packed, or listed in place, after all were checked.

The folder gets its name only when it is complete.
"""

import errno
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import numpy as np

from configs.arguments import printable
from configs.errors import UserError
from configs.lock import partial_folder
from configs.reading import Unreadable, exists, in_the_way, is_folder
from data.forms.catalogue import placed
from data.images import Problem, file_problem
from data.manifest import SPLITS, Manifest, SourceManifest, SplitManifest, SplitName, load_manifest
from data.parallel import in_order
from data.recordio import pack_image, write_records
from data.sources.image_source import Source, SourceSplit, name_some, shown
from data.space import require_space
from data.verify import check_files

LEFT_OUT_FILE = "left_out.txt"
"""Beside the manifest of a data set without some of the source's images: each of them, and what is wrong with it."""


class SourceRefused(UserError):
    """A source cannot be packed.

    Args:
        problems: What is wrong, a line each.
        remedy: What to do about all of them; empty if the problems say so.
    """

    def __init__(self, problems: Sequence[str], remedy: str = "") -> None:
        more = f"; and {len(problems) - 1:,} more problems, which --check lists" if len(problems) > 1 else ""
        super().__init__("; ".join(filter(None, (problems[0] + more, remedy))))
        self.problems, self.remedy = tuple(problems), remedy


class _BadFile(NamedTuple):
    """A file that cannot be packed: its place in a split, and what is wrong with it."""

    split: SplitName
    place: int
    file: str
    problem: Problem

    def __str__(self) -> str:
        return f"{self.file}: {self.problem.text}"


def check_source(source: Source, *, workers: int = 1, is_decoded: bool = True) -> Iterator[str]:
    """Yield everything that keeps a source from being packed, a line each.

    Args:
        source: The images.
        workers: Number of processes that read and decode.
        is_decoded: Whether to decode every image, which finds truncated and damaged files and takes about as long as
            ``prepare --verify``. If not, only the headers of the files are read.
    """
    yield from source.problems
    for name in SPLITS:
        yield from map(str, _bad_files(source, name, workers, is_decoded=is_decoded))


def _bad_files(source: Source, name: SplitName, workers: int, *, is_decoded: bool) -> Iterator[_BadFile]:
    split = source.split(name)

    def problem_of(place: int) -> Problem | None:
        return file_problem(split.files[place], is_decoded=is_decoded)

    places = range(len(split.files))
    found = in_order(problem_of, places, workers=workers, title=f"checking {name}", total=len(places))
    for place, problem in enumerate(found):
        if problem is not None:
            yield _BadFile(name, place, str(split.files[place]), problem)


def prepare(
    source: Source,
    destination: Path,
    *,
    seed: int = 1,
    workers: int = 1,
    is_decoded: bool = True,
    skips_bad: bool = False,
) -> tuple[Manifest, bool]:
    """Pack a source of images; of one with a place, write only an index, for which each image is read once.

    Nothing is packed before `check_source` has found no problem. Training records are shuffled once; evaluation
    records keep the order of the source. The records are written into a hidden folder beside the destination, which
    gets the final name at the end. Hidden folders of processes that died are removed.

    Args:
        source: The images.
        destination: Folder of the data set. If it holds this source already, nothing is done.
        seed: Seed of the order of the training records.
        workers: Number of processes that check and encode; the packed bytes do not depend on it.
        is_decoded: Whether every image is decoded before any is packed, see `check_source`.
        skips_bad: Whether files that are no sound images are left out and listed in `LEFT_OUT_FILE`, at most half of
            the training images of each class and of the evaluation images.

    Returns:
        The manifest, and whether the data set was there already.

    Raises:
        SourceRefused: The source has problems.
        UserError: The destination holds something else, the disk is full, or an image cannot be read.
    """
    if source.problems:
        raise SourceRefused([*check_source(source, workers=workers, is_decoded=is_decoded)])
    wanted = SourceManifest(kind=source.kind, description=shown(source.description), fingerprint=source.fingerprint)
    if exists(destination):
        return _load_same(destination, source, wanted, seed), True
    parent = next(each for each in destination.absolute().parents if exists(each))
    if source.place is None and is_folder(parent):
        needed = source.train.kept_bytes + source.eval.kept_bytes  # What JPEGs will take is not known before.
        require_space(parent, needed, f"the data set {destination.name}", "or name a folder on another disk")
    fill = _pack_splits if source.place is None else _place_splits
    try:
        with partial_folder(destination.parent, f".{destination.name}.partial-") as folder:
            manifest = Manifest(
                format_version=1,
                source=wanted,
                seed=seed,
                class_names=source.class_names,
                packed_side=source.eval.size,
                in_place=source.place,
                **fill(source, folder, seed=seed, workers=workers, is_decoded=is_decoded, skips_bad=skips_bad),
            )
            manifest.save(folder)
            folder.rename(destination)
    except OSError as error:
        if error.errno in (errno.ENOTEMPTY, errno.EEXIST) and destination.is_dir():
            # Another process has packed it meanwhile, as the first runs on a machine that are started together do.
            return _load_same(destination, source, wanted, seed), True
        raise UserError(_explain(error, destination)) from None
    return manifest, False


def _without(source: Source, bad: Sequence[_BadFile], folder: Path, *, skips_bad: bool) -> Source:
    """Return the source without some files, which are listed in the folder of the data set.

    Raises:
        SourceRefused: There are some, and they may not be left out, or they are more than half of a class's training
            images or of the evaluation images.
    """
    if not bad:
        return source
    lines = [*map(str, bad)]
    can_skip = all(each.problem.is_content for each in bad)
    if not (skips_bad and can_skip):
        raise SourceRefused(lines, "--skip-bad leaves these files out" if can_skip else "")
    listed = "".join(f"{printable(line)}\n" for line in lines)
    with (folder / LEFT_OUT_FILE).open("a", encoding="utf-8", errors="backslashreplace") as file:
        file.write(listed)

    def kept(name: SplitName) -> SourceSplit:
        split, left_out = source.split(name), {each.place for each in bad if each.split == name}
        return split.taken([place for place in range(len(split.labels)) if place not in left_out])

    taken = replace(source, train=kept("train"), eval=kept("eval"))
    parts = [*zip(source.class_names, source.class_counts("train"), taken.class_counts("train"), strict=True)]
    parts.append(("evaluation", len(source.eval.labels), len(taken.eval.labels)))
    few = [f"{name} ({had - found:,} of {had:,})" for name, had, found in parts if 2 * found < had]
    if few:
        told = f"--skip-bad leaves out at most half of a class; more are bad of {name_some(few)}"
        raise SourceRefused(lines, told)
    return taken


def _load_same(destination: Path, source: Source, wanted: SourceManifest, seed: int) -> Manifest:
    """Return the manifest of a destination that exists.

    Raises:
        UserError: The destination is not a complete data set, cannot be read, or was packed from another source or
            with another seed.
    """
    remedy = "move it away or name another folder"
    try:
        found = load_manifest(destination)
        check_files(destination, found)
    except Unreadable:
        raise
    except UserError as error:
        raise UserError(f"{destination} exists and is not a complete data set ({error}); {remedy}") from None
    if (found.source.fingerprint, found.seed, found.in_place) != (wanted.fingerprint, seed, source.place):
        content = f"{found.source.description}; training order of seed {found.seed}"
        content += "" if found.in_place is None else f"; in place in {found.in_place.root}"
        raise UserError(f"{destination} exists and holds another or an older data set ({content}); {remedy}")
    return found


def _explain(error: OSError, destination: Path) -> str:
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return f"{destination}: the disk is full; nothing was left behind; free space or name a folder on another disk"
    if words := in_the_way(destination.parent):
        return f"{destination}: cannot be made: {words}; name another folder"
    return f"{destination}: cannot be written: {error.strerror}; name another folder"


def _pack_splits(
    source: Source, folder: Path, *, seed: int, workers: int, is_decoded: bool, skips_bad: bool
) -> dict[SplitName, SplitManifest]:
    """Check all images, and write the records and the indexes of both splits."""
    bad = [each for name in SPLITS for each in _bad_files(source, name, workers, is_decoded=is_decoded)]
    kept = _without(source, bad, folder, skips_bad=skips_bad)
    return {name: _pack(kept, name, folder, seed, workers) for name in SPLITS}


def _pack(source: Source, name: SplitName, folder: Path, seed: int, workers: int) -> SplitManifest:
    """Write the records and the index of one split."""
    split, count = source.split(name), len(source.split(name).labels)

    def payload(index: int) -> bytes:
        return pack_image(split.labels[index], index, split.jpeg(index))

    order = _order(name, count, seed)
    payloads = in_order(payload, order, workers=workers, title=f"packing {name}", total=count)
    return SplitManifest(**write_records(folder / name, payloads), class_counts=tuple(source.class_counts(name)))


def _order(name: SplitName, count: int, seed: int) -> list[int]:
    return np.random.default_rng(seed).permutation(count).tolist() if name == "train" else [*range(count)]


def _place_splits(
    source: Source, folder: Path, *, seed: int, workers: int, is_decoded: bool, skips_bad: bool
) -> dict[SplitName, SplitManifest]:
    """Read all images, and write the indexes and the facts of both splits."""
    assert source.place is not None
    forms = {name: placed(folder, name, source.place) for name in SPLITS}
    if forms["train"].keeps_order:
        source = replace(source, train=source.train.taken(_order("train", len(source.train.labels), seed)))
    while True:
        bad: list[_BadFile] = []
        facts = []
        for name, form in forms.items():
            split = source.split(name)
            form.write_index(split.labels, split.files)
            looked, checksums = form.look(), list[int]()
            examined = form.examine(len(split.files), workers, "checking", is_decoded=is_decoded)
            for place, (checksum, problem) in enumerate(examined):
                checksums.append(checksum)
                if problem is not None:
                    bad.append(_BadFile(name, place, str(split.files[place]), problem))
            facts.append((looked, checksums, source.class_counts(name)))
        if not bad:
            return {name: form.write_facts(*each) for (name, form), each in zip(forms.items(), facts, strict=True)}
        # Bytes around an image that is left out may belong to its neighbour: all are read again.
        source = _without(source, bad, folder, skips_bad=skips_bad)
