"""Balanced class weights: scikit-learn's numbers, and a run that trains with those of its data set."""

import json
from pathlib import Path

import pytest

from configs.load import load_recipe
from tests.runs import SHORT, read_summary, train


def test_balanced_weights_are_those_of_scikit_learn_and_an_absent_class_has_none() -> None:
    recipe = load_recipe("digits", ["model.num_classes=4", "loss.class_weights=balanced"])
    # n / (k n_c) of n = 12 images in the k = 3 classes that have some
    assert recipe.counted([6, 0, 2, 4]).loss.class_weights == pytest.approx((12 / 18, 0, 12 / 6, 12 / 12))
    assert recipe.counted([3, 3, 3]).loss.class_weights == pytest.approx((1, 1, 1, 0))
    assert load_recipe("digits").counted([6, 0, 2, 4]).loss.class_weights is None


@pytest.mark.ranks
def test_a_run_with_balanced_weights_has_the_bits_of_one_with_these_numbers(
    shared_digits: Path, tmp_path: Path
) -> None:
    counts = json.loads((shared_digits / "manifest.json").read_text(encoding="utf-8"))["train"]["class_counts"]
    numbers = [sum(counts) / (len(counts) * count) for count in counts]
    settings = [*SHORT, "run.max_steps=2", f"cluster.paths.data={shared_digits.parent}", "cluster.ranks_per_node=1"]
    weights = {}
    for name, given in (("words", "balanced"), ("numbers", numbers), ("none", None)):
        done = train(tmp_path / name, *settings, f"loss.class_weights={json.dumps(given)}")
        assert done.status == 0, done.errors
        weights[name] = read_summary(done.folder)["weights_checksum"]
    assert weights["words"] == weights["numbers"] != weights["none"]
