"""The checker's report in one line a complaint, with a remedy."""

from pathlib import Path

import pytest

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
    ("key", "value", "told"),
    [
        ("submission_benchmark", "llama31_8b", "resnet"),
        ("submission_division", "shut", "--division"),
        ("submission_platform", "", "set submission.platform in the cluster file"),
        ("run_stop", None, "Required EXACTLY_ONE occurrence of 'run_stop' but found 0; let the run come to its end"),
        ("lars_epsilon", 1e-9, """failed: v['value'] == 0.0; got {"value": 1e-09}; set optimizer.epsilon to 0"""),
        ("eval_accuracy", 0.25, "Failed checks for eval_accuracy : v['value'] >= 0.7590"),
    ],
)
def test_a_complaint_is_told_in_the_checkers_words_with_a_remedy(
    tmp_path: Path, key: str, value: object, told: str
) -> None:
    log = tmp_path / "log"
    given = [(at, name, value if name == key else old, meta) for at, name, old, meta in samples.run_events()]
    events = [each for each in given if each[1] != key or value is not None]
    log.write_text(samples.mllog(events), encoding="utf-8")
    messages = judge(log, "4.0.0", None if key == "submission_division" else "closed").messages
    assert any(told in each for each in messages), messages


@pytest.mark.medium
@pytest.mark.parametrize(("ruleset", "division"), [("0.6.0", None), ("0.6.0", "open"), ("4.0.0", "closed")])
def test_a_complaint_names_the_event_of_the_file_also_under_another_division(
    tmp_path: Path, ruleset: str, division: str | None
) -> None:
    events = [
        (at, key, "" if key == "submission_platform" else value, meta) for at, key, value, meta in samples.run_events()
    ]
    log = tmp_path / "log"
    log.write_text("other output\n\n" + (samples.mll if ruleset == "0.6.0" else samples.mllog)(events))
    number = next(n for n, event in enumerate(events, 1) if event[1] == "submission_platform")
    messages = judge(log, ruleset, division).messages
    assert any(each.startswith(f"event {number}: CHECK for 'submission_platform'") for each in messages), messages
