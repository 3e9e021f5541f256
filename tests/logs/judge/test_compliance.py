import hashlib
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import mlperf_logging
import pytest

from configs.errors import UserError
from logs.__main__ import main
from logs.judge.compliance import RULESETS, find_logs, judge, judge_run, write_verdict
from logs.mlperf import RESULT_FILES, MlperfLog

Lines = list[str]


def without(pattern: str) -> Callable[[Lines], Lines]:
    return lambda lines: [line for line in lines if not re.search(pattern, line)]


def again(key: str, old: str, new: str) -> Callable[[Lines], Lines]:
    def edit(lines: Lines) -> Lines:
        line = next(line for line in lines if key in line)
        assert old in line
        return [*lines, line.replace(old, new)]

    return edit


def swapped(first: str, second: str) -> Callable[[Lines], Lines]:
    def edit(lines: Lines) -> Lines:
        a, b = (next(index for index, line in enumerate(lines) if key in line) for key in (first, second))
        lines[a], lines[b] = lines[b], lines[a]
        return lines

    return edit


@pytest.mark.parametrize("division", ["closed", "open"])
@pytest.mark.parametrize("optimizer", ["lars", "sgd"])
def test_a_toy_run_passes_both_rulesets(tmp_path: Path, toy_run: Any, division: str, optimizer: str) -> None:
    values = getattr(toy_run, optimizer)
    if optimizer == "sgd" and division == "closed":
        # For SGD, 4.0.0 asks for a polynomial decay, and 0.6.0 for the boundaries of a step decay.
        values = values | {
            "sgd_opt_learning_rate_decay_poly_power": 2,
            "sgd_opt_learning_rate_decay_steps": 1600,
        }
    verdicts = write_verdict(toy_run.write(tmp_path, division=division, values=values))
    assert {ruleset: verdict.messages for ruleset, verdict in verdicts.items()} == {"4.0.0": (), "0.6.0": ()}
    assert all(verdict.passed for verdict in verdicts.values())
    assert json.loads((tmp_path / "verdict.json").read_text()) == {
        ruleset: {
            "ruleset": ruleset,
            "passed": True,
            "messages": [],
            "log_sha256": hashlib.sha256((tmp_path / name).read_bytes()).hexdigest(),
        }
        for ruleset, name in RESULT_FILES.items()
    }


@pytest.mark.medium
def test_an_open_run_with_the_records_own_hyperparameters_passes_and_a_closed_one_fails(
    tmp_path: Path, toy_run: Any
) -> None:
    record = toy_run.lars | {
        "global_batch_size": 86016,
        "lars_opt_learning_rate_decay_poly_power": 2.2,
        "lars_opt_end_learning_rate": 0.0325,
        "lars_epsilon": 1e-9,
    }
    verdicts = judge_run(toy_run.write(tmp_path / "open", division="open", values=record, top1=0.5))
    assert all(verdict.passed for verdict in verdicts.values())
    verdicts = judge_run(toy_run.write(tmp_path / "closed", values=record, top1=0.5))
    assert verdicts["0.6.0"].passed
    words = "\n".join(verdicts["4.0.0"].messages)
    for key in ("decay_poly_power", "end_learning_rate", "lars_epsilon", "eval_accuracy"):
        assert key in words


@pytest.mark.parametrize(
    ("ruleset", "edit", "key"),
    [
        ("4.0.0", without("run_stop"), "run_stop"),
        ("4.0.0", without("train_samples"), "train_samples"),
        ("4.0.0", again("global_batch_size", "32768", "65536"), "global_batch_size"),
        ("4.0.0", swapped("submission_division", "run_start"), "init_stop"),
        ("0.6.0", without("run_stop"), "run_stop"),
        ("0.6.0", without("submission_poc_name"), "submission_poc_name"),
        ("0.6.0", without('"epoch_num": 2'), "epoch_start"),
        ("0.6.0", without("decay_poly_power"), "lars_decay_power"),
        ("0.6.0", swapped("cache_clear", "init_start"), "cache_clear"),
        ("0.6.0", lambda lines: [*lines, ":::MLLOG {}"], "cannot be read"),
    ],
)
def test_a_log_with_one_fault_fails_and_a_message_names_the_fault(
    tmp_path: Path, toy_run: Any, ruleset: str, edit: Callable[[Lines], Lines], key: str
) -> None:
    log = toy_run.write(tmp_path) / RESULT_FILES[ruleset]
    log.write_text("\n".join(edit(log.read_text().splitlines())) + "\n")
    verdict = judge(log, ruleset)
    assert not verdict.passed
    assert any(key in message for message in verdict.messages), verdict.messages
    assert all("\n" not in message and len(message) < 600 for message in verdict.messages)


@pytest.mark.parametrize("division", [None, "open"])
def test_an_aborted_run_fails_the_old_ruleset_at_the_line_of_its_run_stop(
    tmp_path: Path, toy_run: Any, division: str | None
) -> None:
    log = toy_run.write(tmp_path, status="aborted") / RESULT_FILES["0.6.0"]
    log.write_text("some other output\n" + log.read_text())
    lines = log.read_text().splitlines()
    (message,) = judge(log, "0.6.0", division).messages
    assert message.startswith(f"line {len(lines)}: CHECK for 'run_stop' failed: ")
    assert message.endswith('got {"value": null, "status": "aborted"}')


def test_a_run_without_logs_fails_both_rulesets(tmp_path: Path) -> None:
    assert [verdict.messages for verdict in judge_run(tmp_path).values()] == [
        ("no result_0.txt was written",),
        ("no result_0.mll.txt was written",),
    ]


def test_an_empty_log_fails(tmp_path: Path) -> None:
    MlperfLog(tmp_path).close()
    for verdict in judge_run(tmp_path).values():
        assert not verdict.passed
        assert "No log lines detected" in verdict.messages


def test_the_rulesets_are_those_of_the_package_with_rules_for_resnet() -> None:
    package = Path(mlperf_logging.__path__[0]) / "compliance_checker"
    rules = [*package.glob("training_*.0/closed_resnet.yaml"), *package.glob("training_*.0/resnet.yaml")]
    assert tuple(sorted(path.parent.name.removeprefix("training_") for path in rules)) == RULESETS


def test_a_log_is_judged_by_the_ruleset_of_its_format_whatever_its_name(tmp_path: Path, toy_run: Any) -> None:
    toy_run.write(tmp_path)
    other = (tmp_path / RESULT_FILES["0.6.0"]).rename(tmp_path / "result_1.txt")
    assert find_logs(tmp_path) == [(tmp_path / "result_0.txt", "4.0.0"), (other, "0.6.0")]
    assert find_logs(tmp_path, "3.1.0") == [(tmp_path / "result_0.txt", "3.1.0")]
    assert find_logs(other, "4.0.0") == [(other, "4.0.0")]


def test_check_prints_pass_or_fail_for_each_log_and_has_the_exit_status(
    tmp_path: Path, toy_run: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    run = toy_run.write(tmp_path / "run")
    assert main(["check", str(run)]) == 0
    assert capsys.readouterr().out == f"PASS  0.6.0  {run}/result_0.mll.txt\nPASS  4.0.0  {run}/result_0.txt\n"
    log = run / "result_0.txt"
    log.write_text("\n".join(without("run_stop")(log.read_text().splitlines())))
    assert main(["check", "--raw", str(log)]) == 1
    words = "Required EXACTLY_ONE occurrence of 'run_stop' but found 0"
    verdict, explained, said = capsys.readouterr().out.splitlines()
    assert (verdict, said) == (f"FAIL  4.0.0  {log}", f"        {words}")
    assert explained.startswith("      run_stop is missing; ")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["nowhere"], "nowhere: no such file or folder; give a run folder or a log"),
        (["--ruleset", "4.0", "result_0.txt"], "ruleset: got '4.0', allowed: 0.6.0, .*; did you mean"),
        (["--ruleset", "6.1.0", "result_0.txt"], "ruleset: got '6.1.0'"),
        (["empty"], "empty: no log for any ruleset in it"),
    ],
)
def test_check_with_a_wrong_argument_is_one_line_and_status_2(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], arguments: Lines, words: str
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("empty").mkdir()
    Path("result_0.txt").touch()
    assert main(["check", *arguments]) == 2
    error = capsys.readouterr().err
    assert re.match(f"error: {words}", error)
    assert error.count("\n") == 1


def test_judging_a_missing_log_is_a_user_error(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no such log file"):
        judge(tmp_path / "result_0.txt", "4.0.0")
    with pytest.raises(UserError, match="no such run folder"):
        judge_run(tmp_path / "run")


def test_a_log_without_an_event_is_judged_by_the_ruleset_of_its_name(tmp_path: Path) -> None:
    found = []
    for name in ("result_0.mll.txt", "result_0.txt", "mll.txt"):
        (tmp_path / name).write_text("no event\n", encoding="utf-8")
        found += find_logs(tmp_path / name)
    assert [ruleset for _, ruleset in found] == ["0.6.0", "4.0.0", "4.0.0"]
    assert find_logs(tmp_path) == found[:2]
    assert find_logs(tmp_path, "0.6.0") == found[:1]
    (tmp_path / "result_0.mll.txt").unlink()
    with pytest.raises(UserError, match=r"no log for 0\.6\.0 in it; give a run folder or a log"):
        find_logs(tmp_path, "0.6.0")
