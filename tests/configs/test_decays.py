"""The rates of decays at points worked out by hand."""

import pytest

from configs.decays import Cosine, DecayBlock, DecayTiming, Polynomial, StepDecay
from configs.decays.decay_block import between

TIMING = DecayTiming(warmup_steps=10, decay_steps=4, steps_per_epoch=5)
LINEAR = Polynomial(name="polynomial", power=1)


@pytest.mark.parametrize(
    ("decay", "rates"),
    [
        (LINEAR, [8, 6, 4, 2, 0, 0]),
        (LINEAR.model_copy(update={"counts_from": 1}), [6, 4, 2, 0, 0, 0]),
        (LINEAR.model_copy(update={"begins": "at_start"}), [16 / 7, 12 / 7, 8 / 7, 4 / 7, 0, 0]),
        (Polynomial(name="polynomial"), [8, 4.5, 2, 0.5, 0, 0]),
        (Polynomial(name="polynomial", power=1, end_lr=4.0), [8, 7, 6, 5, 4, 4]),
        (Polynomial(name="polynomial", power=1, end_lr=0.0), [8, 6, 4, 2, 0, 0]),
        (Polynomial(name="polynomial", power=1, end_lr_ratio=0.25), [8, 6.5, 5, 3.5, 2, 2]),
        (Polynomial(name="polynomial", power=0.5), [8, 8 * 0.75**0.5, 8 * 0.5**0.5, 4, 0, 0]),
        (Cosine(name="cosine"), [8, 4 + 8**0.5, 4, 4 - 8**0.5, 0, 0]),
        (Cosine(name="cosine", counts_from=1), [4 + 8**0.5, 4, 4 - 8**0.5, 0, 0, 0]),
        (Cosine(name="cosine", end_lr_ratio=0.5), [8, 6 + 2**0.5, 6, 6 - 2**0.5, 4, 4]),
    ],
)
def test_a_timed_decay_falls_from_the_base_rate_to_its_end(decay: DecayBlock, rates: list[float]) -> None:
    assert [decay.lr(8, step, TIMING) for step in range(10, 16)] == pytest.approx(rates, abs=1e-12)
    assert decay.lr(8, 0, TIMING) == 8
    assert decay.lr(8, 1000, TIMING) == decay.final_lr(8) == rates[-1], "both ends are exact"


@pytest.mark.parametrize(("base", "end"), [(0.3, 0.1), (21.2, 1e-4), (1e-4, 24.699), (13.0, 0.0325), (1e16, 1.0)])
def test_both_ends_of_a_decay_are_exact(base: float, end: float) -> None:
    assert (between(base, end, 1.0), between(base, end, 0.0)) == (base, end)


@pytest.mark.parametrize(
    ("boundaries", "falls_at"),
    [([2], [10]), ([1, 3], [5, 15]), ([0.5, 1.5], [2, 8]), ([2.7], [14]), ([2.3], [12]), ([0.01], [0])],
)
def test_a_step_decay_falls_at_the_first_step_after_a_boundary_counted_from_the_beginning(
    boundaries: list[float], falls_at: list[int]
) -> None:
    """An epoch has 5 steps; half a step is rounded to the even number: 2.5 to 2 and 7.5 to 8."""
    decay = StepDecay(name="step", boundaries=tuple(boundaries), factor=0.5)
    rates = [decay.lr(8, step, TIMING) for step in range(30)]
    assert [step for step in range(30) if rates[step] < (rates[step - 1] if step else 8)] == falls_at
    assert rates[-1] == decay.final_lr(8) == 8 * 0.5 ** len(boundaries)
