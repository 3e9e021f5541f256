"""Verdicts at their edges: line numbers, many damaged lines, a remedy for every key, a run exactly at the target."""

from pathlib import Path

import pytest

from logs.judge import official
from logs.judge.compliance import judge
from logs.judge.explain import explain
from logs.judge.official import ToolFinding
from logs.judge.rcp import compare_with_reference
from tests.logs import samples
from tests.logs.judge.test_rcp import run

SAID_BY_THE_PROGRAM = [
    "submission_org", "submission_platform", "submission_division", "submission_status", "submission_benchmark",
    "submission_poc_name", "submission_entry", "cache_clear", "init_start", "init_stop", "run_start", "run_stop",
    "epoch_start", "epoch_stop", "eval_start", "eval_stop", "eval_accuracy", "block_start", "block_stop",
    "train_samples", "eval_samples", "gradient_accumulation_steps", "global_batch_size", "opt_name", "lars_epsilon",
    "lars_opt_learning_rate_decay_poly_power", "lars_opt_end_learning_rate", "lars_opt_weight_decay",
    "sgd_opt_end_learning_rate", "sgd_opt_weight_decay", "sgd_opt_base_learning_rate", "seed",
]  # fmt: skip


@pytest.mark.parametrize("key", SAID_BY_THE_PROGRAM)
def test_every_key_that_is_no_mere_number_has_a_remedy_of_its_own(key: str) -> None:
    words = explain(f"Required EXACTLY_ONE occurrence of '{key}' but found 0")
    assert words.startswith(f"{key} is missing; ")
    assert "as the rules ask" not in words


@pytest.mark.ranks
@pytest.mark.parametrize("division", [None, "open", "closed"])
@pytest.mark.parametrize("ruleset", ["0.6.0", "4.0.0"])
def test_a_complaint_names_the_line_of_the_file_also_under_another_division(
    tmp_path: Path, ruleset: str, division: str | None
) -> None:
    events = [
        (at, key, "" if key == "submission_platform" else value, meta) for at, key, value, meta in samples.run_events()
    ]
    log = tmp_path / "log"
    text = (samples.mll if ruleset == "0.6.0" else samples.mllog)(events)
    log.write_text(f"other output\n\n{text}")
    number = next(n for n, line in enumerate(log.read_text().splitlines(), 1) if "submission_platform" in line)
    messages = judge(log, ruleset, division).messages
    assert any(each.startswith(f"line {number}: CHECK for 'submission_platform'") for each in messages), messages


@pytest.mark.ranks
def test_of_many_damaged_lines_three_are_shown_and_the_others_counted(tmp_path: Path) -> None:
    log = tmp_path / "log"
    damaged = "".join(f':::MLLOG {{"key": "broken {number}\n' for number in range(5))
    log.write_text(samples.mllog(samples.run_events()) + damaged)
    messages = judge(log, "4.0.0").messages
    assert [each for each in messages if each.startswith("cannot be read (")] == list(messages[:3])
    assert messages[3] == "and 2 more lines cannot be read"


@pytest.mark.medium
def test_a_run_exactly_at_the_target_is_compared() -> None:
    assert compare_with_reference([run(36, top1=0.759)]).outcome == "normal"
    assert compare_with_reference([run(36, top1=0.7589)]).outcome == "no reference"


def test_a_complaint_of_the_repository_tool_is_told_once_and_without_the_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = [
        "INFO - begins",
        f"ERROR - {tmp_path}/a b has a space",
        f"ERROR - {tmp_path}/a b has a space",
        "",
        "failed",
    ]
    monkeypatch.setattr(official, "_run", lambda *_: "\n".join(lines))
    assert official.judge_repository(tmp_path) == ToolFinding("repository", False, ("a b has a space", "failed"))
    monkeypatch.setattr(official, "_run", lambda *_: "INFO - ALL CHECKS PASSED")
    assert official.judge_repository(tmp_path) == ToolFinding("repository", True, ())
