"""The source is found by name or by what a folder holds, and takes only its own options."""

import io
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest
from PIL import Image

from configs.errors import UserError
from configs.registry import BUILT_IN_SOURCES, SOURCES, module_of
from data.sources.catalogue import open_source
from data.sources.image_source import Settings, SourceModule


@pytest.mark.parametrize("kind", SOURCES)
def test_every_module_of_the_registry_fills_the_protocol(kind: str, tmp_path: Path) -> None:
    module = module_of(SOURCES, kind)
    members = ("LAYOUT", "OPTIONS", "open_source", "recognises")
    assert set(members) <= {*SourceModule.__annotations__, *vars(SourceModule)}
    assert all(hasattr(module, member) for member in members)
    assert set(module.OPTIONS) < set(Settings.__dataclass_fields__)
    assert module.recognises(kind) == (kind in BUILT_IN_SOURCES)
    assert not module.recognises(str(tmp_path))


def test_a_built_in_source_takes_the_counts_that_the_program_packs_it_with() -> None:
    assert all(set(counts) <= set(module_of(SOURCES, kind).OPTIONS) for kind, counts in BUILT_IN_SOURCES.items())


@pytest.mark.parametrize("option", ["train", "eval", "classes", "labels"])
def test_an_option_of_another_source_is_refused_with_the_sources_that_take_it(tmp_path: Path, option: str) -> None:
    for split in ("train", "val"):
        (tmp_path / split).mkdir()
    takers = ", ".join(kind for kind in SOURCES if option in module_of(SOURCES, kind).OPTIONS)
    with pytest.raises(UserError, match=f"--{option} does not apply to folders, only to {takers}; leave it out"):
        open_source(str(tmp_path), replace(Settings(), **cast(Any, {option: 50})))


def test_the_message_for_an_unknown_folder_names_all_layouts(tmp_path: Path) -> None:
    with pytest.raises(UserError) as caught:
        open_source(str(tmp_path), Settings())
    layouts = [module_of(SOURCES, kind).LAYOUT for kind in SOURCES if kind not in BUILT_IN_SOURCES]
    assert len(layouts) >= 3
    assert all(layout in str(caught.value) for layout in layouts)


def test_tables_win_over_the_class_folders_that_hold_their_images(tmp_path: Path) -> None:
    for split in ("train", "val"):
        (tmp_path / split).mkdir()
        (tmp_path / f"{split}.csv").write_text("file,labels\n", encoding="utf-8")
    with pytest.raises(UserError, match=r"train\.csv: names no file"):
        open_source(str(tmp_path), Settings())


@pytest.mark.parametrize("change", [{"train": 5}, {"eval": 3}, {"classes": 3}, {"quality": 60}, {"seed": 2}], ids=str)
def test_every_setting_of_generated_images_is_in_their_fingerprint(change: dict[str, Any]) -> None:
    settings = Settings(train=4, eval=2, classes=2)
    prints = {open_source("generated", each).fingerprint for each in (settings, replace(settings, **change))}
    assert len(prints) == 2
    defaults = open_source("generated", Settings())
    assert (len(defaults.train.labels), len(defaults.eval.labels), len(defaults.class_names)) == (256, 64, 10)
    assert defaults.description == "generated images, seed 1, JPEG quality 95"


def test_generated_images_are_of_the_size_of_imagenets() -> None:
    split = open_source("generated", Settings(train=9)).train
    jpegs = [split.jpeg(index) for index in range(9)]
    sizes = [Image.open(io.BytesIO(jpeg)).size for jpeg in jpegs]
    assert abs(sum(map(len, jpegs)) / 9 - 110_000) < 20_000
    width, height = (sum(side) / 9 for side in zip(*sizes, strict=True))
    assert abs(width - 500) < 80  # three times 80 px / sqrt(9)
    assert abs(height - 400) < 80
    assert all(200 <= side <= 1000 for size in sizes for side in size)
    assert len(set(sizes)) == 9
