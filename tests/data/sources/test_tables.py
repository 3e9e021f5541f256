"""Tables of file -> labels are read as CSV or JSON, packed as label vectors, and arrive in batches."""

import json
import subprocess
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from configs.errors import UserError
from configs.schema import Recipe
from data.prepare import prepare
from data.sources.catalogue import open_source
from data.sources.image_source import Settings
from data.sources.tables import read_table
from data.verify import check_dataset, verify_dataset
from tests.data.input.test_packed import evaluation, recipe_for, training

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


def _recipe() -> Recipe:
    sets = ["data.source=table", "loss={kind: sigmoid}", "run.target_top1=null", "model.num_classes=3"]
    return recipe_for(4, 1, [*sets, f"model.image_size={SIDE}", "model.input_channels=1"])


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

    source = open_source(str(folder), Settings())
    first, last = source.notes
    assert first.startswith(f"{folder}: 1 image without a label,") and "no evaluation image of Mass: " in last
    manifest, _ = prepare(source, tmp_path / "out")
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
    with pytest.raises(UserError, match="3 classes, the recipe says model"):
        check_dataset(tmp_path / "out", _recipe().data, 14)


def test_evaluation_images_without_a_roc_auc_are_refused_before_a_run(folder: Path, tmp_path: Path) -> None:
    prepare(open_source(str(folder), Settings()), tmp_path / "one")
    with pytest.raises(UserError, match=r"no class is both present and absent among its 1 .* prepare"):
        check_dataset(tmp_path / "one", _recipe().data, 3)
    (folder / "val.json").write_text('{"v.png": ["Nodule"], "w.png": []}')
    Image.new("L", (SIDE, SIDE), 7).save(folder / "w.png")
    manifest, _ = prepare(open_source(str(folder), Settings()), tmp_path / "two")
    assert check_dataset(tmp_path / "two", _recipe().data.model_copy(update={"eval_samples": 2}), 3) == manifest


def test_batches_carry_each_image_with_its_own_labels(folder: Path, tmp_path: Path) -> None:
    prepare(open_source(str(folder), Settings()), tmp_path / "out")
    images, labels = training(tmp_path / "out", _recipe()).next_batch()
    assert (images.shape, labels.shape) == ((4, 1, SIDE, SIDE), (4, 3))
    brightness = (images.mean(axis=(1, 2, 3)) - 20) / 40
    assert sorted(np.rint(brightness)) == [0, 1, 2, 3]
    wanted = [[1, 1, 0], [0, 0, 0], [0, 0, 1], [0, 1, 0]]
    assert labels.tolist() == [wanted[int(np.rint(each))] for each in brightness]
    (batch,) = evaluation(tmp_path / "out", _recipe()).batches()
    assert (batch.labels[: batch.num_valid].tolist(), batch.num_valid) == ([[1, 0, 1]], 1)


@pytest.mark.parametrize(
    "command",
    [
        "sed -i 's/Mass/Nodule/' train.csv",
        "sed -i 's/Edema/Mass/' val.json",
        "truncate -s +1 v.png",
        "mv v.png z.png; sed -i s/v.png/z.png/ val.json",
        "(head -1 train.csv; tail -4 train.csv | tac) > other; mv other train.csv",
    ],
)
def test_other_labels_another_file_or_another_order_are_another_data_set(folder: Path, command: str) -> None:
    before = open_source(str(folder), Settings()).fingerprint
    subprocess.run(["bash", "-ec", command], cwd=folder, check=True)
    assert open_source(str(folder), Settings()).fingerprint != before


def test_a_table_of_both_kinds_is_read_from_csv_and_one_table_is_not_enough(folder: Path) -> None:
    (folder / "train.json").write_text("torn")
    assert len(open_source(str(folder), Settings()).train.labels) == 4
    (folder / "val.json").unlink()
    with pytest.raises(UserError, match=r"val\.csv \(or \.json\) is missing beside train\.csv; add it, or take"):
        open_source(str(folder), Settings())


# What is done to the folder by bash, and what is told of it.
SPOILT = [
    ("rm a.png", "train.csv: no such files in"),
    ("sed -i 1d train.csv",
     "train.csv: the first line is 'a.png,Mass|Edema,1', allowed: a header, as file,labels"),
    ("(echo label,image; echo Mass,a.png; echo Mass,b.png) > train.csv",
     "train.csv: its second column, image, has the files; make it the first, before"),
    ("sed -i 's/^[^,]*,/&640,/; 1s/640/width/' train.csv",
     "train.csv: its second column, width, would be the labels; make "),
    ("(echo image,cat,dog; echo a.png,False,True; echo c.png,True,False) > train.csv",
     "train.csv: every column after image has only 0 and 1, or false and true, allowed: a column of labels"),
    ("echo ./a.png,Mass,9 >> train.csv", "train.csv: ./a.png is named twice; remove one row"),
    ("echo a.png >> train.csv", "train.csv: line 6 is 'a.png', allowed: file,label|label"),
    ("(echo file,labels; echo '\"a.png,Mass'; yes b.png,Mass | head -20000) > train.csv",
     "train.csv: cannot be read: field larger than field limit"),
    ("sed -i '3s/,.*/,\"Mass/' train.csv", "train.csv: cannot be read: unexpected end of data; a table of"),
    ("echo b.png,Ödem | iconv -t CP1252 >> train.csv", "train.csv: cannot be read: it is not text in UTF-8; save it"),
    ("(echo image,cat,dog; echo a.png,0.0,1.0; echo c.png,1.0,0.0) > train.csv",
     "train.csv: every column after image has only 0 and 1, or false and true, allowed: a column of labels, as"),
    ("sed -i 's/Edema/Mass/; /Nodule/d' train.csv; sed -i 's/Nodule\", \"Edema/Mass/' val.json",
     "train.csv: labels ['Mass'], allowed: at least two different ones"),
    ("sed -i s/c.png,Nodule/c.png,Mass\u200b/ train.csv",
     "train.csv: labels 'Mass\\u200b' prints like 'Mass'; rename one of them"),
    ("sed -i '1s/{/{\"v.png\": [], /' val.json", "val.json: v.png is named twice; remove one row"),
    ("sed -i s/Nodule/Hernia/ val.json", "val.json: labels that"),
    ("echo '{\"v.png\": [\"Mass\", 3]}' > val.json",
     "val.json: v.png: got ['Mass', 3], allowed: a list of labels, each a text"),
    ("echo '[\"v.png\"]' > val.json",
     'val.json: is list, allowed: an object as {"a.png": ["Mass", "Nodule"]}'),
    ("(printf '{\"v.png\": '; yes [ | head -100000) > val.json", "val.json: cannot be read: "),
    (r"""echo '{"v.png": ["Mass", "\ud800"]}' > val.json""", "val.json: cannot be read: 'utf-8' codec can't encode"),
    ("echo {} > val.json", "val.json: names no file; at least one image is needed"),
]  # fmt: skip


@pytest.mark.parametrize(("command", "message"), SPOILT)
def test_a_wrong_table_is_one_line_with_the_remedy(folder: Path, command: str, message: str) -> None:
    subprocess.run(["bash", "-ec", command], cwd=folder, check=True)
    with pytest.raises(UserError) as caught:
        prepare(open_source(str(folder), Settings()), folder.parent / "out")
    assert str(caught.value).startswith(f"{folder}/{message}")
    assert "\n" not in str(caught.value)


def test_a_quality_without_a_size_is_refused_because_the_bytes_are_kept(folder: Path) -> None:
    with pytest.raises(UserError, match="--quality 90: the bytes of the images are kept unless --size is given"):
        open_source(str(folder), Settings(quality=90))
    assert open_source(str(folder), Settings(quality=90, size=8)).description.endswith("8 px, JPEG quality 90")
