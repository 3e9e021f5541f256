"""Scikit-learn's digits: the same images for everyone."""

import dataclasses
from typing import Any

import pytest

from data.sources.catalogue import open_source
from data.sources.digits import _read_table
from data.sources.image_source import Settings


def test_the_digits_are_those_that_every_earlier_version_packed() -> None:
    """Other pixels, labels or settings would make every packed copy an older data set."""
    expected = "ed9a0da608fc68cf674c247ee526206df62050d3cda0f46adf6c14029a5139f5"
    assert open_source("digits", Settings()).fingerprint == expected


def test_every_third_digit_is_kept_for_the_evaluation() -> None:
    source, labels = open_source("digits", Settings()), _read_table()[:, -1].astype(int).tolist()
    assert source.eval.labels == labels[2::3]
    del labels[2::3]
    assert source.train.labels == labels


@pytest.mark.parametrize("change", [{"size": 33}, {"quality": 94}], ids=str)
def test_every_setting_of_the_digits_is_in_their_fingerprint(change: dict[str, Any]) -> None:
    prints = {
        open_source("digits", each).fingerprint for each in (Settings(), dataclasses.replace(Settings(), **change))
    }
    assert len(prints) == 2
