from pathlib import Path
from typing import Any

import pytest

from logs.__main__ import main
from logs.judge.compliance import judge
from logs.judge.explain import explain
from tests.logs import samples


@pytest.mark.parametrize(
    ("complaint", "words"),
    [
        ("Required EXACTLY_ONE occurrence of 'run_stop' but found 0", "run_stop is missing; let the run reach"),
        (
            "Required EXACTLY_ONE occurrence of 'seed' but found 2 with different values: [1, 2]",
            "seed is logged 2 times, with different values (1, 2), allowed: once; log seed once, from rank 0",
        ),
        (
            "Required AT_LEAST_ONE occurrence of 'eval_stop' or 'block_stop'",
            "eval_stop or block_stop is missing; log each evaluation once",
        ),
        (
            "line 9: CHECK for 'lars_epsilon' failed: v['value'] == 0.0; got {\"value\": 1e-09}",
            "line 9: lars_epsilon is 1e-09: it must be 0.0; set optimizer.epsilon to 0, or submit in the open division",
        ),
        (
            "line 7: CHECK for 'run_stop' failed: s['run_started']  and not s['in_eval'] and ( v['metadata']['status']"
            ' == \'success\' ); with {"run_started": true, "in_eval": false}; got {"value": null, "status": "aborted"}',
            "line 7: run_stop has status aborted: the status must be success; let the run reach its target",
        ),
        (
            "line 7: CHECK for 'run_stop' failed: s['run_started'] and not s['in_eval'] and v['metadata']['status']"
            ' == \'success\'; with {"run_started": true, "in_eval": true}; got {"value": null, "status": "success"}',
            "line 7: run_stop has status success: no evaluation may be open; end each epoch, evaluation and block",
        ),
        ("Failed checks for eval_accuracy : v['value'] >= 0.7590 ", "no eval_accuracy passes: it must be at least"),
        # A log that was cut off may be of any data set, with a target of its own.
        (
            "Required AT_LEAST_ONE occurrence of 'eval_accuracy' but found 0",
            "eval_accuracy is missing; train until an evaluation has ended, and log its eval_accuracy",
        ),
        (
            "Failed checks for eval_accuracy : v['value'] >= 0.7590 and v['value'] < 1.0"
            '; got {"lowest": 75.1, "highest": 76.2}',
            "no eval_accuracy passes (from 75.1 to 76.2): it must be below 1.0; log accuracies as shares from 0 to 1",
        ),
        (
            "line 9: CHECK for 'block_start' failed: (s['in_epoch'] and v['metadata']['n'] == s['last_eval'])"
            " or (not s['in_epoch'] and v['metadata']['n'] == (s['last_epoch']+1))"
            '; with {"in_epoch": false, "last_eval": 0, "last_epoch": 0}; got {"value": null, "n": 4}',
            "line 9: block_start has n 4: epochs must be numbered 1, 2, 3 and so on, without gaps and",
        ),
        (
            "failed test: s['a'] == 1 and s['b'] == 1; with {\"a\": 1, \"b\": 0}",
            "not all hyperparameters of the optimizer are logged exactly once: b; log each once",
        ),
        (
            "Failed executing CHECK code: v['value'] > 0 triggered by line: :::MLL 1.0 model_bn_span: {\"value\": []}",
            "model_bn_span has a value or metadata of the wrong form: it must be above 0; log model_bn_span once",
        ),
        ("TypeError: '>=' not supported", "the checker crashed on a value of the wrong form in this log"),
        (
            "cannot be read (no JSON): :::MLLOG x",
            "a line is damaged, or in another format (no JSON): :::MLLOG x; write each of the two formats",
        ),
        ("No log lines detected", "the file contains no MLPerf event"),
        ("a new kind of complaint", "a new kind of complaint (the checker's own words"),
    ],
)  # fmt: skip
def test_a_complaint_is_explained_in_plain_words_with_a_remedy(complaint: str, words: str) -> None:
    assert explain(complaint).startswith(words)


@pytest.mark.parametrize("ruleset", ["0.6.0", "1.0.0", "4.0.0"])
@pytest.mark.parametrize("fault", ["run_stop", "_size", "lars_", "submission_", "init_stop", "eval_accuracy"])
def test_no_complaint_keeps_the_checkers_python_expressions(tmp_path: Path, ruleset: str, fault: str) -> None:
    events = [each for each in samples.run_events(division="closed") if fault not in each[1]]
    log = tmp_path / "log.txt"
    log.write_text((samples.mll if ruleset == "0.6.0" else samples.mllog)(events))
    verdict = judge(log, ruleset)
    assert not verdict.passed
    for message in verdict.messages:
        assert not any(word in explain(message) for word in ("s['", "v['", "the rule is", "own words")), message


def test_check_takes_ruleset_and_division_from_the_log_or_the_command_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    log = tmp_path / "log.txt"
    old = samples.run_events(begin_s=1.622e9, best=0.5)
    log.write_text(samples.mllog(old))
    assert main(["check", str(log)]) == 0
    assert capsys.readouterr().out.startswith("PASS  1.0.0")
    assert main(["check", "--division", "closed", "--ruleset", "4.0.0", str(log)]) == 1
    out = capsys.readouterr().out
    assert "no eval_accuracy passes (from 0.25 to 0.5): it must be at least 0.759; train longer" in out
    log.write_text(samples.mllog([each for each in old if each[1] != "submission_division"]))
    assert main(["check", str(log)]) == 1
    assert "submission_division is missing; set mlperf.division" in capsys.readouterr().out
    assert main(["check", "--division", "open", str(log)]) == 0


def test_line_numbers_are_those_of_the_file_also_with_another_division(tmp_path: Path) -> None:
    log = tmp_path / "log.txt"
    events: Any = [(at, k, 1e-9 if k == "lars_epsilon" else v, m) for at, k, v, m in samples.run_events()]
    log.write_text(samples.mllog(events))
    line = next(n for n, text in enumerate(log.read_text().splitlines(), start=1) if "lars_epsilon" in text)
    (message,) = judge(log, "4.0.0", "closed").messages
    assert message.startswith(f"line {line}: CHECK for 'lars_epsilon'")


def test_a_log_of_v05_and_a_damaged_log_do_not_crash_check(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log = tmp_path / "log.txt"
    log.write_text(samples.mlp(samples.run_events()))
    assert main(["check", str(log)]) == 2
    assert "is of round v0.5, for which the official checker has no rules" in capsys.readouterr().err
    text = samples.mllog(samples.run_events())
    for damaged in (text[: len(text) // 2], text.replace('"time_ms": 1', '"time_ms": "x1'), text.replace("}", "")):
        log.write_bytes(damaged.encode() + b"\xff\x00")
        assert main(["check", str(log)]) == 1
        assert "FAIL" in capsys.readouterr().out


def test_a_complaint_on_a_line_without_metadata_is_explained_too(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    log = tmp_path / "result_0.mll.txt"
    events = samples.mll(samples.run_events()).replace(
        'global_batch_size: {"value": 3264, "metadata": {}}', 'global_batch_size: {"value": 0}'
    )
    log.write_text(events)
    assert main(["check", str(log)]) == 1
    assert "global_batch_size is 0: it must be above 0" in capsys.readouterr().out


def test_a_log_without_an_event_gets_one_complaint_and_no_seventeen(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    log = tmp_path / "log.txt"
    log.write_bytes(bytes(range(256)) * 20)
    assert main(["check", str(log)]) == 1
    first, second = capsys.readouterr().out.splitlines()
    assert first.startswith("FAIL")
    assert "contains no MLPerf event" in second


def test_an_edited_verdict_runs_no_code(tmp_path: Path) -> None:
    marker = tmp_path / "marker"
    rule = f"__import__('pathlib').Path({str(marker)!r}).touch() or v['value'] > 0"
    words = explain(f"line 1: CHECK for 'seed' failed: {rule}; got {{\"value\": 1}}")
    assert words.startswith("line 1: seed is 1")
    assert not marker.exists()


def test_a_rehearsals_log_is_refused_in_this_programs_words(tmp_path: Path) -> None:
    log = tmp_path / "result_0.txt"
    log.write_text(':::MLLOG {"key": "rehearsal"}\n', encoding="utf-8")
    (message,) = judge(log, "4.0.0").messages
    assert explain(message) == message
    assert "rehearsal" in message
