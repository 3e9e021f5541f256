"""Class folders: bytes are kept, labels follow the sorted names, and a file that does not belong is named."""

import io
import itertools
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from PIL import Image

from configs.errors import UserError
from data.prepare import prepare
from data.sources.catalogue import open_source
from data.sources.image_source import Settings


def jpeg(color: int) -> bytes:
    buffer = io.BytesIO()
    Image.new("RGB", (12, 10), (color,) * 3).save(buffer, "JPEG")
    return buffer.getvalue()


@pytest.fixture
def class_folders(tmp_path: Path) -> Path:
    """Make two classes in the ImageNet layout."""
    paths = ("train/n02/b.JPEG", "train/n02/a.jpg", "train/n01/c.jpeg", "val/n02/x.JPG", "val/n01/y.JPEG")
    for number, path in enumerate(paths):
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_bytes(jpeg(40 * number))
    return tmp_path


def test_class_folders_keep_their_bytes_and_sorted_classes(class_folders: Path) -> None:
    (class_folders / "train/n01/link.jpg").symlink_to(class_folders / "train/n02/a.jpg")
    source = open_source(str(class_folders), Settings())
    assert (source.kind, source.class_names) == ("folders", ("n01", "n02"))
    assert (source.train.labels, source.eval.labels) == ([0, 0, 1, 1], [0, 1])
    paths = ("train/n01/c.jpeg", "train/n02/a.jpg", "train/n02/a.jpg", "train/n02/b.JPEG")
    assert [source.train.jpeg(index) for index in range(4)] == [(class_folders / path).read_bytes() for path in paths]
    assert source.eval.jpeg(1) == (class_folders / "val/n02/x.JPG").read_bytes()


def test_labels_of_evaluation_images_count_the_classes_of_training(class_folders: Path) -> None:
    (class_folders / "val/n01/y.JPEG").unlink()
    (class_folders / "val/n01").rmdir()
    source = open_source(str(class_folders), Settings())
    assert (source.class_names, source.eval.labels) == (("n01", "n02"), [1])
    assert source.eval.jpeg(0) == (class_folders / "val/n02/x.JPG").read_bytes()


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("train/n02/a.jpg", "train/n02/a2.jpg"),
        ("val/n02/x.JPG", "val/n01/x.JPG"),
        ("train/n02/a.jpg", None),
        ("val/n02/x.JPG", None),
    ],
)
def test_a_file_with_another_name_class_or_length_is_another_data_set(
    class_folders: Path, old: str, new: str | None
) -> None:
    (
        class_folders / "val/n01/y.JPEG"
    ).unlink()  # so that an image can change its class alone, not its place in the list
    before = open_source(str(class_folders), Settings()).fingerprint
    assert open_source(str(class_folders), Settings()).fingerprint == before
    if new is None:
        (class_folders / old).write_bytes(jpeg(7) + b"\0")
    else:
        (class_folders / old).rename(class_folders / new)
    assert open_source(str(class_folders), Settings()).fingerprint != before


def test_a_renamed_class_is_another_data_set(class_folders: Path) -> None:
    before = open_source(str(class_folders), Settings())
    for split in ("train", "val"):
        (class_folders / split / "n02").rename(class_folders / split / "n03")
    after = open_source(str(class_folders), Settings())
    assert after.train.labels == before.train.labels
    assert after.fingerprint != before.fingerprint


def test_a_folder_with_training_images_alone_is_not_taken_for_class_folders(class_folders: Path) -> None:
    shutil.rmtree(class_folders / "val")
    with pytest.raises(UserError, match=r"neither .*; give the folder that holds them"):
        open_source(str(class_folders), Settings())


def flat_validation(root: Path) -> None:
    (root / "val/ILSVRC2012_val_00000001.JPEG").write_bytes(jpeg(1))


def foreign_files(root: Path) -> None:
    for number in range(7):
        (root / f"train/n01/{number}.txt").write_bytes(b"")


def strange_classes(root: Path) -> None:
    for name in ("n10", "n09", "n08", "n07", "n06", "n05"):
        (root / "val" / name).mkdir()
        (root / "val" / name / "a.png").write_bytes(b"")


def hidden_class(root: Path) -> None:
    (root / "train/.ipynb_checkpoints").mkdir()
    (root / "train/.ipynb_checkpoints/a.jpg").write_bytes(jpeg(1))


def hidden_image(root: Path) -> None:
    (root / "train/n01/._c.jpeg").write_bytes(b"")


def empty_class(root: Path) -> None:
    (root / "train/n03").mkdir()


def folder_in_class(root: Path) -> None:
    (root / "train/n01/more.jpg").mkdir()


def broken_link(root: Path) -> None:
    (root / "train/n02/z.jpg").symlink_to(root / "nowhere")


def broken_class(root: Path) -> None:
    (root / "val/n02").rename(root / "val/n09")
    (root / "val/n02").symlink_to(root / "nowhere")


def endless_link(root: Path) -> None:
    (root / "train/n02/z.jpg").symlink_to(root / "train/n02/z.jpg")


def no_utf8(root: Path) -> None:
    for split in ("train", "val"):
        (root / split / "n02").rename(os.fsdecode(bytes(root / split) + b"/caf\xe9"))


def unicode_form(root: Path) -> None:
    (root / "train/n02").rename(root / "train/caf\u00e9")
    (root / "val/n02").rename(root / "val/cafe\u0301")


def twice(root: Path) -> None:
    shutil.copytree(root / "train/n02", root / "train/caf\u00e9")
    (root / "train/n02").rename(root / "train/cafe\u0301")


def letter_case(root: Path) -> None:
    (root / "val/n02").rename(root / "val/N02")


def no_images(root: Path) -> None:
    for path in root.glob("val/*/*"):
        path.unlink()


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (flat_validation, "/val: files where class folders should be: ILSVRC2012_val_00000001.JPEG; sort them"),
        (foreign_files, "n01: not image files (.jpg, .jpeg, .png): 0.txt, 1.txt, 2.txt, 3.txt, 4.txt and 2 more; conv"),
        (
            strange_classes,
            "/val: classes that train does not have: n05, n06, n07, n08, n09 and 1 more; rename or remove",
        ),
        (hidden_class, "/train: .ipynb_checkpoints: hidden entries are not classes; remove it"),
        (hidden_image, "/train/n01: not image files (.jpg, .jpeg, .png): ._c.jpeg (hidden); convert or remove"),
        (empty_class, "/train: n03: a class folder without an image; fill or remove it"),
        (folder_in_class, "/train/n01: not image files (.jpg, .jpeg, .png): more.jpg (a folder); convert or remove"),
        (broken_link, "/train/n02: not image files (.jpg, .jpeg, .png): z.jpg (a broken link); convert"),
        (broken_class, "/val: files where class folders should be: n02 (a broken link); sort them into"),
        (endless_link, "/train/n02: not image files (.jpg, .jpeg, .png): z.jpg (Too many levels of symbolic links)"),
        (no_utf8, "/train: caf\\xe9: a class name that is not UTF-8; rename the folder"),
        (unicode_form, "cafe\u0301 (train spells it in another Unicode form: 'cafe\\u0301', not 'caf\\xe9'); rename"),
        (twice, "/train: 'caf\u00e9' occurs twice (train spells it in another Unicode form: 'caf\\xe9', not 'cafe"),
        (letter_case, "train does not have: N02 (train has 'n02': letter case and spaces count); rename or remove"),
        (no_images, "/val: n01: a class folder without an image; fill or remove it"),
    ],
)
def test_what_does_not_belong_in_class_folders_is_named(
    class_folders: Path, spoil: Callable[[Path], None], message: str
) -> None:
    spoil(class_folders)
    problems = open_source(str(class_folders), Settings()).problems
    assert [each for each in problems if message in each], problems
    with pytest.raises(UserError) as caught:
        prepare(open_source(str(class_folders), Settings()), class_folders / "out")
    assert "\n" not in str(caught.value)
    assert not (class_folders / "out").exists()


def test_a_split_without_folders_is_refused(class_folders: Path) -> None:
    shutil.rmtree(class_folders / "train")
    (class_folders / "train").mkdir()
    with pytest.raises(UserError, match="/train: no class folder in it; make one for each class"):
        open_source(str(class_folders), Settings())


def test_numbers_as_class_names_are_noted_where_their_order_is_that_of_texts(tmp_path: Path) -> None:
    for split, name in itertools.product(("train", "val"), ("1", "2", "10")):
        (tmp_path / split / name).mkdir(parents=True)
        (tmp_path / split / name / "a.jpg").write_bytes(jpeg(1))
    source = open_source(str(tmp_path), Settings())
    assert source.class_names == ("1", "10", "2")
    assert source.notes == (
        f"{tmp_path}/train: class names are sorted as texts, not as numbers: class '2' has label 2",
    )


def test_a_class_without_evaluation_images_is_noted(class_folders: Path) -> None:
    shutil.rmtree(class_folders / "val/n01")
    source = open_source(str(class_folders), Settings())
    assert source.problems == ()
    assert source.notes == (f"{class_folders}/val: no image of n01: the accuracy does not cover these classes",)
