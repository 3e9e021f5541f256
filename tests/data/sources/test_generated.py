"""Generated images: the classes take turns."""

from __future__ import annotations

from data.sources.catalogue import open_source
from data.sources.image_source import Settings


def test_every_class_has_its_share_of_the_images() -> None:
    source = open_source("generated", Settings(train=8, eval=5, classes=4))
    assert list(source.train.labels) == [0, 1, 2, 3, 0, 1, 2, 3]
    assert list(source.eval.labels) == [0, 1, 2, 3, 0]
    assert source.class_names == ("class0", "class1", "class2", "class3")
