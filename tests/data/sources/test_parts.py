"""Files that hold many images each: which of them are taken, and everything that is refused in a line."""

import io
import re
import struct
import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest

from configs.errors import UserError
from configs.load import load_recipe
from data.__main__ import main
from data.manifest import load_manifest
from data.sources.catalogue import open_source
from data.sources.image_source import Settings, Source
from data.verify import check_dataset
from tests.data.sources.test_folders import jpeg

MAGIC = struct.pack("<I", 0xCED7230A)


def record(*labels: float) -> bytes:
    header = struct.pack("<IfQQ", len(labels) if len(labels) > 1 else 0, labels[0], 0, 0)
    payload = header + (struct.pack(f"<{len(labels)}f", *labels) if len(labels) > 1 else b"") + jpeg(0)
    return MAGIC + struct.pack("<I", len(payload)) + payload + bytes(-len(payload) % 4)


def write_records(rec: Path, *labels: float | tuple[float, ...]) -> None:
    rec.parent.mkdir(exist_ok=True)
    found = [record(*(label if isinstance(label, tuple) else (label,))) for label in labels]
    rec.write_bytes(b"".join(found))
    rows = [f"{number}\t{sum(map(len, found[:number]))}\n" for number in range(len(found))]
    rec.with_suffix(".idx").write_text("".join(rows))


def opened(folder: Path, *, in_place: bool = True) -> Source:
    return open_source(str(folder), Settings(in_place=in_place))


@pytest.mark.parametrize(
    "names", [("train", "val"), ("imagenet_train", "imagenet-Validation-1"), ("train/a", "test/a")]
)
def test_a_part_is_a_word_of_the_name_or_the_folder(tmp_path: Path, names: tuple[str, str]) -> None:
    for name, labels in zip(names, ((0, 1, 1), (1, 0)), strict=True):
        write_records(tmp_path / f"{name}.rec", *labels)
    source = opened(tmp_path)
    assert (source.problems, source.class_names) == ((), ("0", "1"))
    assert ([*source.train.labels], [*source.eval.labels]) == ([0, 1, 1], [1, 0])


def test_a_record_that_the_index_has_twice_is_one_image_as_for_dali(tmp_path: Path) -> None:
    for name in ("train", "val"):
        write_records(tmp_path / f"{name}.rec", 0, 1, 1)
    index = tmp_path / "train.idx"
    index.write_text("9" + index.read_text().splitlines(keepends=True)[1] + index.read_text())
    assert [*opened(tmp_path).train.labels] == [0, 1, 1]


@pytest.mark.parametrize(
    ("train", "evaluation", "told"),
    [
        ((0, (1, 2), 1), (0,), r"train\.rec: record 1 at byte 0*\d+: has 2 labels, allowed: 1"),
        ((0, 1, 0.5), (0,), r"train\.rec: record 2 at byte \d+: label 0\.5, allowed: whole numbers 0 to 999,999"),
        ((0, 1, 1e30), (0,), r"train\.rec: record 2 at byte \d+: label 1e\+30, allowed"),
        ((0, -1, 1), (0,), r"record 1 at byte \d+: label -1, allowed"),
        ((0, 1), (0, 3), "labels that no training image has: 3; allowed: 0 to 1"),
        ((0, 0), (0,), "one class, allowed: at least two"),
    ],
)
def test_labels_that_are_no_classes_are_problems(
    tmp_path: Path, train: tuple[float, ...], evaluation: tuple[float, ...], told: str
) -> None:
    write_records(tmp_path / "train.rec", *train)
    write_records(tmp_path / "val.rec", *evaluation)
    (problem,) = opened(tmp_path).problems
    assert re.search(told, problem)


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (lambda folder: (folder / "val.idx").unlink(), r"val\.rec: no index val\.idx beside it; .*rec2idx"),
        (lambda folder: (folder / "val.idx").write_bytes(b""), r"val\.idx: is empty"),
        (lambda folder: (folder / "val.idx").write_bytes(b"a b c\n"), r"val\.idx: is no index of records"),
        (lambda folder: (folder / "val.rec").unlink(), r"no evaluation images beside train\*\.rec, allowed: val"),
        (lambda folder: (folder / "val.rec").rename(folder / "train-val.rec"), r"train-val\.rec: its name is .* both"),
        (lambda folder: write_records(folder / "train_2.rec", 0), r"train\.rec and train_2\.rec, allowed: one"),
    ],
)
def test_files_that_are_missing_or_too_many_are_refused(
    tmp_path: Path, change: Callable[[Path], object], told: str
) -> None:
    write_records(tmp_path / "train.rec", 0, 1)
    write_records(tmp_path / "val.rec", 0, 1)
    change(tmp_path)
    with pytest.raises(UserError, match=told):
        opened(tmp_path)


def test_an_index_of_another_file_is_a_problem_of_each_record_where_none_begins(tmp_path: Path) -> None:
    write_records(tmp_path / "train.rec", 0, 1)
    write_records(tmp_path / "val.rec", 0, 1)
    (tmp_path / "val.idx").write_text("0\t0\n1\t8\n")
    (problem,) = opened(tmp_path).problems
    assert "val.rec: record 1 at byte 8: damaged" in problem


def test_images_that_lie_together_by_class_are_noted_if_they_are_read_in_this_order(tmp_path: Path) -> None:
    write_records(tmp_path / "val.rec", 0, 1)
    for labels, is_told in (((0, 1) * 8, False), ((0,) * 8 + (1,) * 8, True)):
        write_records(tmp_path / "train.rec", *labels)
        assert any("data.shuffle_buffer" in note for note in opened(tmp_path).notes) is is_told
        assert not any("data.shuffle_buffer" in note for note in opened(tmp_path, in_place=False).notes)


def test_a_recipe_for_image_files_takes_them_in_other_files(tmp_path: Path) -> None:
    """The shipped recipes of ImageNet say folders."""
    write_records(tmp_path / "source/train.rec", 0, 1, 1)
    write_records(tmp_path / "source/val.rec", 0, 1)
    for words in ([], ["--in-place"]):
        folder = tmp_path / f"set{len(words)}"
        assert main(["prepare", str(tmp_path / "source"), str(folder), "--no-recipe", *words]) == 0
        assert load_manifest(folder).source.kind == "records"
        sets = ["data.train_samples=3", "data.eval_samples=2", "batch.global_size=2"]
        for source in ("folders", "records"):
            assert check_dataset(folder, load_recipe("digits", [*sets, f"data.source={source}"]).data, 2)
        with pytest.raises(UserError, match=r"recipe says data\.source: digits"):
            check_dataset(folder, load_recipe("digits", sets).data, 2)


def write_shard(tar: Path, **members: bytes | int) -> None:
    tar.parent.mkdir(exist_ok=True, parents=True)
    with tarfile.open(tar, "w") as archive:
        for name, content in members.items():
            written = jpeg(content) if isinstance(content, int) else content
            member = tarfile.TarInfo(name.replace("__", "."))
            member.size = len(written)
            archive.addfile(member, io.BytesIO(written))


@pytest.mark.parametrize(
    ("members", "told"),
    [
        ({"c__cls": b"cat", "c__jpg": 1}, r"c\.cls: label b'cat', allowed: whole numbers 0 to 999,999"),
        ({"c__cls": b"1000000", "c__jpg": 1}, r"c\.cls: label b'1000000', allowed"),
        ({"c__json": b'{"label": ' + b"[" * 10**5, "c__jpg": 1}, r"c\.json: label .*, allowed"),
        ({"c__cls": b"-1", "c__png": 1}, r"c\.cls: label b'-1', allowed"),
        ({"c__json": b'{"label": "cat"}', "c__jpg": 1}, r"c\.json: label .*cat.*, allowed"),
        ({"c__json": b'{"label"', "c__jpg": 1}, r"c\.json: label .*, allowed"),
        ({"c__json": b'{"label": true}', "c__jpg": 1}, r"c\.json: label .*true.*, allowed"),
        ({"c__cls": b"0", "c__jpg": 1, "c__JPG": 2}, r"c\.jpg is there twice; pack the shard again"),
        ({"c__jpg": 1}, r"c has none of \.cls, \.json"),
        ({"c__cls": b"1"}, r"c has none of \.jpg, \.jpeg, \.png"),
        ({"c__cls": b"4", "c__jpg": 1, "d__txt": b"a caption alone"}, "labels that no training image has: 4"),
    ],
)
def test_samples_without_an_image_or_a_class_are_problems(
    tmp_path: Path, members: dict[str, bytes | int], told: str
) -> None:
    write_shard(tmp_path / "train-0.tar", a__cls=b"0", a__jpg=1, b__jpg=2, b__cls=b"1\n")
    write_shard(tmp_path / "val-0.tar", a__cls=b"0", a__jpg=1, **members)
    (problem,) = opened(tmp_path).problems
    assert re.search(told, problem)


def test_shards_are_told_from_tars_of_class_folders_by_what_is_in_them(tmp_path: Path) -> None:
    for name in ("imagenet1k-train-0000", "val/0"):
        write_shard(tmp_path / f"{name}.tar", a__cls=b"0", a__jpg=1, b__jpg=2, b__cls=b"1\n")
    source = opened(tmp_path)
    assert (source.kind, source.problems, [*source.train.labels]) == ("webdataset", (), [0, 1])
    packed = opened(tmp_path, in_place=False)
    assert (packed.place, packed.train.jpeg(1)) == (None, jpeg(2)), "they can be packed, too"


def test_tars_of_class_folders_are_no_shards_and_cannot_be_read_in_place(tmp_path: Path) -> None:
    for name in ("train", "val"):
        write_shard(tmp_path / f"{name}.tar", **{"a/1__jpg": 1, "b/2__jpg": 2})
    assert opened(tmp_path, in_place=False).kind == "folders"
    with pytest.raises(UserError, match="--in-place does not apply to class folders"):
        opened(tmp_path)
