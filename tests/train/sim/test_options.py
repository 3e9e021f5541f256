"""Options of ``./run.sh simulate`` that go together, that do not, and the first values that are refused."""

import itertools

import pytest

from configs.arguments import parse
from configs.errors import UserError
from train.sim.__main__ import Options, make_parser
from train.sim.time_to_train import era_of

QUESTIONS = {
    "--calibrate-here": [], "--calibrate": ["a.csv"], "--points": ["a.csv"], "--validate": ["a.csv"], "--startup": [],
    "--optimize": [],
}  # fmt: skip
"""Option that asks a question -> words after it, in the order of the messages; the last one is about a recipe."""
NEEDED = {
    "--deadline=9": ["--optimize"],
    "--budget=9": ["--optimize"],
    "--held-out": ["--validate"],
    "--out=a.csv": ["--calibrate", "--calibrate-here"],
    "--price=2": ["RECIPE"],
}
"""Option -> questions of which it needs one, or the recipe itself."""


def _parsed(*words: str) -> Options:
    return parse(make_parser(), Options, ["simulate", *words])


def _is_refused(message: str, *words: str) -> None:
    with pytest.raises(UserError, match=f"^{message}"):
        _parsed(*words)


@pytest.mark.parametrize("question", QUESTIONS)
def test_one_question_is_answered_at_a_time_and_options_that_would_change_nothing_are_refused(question: str) -> None:
    words = [question, *QUESTIONS[question]]
    _parsed(*words)
    others = itertools.dropwhile(lambda each: each != question, QUESTIONS)
    for second in [*others][1:]:
        both = f"got {question} and {second}, allowed: one of them at a time$"
        _is_refused(both, *words, second, *QUESTIONS[second])
    if question == "--optimize":
        _parsed("digits", *words)
    else:
        _is_refused(f"got {question} and RECIPE, allowed: one of them at a time$", "digits", *words)
    for given, needed in NEEDED.items():
        if question in needed:
            _parsed(*words, given)
        else:
            option = given.partition("=")[0]
            _is_refused(f"{option}: allowed only together with {' or '.join(needed)}", *words, given)


def test_a_quantity_is_finite_and_above_zero_a_price_may_be_nothing_and_a_round_had_the_network() -> None:
    for option, least in (("--input-rate", 0.001), ("--deadline", 0.001), ("--budget", 0.001), ("--price", 0)):
        _parsed("--optimize", f"{option}={least}")
        for value in (least - 0.001, "nan", "inf"):
            allowed = rf"{option}: got {float(value)}, allowed: .*(above 0|0 or more)$"
            _is_refused(allowed, "--optimize", f"{option}={value}")
    for name in ("0.5", "0.6", "0.7", "1.0", "1.1", "2.0", "2.1", "3.0", "3.1", "4.0"):
        assert _parsed("digits", "--round", name).round == name
        assert name in era_of(name).rounds
    _is_refused(r"--round: got '4\.1', allowed: one of 0\.5, .*, 4\.0; did you mean '", "digits", "--round", "4.1")
