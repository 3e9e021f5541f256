"""The checker's report in one line a complaint, and each complaint in plain words."""

import json
from pathlib import Path
from typing import Any

import pytest

from logs.judge.complaints import complaints_of, explain
from logs.judge.compliance import judge
from tests.logs import samples

NEW_LINES = ["noise", ":::MLLOG {}", ":::MLLOGS", ":::MLLOG {}", "", 'x :::MLLOG {"key": "submission_division"}',
             ":::MLLOG {}"]  # fmt: skip
OLD_LINES = [line.replace(":::MLLOGS", "").replace(":::MLLOG", ":::MLL") for line in NEW_LINES]


def _check(index: int, line: object, *, test: str = "v['value'] > 0", state: object = None) -> str:
    context = "" if state is None else f"\ncurrent context[s]={json.dumps(state, indent=2)}"
    return (
        f"CHECK for 'seed' failed in line {index}:\n:::MLLOG raw\nfailed test: {test}\n{context}\n"
        f"current line[v]={json.dumps(line, indent=2)}"
    )


def _complaints(tmp_path: Path, *complaints: str, lines: list[str] = NEW_LINES, **given: Any) -> list[str]:
    log = tmp_path / "log"
    log.write_text("\n".join(lines) + "\n", encoding="utf-8")
    body = ("\n" + "-" * 30 + "\n").join(complaints)
    report = f"INFO - begins\n{given.pop('before', '')}ERROR - FAILED\nWARNING -  {body}\nINFO - ends\n"
    return list(complaints_of(report, log, **{"ruleset": "4.0.0", "inserted": False, **given}))


@pytest.mark.parametrize(
    ("index", "inserted", "number"),
    [(0, False, 2), (1, False, 4), (3, False, 7), (9, False, 10), (0, True, 0), (1, True, 2), (3, True, 7)],
)
@pytest.mark.parametrize(("ruleset", "lines"), [("4.0.0", NEW_LINES), ("0.6.0", OLD_LINES)])
def test_the_checkers_count_of_events_becomes_the_line_of_the_file(
    tmp_path: Path, index: int, inserted: bool, number: int, ruleset: str, lines: list[str]
) -> None:
    found = _complaints(tmp_path, _check(index, {"value": 0}), lines=lines, ruleset=ruleset, inserted=inserted)
    assert found == [f"line {number}: CHECK for 'seed' failed: v['value'] > 0; got {json.dumps({'value': 0})}"]


def test_of_a_complaint_the_values_and_the_part_of_the_state_that_decide_are_kept(tmp_path: Path) -> None:
    test = "not s['in_eval'] and s['last_epoch'] == s['lost']"
    line = {"value": None, "metadata": {"epoch_num": 3, "file": "a.py", "lineno": 7}}
    state = {"in_eval": True, "last_epoch": 4, "other": 5}
    context = 'failed test: s[\'a\'] == 1\ncurrent context[s]={\n  "a": 0, "b": 1\n}'
    found = _complaints(tmp_path, "Required  EXACTLY_ONE\noccurrence", _check(0, line, test=test, state=state), context)
    assert found == [
        "Required EXACTLY_ONE occurrence",
        f"line 2: CHECK for 'seed' failed: {test}; with "
        '{"in_eval": true, "last_epoch": 4}; got {"value": null, "epoch_num": 3}',
        "failed test: s['a'] == 1; with {\"a\": 0}",
    ]
    assert [explain(each, "4.0.0") for each in found[1:]] == [
        "line 2: seed has epoch_num 3; the rule is not in_eval and last_epoch == lost, where in_eval true, last_epoch "
        "4; log seed once, from rank 0, with another value in each run",
        "the rule is a == 1, where a 0; log each hyperparameter of the optimizer exactly once",
    ]


@pytest.mark.medium
def test_lines_that_cannot_be_read_come_first_three_are_shown_and_the_others_counted(tmp_path: Path) -> None:
    log = tmp_path / "log"
    damaged = "".join(f':::MLLOG {{"key": "broken {number}{"x" * 200}\n' for number in range(5))
    for count, more in ((3, []), (4, ["and 1 more lines cannot be read"]), (5, ["and 2 more lines cannot be read"])):
        log.write_text(samples.mllog(samples.run_events()) + "".join(damaged.splitlines(keepends=True)[:count]))
        messages = judge(log, "4.0.0").messages
        assert [each.partition(":")[0][:14] for each in messages[:3]] == ["cannot be read"] * 3
        assert [len(each) < 250 for each in messages[:3]] == [True] * 3
        assert [each for each in messages if each.startswith("and ")] == more


@pytest.mark.parametrize(
    ("key", "value", "remedy"),
    [
        ("submission_benchmark", "llama31_8b", "this check is for logs of ResNet"),
        ("submission_division", "shut", "--division"),
    ],
)
def test_a_log_that_the_ruleset_has_no_rules_for_is_told_by_the_value(
    tmp_path: Path, key: str, value: str, remedy: str
) -> None:
    log = tmp_path / "log"
    events = [(time, name, value if name == key else old, more) for time, name, old, more in samples.run_events()]
    log.write_text(samples.mllog(events), encoding="utf-8")
    (told,) = judge(log, "4.0.0").explained
    assert told.startswith(f"{key} has value {value}, ")
    assert remedy in told


OPEN = ", or submit in the open division (recipe: mlperf.division: open)"
LATER = ", or judge the log by ruleset 4.0.0 in the open division (recipe: mlperf.ruleset: 4.0.0)"
NEVER = "Failed checks for eval_accuracy : v['value'] >= 0.7590 and v['value'] < 1.0"
TRAIN = "the rule is value >= 0.7590 and value < 1.0; train until an evaluation reaches the target"
OPTIMIZER = "line 9: CHECK for 'opt_name' failed: v['value'] in ['sgd', 'lars']; got {\"value\": \"adam\"}"
NO_RULES = "FileNotFoundError: [Errno 2] No such file or directory: '/x/training_3.1.0/closed_resnet_adam.yaml'"


@pytest.mark.parametrize(
    ("complaint", "ruleset", "begin", "remedy"),
    [
        ("Required EXACTLY_ONE occurrence of 'run_stop' but found 0", "4.0.0", "run_stop is missing; ",
         "let the run come to its end"),
        ("Required AT_LEAST_ONE occurrence of 'epoch_start' or 'block_start'", "4.0.0",
         "epoch_start or block_start is missing; ", "log epoch_start from rank 0, as the rule asks"),
        ("Required AT_LEAST_ONE occurrence of 'eval_accuracy' but found 0", "4.0.0", "eval_accuracy is missing; ",
         "let the run come to an evaluation"),
        ("Required EXACTLY_ONE occurrence of 'lars_epsilon' but found 0", "4.0.0", "lars_epsilon is missing; ",
         "log lars_epsilon from rank 0, as the rule asks"),
        ("Required EXACTLY_ONE occurrence of 'seed' but found 3", "4.0.0", "seed is logged 3 times, allowed: once; ",
         "log seed once, from rank 0"),
        ("Required EXACTLY_ONE occurrence of 'seed' but found 2 with different values: [1, 2]", "4.0.0",
         "seed is logged 2 times, with different values (1, 2), allowed: once; ", "log seed once, from rank 0"),
        ("line 9: CHECK for 'lars_epsilon' failed: v['value'] == 0.0; got {\"value\": 1e-09}", "4.0.0",
         "line 9: lars_epsilon has value 1e-09; the rule is value == 0.0; ", f"set optimizer.epsilon to 0{OPEN}"),
        # A rule that no division asks for any more is left to the open one; ruleset 0.6.0 knows no difference.
        (OPTIMIZER, "4.0.0", "line 9: opt_name has value adam; ", f"use optimizer.name lars or sgd{OPEN}"),
        (OPTIMIZER, "0.6.0", "line 9: opt_name has value adam; ", f"use optimizer.name lars or sgd{LATER}"),
        ("line 9: CHECK for 'lars_opt_weight_decay' failed: v['value'] > 0; got {\"value\": 0}", "0.6.0",
         "line 9: lars_opt_weight_decay has", "set optimizer.weight_decay to 0.0001 times a power of 2"),
        ("line 9: CHECK for 'eval_accuracy' failed: 'epoch_num' in v['metadata']; got {}", "4.0.0",
         "line 9: eval_accuracy has no value; ", "log eval_accuracy from rank 0, as the rule asks"),
        (NEVER, "4.0.0", f"no eval_accuracy passes; {TRAIN}", OPEN),
        (f'{NEVER}; got {{"lowest": 0.25, "highest": 0.75}}', "4.0.0",
         f"no eval_accuracy passes (from 0.25 to 0.75); {TRAIN}", OPEN),
        # In round v0.7 the open division has the target, too.
        (NEVER, "0.7.0", f"no eval_accuracy passes; {TRAIN}", LATER),
        ("Failed checks for eval_accuracy : v['value'] < 1.0; got {\"lowest\": 1.0, \"highest\": 1.0}", "4.0.0",
         "no eval_accuracy passes (from 1.0 to 1.0); the rule is value < 1.0; evaluate earlier ",
         "(run.eval_first_epoch), or more images: the checker accepts no perfect score"),
        (NO_RULES, "4.0.0", "opt_name has value adam, for which the closed division has no rules; ",
         f"use optimizer.name lars or sgd{OPEN}"),
        ("TypeError: '>=' not supported", "4.0.0", "the checker crashed on a value of the wrong form in this log ",
         "each accuracy must be a number, and all metadata JSON objects"),
        ("cannot be read (no JSON): :::MLLOG x", "4.0.0", "a line is damaged, or in another format (no JSON): ",
         ":::MLLOG x; write each of the two formats into a file of its own"),
        ("No log lines detected", "4.0.0", "the file contains no MLPerf event", "or another --ruleset"),
        ("Failed checks for seed : v['value'] > 0; got {\"odd\": 1}", "4.0.0", "no seed passes; the rule is value > 0",
         "log seed once, from rank 0, with another value in each run"),
        ("What nobody knows yet", "4.0.0", "What nobody knows yet", ""),
    ],
)  # fmt: skip
def test_a_complaint_is_explained_in_plain_words_with_a_remedy(
    complaint: str, ruleset: str, begin: str, remedy: str
) -> None:
    found = explain(complaint, ruleset)
    assert (found[: len(begin)], found[len(found) - len(remedy) :]) == (begin, remedy)
    assert not any(word in found for word in ("s['", "v['", "CHECK", "{"))


def test_the_range_of_a_key_that_never_passes_is_that_of_its_numbers(tmp_path: Path) -> None:
    lines = [f":::MLLOG {json.dumps({'key': 'eval_accuracy', 'value': value})}" for value in ("0.5", 0.25, 0.75, "x")]
    lines += [":::MLLOG {", ':::MLLOG {"key": "eval_samples", "value": 9}']
    assert _complaints(tmp_path, NEVER, lines=lines) == [f'{NEVER}; got {{"lowest": 0.25, "highest": 0.75}}']
    assert _complaints(tmp_path, NEVER, lines=lines[3:]) == [NEVER]


@pytest.mark.medium
@pytest.mark.parametrize(("ruleset", "division"), [("0.6.0", None), ("0.6.0", "open"), ("4.0.0", "closed")])
def test_a_complaint_names_the_line_of_the_file_also_under_another_division(
    tmp_path: Path, ruleset: str, division: str | None
) -> None:
    events = [
        (at, key, "" if key == "submission_platform" else value, meta) for at, key, value, meta in samples.run_events()
    ]
    log = tmp_path / "log"
    log.write_text("other output\n\n" + (samples.mll if ruleset == "0.6.0" else samples.mllog)(events))
    number = next(n for n, line in enumerate(log.read_text().splitlines(), 1) if "submission_platform" in line)
    messages = judge(log, ruleset, division).messages
    assert any(each.startswith(f"line {number}: CHECK for 'submission_platform'") for each in messages), messages
