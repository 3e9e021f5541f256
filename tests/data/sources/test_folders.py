"""Class folders: bytes are kept, labels follow the sorted names, and a file that does not belong is named."""

import io
import itertools
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from configs.errors import UserError
from data.prepare import prepare
from data.sources.catalogue import open_source
from data.sources.image_source import Settings
from tests.programs import python, run_program


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


@pytest.mark.parametrize(
    "command",
    [
        "mv train/n02/a.jpg train/n02/a2.jpg",
        "mv val/n02/x.JPG val/n01/x.JPG",
        "truncate -s +1 val/n02/x.JPG",
        "mv train/n02 train/n03; mv val/n02 val/n03",
    ],
)
def test_a_file_of_another_name_class_or_length_or_a_class_of_another_name_is_another_data_set(
    class_folders: Path, command: str
) -> None:
    (class_folders / "val/n01/y.JPEG").unlink()  # so that an image changes its class alone, not its place in the list
    before = open_source(str(class_folders), Settings()).fingerprint
    assert open_source(str(class_folders), Settings()).fingerprint == before
    subprocess.run(["bash", "-ec", command], cwd=class_folders, check=True)
    assert open_source(str(class_folders), Settings()).fingerprint != before


# What is done to the class folders by bash, and what is told of it.
SPOILT = [
    ("cp train/n01/c.jpeg val/ILSVRC2012_val_00000001.JPEG",
     "/val: files where class folders should be: ILSVRC2012_val_00000001.JPEG; sort them"),
    ("touch train/n01/{0..6}.txt",
     "n01: not image files (.jpg, .jpeg, .png): 0.txt, 1.txt, 2.txt, 3.txt, 4.txt and 2 more; convert"),
    ("mkdir val/n{10,09,08,07,06,05}; for each in val/n{10,09,08,07,06,05}; do touch $each/a.png; done",
     "/val: classes that train does not have: 'n05', 'n06', 'n07', 'n08', 'n09' and 1 more; rename or remove"),
    ("mkdir train/n03", "/train: n03: a class folder without an image; fill or remove it"),
    ("mkdir train/n01/more.jpg",
     "/train/n01: not image files (.jpg, .jpeg, .png): more.jpg (a folder); convert, move or remove"),
    ("ln -s nowhere train/n02/z.jpg",
     "/train/n02: not image files (.jpg, .jpeg, .png): z.jpg (a link to nothing); convert"),
    ("ln -s z.jpg train/n02/z.jpg",
     "/train/n02: not image files (.jpg, .jpeg, .png): z.jpg (a link to nothing); convert"),
    ("mv val/n02 val/n09; ln -s nowhere val/n02", "/val: files where class folders should be: n02; sort them into"),
    (r"for each in train val; do mv $each/n02 $each/caf$'\xe9'; done",
     "/train: caf\\xe9: a class name that is not UTF-8; rename the folder"),
    ("mv train/n02 train/caf\u00e9; mv val/n02 val/cafe\u0301",
     "/val: classes that train does not have: 'cafe\\u0301'; rename"),
    ("cp -r train/n02 train/caf\u00e9; mv train/n02 train/cafe\u0301",
     "/train: 'caf\\xe9' prints like 'cafe\\u0301'; rename"),
    ("cp -r train/n02 train/n02\u200b", "/train: 'n02\\u200b' prints like 'n02'; rename"),
    ("rm val/*/*", "/val: no image in its class folders; fill them, or remove"),
]  # fmt: skip


@pytest.mark.parametrize(("command", "message"), SPOILT)
def test_what_does_not_belong_in_class_folders_is_named(class_folders: Path, command: str, message: str) -> None:
    subprocess.run(["bash", "-ec", command], cwd=class_folders, check=True)
    problems = open_source(str(class_folders), Settings()).problems
    assert [each for each in problems if message in each], problems


@pytest.mark.ranks
def test_a_class_folder_that_cannot_be_listed_is_named_as_it_is(class_folders: Path) -> None:
    # Root may list all folders: in a namespace where it is another user, it may not.
    user = [] if os.geteuid() else ["unshare", "--user", "--map-user=12345"]
    if subprocess.run([*user, "true"], capture_output=True, check=False).returncode:
        pytest.skip("no namespaces of users here")
    (class_folders / "train" / "n01").chmod(0)
    done = run_program(*user, sys.executable, "-m", "data", "prepare", "--check", str(class_folders))
    (class_folders / "train" / "n01").chmod(0o755)
    assert done.returncode == 2, done.stdout
    assert f"{class_folders}/train/n01: cannot be read: Permission denied; check its permissions" in done.stderr


@pytest.mark.ranks
def test_damaged_notes_of_a_camera_are_no_warning_of_pythons(class_folders: Path) -> None:
    path = class_folders / "train" / "n01" / "c.jpeg"
    exif = b"Exif\0\0II*\0\x08\0\0\0\xff\xff"  # ends before the first of 65,535 entries
    path.write_bytes(jpeg(1)[:2] + b"\xff\xe1" + (2 + len(exif)).to_bytes(2, "big") + exif + jpeg(1)[2:])
    done = python("-m", "data", "prepare", "--check", str(class_folders), "--workers", "1")
    assert done.returncode == 0, done.stdout
    assert [line for line in done.stderr.splitlines() if not line.startswith("note: ")] == []


def test_a_split_without_folders_is_refused(class_folders: Path) -> None:
    shutil.rmtree(class_folders / "train")
    (class_folders / "train").mkdir()
    with pytest.raises(UserError, match="/train: no class folder in it; make one for each class"):
        open_source(str(class_folders), Settings())


def test_a_part_called_training_is_one_and_letter_case_tells_classes_apart(tmp_path: Path) -> None:
    for split, name in itertools.product(("Training", "validation"), ("cat", "Cat")):
        (tmp_path / split / name).mkdir(parents=True)
        (tmp_path / split / name / "a.jpg").write_bytes(jpeg(1))
    source = open_source(str(tmp_path), Settings())
    assert (len(source.train.labels), len(source.eval.labels), source.class_names) == (2, 2, ("Cat", "cat"))


def test_a_class_without_evaluation_images_is_noted(class_folders: Path) -> None:
    shutil.rmtree(class_folders / "val/n01")
    source = open_source(str(class_folders), Settings())
    assert "no evaluation image of n01: the accuracy does not cover these classes" in source.notes
    assert source.eval.labels == [1], "labels count the classes of training"


def images_in(root: Path, *names: str) -> Path:
    """Make different images in class folders of 12 x 10 px."""
    for number, name in enumerate(names):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(jpeg(number % 250) + bytes(number))
    return root


ONE_CLASS = [f"{number} \u00e4.jpg" for number in range(10)]


@pytest.mark.parametrize("train", [".", "train", "Train"])
def test_without_an_evaluation_part_a_share_of_each_class_is_held_out(tmp_path: Path, train: str) -> None:
    names = [f"{train}/my cats/{name}" for name in ONE_CLASS] + [
        f"{train}/d\u00f6gs/{number}.PNG" for number in range(3)
    ]
    images_in(tmp_path, *names, f"{train}/one/a.jpg")

    def held_out(**settings: Any) -> set[bytes]:
        source = open_source(str(tmp_path), Settings(**settings))
        assert source.problems == ()
        assert source.class_names == ("d\u00f6gs", "my cats", "one")
        parts = [{split.jpeg(index) for index in range(len(split.labels))} for split in (source.train, source.eval)]
        assert parts[0].isdisjoint(parts[1])
        assert parts[0] | parts[1] == {(tmp_path / name).read_bytes() for name in [*names, f"{train}/one/a.jpg"]}
        shares.append([list(source.eval.labels).count(label) for label in range(3)])
        return parts[1]

    shares: list[list[int]] = []
    assert held_out() == held_out(eval_share=20) != held_out(seed=2)
    assert held_out(eval_share=50) > held_out()  # a larger share takes more of the same order
    held_out(eval_share=90)
    # 20 % of 3 is less than an image, 90 % would be all of them, and a single image is for training.
    assert shares == [[1, 2, 0]] * 3 + [[2, 5, 0], [1, 2, 0], [2, 9, 0]]


def test_equal_files_are_held_out_together(tmp_path: Path) -> None:
    images_in(tmp_path, "a/1.jpg", "a/2.jpg", "b/1.jpg", "b/2.jpg")
    for number in range(20):
        for name in ("1", "2"):
            shutil.copy(tmp_path / f"a/{name}.jpg", tmp_path / f"a/{name} copy {number}.jpg")
    for seed in range(5):
        source = open_source(str(tmp_path), Settings(seed=seed))
        train, evaluation = (
            {split.jpeg(number) for number in range(len(split.labels))} for split in (source.train, source.eval)
        )
        assert train.isdisjoint(evaluation)
        assert list(source.eval.labels) == [0] * 21 + [1]


def test_images_for_evaluation_that_are_also_in_train_are_noted(tmp_path: Path) -> None:
    images_in(tmp_path, "train/a/1.jpg", "train/a/2.jpg", "train/b/3.jpg", "val/b/4.jpg")
    assert not any("also in" in note for note in open_source(str(tmp_path), Settings()).notes)
    shutil.copytree(tmp_path / "train/a", tmp_path / "val/a")
    # An image of the same name and length that shows something else is another image.
    other = bytearray((tmp_path / "val/a/2.jpg").read_bytes())
    other[-3] ^= 1
    (tmp_path / "val/a/2.jpg").write_bytes(other)
    notes = open_source(str(tmp_path), Settings()).notes
    assert f"{tmp_path}/val: also in train: a/1.jpg (1 image): the accuracy counts images seen in training" in notes


@pytest.mark.parametrize("name", ["val", "valid", "Validation", "test"])
def test_the_evaluation_part_has_several_names(tmp_path: Path, name: str) -> None:
    images_in(tmp_path, "train/a/1.jpg", "train/b/2.jpg", f"{name}/b/3.jpg")
    source = open_source(str(tmp_path), Settings())
    assert (source.train.labels, source.eval.labels) == ([0, 1], [1])
    with pytest.raises(UserError, match=f"--eval-share 30: .*/{name} has the evaluation images; leave it out"):
        open_source(str(tmp_path), Settings(eval_share=30))


def test_of_val_and_test_the_first_is_the_evaluation_part(tmp_path: Path) -> None:
    images_in(tmp_path, "train/a/1.jpg", "train/b/2.jpg", "val/b/3.jpg", "test/a/4.jpg", "test/a/5.jpg")
    source = open_source(str(tmp_path), Settings())
    assert source.eval.labels == [1]
    images_in(tmp_path, "valid/a/1.jpg")
    with pytest.raises(UserError, match="evaluation images in val and valid, allowed: one such folder; rename"):
        open_source(str(tmp_path), Settings())


@pytest.mark.parametrize("place", ["packed", "a/packed"])
def test_a_data_set_that_was_packed_into_its_source_is_neither_class_nor_image(tmp_path: Path, place: str) -> None:
    images_in(tmp_path, "a/1.jpg", "a/2.jpg", "b/1.jpg", "b/2.jpg")
    before = open_source(str(tmp_path), Settings())
    prepare(before, tmp_path / place)
    _, was_there = prepare(open_source(str(tmp_path), Settings()), tmp_path / place)
    assert was_there


def test_a_class_may_be_called_train(tmp_path: Path) -> None:
    source = open_source(str(images_in(tmp_path, "train/1.jpg", "bus/2.jpg", "bus/3.jpg", "train/4.jpg")), Settings())
    assert (source.class_names, source.problems) == (("bus", "train"), ())


def test_hidden_files_and_those_of_operating_systems_are_left_out(class_folders: Path) -> None:
    (class_folders / "train/.ipynb_checkpoints").mkdir()
    (class_folders / "train/.ipynb_checkpoints/a.jpg").write_bytes(jpeg(1))
    (class_folders / "train/lost+found").mkdir()
    for name in ("train/n01/._c.jpeg", "val/n02/Thumbs.db", "val/desktop.ini", "train/n02/.DS_Store"):
        (class_folders / name).write_bytes(b"")
    source = open_source(str(class_folders), Settings())
    assert (source.problems, len(source.train.labels), len(source.eval.labels)) == ((), 3, 2)


LEVEL = (
    "neither a folder of images for each class .*; give the folder that holds them, unpacked; images are JPEG or PNG"
)


@pytest.mark.parametrize(
    ("names", "given", "message"),
    [
        (["train/a/1.jpg", "train/b/1.jpg", "val/a/1.jpg"], "val", "is one part of a data set, .*; give {root}$"),
        (["1.jpg", "2.jpg"], ".", LEVEL),
        (["in/a/1.jpg", "in/b/1.jpg"], ".", LEVEL),
        (["a/1.HEIC", "b/1.heic"], ".", LEVEL),
        (["a/1.jpg"], "a/1.jpg", LEVEL),
    ],
)
def test_a_folder_of_the_wrong_level_is_refused_with_what_is_allowed(
    tmp_path: Path, names: list[str], given: str, message: str
) -> None:
    images_in(tmp_path / "set", *names)
    with pytest.raises(UserError, match=message.format(root=tmp_path / "set")) as caught:
        open_source(str(tmp_path / "set" / given), Settings())
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("names", "problem"),
    [
        (["a/1.jpg", "a/2.jpg"], ": one class (a), allowed: at least two; add the folder of another one"),
        (["train/1.jpg", "val1/2.jpg"], ": images lie directly in train, val1; move them into a folder for each class"),
        (["x_part_1/1.jpg", "x_part_2/2.jpg"],
         ": images lie directly in x_part_1, x_part_2; move them into a folder for each class"),
    ],
)  # fmt: skip
def test_images_that_make_no_classes_are_a_problem(tmp_path: Path, names: list[str], problem: str) -> None:
    assert open_source(str(images_in(tmp_path, *names)), Settings()).problems == (f"{tmp_path}{problem}",)


def test_uneven_classes_are_noted(tmp_path: Path) -> None:
    images_in(
        tmp_path,
        *[f"train/a/{number}.jpg" for number in range(20)],
        *("train/b\n/1.jpg", "val/a/1.jpg", "val/b\n/1.jpg"),
    )
    assert open_source(str(tmp_path), Settings()).notes == (
        "train: 2 class folders; val: 2 class folders",
        r"uneven classes (20 of a, 1 of b\n): a network may name the frequent ones too often; "
        "loss.class_weights=balanced weighs all classes alike",
    )


@pytest.mark.parametrize(("mode", "size", "is_told"), [("RGBA", None, True), ("RGBA", 8, True), ("RGB", None, False)])
def test_transparent_images_are_told_of_because_alpha_is_dropped(
    tmp_path: Path, mode: str, size: int | None, is_told: bool
) -> None:
    for name in ("a/1.png", "a/2.png", "b/1.png", "b/2.png"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        Image.new(mode, (20, 20)).save(tmp_path / name)
    notes = open_source(str(tmp_path), Settings(size=size)).notes
    assert any("alpha is dropped" in note for note in notes) == is_told


@pytest.mark.parametrize(
    ("side", "size", "packed", "note"),
    [
        (600, None, 256, "images of 600 px (shorter side, median) are scaled to 256 px; --size keep keeps them"),
        (600, 0, 600, None),
        (600, 64, 64, None),
        (500, None, 500, None),
    ],
)
def test_photographs_are_scaled_unless_one_says_otherwise(
    tmp_path: Path, side: int, size: int | None, packed: int, note: str | None
) -> None:
    for name in ("a/1.jpg", "a/2.jpg", "b/1.jpg", "b/2.jpg"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        Image.new("RGB", (side + 40, side)).save(tmp_path / name)
    source = open_source(str(tmp_path), Settings(size=size))
    assert min(Image.open(io.BytesIO(source.train.jpeg(0))).size) == packed
    assert [each for each in source.notes if "px" in each] == ([] if note is None else [note])
