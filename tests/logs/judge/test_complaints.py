"""The checker's report in one line a complaint, and each complaint in plain words."""

from pathlib import Path

import pytest

from logs.judge.complaints import explain
from logs.judge.compliance import judge
from tests.logs import samples


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


@pytest.mark.medium
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


@pytest.mark.parametrize(
    ("complaint", "ruleset", "begin", "remedy"),
    [
        ("Required EXACTLY_ONE occurrence of 'run_stop' but found 0", "4.0.0", "run_stop is missing; ",
         "let the run come to its end"),
        ("Required AT_LEAST_ONE occurrence of 'epoch_start' or 'block_start'", "4.0.0",
         "epoch_start or block_start is missing; ", "log epoch_start from rank 0, as the rule asks"),
        ("Required EXACTLY_ONE occurrence of 'seed' but found 3", "4.0.0", "seed is logged 3 times, allowed: once; ",
         "log seed once, from rank 0"),
        ("Required EXACTLY_ONE occurrence of 'seed' but found 2 with different values: [1, 2]", "4.0.0",
         "seed is logged 2 times, with different values (1, 2), allowed: once; ", "log seed once, from rank 0"),
        ("line 9: CHECK for 'lars_epsilon' failed: v['value'] == 0.0; got {\"value\": 1e-09}", "4.0.0",
         "line 9: lars_epsilon has value 1e-09; the rule is value == 0.0; ", f"set optimizer.epsilon to 0{OPEN}"),
        # A rule that no division asks for any more is left to the open one; ruleset 0.6.0 knows no difference.
        (OPTIMIZER, "4.0.0", "line 9: opt_name has value adam; ", f"use optimizer.name lars or sgd{OPEN}"),
        (OPTIMIZER, "0.6.0", "line 9: opt_name has value adam; ", f"use optimizer.name lars or sgd{LATER}"),
        (f'{NEVER}; got {{"lowest": 0.25, "highest": 0.75}}', "4.0.0",
         f"no eval_accuracy passes (from 0.25 to 0.75); {TRAIN}", OPEN),
        # In round v0.7 the open division has the target, too.
        (NEVER, "0.7.0", f"no eval_accuracy passes; {TRAIN}", LATER),
        ("Failed checks for eval_accuracy : v['value'] < 1.0; got {\"lowest\": 1.0, \"highest\": 1.0}", "4.0.0",
         "no eval_accuracy passes (from 1.0 to 1.0); the rule is value < 1.0; evaluate earlier ",
         "(run.eval_first_epoch), or more images: the checker accepts no perfect score"),
        ("No log lines detected", "4.0.0", "the file contains no MLPerf event", "or another --ruleset"),
        ("What nobody knows yet", "4.0.0", "What nobody knows yet", ""),
    ],
)  # fmt: skip
def test_a_complaint_is_explained_in_plain_words_with_a_remedy(
    complaint: str, ruleset: str, begin: str, remedy: str
) -> None:
    found = explain(complaint, ruleset)
    assert (found[: len(begin)], found[len(found) - len(remedy) :]) == (begin, remedy)
    assert not any(word in found for word in ("s['", "v['", "CHECK", "{"))


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


@pytest.mark.medium
def test_a_complaint_has_the_value_of_its_line_and_the_part_of_the_state_that_decides(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text(samples.mllog([each for each in samples.run_events() if each[1] != "submission_division"]))
    state = '; with {"compile_time_mins": 0, "first_init_start": 1790000000000.0}; got {"value": null}'
    assert any("CHECK for 'init_stop'" in each and each.endswith(state) for each in judge(log, "4.0.0").messages)
