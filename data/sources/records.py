"""Two RecordIO files of MXNet, train.rec and val.rec, beside each its index, train.idx and val.idx.

They may have been packed by im2rec, with or without resizing, or by NVIDIA's scripts; an image has one label, a number.
Their names may say more, as imagenet_train.rec does, and val may be valid, validation or test. With --in-place they are
read where they lie; else they are packed again: --size and --quality as for class folders.
"""

from pathlib import Path

from tqdm import tqdm

from configs.errors import UserError
from configs.reading import exists, is_file
from data.manifest import MANIFEST_FILE
from data.recordio import RecordError, RecordFile, StoredRecord, index_rows
from data.sources.class_folders import TRAIN
from data.sources.image_source import Settings, Source
from data.sources.parts import Listed, files_of, open_parts

LAYOUT = "train.rec and val.rec with train.idx and val.idx"
OPTIONS = ("size", "quality")


def recognises(name: str) -> bool:
    """See `SourceModule`; a data set that this program packed is not a source."""
    return bool(files_of(Path(name), TRAIN, ".rec")) and not exists(Path(name) / MANIFEST_FILE)


def open_source(name: str, settings: Settings) -> Source:
    """See `SourceModule`; the classes are known by their numbers alone."""
    return open_parts("records", name, ".rec", _list, settings)


def _list(recs: list[Path]) -> Listed:
    """List the records of a part in the order of their file."""
    rec, *others = recs
    if others:
        found = f"{rec.name} and {others[0].name}"
        raise UserError(f"{rec.parent}: {found}, allowed: one file of records for each part; move the others away")
    if not is_file(rec.with_suffix(".idx")):
        raise UserError(f"{rec}: no index {rec.stem}.idx beside it; MXNet's tools/rec2idx.py makes it")
    index = rec.with_suffix(".idx")
    try:
        rows = sorted({offset: key for key, offset in index_rows(index)}.items())  # DALI reads a record once, too.
    except ValueError as error:
        raise UserError(f"{index}: is no index of records: {error}; MXNet's tools/rec2idx.py makes it anew") from None
    if not rows:
        raise UserError(f"{index}: is empty; MXNet's tools/rec2idx.py makes it anew")
    listed = Listed([], [], [])
    records = RecordFile(rec)
    for offset, key in tqdm(rows, desc=f"reading {rec.name}", unit=" records", disable=None):
        file = StoredRecord(rec, key, offset)
        try:
            listed.labels.append(records.class_at(offset))
            listed.files.append(file)
        except RecordError as error:
            listed.problems.append(f"{file}: {error}; pack the images again")
    return listed
