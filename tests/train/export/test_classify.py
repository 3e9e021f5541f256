"""Images enter an exported network with the pixels that DALI gives to an evaluation, for every kind of file."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from configs.load import load_recipe
from configs.schema import EngineSettings
from data.__main__ import main as prepare
from data.input.packed import open_evaluation
from data.manifest import load_manifest
from tests.host_arrays import HostArrays
from train.export.classify import input_of
from train.export.description import describe

_RANDOM = np.random.default_rng(1)


def _picture(width: int, height: int) -> Image.Image:
    """Return a smooth picture with some noise."""
    cells = _RANDOM.integers(0, 256, (height // 32 + 2, width // 32 + 2, 3), np.uint8)
    smooth = np.asarray(Image.fromarray(cells).resize((width, height), Image.Resampling.BICUBIC), int)
    return Image.fromarray((smooth + _RANDOM.integers(-20, 21, (height, width, 1))).clip(0, 255).astype(np.uint8))


def _turned() -> Image.Exif:
    exif = Image.Exif()
    exif[0x0112] = 6
    return exif


def _save_all(folder: Path) -> list[Path]:
    folder.mkdir(parents=True)
    _picture(97, 64).save(folder / "a.png")
    _picture(40, 131).save(folder / "b.png")
    _picture(40, 40).convert("L").save(folder / "c.png")
    _picture(90, 60).save(folder / "d.jpg", quality=90, exif=_turned())
    _picture(61, 83).convert("RGBA").quantize(32).save(folder / "e.png")
    _picture(200, 77).convert("CMYK").save(folder / "f.jpg", quality=95)
    sixteen = np.asarray(_picture(50, 70).convert("L"), np.uint16) * 257
    Image.fromarray(sixteen).save(folder / "g.png")
    return sorted(folder.iterdir())


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Class folders whose evaluation images are of every kind."""
    folder = tmp_path_factory.mktemp("kinds")
    for split in ("train", "val"):
        _save_all(folder / split / "only")
        (folder / split / "other").mkdir()
        _picture(48, 48).save(folder / split / "other" / "z.png")
    return folder


def _both(folder: Path, packed: Path, *overrides: str) -> tuple[np.ndarray, np.ndarray]:
    """Return the inputs of the evaluation images, [N, C, H, W], by DALI from the data set, and from the files."""
    files = sorted(folder.glob("val/*/*"))
    recipe = load_recipe("digits", [
        "data.source=folders", f"data.train_samples={len(files)}", f"data.eval_samples={len(files)}",
        "batch.global_size=1", "model.num_classes=2", "model.name=resnet18", "model.image_size=32",
        "data.mean=[10, 20, 30]", "data.std=[2, 2, 2]", *overrides,
    ])  # fmt: skip
    place: Any = {"batch_size": len(files), "rank": 0, "world_size": 1, "device_id": None, "arrays": HostArrays()}
    source = open_evaluation(recipe, EngineSettings(), packed, **place)
    (batch,) = list(source.batches())
    seen = np.array(batch.images)
    source.close()
    manifest = load_manifest(packed)
    told = describe(recipe.evaluated, checkpoint="", onnx_file=None, manifest=manifest, score=None)
    return seen, np.stack([input_of(file, told) for file in files])


@pytest.mark.medium
def test_every_kind_of_file_has_the_pixels_of_an_evaluation(folder: Path, tmp_path: Path) -> None:
    assert prepare(["prepare", str(folder), str(tmp_path / "kept"), "--size", "keep"]) == 0
    for settings in (
        ["data.eval_resize=40"], ["data.eval_resize=33"], ["model.input_channels=4"],
        ["data.eval_size=45", "data.eval_resize=52"],
        ["data.eval_size=45", "data.eval_resize=null", "data.eval_central_share=0.8"],
        ["model.input_channels=1", "data.mean=[10, 10, 10]"],
    ):  # fmt: skip
        seen, made = _both(folder, tmp_path / "kept", *settings)
        assert (made.dtype, made.shape) == (np.float32, seen.shape)
        off = np.abs(made - seen) * 2
        # Values are 0 to 255. Both round once; Pillow's and DALI's decoders may round a JPEG's pixel otherwise.
        assert off.max() < 2.01, settings
        assert np.mean(off > 0.01) < 0.05, settings


@pytest.mark.medium
def test_a_photograph_is_scaled_and_turned_as_it_was_for_the_packed_data_set(folder: Path, tmp_path: Path) -> None:
    assert prepare(["prepare", str(folder), str(tmp_path / "small"), "--size", "36", "--quality", "100"]) == 0
    for settings in (["data.eval_resize=34"], ["model.input_channels=1", "data.mean=[10, 10, 10]"]):
        seen, made = _both(folder, tmp_path / "small", *settings)
        off = np.abs(made - seen).mean(axis=(1, 2, 3)) * 2
        # A packed image is a JPEG, which has colours of half the resolution, so that only greys are the same.
        assert off.max() < 6, off
        assert off[[2, 6]].max() < 0.2, off
