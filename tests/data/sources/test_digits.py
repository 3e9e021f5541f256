"""Scikit-learn's digits: the same images for everyone."""

from data.sources.catalogue import open_source
from data.sources.image_source import Settings


def test_the_digits_are_those_that_every_earlier_version_packed() -> None:
    """Other pixels, labels or settings would make every packed copy an older data set."""
    expected = "ed9a0da608fc68cf674c247ee526206df62050d3cda0f46adf6c14029a5139f5"
    assert open_source("digits", Settings()).fingerprint == expected
