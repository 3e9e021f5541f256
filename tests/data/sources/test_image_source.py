"""Images on their way into a record: scaled by the shorter side, encoded at the quality that was asked for."""

import io
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from configs.errors import UserError
from data.images import encode_jpeg, read_image, resize_image
from data.sources.image_source import array_split, check_size, fingerprint, sha256_of

PIXELS = np.random.default_rng(0).integers(0, 256, (20, 30, 3), np.uint8)


def _tables_of(quality: int) -> object:
    """Return the quantization tables that libjpeg has for a quality."""
    file = io.BytesIO()
    Image.new("RGB", (8, 8)).save(file, "JPEG", quality=quality)
    return Image.open(file).quantization  # type: ignore[attr-defined]


@pytest.mark.parametrize("quality", [50, 95, 100])
def test_a_jpeg_has_the_quality_that_was_asked_for(quality: int, tmp_path: Path) -> None:
    image = Image.fromarray(PIXELS)
    image.save(tmp_path / "a.png")
    split = array_split(PIXELS[None], np.array([3], np.uint8), 20, quality)
    for jpeg in (encode_jpeg(image, quality), split.jpeg(0), read_image(tmp_path / "a.png", 20, quality)):
        assert Image.open(io.BytesIO(jpeg)).quantization == _tables_of(quality)  # type: ignore[attr-defined]
    assert split.labels == [3]


@pytest.mark.parametrize(
    ("shape", "size", "expected"),
    [
        ((20, 30), 40, (60, 40)),
        ((30, 20), 40, (40, 60)),
        ((20, 30), 20, (30, 20)),
        ((20, 27), 10, (14, 10)),
        ((21, 28), 10, (13, 10)),
    ],
)
def test_the_shorter_side_gets_the_size(shape: tuple[int, int], size: int, expected: tuple[int, int]) -> None:
    assert resize_image(Image.new("RGB", shape[::-1]), size).size == expected


def test_images_are_scaled_by_pillows_bicubic_filter() -> None:
    image = Image.fromarray(PIXELS)
    expected = image.resize((60, 40), Image.Resampling.BICUBIC)
    np.testing.assert_array_equal(np.asarray(resize_image(image, 40)), np.asarray(expected))


def test_a_size_below_the_images_is_refused_and_their_own_is_not() -> None:
    check_size(28, 28)
    with pytest.raises(UserError, match="--size 27"):
        check_size(27, 28)


def test_equal_parts_in_another_place_or_of_another_form_have_another_fingerprint() -> None:
    parts: list[tuple[object, ...]] = [(1, 2), (2, 1), ("1", 2), ([1], 2), (1, 2, None), (12,)]
    assert len({fingerprint(*each) for each in parts}) == len(parts)
    assert fingerprint("idx", (1, 2)) == fingerprint("idx", [1, 2])
    assert sha256_of(PIXELS) != sha256_of(PIXELS + np.uint8(1))
