"""Balanced class weights are scikit-learn's numbers. That runs train with them: tests/train/test_session.py."""

import pytest

from configs.load import load_recipe


def test_balanced_weights_are_those_of_scikit_learn_and_an_absent_class_has_none() -> None:
    recipe = load_recipe("digits", ["model.num_classes=4", "loss.class_weights=balanced"])
    # n / (k n_c) of n = 12 images in the k = 3 classes that have some
    assert recipe.counted([6, 0, 2, 4]).loss.class_weights == pytest.approx((12 / 18, 0, 12 / 6, 12 / 12))
    assert recipe.counted([3, 3, 3]).loss.class_weights == pytest.approx((1, 1, 1, 0))
    assert load_recipe("digits").counted([6, 0, 2, 4]).loss.class_weights is None
