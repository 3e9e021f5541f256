"""The source is found by name or by what a folder holds, and takes only its own options."""

from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any, cast

import pytest

from configs.errors import UserError
from configs.registry import SOURCES
from data.sources.catalogue import open_source
from data.sources.image_source import Settings


@pytest.mark.parametrize("option", ["train", "eval", "classes", "labels"])
def test_an_option_of_another_source_is_refused_with_the_sources_that_take_it(tmp_path: Path, option: str) -> None:
    for split in ("train", "val"):
        (tmp_path / split).mkdir()
    takers = ", ".join(kind for kind in SOURCES if option in import_module(SOURCES[kind]).OPTIONS)
    with pytest.raises(UserError, match=f"--{option} does not apply to folders, only to {takers}; leave it out"):
        open_source(str(tmp_path), replace(Settings(), **cast(Any, {option: 50})))


def test_tables_win_over_the_class_folders_that_hold_their_images(tmp_path: Path) -> None:
    for split in ("train", "val"):
        (tmp_path / split).mkdir()
        (tmp_path / f"{split}.csv").write_text("file,labels\n", encoding="utf-8")
    with pytest.raises(UserError, match=r"train\.csv: names no file"):
        open_source(str(tmp_path), Settings())


def test_the_digits_are_those_that_every_earlier_version_packed() -> None:
    """Other pixels, labels or settings would make every packed copy an older data set."""
    expected = "ed9a0da608fc68cf674c247ee526206df62050d3cda0f46adf6c14029a5139f5"
    assert open_source("digits", Settings()).fingerprint == expected
