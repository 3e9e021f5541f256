"""RandAugment and TrivialAugment: what became of each image of a stream, found among what Pillow's operations make."""

from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from PIL import Image, ImageEnhance, ImageOps
from scipy.spatial.distance import cdist

from tests.data.input.test_packed import recipe_for, training, write_split

SIDE, OPERATIONS = 24, 14
NEAR = 3.5
"""Mean difference of the numbers (0 to 255) of two images by which both are the same: edges are interpolated otherwise.

Another operation makes an image that is at least 4 away, where the magnitude is not small.
"""
_ENHANCED = {
    "brightness": ImageEnhance.Brightness,
    "colour": ImageEnhance.Color,
    "contrast": ImageEnhance.Contrast,
    "sharpness": ImageEnhance.Sharpness,
}


class Space(NamedTuple):
    """The largest magnitudes, as torchvision has them: ``_augmentation_space`` of each class."""

    shear: float
    translation: float
    degrees: float
    enhancement: float
    bits: int


MEASURED = ("brightness", "contrast", "rotate", "shear_x", "shear_y", "solarize")
"""Operations that show their magnitude."""

RAND = Space(0.3, 150 / 331 * SIDE, 30, 0.9, 4)
WIDE = Space(0.99, 32, 135, 0.99, 2)


def _picture(_: int = 0) -> np.ndarray[Any, Any]:
    """Return a picture of which no two operations make the same: not grey, not symmetric, without black and white."""
    y, x = np.mgrid[:SIDE, :SIDE] / SIDE
    waves = np.stack(
        [60 + 70 * x + 40 * np.sin(5 * y), 90 + 80 * y * x, 150 - 60 * y + 50 * np.sin(9 * x * y)], axis=-1
    )
    checks = 25 * (-1) ** np.indices((SIDE, SIDE)).sum(0)
    pixels: np.ndarray[Any, Any] = np.clip(waves + checks[..., None], 20, 235).astype(np.uint8)
    return pixels


def _equalized(image: Image.Image) -> Image.Image:
    """Return an image as OpenCV's ``equalizeHist`` documents it, channel by channel; Pillow's rounds otherwise."""
    channels = []
    for channel in image.split():
        sums = np.cumsum(channel.histogram()).astype(np.float64)
        least = sums[sums > 0][0]
        channels.append(channel.point(np.rint((sums - least).clip(0) / (sums[-1] - least) * 255).tolist()))
    return Image.merge("RGB", channels)


def _made(image: Image.Image, space: Space, magnitude: int) -> Iterator[tuple[str, Image.Image]]:
    """Yield what the operations make of an image at a magnitude of 0 to 30, with both signs where there are signs."""
    share = magnitude / 30
    yield "identity", image
    yield "autocontrast", ImageOps.autocontrast(image)
    yield "equalize", _equalized(image)
    yield "posterize", ImageOps.posterize(image, round(8 - share * (8 - space.bits)))
    yield "solarize", ImageOps.solarize(image, round(256 - share * 256))
    for sign in (-1, 1):
        shear, move = sign * share * space.shear, sign * share * space.translation
        affine = {
            "shear_x": (1, shear, 0, 0, 1, 0),
            "shear_y": (1, 0, 0, shear, 1, 0),
            "translate_x": (1, 0, move, 0, 1, 0),
            "translate_y": (1, 0, 0, 0, 1, move),
        }
        for name, matrix in affine.items():
            yield name, image.transform(image.size, Image.Transform.AFFINE, matrix, Image.Resampling.BILINEAR)
        yield "rotate", image.rotate(sign * share * space.degrees, Image.Resampling.BILINEAR)
        for name, enhance in _ENHANCED.items():
            yield name, enhance(image).enhance(1 + sign * share * space.enhancement)


def _stream(folder: Path, *overrides: str, count: int = 1000) -> Counter[bytes]:
    """Return the images of a stream of one picture, uint8 in HWC, and how often each of them came."""
    if not (folder / "train.rec").exists():
        write_split(folder, "train", 40, draw=_picture)
    source = training(folder, recipe_for(overrides=[f"model.image_size={SIDE}", *overrides]), batch=50)
    batches = (source.next_batch().images.transpose(0, 2, 3, 1).round().astype(np.uint8) for _ in range(count // 50))
    return Counter(image.tobytes() for batch in batches for image in batch)


def _plain(folder: Path) -> Image.Image:
    (pixels,) = _stream(folder, count=50)
    return Image.frombytes("RGB", (SIDE, SIDE), pixels)


def _found(images: Counter[bytes], made: Sequence[tuple[Any, Image.Image]]) -> Counter[Any]:
    """Return which of the made images came how often: each counts as the one most like it, as None if none is near."""
    stack = np.stack([np.asarray(picture, np.float64).ravel() for _, picture in made])
    given = np.stack([np.frombuffer(pixels, np.uint8) for pixels in images])
    distances = cdist(given, stack, "cityblock") / stack.shape[1]
    found: Counter[Any] = Counter()
    for count, row in zip(images.values(), distances, strict=True):
        found[made[row.argmin()][0] if row.min() < NEAR else None] += count
    return found


def _is_binomial(count: int, draws: int, share: float) -> bool:
    return bool(abs(count - draws * share) < 4 * np.sqrt(draws * share * (1 - share)))


@pytest.mark.medium
@pytest.mark.parametrize("magnitude", [0, 9, 25])
def test_randaugment_draws_each_operation_as_often_and_each_does_what_pillows_does(
    tmp_path: Path, magnitude: int
) -> None:
    settings = ["data.auto_augment=randaugment", "data.randaugment_layers=1"]
    images = _stream(tmp_path, *settings, f"data.randaugment_magnitude={magnitude}")
    made = list(_made(_plain(tmp_path), RAND, magnitude))
    found = _found(images, made)
    if not magnitude:
        assert found.keys() == {"identity", "autocontrast", "equalize"}, "at 0, the others change nothing"
        assert _is_binomial(found["identity"], 1000, 1 - 2 / OPERATIONS)
        return
    assert found.keys() == {name for name, _ in made}
    assert all(_is_binomial(count, 1000, 1 / OPERATIONS) for count in found.values()), found
    signs = _found(images, [(number, picture) for number, (_, picture) in enumerate(made)])
    twins = [number for number, (name, _) in enumerate(made) if [each for each, _ in made].count(name) == 2]
    assert all(_is_binomial(signs[number], 1000, 0.5 / OPERATIONS) for number in twins)


@pytest.mark.medium
def test_layers_of_randaugment_follow_one_another(tmp_path: Path) -> None:
    images = _stream(tmp_path, "data.auto_augment=randaugment", "data.randaugment_magnitude=25")
    once = list(_made(_plain(tmp_path), RAND, 25))
    twice = [made for _, picture in once for made in _made(picture, RAND, 25)]
    assert 1000 - _found(images, once)[None] < 350
    # The second operation may make more of a difference of the first.
    assert _found(images, twice)[None] < 100


@pytest.mark.medium
def test_magnitudes_of_randaugment_spread_as_told(tmp_path: Path) -> None:
    spread = ["data.randaugment_layers=1", "data.randaugment_magnitude=15", "data.randaugment_std=6"]
    images = _stream(tmp_path, "data.auto_augment=randaugment", *spread)
    plain = _plain(tmp_path)
    made = [((name, at), each) for at in range(31) for name, each in _made(plain, RAND, at)]
    found = _found(images, made)
    assert not found[None]
    magnitudes = [at for (name, at), count in found.items() if name in MEASURED for _ in range(count)]
    assert np.mean(magnitudes) == pytest.approx(15, abs=4 * 6 / np.sqrt(len(magnitudes)))
    assert np.std(magnitudes) == pytest.approx(6, rel=0.1)
    wide = [*spread[:2], "data.randaugment_std=30"]
    found = _found(_stream(tmp_path, "data.auto_augment=randaugment", *wide, count=500), made)
    magnitudes = [at for (name, at), count in found.items() if name in MEASURED for _ in range(count)]
    assert not found[None]
    assert _is_binomial(magnitudes.count(30), len(magnitudes), 0.3145), "of the normal distribution, above 29.5"


@pytest.mark.medium
def test_trivialaugment_draws_one_operation_of_any_magnitude_from_the_wide_space(tmp_path: Path) -> None:
    images = _stream(tmp_path, "data.auto_augment=trivialaugment")
    plain = _plain(tmp_path)
    found = _found(images, [((name, at), each) for at in range(31) for name, each in _made(plain, WIDE, at)])
    assert not found[None]
    # Translations by more than the image are all black; those along both axes look alike then.
    for names in (*MEASURED, "translate_x translate_y"):
        strong = sum(count for (name, at), count in found.items() if name in names.split() and at >= 15)
        assert _is_binomial(strong, 1000, len(names.split()) / OPERATIONS * 16 / 31), (names, strong)


@pytest.mark.medium
def test_images_are_mirrored_before_and_plain_images_stay(tmp_path: Path) -> None:
    settings = ["data.auto_augment=randaugment", "data.randaugment_layers=1", "data.randaugment_magnitude=25"]
    images = _stream(tmp_path, *settings, "data.flip=true", count=500)
    plain = _plain(tmp_path)
    mirrored = ImageOps.mirror(plain)
    made = [
        (is_mirrored, each) for is_mirrored in (0, 1) for _, each in _made((plain, mirrored)[is_mirrored], RAND, 25)
    ]
    found = _found(images, made)
    assert not found[None]
    assert _is_binomial(found[1], 500, 0.5)
    recipe = recipe_for(overrides=[f"model.image_size={SIDE}", *settings, "data.plain_from_epoch=2"])
    source = training(tmp_path, recipe)
    source.begin_epoch(2)
    assert len({image.tobytes() for image in source.next_batch().images}) == 1


@pytest.mark.medium
def test_grey_images_are_augmented_as_grey_ones(tmp_path: Path) -> None:
    settings = ["data.auto_augment=randaugment", "data.randaugment_layers=1", "data.randaugment_magnitude=25"]
    plain, images = (_stream(tmp_path, "model.input_channels=1", *given) for given in ([], settings))
    grey = Image.frombytes("L", (SIDE, SIDE), next(iter(plain)))
    made = [(name, each.convert("L")) for name, each in _made(grey.convert("RGB"), RAND, 25)]
    found = _found(images, made)
    assert not found[None]
    assert _is_binomial(found["identity"] + found["colour"], 1000, 2 / OPERATIONS)
