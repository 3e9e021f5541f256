"""The clauses of a rule that a line breaks, against Python's own evaluation of the same expression."""

import math
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from logs.judge.clauses import broken_clauses

_NUMBERS = st.integers(0, 3)
_TERMS = st.one_of(_NUMBERS.map(str), st.sampled_from(["v['value']", "v['metadata']['n']", "s['n']"]))
_SUMS = st.one_of(_TERMS, st.tuples(_TERMS, st.sampled_from("+-*|"), _TERMS).map(lambda each: f"({' '.join(each)})"))
_LISTS = st.tuples(_TERMS, _TERMS).map(lambda each: f"[{each[0]}, {each[1]}]")
_COMPARISONS = st.one_of(
    st.tuples(_SUMS, st.sampled_from(["==", "!=", "<", "<=", ">", ">="]), _SUMS).map(" ".join),
    st.tuples(_TERMS, st.sampled_from(["in", "not in"]), _LISTS).map(" ".join),
)


def _nested(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    both = st.tuples(inner, st.sampled_from(["and", "or"]), inner).map(lambda each: f"({' '.join(each)})")
    chosen = st.tuples(inner, inner, inner).map(lambda each: f"({each[0]} if {each[1]} else {each[2]})")
    return st.one_of(both, chosen, inner.map(lambda each: f"(not ({each}))"))


@settings(max_examples=30, deadline=None)
@given(st.recursive(_COMPARISONS, _nested, max_leaves=4), _NUMBERS, _NUMBERS, _NUMBERS)
def test_a_rule_is_broken_exactly_if_python_says_so(rule: str, value: int, logged: int, kept: int) -> None:
    # With one clause of no meaning beside it, a rule that is met has no broken clause but that one.
    names = {"v": {"value": value, "metadata": {"value": value, "n": logged}}, "s": {"n": kept}}
    is_met = bool(eval(rule, {}, names))
    broken = broken_clauses(f"({rule}) and v['value'] == 99", {"value": value, "n": logged}, state={"n": kept})
    assert broken[-1] == "v['value'] == 99"
    assert (len(broken) == 1) == is_met
    assert not any(eval(clause, {}, names) for clause in broken)


@pytest.mark.parametrize(
    ("rule", "line", "state", "broken"),
    [
        ("v['value'] > 1 and s['a']", {"value": 1}, {"a": False}, ["v['value'] > 1", "s['a']"]),
        ("v['value'] > 1 and s['b']", {"value": 2}, {}, ["s['b']"]),  # nobody knows whether it is met
        ("v['value'] > 1 and s['b']", {"value": 1}, {}, ["v['value'] > 1"]),
        ("v['value'] > 1", {"value": 2}, {}, ["v['value'] > 1"]),  # the checker knows better
        ("v['value'] > 1 and s['a']", {"value": 2}, {"a": 1}, ["v['value'] > 1", "s['a']"]),
        ("(s['a'] and s['b']) or v['value'] > 1", {"value": 1}, {"a": 0, "b": 0}, ["v['value'] > 1"]),
        ("math.log2(v['value'] / 0.5).is_integer()", {"value": 3}, {}, ["math.log2(v['value'] / 0.5).is_integer()"]),
        ("is_integer(v['value'])", {"value": 2.5}, {}, ["is_integer(v['value'])"]),
        ("v['value'] in (1, 2) and True", {"value": 3}, {}, ["v['value'] in (1, 2)"]),
        ("v['value'] / 0 == 1 and v['value'] == 1", {"value": 2}, {}, ["v['value'] == 1"]),
        ("print(v) and v['value'] == 1", {"value": 2}, {}, ["v['value'] == 1"]),  # no call is made
        ("{1} and v['value'] == 1", {"value": 2}, {}, ["v['value'] == 1"]),  # what is not understood is not broken
        ("v['value'] < 1 and v['value'] == 1", {"value": "x"}, {}, ["v['value'] == 1"]),
        ("math.log2(v['value']) == 1 and v['value'] == 1", {"value": -2}, {}, ["v['value'] == 1"]),
        ("math.log2(v['value']) == 1 and v['value'] == 1", {"value": 2}, {}, ["v['value'] == 1"]),
        ("is_integer(v['value'] / 0.5) and v['value'] > 9", {"value": 1.5}, {}, ["v['value'] > 9"]),
        ("v['value'] + 1 == 3 and v['value'] * 2 == 2", {"value": 1}, {}, ["v['value'] + 1 == 3"]),
        ("v['value'] + 1 == 3 and v['value'] * 2 == 2", {"value": 2}, {}, ["v['value'] * 2 == 2"]),
        ("not (s['a'] and s['b']) and v['value'] == 1", {"value": 2}, {"a": 1, "b": 0}, ["v['value'] == 1"]),
        ("not (s['a'] or s['b']) and v['value'] == 1", {"value": 1}, {"a": 1, "b": 0}, ["not (s['a'] or s['b'])"]),
        ("(1 if v['value'] else 0) == 1 and s['a']", {"value": 0}, {"a": 1}, ["(1 if v['value'] else 0) == 1"]),
        ("v['value'] ==", {"value": 2}, {}, ["v['value'] =="]),
        ("\x00", {}, {}, ["\x00"]),
    ],
)
def test_of_a_rule_the_clauses_that_are_known_to_be_broken_are_told(
    rule: str, line: dict[str, Any], state: dict[str, Any], broken: list[str]
) -> None:
    assert broken_clauses(rule, line, state=state) == broken


def test_of_several_lines_the_clauses_that_all_break_are_told() -> None:
    rule = "v['value'] > 1 and v['value'] < 9 and v['n'] == 0"
    lines: list[dict[str, float]] = [{"value": 1, "n": 1}, {"value": 0, "n": 2}, {"value": math.inf, "n": 3}]
    assert broken_clauses(rule.replace("v['n']", "v['metadata']['n']"), *lines, state={}) == ["v['metadata']['n'] == 0"]
    assert broken_clauses("v['value'] > 1 and s['x']", state={}) == ["v['value'] > 1", "s['x']"]
