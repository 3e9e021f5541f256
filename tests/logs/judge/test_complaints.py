"""The checker's report in one line a complaint, and each clause of a rule in words; no checker runs here."""

import json
from pathlib import Path
from typing import Any

import pytest

from logs.judge.complaints import shortened
from logs.judge.explain import _in_words, _remedy, explain

NEW_LINES = ["noise", ":::MLLOG {}", ":::MLLOGS", ":::MLLOG {}", "", 'x :::MLLOG {"key": "submission_division"}',
             ":::MLLOG {}"]  # fmt: skip
OLD_LINES = [line.replace(":::MLLOGS", "").replace(":::MLLOG", ":::MLL") for line in NEW_LINES]


def _check(index: int, line: object, *, test: str = "v['value'] > 0", state: object = None) -> str:
    context = "" if state is None else f"\ncurrent context[s]={json.dumps(state, indent=2)}"
    return (
        f"CHECK for 'seed' failed in line {index}:\n:::MLLOG raw\nfailed test: {test}\n{context}\n"
        f"current line[v]={json.dumps(line, indent=2)}"
    )


def _shortened(tmp_path: Path, *complaints: str, lines: list[str] = NEW_LINES, **given: Any) -> list[str]:
    log = tmp_path / "log"
    log.write_text("\n".join(lines) + "\n", encoding="utf-8")
    body = ("\n" + "-" * 30 + "\n").join(complaints)
    report = f"INFO - begins\n{given.pop('before', '')}ERROR - FAILED\nWARNING -  {body}\nINFO - ends\n"
    return list(shortened(report, log, **{"ruleset": "4.0.0", "inserted": False, **given}))


@pytest.mark.parametrize(
    ("index", "inserted", "number"), [(0, False, 2), (1, False, 4), (2, False, 6), (3, False, 7), (9, False, 10),
                                      (0, True, 0), (1, True, 2), (3, True, 7)]
)  # fmt: skip
@pytest.mark.parametrize(("ruleset", "lines"), [("4.0.0", NEW_LINES), ("0.6.0", OLD_LINES)])
def test_the_checkers_count_of_events_becomes_the_line_of_the_file(
    tmp_path: Path, index: int, inserted: bool, number: int, ruleset: str, lines: list[str]
) -> None:
    found = _shortened(tmp_path, _check(index, {"value": 0}), lines=lines, ruleset=ruleset, inserted=inserted)
    assert found == [f"line {number}: CHECK for 'seed' failed: v['value'] > 0; got {json.dumps({'value': 0})}"]


def test_complaints_are_told_apart_and_those_of_no_line_lose_their_line_ends(tmp_path: Path) -> None:
    context = "failed test: s['a'] == 1\ncurrent context[s]={\n  \"a\": 0\n}"
    found = _shortened(
        tmp_path, "Required  EXACTLY_ONE\noccurrence", _check(0, {"value": 0}), " ", context, "other:\nx"
    )
    assert found == [
        "Required EXACTLY_ONE occurrence", "line 2: CHECK for 'seed' failed: v['value'] > 0; got {\"value\": 0}",
        "failed test: s['a'] == 1; with { \"a\": 0 }", "other: x",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("line", "got"),
    [
        ({"value": 1, "metadata": {"epoch_num": 3, "file": "a.py", "lineno": 7}}, {"value": 1, "epoch_num": 3}),
        ({"value": None, "metadata": None}, {"value": None}),
        ({"metadata": [1]}, {"value": None}),
        ([1], {}),
    ],
)
def test_of_a_line_its_value_and_metadata_are_told_and_not_where_it_was_logged(
    tmp_path: Path, line: object, got: dict[str, Any]
) -> None:
    (message,) = _shortened(tmp_path, _check(0, line))
    assert message.partition("; got ")[2] == json.dumps(got)


def test_of_the_state_the_part_that_the_test_asks_for_is_told(tmp_path: Path) -> None:
    state, test = {"in_eval": True, "last_epoch": 4, "other": 5}, "not s['in_eval'] and s['last_epoch'] == s['lost']"
    (message,) = _shortened(tmp_path, _check(0, {"value": 0}, test=test, state=state))
    assert message.endswith(f'{test}; with {{"in_eval": true, "last_epoch": 4}}; got {{"value": 0}}')
    (message,) = _shortened(tmp_path, _check(0, {"value": 0}, state=state))
    assert "; with" not in message


def test_lines_that_cannot_be_read_come_first_and_are_cut(tmp_path: Path) -> None:
    errors = "".join(f"WARNING -   {n}{'x' * 200}\nWARNING -    ^^  reason {n}\n" for n in range(5))
    before = f"WARNING -  Found parsing errors:\n{errors}"
    for count, more in ((3, []), (4, ["and 1 more lines cannot be read"]), (5, ["and 2 more lines cannot be read"])):
        told = "".join(errors.splitlines(keepends=True)[: 2 * count])
        found = _shortened(tmp_path, "complaint", before=before.replace(errors, told))
        shown = [f"cannot be read (reason {n}): {n}{'x' * 119}" for n in range(3)]
        assert found == [*shown, *more, "complaint"]
    assert _shortened(tmp_path, "No log lines detected", "Required x") == ["No log lines detected"]


@pytest.mark.parametrize(
    ("values", "got"),
    [
        (["0.5", 0.25, 0.75, "x"], '; got {"lowest": 0.25, "highest": 0.75}'),
        ([0.5], '; got {"lowest": 0.5, "highest": 0.5}'), (["x"], ""), ([], ""),
    ],
)  # fmt: skip
def test_a_key_that_never_passes_is_told_with_its_range(tmp_path: Path, values: list[object], got: str) -> None:
    lines = [f":::MLLOG {json.dumps({'key': 'eval_accuracy', 'value': value})}" for value in values]
    lines += [":::MLLOG {", ':::MLLOG {"key": "eval_samples", "value": 9}']
    words = "Failed checks for eval_accuracy : v['value'] > 0.9"
    assert _shortened(tmp_path, words, lines=lines) == [words + got]


@pytest.mark.parametrize(
    ("clause", "words"),
    [
        ("v['value'] != ''", "it must not be empty"),
        ("v['value'] in ['open', 'closed']", "it must be one of open, closed"),
        ("v['value'] == True", "it must be true"),
        ("v['value'] == 1e-4", "it must be 1e-4"),
        ("v['value'] >= 0.5", "it must be at least 0.5"),
        ("v['value'] > 0", "it must be above 0"),
        ("v['value'] < 1.0", "it must be below 1.0"),
        ("is_integer(math.log2(v['value'] / 0.0001))", "it must be 0.0001 times a power of two (as 5e-5 or 2e-4)"),
        ("is_integer(v['value'] / 0.001)", "it must be a multiple of 0.001"),
        ("s['init_started'] == False", "it must come before init_start"),
        ("s['init_started']", "it must come after init_start"),
        *((f"not s['{key}']", words) for key, words in (
            ("init_stopped", "it must come before init_stop"), ("run_started", "it must come before run_start"),
            ("run_stopped", "it must come before run_stop"), ("in_eval", "no evaluation may be open"),
            ("in_epoch", "no epoch may be open"), ("in_block", "no block may be open"),
        )),
        *((f"s['{key}']", words) for key, words in (
            ("init_stopped", "it must come after init_stop"), ("run_started", "it must come after run_start"),
            ("in_eval", "an evaluation must be open"), ("in_epoch", "an epoch must be open"),
            ("in_block", "a block must be open"),
        )),
        ("v['metadata']['first_epoch_num'] == 1 and s['block_first_epoch'] == 2",
         "first_epoch_num must be that of the block_start"),
        ("v['metadata']['epoch_num'] > s['last_eval']", "epoch_num must be above that of the previous evaluation"),
        ("v['metadata']['epoch_count'] > 0", "epoch_count must be above 0"),
        ("s['accuracy_printed']", "the previous evaluation must have logged eval_accuracy"),
        ("x < s['first_init_start']",
         "init_stop must come at most 20 to 30 minutes after init_start (open division: 240)"),
        ("x == s['last_epoch'] + 1", "epochs must be numbered 1, 2, 3 and so on, without gaps and repetitions"),
        ("v['metadata']['epoch_num'] == s['last_eval']",
         "epoch_num must be that of the enclosing epoch or evaluation"),
        ("v['metadata']['status'] == 'success'", "the status must be success"),
        ("'epoch_num' in v['metadata']", "the metadata must contain epoch_num"),
        ("v['value'] % 2", "the rule is v['value'] % 2"),
    ],
)  # fmt: skip
def test_each_clause_has_words_of_its_own(clause: str, words: str) -> None:
    assert _in_words([clause]) == words
    both = _in_words([clause, clause, "v['metadata']['status'] == 'success'"]).split(", and ")
    assert sorted(both) == sorted({"the status must be success"} | ({words} if "the rule" not in words else set()))


OPEN = ", or submit in the open division (recipe: mlperf.division: open)"


@pytest.mark.parametrize(
    ("key", "clause", "remedy"),
    [
        ("eval_accuracy", "v['value'] >= 0.7590",
         f"train longer or with another schedule until an evaluation reaches 0.7590{OPEN}"),
        ("eval_accuracy", "v['value'] < 1.0", "log accuracies as shares from 0 to 1, not in percent"),
        ("eval_start", "'epoch_num' in v['metadata']", "add epoch_num to the metadata of each eval_start"),
        ("run_stop", "v['metadata']['status'] == 'success'",
         "let the run reach its target, because this ruleset accepts no aborted or killed run"),
        ("init_stop", "x < first_init_start",
         "make the initialisation shorter, or log init_start later, but before it touches the data"),
        ("seed", "s['run_started']", "write the events in the order in which they happen"),
        ("seed", "not s['init_stopped']", "write the events in the order in which they happen"),
        ("seed", "v['value'] > 0", "log seed once, from rank 0, with another value in each run"),
        *((key, "s['last_epoch'] == 1", "number the epochs as the run trains them, and log each once, from rank 0")
          for key in ("epoch_start", "block_start")),
        *((key, f"not s['in_{part}']", "end each epoch, evaluation and block before the next")
          for key, part in (("run_stop", "eval"), ("eval_start", "epoch"), ("block_start", "block"))),
        ("submission_org", "v['value'] != ''", "set submission.org in the cluster file"),
        ("submission_platform", "", "set submission.platform in the cluster file"),
        ("submission_status", "", "set submission.status in the cluster file"),
        ("submission_poc_name", "", "set submission.poc_name in the cluster file"),
        ("lars_epsilon", "", f"set optimizer.epsilon to 0{OPEN}"),
        ("lars_opt_learning_rate_decay_poly_power", "", f"set schedule.decay.power to 2{OPEN}"),
        ("lars_opt_end_learning_rate", "", f"set schedule.decay.end_lr to 0.0001{OPEN}"),
        ("sgd_opt_end_learning_rate", "", f"set schedule.decay.end_lr to 0.0001{OPEN}"),
        ("lars_opt_weight_decay", "", f"change optimizer.weight_decay{OPEN}"),
        ("sgd_opt_weight_decay", "", f"change optimizer.weight_decay{OPEN}"),
        ("sgd_opt_base_learning_rate", "", f"round schedule.base_lr to a multiple of 0.001{OPEN}"),
        ("opt_name", "", f"use optimizer.name lars or sgd{OPEN}"),
        ("train_samples", "", "log train_samples, the number of training images"),
        ("eval_samples", "", "log eval_samples, the number of validation images"),
        ("a_new_key", "", "log a_new_key once, from rank 0, as the rules ask"),
    ],
)  # fmt: skip
def test_the_remedy_is_that_of_the_broken_clause_or_else_of_the_key(key: str, clause: str, remedy: str) -> None:
    assert _remedy(key, [clause] if clause else []) == remedy


SEED = "log seed once, from rank 0"
QUOTED = ':::MLLOG {"key": "seed", ' + "x" * 300


@pytest.mark.parametrize(
    ("complaint", "words"),
    [
        ("Required AT_LEAST_ONE occurrence of 'seed' but found 3", f"seed is logged 3 times, allowed: once; {SEED}"),
        ('line 4: CHECK for \'seed\' failed: v[\'value\'] > 0; got {"value": null}',
         f"line 4: seed has no value: it must be above 0; {SEED}, with another value in each run"),
        ('line 4: CHECK for \'seed\' failed: v[\'value\'] > 0; got {"value": 0, "n": 7}',
         f"line 4: seed has value 0, n 7: it must be above 0; {SEED}, with another value in each run"),
        ("failed test: s['b'] == 1 and s['a'] == 1; with {x}",
         "not all hyperparameters of the optimizer are logged exactly once: a, b; log each once"),
        ("and 4 more lines cannot be read", "and 4 more lines cannot be read; correct the lines named above first"),
        ("KeyError: 'x'", "the checker crashed on a value of the wrong form in this log (KeyError: 'x'); correct the "
         "log: each accuracy must be a number, and all metadata JSON objects"),
        (f"Failed executing code v['value'] > 0 triggered by line : {QUOTED}",
         f"seed has a value or metadata of the wrong form: it must be above 0; {SEED}, with another value in each run. "
         f"The line is: {QUOTED[:200]}"),
    ],
)  # fmt: skip
def test_a_complaint_is_explained_to_its_last_word(complaint: str, words: str) -> None:
    assert explain(complaint) == words
