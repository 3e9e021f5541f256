"""Generated images: the classes take turns, and what a class is can be seen."""

import io
from typing import Any

import numpy as np
from PIL import Image

from data.sources.catalogue import open_source
from data.sources.image_source import Settings


def test_every_class_has_its_share_of_the_images() -> None:
    source = open_source("generated", Settings(train=8, eval=5, classes=4))
    assert list(source.train.labels) == [0, 1, 2, 3, 0, 1, 2, 3]
    assert list(source.eval.labels) == [0, 1, 2, 3, 0]
    assert source.class_names == ("class0", "class1", "class2", "class3")
    assert open_source("generated", Settings(classes=11)).class_names[::10] == ("class00", "class10")


def test_every_setting_is_in_the_fingerprint() -> None:
    others = [{"train": 5}, {"eval": 3}, {"classes": 3}, {"quality": 60}, {"seed": 2}]
    made: list[dict[str, Any]] = [{"train": 4, "eval": 2, "classes": 2, **other} for other in ({}, *others)]
    assert len({open_source("generated", Settings(**each)).fingerprint for each in made}) == 1 + len(others)


def test_no_image_is_in_both_splits_or_under_two_seeds() -> None:
    sources = [open_source("generated", Settings(train=3, eval=3, classes=3, seed=seed)) for seed in (1, 2)]
    images = {split.jpeg(index) for source in sources for split in (source.train, source.eval) for index in range(3)}
    assert len(images) == 2 * 2 * 3
    assert 30_000 < np.mean([*map(len, images)]) < 110_000


def test_a_seed_draws_the_same_image_on_every_machine() -> None:
    encoded = open_source("generated", Settings(train=1, seed=1, quality=100)).train.jpeg(0)
    pixels = np.asarray(Image.open(io.BytesIO(encoded))).astype(int)
    assert pixels.shape == (465, 527, 3)
    drawn = [[165, 48, 101], [150, 46, 57], [237, 102, 46], [222, 72, 37], [196, 7, 45], [210, 44, 156]]
    # Libraries may round differently, and the colours of a JPEG are coarse.
    np.testing.assert_allclose(pixels[::97, ::97].reshape(-1, 3)[:6], drawn, atol=12)


def test_the_commonest_hues_of_a_class_are_its_digits_from_the_last_on() -> None:
    label, shares = 805, np.zeros(10)
    for seed in range(3):
        encoded = open_source("generated", Settings(train=label + 1, classes=1000, seed=seed)).train.jpeg(label)
        hues = np.asarray(Image.open(io.BytesIO(encoded)).convert("HSV"))[:, :, 0]
        shares += np.bincount((np.round(hues / 25.6) % 10).astype(int).ravel(), minlength=10) / hues.size
    assert list(np.argsort(-shares)[:3]) == [5, 0, 8]
