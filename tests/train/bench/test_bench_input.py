"""The readers that are compared make the same kind of batch of the same images."""

from __future__ import annotations

import itertools
from pathlib import Path

import numpy as np
import pytest

from configs.load import load_both
from data.prepare import prepare
from data.sources.catalogue import open_source
from data.sources.image_source import Settings
from train.bench.readers import BATCH_SIZE, read_by_dali, read_by_mxnet, read_by_pillow


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("packed") / "images"
    prepare(open_source("generated", Settings(train=32, eval=2, classes=2)), path)
    return path


@pytest.mark.slow
def test_all_readers_give_normalised_crops_of_the_same_images(folder: Path) -> None:
    recipe, cluster = load_both(
        "imagenet-smoke",
        "laptop",
        [
            "model.image_size=48",
            "data.eval_resize=null",
            "data.train_samples=32",
            "data.eval_samples=2",
            "data.shuffle_buffer=32",
            "data.crop.area=[0.9, 1.0]",
        ],
    )
    readers = {
        "dali": read_by_dali(recipe, cluster, folder),
        "mxnet": read_by_mxnet(recipe, folder),
        "pillow": read_by_pillow(recipe, folder),
    }
    means = {}
    for name, reader in readers.items():
        batches = list(itertools.islice(reader, 6))
        assert {batch.shape for batch in batches} == {(BATCH_SIZE, 3, 48, 48)}, name
        means[name] = np.mean(batches, axis=(0, 1, 3, 4)), np.std(batches)
    for name in ("mxnet", "pillow"):
        np.testing.assert_allclose(means[name][0], means["dali"][0], atol=0.1, err_msg=name)
        np.testing.assert_allclose(means[name][1], means["dali"][1], rtol=0.1, err_msg=name)
