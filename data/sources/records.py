"""Two RecordIO files of MXNet, train.rec and val.rec, beside each its index, train.idx and val.idx.

They may have been packed by im2rec, with or without resizing, or by NVIDIA's scripts; an image has one label, a number.
Their names may say more, as imagenet_train.rec does, and val may be valid, validation or test. With --in-place they are
read where they lie; else they are packed again: --size and --quality as for class folders.
"""

from pathlib import Path

from tqdm import tqdm

from configs.errors import UserError
from configs.reading import exists, is_file
from data.manifest import MANIFEST_FILE, InPlace
from data.recordio import RecordError, RecordFile, StoredRecord, index_rows
from data.sources.class_folders import TRAIN
from data.sources.image_source import Settings, Source, file_split, fingerprint, form_of, with_size
from data.sources.parts import class_names_of, files_of, notes_on_order, parts_of

LAYOUT = "train.rec and val.rec with train.idx and val.idx"
OPTIONS = ("size", "quality")


def recognises(name: str) -> bool:
    """See `SourceModule`; a data set that this program packed is not a source."""
    return bool(files_of(Path(name), TRAIN, ".rec")) and not exists(Path(name) / MANIFEST_FILE)


def open_source(name: str, settings: Settings) -> Source:
    """See `SourceModule`; the classes are known by their numbers alone."""
    folder, problems = Path(name), list[str]()
    recs = [_only(folder, files) for files in parts_of(folder, ".rec")]
    files, labels = zip(*(_list(rec, problems) for rec in recs), strict=True)
    names, wrong = class_names_of(labels, folder)
    settings, notes = with_size(settings, [*files[0], *files[1]])
    sizes, form = [rec.stat().st_size for rec in recs], form_of(settings)
    places = [[(file.key, file.offset) for file in part] for part in files]
    train, evaluation = (
        file_split(*part, settings, size) for part, size in zip(zip(files, labels, strict=True), sizes, strict=True)
    )
    remedy = "pack them again by im2rec with --shuffle, or leave out --in-place"
    place = InPlace(
        form="records", root=str(folder.absolute()), train=(str(recs[0].relative_to(folder)),),
        eval=(str(recs[1].relative_to(folder)),),
    )  # fmt: skip
    return Source(
        kind="records",
        description=f"records {folder.resolve().name}, {form}",
        fingerprint=fingerprint("records", sizes, places, labels, form),
        class_names=names,
        train=train,
        eval=evaluation,
        problems=(*problems, *wrong),
        notes=(*notes, *(notes_on_order(recs[0], labels[0], remedy) if settings.in_place else ())),
        place=place if settings.in_place else None,
    )


def _only(folder: Path, recs: list[Path]) -> Path:
    """Return the one file of a part."""
    if len(recs) > 1:
        found = " and ".join(str(rec.relative_to(folder)) for rec in recs[:2])
        raise UserError(f"{folder}: {found}, allowed: one file of records for each part; move the others away")
    index = recs[0].with_suffix(".idx")
    if not is_file(index):
        raise UserError(f"{recs[0]}: no index {index.name} beside it; MXNet's tools/rec2idx.py makes it")
    return recs[0]


def _list(rec: Path, problems: list[str]) -> tuple[list[StoredRecord], list[int]]:
    """Return the records of a file in their order there, and the label of each; add what is wrong to the problems."""
    index = rec.with_suffix(".idx")
    try:
        rows = sorted(index_rows(index), key=lambda row: row[1])
    except ValueError as error:
        raise UserError(f"{index}: is no index of records: {error}; MXNet's tools/rec2idx.py makes it anew") from None
    if not rows:
        raise UserError(f"{index}: is empty; MXNet's tools/rec2idx.py makes it anew")
    files, labels = [StoredRecord(rec, *row) for row in rows], list[int]()
    with RecordFile(rec) as records:
        for file in tqdm(files, desc=f"reading {rec.name}", unit=" records", disable=None):
            try:
                labels.append(records.class_at(file.offset))
            except RecordError as error:  # noqa: PERF203 (reading takes far longer)
                labels.append(0)
                problems.append(f"{file}: {error}; pack the images again")
    return files, labels
