"""The two engines take the same steps from the same state on the same images; `tests.train.engine.agreement` does it.

Left alone for many steps, two runs part as far as two runs of one engine do whose weights differ in the last bit.
"""

from pathlib import Path

import pytest

from tests.train.engine.agreement import LIMIT, SYNTHETIC, differences, in_step, trained

pytest.importorskip("mxnet")
pytest.importorskip("torch")
pytestmark = pytest.mark.slow

RESNET8 = ("model.name=resnet8", "model.image_size=16", "batch.global_size=16")
GENTLE = ("schedule.base_lr=0.01",)


def _require_same(apart: dict[str, float]) -> None:
    assert apart["losses"] < 1e-5
    assert apart["weights"] < 1e-4
    assert apart["statistics"] < 1e-5
    assert apart["momenta"] < 0.02, "a ReLU whose input rounding moves across 0 changes a gradient"


@pytest.mark.parametrize(
    "overrides",
    [
        ("loss.smoothing=softmax_output", "optimizer.trust_weight_decay=1e-3"),
        ("optimizer={name: sgd, weight_decay: 1e-4}", "loss.label_smoothing=0", "schedule.base_lr=0.1"),
        (
            "optimizer={name: adam, epsilon: 1e-2, weight_decay: 1e-4}",
            "batch.accumulation_steps=2",
            "data.mixup_alpha=1",
            "data.cutmix_alpha=1",
        ),
        (
            "loss={kind: sigmoid}",
            "run.target_top1=null",
            "model.zero_gamma=true",
            "model.bn_epsilon=1e-3",
            "model.bn_momentum=0.8",
        ),
        ("model.name=mnist_small_cnn", "model.image_size=28"),
    ],
    ids=["lars", "sgd", "adam, two mixed micro-batches", "sigmoid", "mnist_small_cnn"],
)
def test_steps_from_the_same_state_are_the_same(overrides: tuple[str, ...]) -> None:
    _require_same(in_step([*SYNTHETIC, *RESNET8, *overrides], steps=4))


def test_a_step_of_densenet_is_the_same() -> None:
    _require_same(in_step([*SYNTHETIC, *RESNET8, "model.name=densenet121", "model.image_size=32"], steps=1))


def test_steps_on_images_of_dali_are_the_same(packed_digits: Path) -> None:
    """A run under one engine that continues from the other's state is what this is, too."""
    _require_same(in_step([f"cluster.paths.data={packed_digits}", "batch.global_size=32"], steps=3))


def test_twenty_losses_are_the_same_where_rounding_does_not_grow() -> None:
    arguments = [*SYNTHETIC, *RESNET8, *GENTLE]
    apart = differences(trained("torch", arguments), trained("mxnet", arguments))
    assert apart["losses"] < LIMIT
    assert apart["weights"] < LIMIT
    assert apart["statistics"] < LIMIT
    assert apart["logits"] < LIMIT
