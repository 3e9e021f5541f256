"""Options of ``./run.sh simulate`` that go together, that do not, and the first values that are refused."""

import itertools
from pathlib import Path

import pytest

from configs.arguments import parse
from configs.errors import UserError
from train.sim.fit.heldout import KINDS
from train.sim.options import Options, make_parser
from train.sim.time_to_train import era_of

QUESTIONS = {
    "--calibrate-here": [], "--calibrate": ["a.csv"], "--points": ["a.csv"], "--validate": ["a.csv"], "--startup": [],
    "--collectives": [], "--sweep": ["ranks=4"], "--optimize": [],
}  # fmt: skip
"""Option that asks a question -> words after it, in the order of the messages."""
NEEDED = {
    "--deadline": ["--optimize"],
    "--budget": ["--optimize"],
    "--held-out": ["--validate"],
    "--worth": ["--validate"],
    "--plot": ["--sweep", "--optimize", "--collectives", "--validate"],
    "--out": ["--calibrate", "--calibrate-here"],
}
"""Option -> questions of which it needs one."""
VALUES = {"--deadline": ["9"], "--budget": ["9"], "--held-out": ["row"], "--plot": ["a.png"], "--out": ["a.csv"]}


def _parsed(*words: str) -> Options:
    return parse(make_parser(), Options, ["simulate", *words])


def _is_refused(message: str, *words: str) -> None:
    with pytest.raises(UserError, match=f"^{message}"):
        _parsed(*words)


@pytest.mark.parametrize("pair", itertools.combinations(QUESTIONS, 2), ids="".join)
def test_one_question_is_answered_at_a_time(pair: tuple[str, str]) -> None:
    first, second = pair
    words = (first, *QUESTIONS[first], second, *QUESTIONS[second])
    _is_refused(f"got {first} and {second}, allowed: one of them at a time$", *words)


@pytest.mark.parametrize("question", QUESTIONS)
def test_a_question_is_about_a_recipe_or_not_and_refuses_options_that_would_change_nothing(question: str) -> None:
    words = [question, *QUESTIONS[question]]
    _parsed(*words)
    if question in ("--collectives", "--sweep", "--optimize"):
        _parsed("digits", *words)
    else:
        _is_refused(f"got {question} and RECIPE, allowed: one of them at a time$", "digits", *words)
    for option, needed in NEEDED.items():
        given = [*words, option, *VALUES.get(option, [])]
        if question in needed:
            _parsed(*given)
        else:
            _is_refused(f"{option}: allowed only together with {' or '.join(needed)}", *given)


def test_held_out_rows_have_a_file_and_a_trace_has_a_recipe(tmp_path: Path) -> None:
    for kind in (*KINDS, "all"):
        _parsed("--validate", "a.csv", "--held-out", kind, "--out", str(tmp_path / "rows.csv"))
    _parsed("digits", "--trace", "a.json")
    _is_refused("--trace: allowed only together with RECIPE$", "--trace", "a.json")
    words = ("--validate", "a.csv", "--held-out", "row", "--worth")
    _is_refused("got --held-out and --worth, allowed: one of them at a time$", *words)


@pytest.mark.parametrize(
    ("option", "refused", "allowed"),
    [
        ("--input-rate", ("0", "-1", "nan", "inf"), "0.001"),
        ("--deadline", ("0", "-1", "nan", "inf"), "0.001"),
        ("--budget", ("0", "-1", "nan", "inf"), "0.001"),
        ("--price", ("-0.001", "nan", "inf"), "0"),
    ],
)
def test_a_quantity_is_finite_and_above_zero_and_a_price_may_be_nothing(
    option: str, refused: tuple[str, ...], allowed: str
) -> None:
    _parsed("--optimize", f"{option}={allowed}")
    for value in refused:
        _is_refused(
            rf"{option}: got {float(value)}, allowed: .*(above 0|0 or more)$", "--optimize", f"{option}={value}"
        )


def test_a_round_is_one_that_had_the_network() -> None:
    for name in ("0.5", "0.6", "0.7", "1.0", "1.1", "2.0", "2.1", "3.0", "3.1", "4.0"):
        assert _parsed("digits", "--round", name).round == name
        assert name in era_of(name).rounds
    _is_refused(r"--round: got '4\.1', allowed: one of 0\.5, .*, 4\.0; did you mean '", "digits", "--round", "4.1")
