"""The two engines take the same steps from the same state on the same images, by `tests.train.engine.agreement`."""

from pathlib import Path

import pytest

from tests.train.engine.agreement import SYNTHETIC, in_step

pytest.importorskip("mxnet")
pytest.importorskip("torch")
pytestmark = pytest.mark.slow

RESNET8 = ("model.name=resnet8", "model.image_size=16", "batch.global_size=16")


def _require_same(apart: dict[str, float]) -> None:
    assert apart["losses"] < 1e-5
    assert apart["weights"] < 1e-4
    assert apart["statistics"] < 1e-5
    assert apart["momenta"] < 0.02, "a ReLU whose input rounding moves across 0 changes a gradient"


@pytest.mark.parametrize(
    "overrides",
    [
        ("loss.smoothing=softmax_output", "optimizer.trust_weight_decay=1e-3"),
        (
            "optimizer={name: adam, epsilon: 1e-2, weight_decay: 1e-4}",
            "batch.accumulation_steps=2",
            "data.mixup_alpha=1",
            "data.cutmix_alpha=1",
        ),
    ],
    ids=["lars", "adam, two mixed micro-batches"],
)
def test_steps_from_the_same_state_are_the_same(overrides: tuple[str, ...]) -> None:
    _require_same(in_step([*SYNTHETIC, *RESNET8, *overrides], steps=4))


def test_steps_on_images_of_dali_are_the_same(packed_digits: Path) -> None:
    """A run under one engine that continues from the other's state is what this is, too."""
    _require_same(in_step([f"cluster.paths.data={packed_digits}", "batch.global_size=32"], steps=3))
