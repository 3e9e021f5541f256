"""Tables of file -> labels are read as CSV or JSON, packed as label vectors, and arrive in batches."""

import io
import json
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from configs.errors import UserError
from configs.load import load_recipe
from configs.schema import EngineSettings, Recipe
from data.input.batches import DataError
from data.input.packed import open_evaluation, open_training
from data.prepare import prepare
from data.sources.catalogue import open_source
from data.sources.image_source import Settings
from data.sources.tables import read_table
from data.verify import check_dataset, verify_dataset

TRAIN = {"a.png": ["Mass", "Edema"], "deep/b.jpg": ["No Finding"], "c.png": ["Nodule"], "d.png": ["Mass"]}
ROWS = (
    "Image Index,Finding Labels,Patient ID",
    "a.png,Mass|Edema,1",
    "deep/b.jpg,No Finding,2",
    "c.png,Nodule,3",
    "d.png,Mass,4",
)
NIH = "".join(f"{row}\n" for row in ROWS)
SIDE = 24
PLACE: Any = {"batch_size": 4, "rank": 0, "world_size": 1, "device_id": None}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Make five images of known brightness, and their tables."""
    root = tmp_path / "in"
    (root / "deep").mkdir(parents=True)
    for number, name in enumerate([*TRAIN, "v.png"]):
        Image.new("L", (SIDE + 8, SIDE), 20 + 40 * number).save(root / name)
    (root / "train.csv").write_text(NIH)
    (root / "val.json").write_text('{"v.png": ["Nodule", "Edema"]}')
    return root


def _recipe(channels: int = 1, classes: int = 3) -> Recipe:
    return load_recipe(
        "digits",
        [
            "data.source=table",
            "loss={kind: sigmoid}",
            "run.target_top1=null",
            "data.train_samples=4",
            "data.eval_samples=1",
            "batch.global_size=4",
            "model.name=resnet8",
            f"model.num_classes={classes}",
            f"model.image_size={SIDE}",
            f"model.input_channels={channels}",
            "data.crop={kind: none}",
            "data.mean=[0, 0, 0]",
            "data.std=[1, 1, 1]",
        ],
    )


def test_csv_and_json_say_the_same(folder: Path) -> None:
    (folder / "other.json").write_text(json.dumps(TRAIN))
    assert read_table(folder / "train.csv") == read_table(folder / "other.json")
    assert read_table(folder / "train.csv")["a.png"] == ("Edema", "Mass")
    for name in ("train.csv", "other.json"):
        (folder / f"marked-{name}").write_text((folder / name).read_text(), encoding="utf-8-sig")
        assert read_table(folder / f"marked-{name}") == read_table(folder / name)
    table = read_table(folder / "train.csv")
    (folder / "train.csv").write_text(NIH + "\n\n", encoding="utf-8")
    assert read_table(folder / "train.csv") == table, "empty lines at the end are no images"
    (folder / "spaced.json").write_text('{"a.png": [" Mass", "Edema "]}')
    assert read_table(folder / "spaced.json") == {"a.png": ("Edema", "Mass")}


def test_records_hold_a_vector_of_sorted_labels_and_the_images_own_bytes(folder: Path, tmp_path: Path) -> None:
    import mxnet as mx

    manifest = prepare(open_source(str(folder), Settings()), tmp_path / "out").manifest
    assert (manifest.class_names, manifest.train.class_counts) == (("Edema", "Mass", "Nodule"), (1, 2, 1))
    assert manifest.eval.class_counts == (1, 0, 1)
    reader = mx.recordio.MXIndexedRecordIO(str(tmp_path / "out/train.idx"), str(tmp_path / "out/train.rec"), "r")
    found = {}
    for key in reader.keys:
        header, image = mx.recordio.unpack(reader.read_idx(key))
        found[list(TRAIN)[header.id]] = header.label.tolist()
        assert image == (folder / list(TRAIN)[header.id]).read_bytes()
    assert found == {"a.png": [1, 1, 0], "deep/b.jpg": [0, 0, 0], "c.png": [0, 0, 1], "d.png": [0, 1, 0]}
    assert list(verify_dataset(tmp_path / "out")) == []
    assert check_dataset(tmp_path / "out", _recipe().data, 3) == manifest
    with pytest.raises(UserError, match="3 classes, the recipe says model"):
        check_dataset(tmp_path / "out", _recipe().data, 14)


@pytest.mark.parametrize(
    ("place", "content", "problem"),
    [
        (8, struct.pack("<I", 2), "has 2 labels, allowed: 3"),
        (8 + 24, struct.pack("<f", 2), "label 2 of class 0 is neither 0 nor 1"),
        (8 + 24 + 4, struct.pack("<f", 0.5), "label 0.5 of class 1 is neither 0 nor 1"),
    ],
)
def test_wrong_labels_of_a_record_are_named(
    folder: Path, tmp_path: Path, place: int, content: bytes, problem: str
) -> None:
    prepare(open_source(str(folder), Settings()), tmp_path / "out")
    with (tmp_path / "out" / "eval.rec").open("r+b") as file:
        file.seek(place)  # the header of the record has 8 bytes, that of the image 24
        file.write(content)
    assert str(next(verify_dataset(tmp_path / "out"))) == f"eval.rec record 0 at byte 0: {problem}"


@pytest.mark.parametrize("channels", [1, 3])
def test_batches_carry_each_image_with_its_own_labels(folder: Path, tmp_path: Path, channels: int) -> None:
    prepare(open_source(str(folder), Settings()), tmp_path / "out")
    source = open_training(_recipe(channels), EngineSettings(), tmp_path / "out", **PLACE)
    source.begin_epoch(1)
    images, labels = source.next_batch()
    assert (images.shape, labels.shape) == ((4, channels, SIDE, SIDE), (4, 3))
    brightness = (images.mean(axis=(1, 2, 3)) - 20) / 40
    assert sorted(np.rint(brightness)) == [0, 1, 2, 3]
    wanted = [[1, 1, 0], [0, 0, 0], [0, 0, 1], [0, 1, 0]]
    assert labels.tolist() == [wanted[int(np.rint(each))] for each in brightness]
    evaluation = open_evaluation(_recipe(channels), EngineSettings(), tmp_path / "out", **PLACE)
    (batch,) = list(evaluation.batches())
    assert (batch.labels[: batch.num_valid].tolist(), batch.num_valid) == ([[1, 0, 1]], 1)


def test_size_makes_jpegs_of_that_shorter_side(folder: Path) -> None:
    source = open_source(str(folder), Settings(size=12))
    image = Image.open(io.BytesIO(source.train.jpeg(0)))
    assert (image.format, image.size) == ("JPEG", (16, 12))
    assert source.fingerprint != open_source(str(folder), Settings()).fingerprint


@pytest.mark.parametrize("table", ["train", "val"])
def test_other_labels_or_another_file_in_either_table_are_another_data_set(folder: Path, table: str) -> None:
    (folder / "val.json").unlink()
    (folder / "val.csv").write_text("file,labels\nv.png,Mass\n")
    prints = {open_source(str(folder), Settings()).fingerprint}
    image = folder / ("a.png" if table == "train" else "v.png")
    image.write_bytes(image.read_bytes() + b"\0")
    prints.add(open_source(str(folder), Settings()).fingerprint)
    with (folder / f"{table}.csv").open("r+") as file:
        text = file.read().replace("Mass", "Nodule", 1)
        file.seek(0)
        file.write(text)
    prints.add(open_source(str(folder), Settings()).fingerprint)
    image.rename(folder / "z.png")
    (folder / f"{table}.csv").write_text(text.replace(image.name, "z.png"))
    prints.add(open_source(str(folder), Settings()).fingerprint)
    assert len(prints) == 4


def test_rows_in_another_order_are_another_data_set(folder: Path) -> None:
    before = open_source(str(folder), Settings()).fingerprint
    (folder / "train.csv").write_text("\n".join((ROWS[0], *reversed(ROWS[1:]))))
    assert open_source(str(folder), Settings()).fingerprint != before


def test_a_table_of_both_kinds_is_read_from_csv_and_one_table_is_not_enough(folder: Path) -> None:
    (folder / "train.json").write_text("torn")
    assert len(open_source(str(folder), Settings()).train.labels) == 4
    (folder / "val.json").unlink()
    with pytest.raises(UserError, match=r"val\.csv \(or \.json\) is missing beside train\.csv; add it, or take"):
        open_source(str(folder), Settings())


def test_records_of_another_width_are_refused(folder: Path, tmp_path: Path) -> None:
    prepare(open_source(str(folder), Settings()), tmp_path / "out")
    source = open_training(_recipe(classes=10), EngineSettings(), tmp_path / "out", **PLACE)
    source.begin_epoch(1)
    with pytest.raises(DataError, match="3 labels per image, expected 10"):
        source.next_batch()


def _no_file(root: Path) -> None:
    (root / "a.png").unlink()


def _no_header(root: Path) -> None:
    (root / "train.csv").write_text(NIH.partition("\n")[2])


def _twice(root: Path) -> None:
    (root / "train.csv").write_text(NIH + "a.png,Mass,9\n")


def _one_column(root: Path) -> None:
    (root / "train.csv").write_text(NIH + "a.png\n")


def _stranger(root: Path) -> None:
    (root / "val.json").write_text('{"v.png": ["Hernia"]}')


def _not_a_list(root: Path) -> None:
    (root / "val.json").write_text('{"v.png": "Mass"}')


def _no_texts(root: Path) -> None:
    (root / "val.json").write_text('{"v.png": ["Mass", 3]}')


def _no_evaluation_file(root: Path) -> None:
    (root / "v.png").unlink()


def _open_quote(root: Path) -> None:
    (root / "train.csv").write_text('file,labels\n"a.png,Mass\n' + "b.png,Mass\n" * 20_000)


def _torn(root: Path) -> None:
    (root / "val.json").write_text('{"v.png": ')


def _no_object(root: Path) -> None:
    (root / "val.json").write_text('["v.png"]')


def _empty(root: Path) -> None:
    (root / "val.json").write_text("{}")


def _one_class(root: Path) -> None:
    (root / "train.csv").write_text("file,labels\na.png,Mass\nc.png,No Finding\n")
    (root / "val.json").write_text('{"v.png": ["Mass"]}')


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (_no_file, "train.csv: no such files in"),
        (_no_header, "train.csv: the first line is 'a.png,Mass|Edema,1', allowed: a header, as file,labels"),
        (_twice, "train.csv: a.png is named twice; remove one row"),
        (_one_column, "train.csv: line 6 is 'a.png', allowed: file,label|label"),
        (_stranger, "val.json: labels that"),
        (_not_a_list, "val.json: v.png: got 'Mass', allowed: a list of labels"),
        (_torn, "val.json: cannot be read: "),
        (_no_object, 'val.json: is list, allowed: an object as {"a.png": ["Mass", "Nodule"]}'),
        (_empty, "val.json: names no file; at least one image is needed"),
        (_no_texts, "val.json: v.png: got ['Mass', 3], allowed: a list of labels, each a text"),
        (_no_evaluation_file, "val.json: no such files in"),
        (_open_quote, "train.csv: cannot be read: field larger than field limit"),
        (_one_class, "train.csv: labels ['Mass'], allowed: at least two different ones"),
    ],
)
def test_a_wrong_table_is_one_line_with_the_remedy(folder: Path, spoil: Callable[[Path], None], message: str) -> None:
    spoil(folder)
    with pytest.raises(UserError) as caught:
        prepare(open_source(str(folder), Settings()), folder.parent / "out")
    assert str(caught.value).startswith(f"{folder}/{message}")
    assert "\n" not in str(caught.value)


def test_a_quality_without_a_size_is_refused_because_the_bytes_are_kept(folder: Path) -> None:
    with pytest.raises(UserError, match="--quality 90: the bytes of the images are kept unless --size is given"):
        open_source(str(folder), Settings(quality=90))
    assert open_source(str(folder), Settings(quality=90, size=8)).description.endswith("8 px, JPEG quality 90")


def test_two_different_labels_are_enough_and_one_is_not(folder: Path) -> None:
    (folder / "val.json").write_text('{"v.png": ["Mass"]}')
    (folder / "train.csv").write_text("file,labels\na.png,Mass\nc.png,Edema\n")
    assert open_source(str(folder), Settings()).class_names == ("Edema", "Mass")
    (folder / "train.csv").write_text("file,labels\na.png,Mass\nc.png,No Finding\n")
    (problem,) = open_source(str(folder), Settings()).problems
    assert "labels ['Mass'], allowed: at least two different ones" in problem
