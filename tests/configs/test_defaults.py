"""Defaults on which published recipes rely, as their sources state them, and which no rule of MLPerf names."""

from typing import Any

import pytest

from configs.load import load_both

RECIPE, CLUSTER = load_both("digits", "laptop")


def _default(key: str) -> Any:
    """Return the value that counts where a file leaves a key out."""
    block: Any = CLUSTER if key.startswith("cluster.") else RECIPE
    *names, last = key.removeprefix("cluster.").split(".")
    for name in names:
        block = getattr(block, name)
    return type(block).model_fields[last].default


@pytest.mark.parametrize(
    ("key", "value"),
    [
        # He et al., MXNet's Gluon and MLPerf's reference
        ("model.bn_epsilon", 1e-5),
        ("model.bn_momentum", 0.9),
        ("model.classifier_std", 0.01),
        # ImageNet's mean and standard deviation of 0..255
        ("data.mean", (123.675, 116.28, 103.53)),
        ("data.std", (58.395, 57.12, 57.375)),
        ("data.flip", True),
        ("loss.label_smoothing", 0.0),
        ("schedule.weight_decay_lag_steps", 0),
        ("mlperf.ruleset", "4.0.0"),
        ("cluster.checkpoint.keep", 2),
    ],
)
def test_a_key_that_is_left_out_means_what_its_source_says(key: str, value: object) -> None:
    assert _default(key) == pytest.approx(value) if isinstance(value, tuple) else _default(key) == value
