"""Options of ``./run.sh simulate`` that go together, that do not, and the first values that are refused."""

import itertools
import re
from pathlib import Path

import pytest

from configs.arguments import parse
from configs.errors import UserError
from train.sim.fit.heldout import KINDS
from train.sim.options import Options, make_parser

QUESTIONS = {
    "--calibrate-here": [], "--calibrate": ["a.csv"], "--points": ["a.csv"], "--validate": ["a.csv"], "--startup": [],
    "--collectives": [], "--sweep": ["ranks=4"], "--optimize": [],
}  # fmt: skip
"""Option that asks a question -> words after it, in the order of the messages."""
OF_A_RECIPE = ("--collectives", "--sweep", "--optimize")


def _parsed(*words: str) -> Options:
    return parse(make_parser(), Options, ["simulate", *words])


@pytest.mark.parametrize("pair", itertools.combinations(QUESTIONS, 2), ids="".join)
def test_one_question_is_answered_at_a_time(pair: tuple[str, str]) -> None:
    first, second = pair
    with pytest.raises(UserError, match=f"^got {first} and {second}, allowed: one of them at a time$"):
        _parsed(first, *QUESTIONS[first], second, *QUESTIONS[second])


@pytest.mark.parametrize("question", QUESTIONS)
def test_some_questions_are_about_a_recipe_and_the_others_are_not(question: str) -> None:
    words = [question, *QUESTIONS[question]]
    _parsed(*words)
    if question in OF_A_RECIPE:
        _parsed("digits", *words)
        return
    with pytest.raises(UserError, match=f"^got {question} and RECIPE, allowed: one of them at a time$"):
        _parsed("digits", *words)


@pytest.mark.parametrize(
    ("option", "words", "needed"),
    [
        ("--deadline", ["9"], ["--optimize"]),
        ("--budget", ["9"], ["--optimize"]),
        ("--held-out", ["row"], ["--validate"]),
        ("--worth", [], ["--validate"]),
        ("--plot", ["a.png"], ["--sweep", "--optimize", "--collectives", "--validate"]),
        ("--out", ["a.csv"], ["--calibrate", "--calibrate-here"]),
    ],
)
def test_an_option_that_would_change_nothing_is_refused(option: str, words: list[str], needed: list[str]) -> None:
    for question, others in QUESTIONS.items():
        given = [question, *others, option, *words]
        if question in needed:
            _parsed(*given)
        else:
            with pytest.raises(UserError, match=f"^{option}: allowed only together with {' or '.join(needed)}"):
                _parsed(*given)


def test_held_out_rows_have_a_file_and_a_trace_has_a_recipe(tmp_path: Path) -> None:
    for kind in (*KINDS, "all"):
        _parsed("--validate", "a.csv", "--held-out", kind, "--out", str(tmp_path / "rows.csv"))
    _parsed("digits", "--trace", "a.json")
    with pytest.raises(UserError, match=r"^--trace: allowed only together with RECIPE$"):
        _parsed("--trace", "a.json")
    with pytest.raises(UserError, match=r"^got --held-out and --worth, allowed: one of them at a time$"):
        _parsed("--validate", "a.csv", "--held-out", "row", "--worth")


def test_a_file_of_constants_has_a_folder_and_one_of_this_machine_gets_it(tmp_path: Path) -> None:
    below = tmp_path / "nowhere" / "a.yaml"
    _parsed("--calibrate-here", "--out", str(below))
    words = f"--out: got '{below}', allowed: a file in a folder that exists, not in {below.parent}"
    with pytest.raises(UserError, match=f"^{re.escape(words)}$"):
        _parsed("--calibrate", "a.csv", "--out", str(below))


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
        with pytest.raises(UserError, match=rf"^{option}: got {float(value)}, allowed: .*(above 0|0 or more)$"):
            _parsed("--optimize", f"{option}={value}")


def test_a_round_is_one_that_had_the_network() -> None:
    for name in ("0.5", "0.6", "0.7", "1.0", "1.1", "2.0", "2.1", "3.0", "3.1", "4.0"):
        assert _parsed("digits", "--round", name).round == name
    with pytest.raises(UserError, match=r"^--round: got '4\.1', allowed: one of 0\.5, .*, 4\.0; did you mean '"):
        _parsed("digits", "--round", "4.1")
