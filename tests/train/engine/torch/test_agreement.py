"""The two engines take the same steps: losses, weights, statistics, state and logits, on the same images."""

from __future__ import annotations

import pytest

from tests.train.engine.agreement import LIMIT, SYNTHETIC, differences, trained

pytest.importorskip("mxnet")
pytest.importorskip("torch")

# Where batch norm averages over few numbers, or rates are high, rounding alone makes runs part: see the program.
GENTLE = ("schedule.base_lr=0.1", "batch.global_size=16")


def _differences(*overrides: str, steps: int = 20) -> dict[str, float]:
    arguments = [*SYNTHETIC, *GENTLE, *overrides]
    return differences(trained("torch", arguments, steps), trained("mxnet", arguments, steps))


@pytest.mark.slow
@pytest.mark.parametrize(
    "overrides",
    [
        ("optimizer={name: lars, weight_decay: 5e-4, trust_coefficient: 0.01}", "loss.smoothing=softmax_output"),
        ("optimizer={name: sgd, weight_decay: 1e-4}", "loss.label_smoothing=0"),
        ("optimizer={name: adam, epsilon: 1e-2, weight_decay: 1e-4}", "batch.accumulation_steps=2"),
    ],
    ids=["lars", "sgd", "adam, two micro-batches"],
)
def test_resnet8_takes_the_same_steps(overrides: tuple[str, ...]) -> None:
    apart = _differences("model.name=resnet8", "model.image_size=16", *overrides)
    assert apart["losses"] < LIMIT
    assert apart["weights"] < 1e-4
    assert apart["statistics"] < 1e-4
    assert apart["logits"] < 1e-3
