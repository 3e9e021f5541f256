"""The official checker's verdict on logs and run folders, as `check` prints and keeps it."""

import hashlib
import json
import os
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from logs.__main__ import main
from logs.disk import digest_of
from logs.judge import compliance
from logs.judge.compliance import (
    find_logs,
    judge,
    read_verdicts,
    write_verdict,
)
from logs.mlperf import RESULT_FILES
from tests.logs import samples
from tests.programs import Said

pytestmark = pytest.mark.medium


@pytest.mark.parametrize(("division", "optimizer"), [("closed", "lars"), ("open", "sgd")])
def test_a_toy_run_passes_both_rulesets(tmp_path: Path, toy_run: Any, division: str, optimizer: str) -> None:
    verdicts = write_verdict(toy_run.write(tmp_path, division=division, values=getattr(toy_run, optimizer)))
    assert json.loads((tmp_path / "verdict.json").read_text()) == {
        ruleset: {
            "ruleset": ruleset, "passed": True, "messages": [],
            "log_sha256": hashlib.sha256((tmp_path / name).read_bytes()).hexdigest(),
        }
        for ruleset, name in RESULT_FILES.items()
    }  # fmt: skip
    assert read_verdicts(tmp_path) == list(verdicts.values())


def test_a_run_without_logs_fails_both_rulesets(tmp_path: Path) -> None:
    assert [verdict.messages for verdict in write_verdict(tmp_path).values()] == [
        ("no result_0.txt was written",),
        ("no result_0.mll.txt was written",),
    ]


def test_a_file_that_is_no_log_is_told(tmp_path: Path, toy_run: Any, said: Said) -> None:
    toy_run.write(tmp_path)
    log, given = (tmp_path / RESULT_FILES["4.0.0"]).read_bytes(), tmp_path / "given.txt"
    for content in (b"", b"step 1 loss 2.3\n", log.decode().encode("utf-16"), log.replace(b":::MLLOG", b"")):
        given.write_bytes(content)
        told = said(main, "check", given, status=1).out
        assert told.splitlines()[1].strip().startswith("no line of an MLPerf log (:::ML) is in it")


def test_a_log_is_judged_by_the_ruleset_of_its_format_whatever_its_name(tmp_path: Path, toy_run: Any) -> None:
    toy_run.write(tmp_path)
    other = (tmp_path / RESULT_FILES["0.6.0"]).rename(tmp_path / "result_1.txt")
    assert find_logs(tmp_path) == [(tmp_path / "result_0.txt", "4.0.0"), (other, "0.6.0")]
    assert find_logs(tmp_path, "3.1.0") == [(tmp_path / "result_0.txt", "3.1.0")]
    assert find_logs(other, "4.0.0") == [(other, "4.0.0")]


def test_check_prints_pass_or_fail_for_each_log_and_has_the_exit_status(
    tmp_path: Path, toy_run: Any, said: Said, monkeypatch: pytest.MonkeyPatch
) -> None:
    # As a module of another Python leaves it.
    (tmp_path / "json.py").write_text("raise SystemExit('of PYTHONPATH')", encoding="utf-8")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    run = toy_run.write(tmp_path / "run")
    assert said(main, "check", run).out == f"PASS  0.6.0  {run}/result_0.mll.txt\nPASS  4.0.0  {run}/result_0.txt\n"
    log = run / "result_0.txt"
    log.write_text("".join(line for line in log.read_text().splitlines(keepends=True) if "run_stop" not in line))
    verdict, complaint = said(main, "check", log, status=1).out.splitlines()
    assert verdict == f"FAIL  4.0.0  {log}"
    assert complaint.startswith("      Required EXACTLY_ONE occurrence of 'run_stop' but found 0; ")


def test_check_takes_ruleset_and_division_from_the_log_or_the_command_line(tmp_path: Path, said: Said) -> None:
    log = tmp_path / "log.txt"
    old = samples.run_events(begin_s=1.622e9, best=0.5)
    log.write_text(samples.mllog(old))
    assert said(main, "check", log).out.startswith("PASS  1.0.0")
    told = said(main, "check", "--division", "closed", "--ruleset", "4.0.0", log, status=1).out
    assert "Failed checks for eval_accuracy : v['value'] >= 0.759" in told
    log.write_text(samples.mllog([each for each in old if each[1] != "submission_division"]))
    assert "'submission_division' but found 0; set mlperf.division" in said(main, "check", log, status=1).out
    assert main(["check", "--division", "open", str(log)]) == 0


def test_a_log_of_v05_and_a_damaged_log_do_not_crash_check(tmp_path: Path, said: Said) -> None:
    log = tmp_path / "log.txt"
    log.write_text(samples.mlp(samples.run_events()))
    assert "is of round v0.5, for which the official checker has no rules" in said(main, "check", log, status=2).err
    text = samples.mllog(samples.run_events())
    for damaged in (text[: len(text) // 2], text.replace('"time_ms": 1', '"time_ms": "x1'), text.replace("}", "")):
        log.write_bytes(damaged.encode() + b"\xff\x00")
        assert "FAIL" in said(main, "check", log, status=1).out


@pytest.mark.parametrize("ruleset", ["4.0.0", "0.6.0"])
@pytest.mark.parametrize(
    ("key", "words"),
    [
        ("rehearsal", "this is the log of a rehearsal: nothing was trained, and the accuracies are invented"),
        ("resumed_from_step",
         "the run was resumed, and a submission needs a run in one piece; train it again without a stop"),
    ],
)  # fmt: skip
def test_the_log_of_a_rehearsal_or_a_resumed_run_is_refused_for_that_alone(
    tmp_path: Path, ruleset: str, key: str, words: str
) -> None:
    (at, *_), *_ = events = samples.run_events()
    before = [] if key == "rehearsal" else events
    log = tmp_path / "log"
    log.write_text((samples.mllog if ruleset == "4.0.0" else samples.mll)([*before, (at, key, 9, {}), *events]))
    verdict = judge(log, ruleset)
    assert (verdict.passed, verdict.messages) == (False, (words,))
    assert verdict.log_sha256 == hashlib.sha256(log.read_bytes()).hexdigest()


@pytest.mark.parametrize("ruleset", ["0.6.0", "4.0.0"])
def test_the_logs_of_two_runs_in_one_file_are_told_apart_from_one_that_is_wrong(tmp_path: Path, ruleset: str) -> None:
    log, write = tmp_path / "log", samples.mllog if ruleset == "4.0.0" else samples.mll
    log.write_text(2 * write(samples.run_events()))
    told = "2 runs began and ended in this file; give the log of each in a file of its own"
    assert judge(log, ruleset).messages == (told,)


def test_a_verdict_on_an_earlier_log_is_not_read_and_check_keeps_the_one_on_the_present_log(tmp_path: Path) -> None:
    folder = samples.run_folder(tmp_path / "run", best=0.98)
    log = folder / "result_0.txt"
    assert {verdict.ruleset: verdict.passed for verdict in read_verdicts(folder)} == {"4.0.0": True, "0.6.0": True}
    log.write_text("".join(line for line in log.read_text().splitlines(keepends=True) if "run_start" not in line))
    assert [verdict.ruleset for verdict in read_verdicts(folder)] == ["0.6.0"]
    assert main(["check", str(folder)]) == 1
    found = {verdict.ruleset: verdict for verdict in read_verdicts(folder)}
    assert not found["4.0.0"].passed
    assert found["4.0.0"].log_sha256 == digest_of(log)


@pytest.mark.parametrize("words", [["--division", "closed"], ["--ruleset", "4.0.0"]])
def test_what_another_division_or_one_ruleset_says_is_told_and_not_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: list[str]
) -> None:
    monkeypatch.setattr(compliance, "judge", lambda *given: replace(samples.passed(*given), passed=False))
    folder = samples.run_folder(tmp_path / "run", best=0.98)
    before = read_verdicts(folder)
    assert main(["check", str(folder), *words]) == 1
    assert read_verdicts(folder) == before
    assert main(["check", str(folder)]) == 1
    assert not any(verdict.passed for verdict in read_verdicts(folder))


def test_the_verdict_on_a_folder_that_may_only_be_read_is_told_and_not_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = samples.run_folder(tmp_path / "run", best=0.98)
    (folder / "verdict.json").unlink()
    monkeypatch.setattr(os, "access", lambda path, mode: (path, mode) != (folder, os.W_OK))
    assert main(["check", str(folder)]) == 0
    assert not (folder / "verdict.json").exists()
    monkeypatch.undo()
    (folder / "verdict.json").mkdir()
    assert main(["check", str(folder)]) == 0


@pytest.mark.parametrize("content", ["[", "[]", '{"4.0.0": 1}', '{"4.0.0": {"passed": true}}'])
def test_a_damaged_or_old_file_has_no_verdict(tmp_path: Path, content: str) -> None:
    folder = samples.run_folder(tmp_path / "run")
    (folder / "verdict.json").write_text(content)
    assert read_verdicts(folder) == []


@pytest.mark.parametrize(
    ("pattern", "time"), [(r'("time_ms": )\d+', r"\1-5"), (r'("time_ms": )\d+(.*run_stop)', r"\g<1>9\2")]
)
def test_times_that_cannot_be_fail_although_the_official_checker_passes_them(
    tmp_path: Path, pattern: str, time: str
) -> None:
    log = tmp_path / "log.txt"
    log.write_text(re.sub(pattern, time, samples.mllog(samples.run_events())))
    (told,) = judge(log, "4.0.0").messages
    assert "run_stop is not after it" in told
