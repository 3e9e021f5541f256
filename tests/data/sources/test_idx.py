"""IDX files: every image and label in order, and a damaged file is named."""

import gzip
import io
import struct
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
from PIL import Image

from configs.errors import UserError
from data.sources.catalogue import open_source
from data.sources.image_source import Settings


def idx_files(root: Path, suffix: str = "", height: int = 9) -> npt.NDArray[np.uint8]:
    """Make the four files of a set of 6 + 4 images, 9 px wide, labels 0, 1, 2, 0 ..., and return the images."""
    images = np.random.default_rng(0).integers(0, 256, (10, height, 9), np.uint8)
    labels = np.arange(10, dtype=np.uint8) % 3
    for stem, part in (("train", slice(6)), ("t10k", slice(6, 10))):
        for kind, array in (("images-idx3", images[part]), ("labels-idx1", labels[part])):
            raw = struct.pack(f">{1 + array.ndim}I", 0x800 | array.ndim, *array.shape) + array.tobytes()
            path = root / f"{stem}-{kind}-ubyte{suffix}"
            path.write_bytes(gzip.compress(raw) if suffix else raw)
    return images


def decode(image: bytes) -> Image.Image:
    return Image.open(io.BytesIO(image))


@pytest.mark.parametrize("suffix", ["", ".gz"])
def test_idx_files_become_rgb_jpegs_of_their_own_size_or_larger(tmp_path: Path, suffix: str) -> None:
    images = idx_files(tmp_path, suffix)
    source = open_source(str(tmp_path), Settings())
    assert (source.train.labels, source.eval.labels) == ([0, 1, 2, 0, 1, 2], [0, 1, 2, 0])
    assert source.class_names == ("0", "1", "2")
    for path in list(tmp_path.iterdir()):  # another spelling of the names
        path.rename(tmp_path / path.name.replace("-idx", ".idx"))
    assert open_source(str(tmp_path), Settings()).fingerprint == source.fingerprint
    image = decode(source.eval.jpeg(1))
    assert (image.format, image.size, image.mode) == ("JPEG", (9, 9), "RGB")
    assert np.abs(np.asarray(image.convert("L"), int) - images[7]).mean() < 8  # noise is JPEG's hardest case
    larger = open_source(str(tmp_path), Settings(size=24))
    assert decode(larger.train.jpeg(0)).size == (24, 24)
    assert larger.fingerprint != source.fingerprint
    with pytest.raises(UserError, match="--size 8: smaller than the images; allowed: at least 9 px"):
        open_source(str(tmp_path), Settings(size=8))


@pytest.mark.parametrize("height", [6, 14])
def test_oblong_images_keep_their_pixels_unless_a_size_is_given(tmp_path: Path, height: int) -> None:
    idx_files(tmp_path, height=height)
    assert decode(open_source(str(tmp_path), Settings()).eval.jpeg(0)).size == (9, height)
    size = min(9, height)
    assert decode(open_source(str(tmp_path), Settings(size=2 * size)).eval.jpeg(0)).size == (18, 2 * height)


BROKEN = r"is no IDX file of bytes in [13] dimensions, or is cut off \(.+\); fetch it again"


@pytest.mark.parametrize(
    ("file", "content", "message"),
    [
        ("t10k-labels-idx1-ubyte", None, "t10k-labels-idx1-ubyte.* is missing"),
        ("train-images-idx3-ubyte", b"\0\0\x08\x03" + struct.pack(">3I", 6, 9, 9) + b"x", BROKEN),
        ("train-images-idx3-ubyte", b"\0\0\x08\x01" + bytes(12), r"begins with 0x00000801\); fetch"),
        ("train-labels-idx1-ubyte", b"\0\0\x08\x01" + struct.pack(">I", 6) + bytes(7), BROKEN),
        (
            "train-labels-idx1-ubyte",
            b"\0\0\x08\x01" + struct.pack(">I", 1) + b"x",
            "train has 6 images of 9 x 9 px, 1 labels",
        ),
        ("t10k-images-idx3-ubyte", b"\0\0", BROKEN),
        ("train-images-idx3-ubyte.gz", b"\x1f\x8bplain", BROKEN),
        ("train-images-idx3-ubyte.gz", gzip.compress(bytes(99), mtime=0)[:-9], BROKEN),
        ("train-labels-idx1-ubyte", b"\0\0\x08\x01" + bytes(4), "train has 6 images of 9 x 9 px, 0 labels; fetch"),
        ("train-images-idx3-ubyte", b"\0\0\x08\x03" + struct.pack(">3I", 6, 0, 9), "6 images of 0 x 9 px, 6 labels"),
        ("train-images-idx3-ubyte", b"\0\0\x08\x03" + struct.pack(">3I", 1 << 16, 1 << 16, 1), BROKEN),
    ],
)
def test_broken_idx_files_are_named(tmp_path: Path, file: str, content: bytes | None, message: str) -> None:
    idx_files(tmp_path, Path(file).suffix)
    (tmp_path / file).unlink()
    if content is not None:
        (tmp_path / file).write_bytes(content)
    with pytest.raises(UserError, match=message):
        open_source(str(tmp_path), Settings())


def test_counts_take_the_first_images_and_begin_anew_where_there_are_fewer(tmp_path: Path) -> None:
    idx_files(tmp_path)
    whole = open_source(str(tmp_path), Settings())
    source = open_source(str(tmp_path), Settings(train=15, eval=2))
    assert (source.train.labels, source.eval.labels) == ([0, 1, 2, 0, 1, 2] * 2 + [0, 1, 2], [0, 1])
    assert [source.train.jpeg(index) for index in (1, 7)] == [whole.train.jpeg(1)] * 2
    assert source.fingerprint != whole.fingerprint
    coarse = open_source(str(tmp_path), Settings(quality=50))
    assert len({whole.fingerprint, source.fingerprint, coarse.fingerprint}) == 3
    assert len(coarse.train.jpeg(0)) < len(whole.train.jpeg(0))


def test_a_table_gives_idx_images_the_labels_of_their_class(tmp_path: Path) -> None:
    idx_files(tmp_path)
    table = tmp_path / "labels.csv"
    table.write_text("class,labels\n0,round\n1,\n2,long|round\n", encoding="utf-8")
    source = open_source(str(tmp_path), Settings(labels=table))
    assert (source.kind, source.class_names) == ("table", ("long", "round"))
    assert source.eval.labels == [(0, 1), (0, 0), (1, 1), (0, 1)]
    assert source.train.jpeg(3) == open_source(str(tmp_path), Settings()).train.jpeg(3)
    table.write_text("class,labels\n2,long|round\n1,\n0,round\n", encoding="utf-8")
    assert open_source(str(tmp_path), Settings(labels=table)).eval.labels == source.eval.labels
    assert open_source(str(tmp_path), Settings(labels=table, size=10)).fingerprint != source.fingerprint
    for wrong in ("0, 3", "0, 1, 2, 3"):
        table.write_text("class,labels\n" + "".join(f"{each},a\n" for each in wrong.split(", ")), encoding="utf-8")
        with pytest.raises(UserError, match=f"names {wrong}, allowed: each of the classes 0, 1, 2$"):
            open_source(str(tmp_path), Settings(labels=table))


@pytest.mark.parametrize("place", ["train-images-idx3", "train-labels-idx1", "t10k-images-idx3", "t10k-labels-idx1"])
def test_another_pixel_or_label_is_another_data_set_and_a_class_that_cannot_be_learnt_is_a_problem(
    tmp_path: Path, place: str
) -> None:
    idx_files(tmp_path)
    before = open_source(str(tmp_path), Settings())
    path = tmp_path / f"{place}-ubyte"
    path.write_bytes(path.read_bytes()[:-1] + b"\5")
    after = open_source(str(tmp_path), Settings())
    assert after.fingerprint != before.fingerprint
    assert len(after.class_names) == (6 if "labels" in place else 3)
    assert ["labels that no training image has: 5" in each for each in after.problems] == [True] * ("k-labels" in place)


def test_the_first_images_may_lack_classes_of_the_evaluation_images(tmp_path: Path) -> None:
    idx_files(tmp_path)
    source = open_source(str(tmp_path), Settings(train=2))
    assert (source.problems, source.class_names) == ((), ("0", "1", "2"))
