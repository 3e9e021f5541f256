"""How the checker is called, and whose word becomes a verdict; no checker runs here."""

import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from logs.judge import compliance
from logs.judge.compliance import Verdict, _with_division, digest_of, judge, judge_all, judge_run, read_verdicts
from logs.mlperf import RESULT_FILES
from tests.logs import samples

REHEARSED = "this is the log of a rehearsal: nothing was trained, and the accuracies are invented"


class Checker:
    """Stands in the place of the checker's process."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, status: int = 0, stderr: str = "", report: str = "") -> None:
        self.status, self.stderr, self.report = status, stderr, report
        self.command, self.given, self.judged = list[str](), dict[str, Any](), b""
        monkeypatch.setattr(subprocess, "run", self.run)

    def run(self, command: list[str], **given: Any) -> Any:
        self.command, self.given = command, given
        log = Path(command[-1])
        self.judged = log.read_bytes()
        with log.open("ab") as file:
            file.write(b"later\n")
        if self.report:
            Path(command[-2]).write_text(self.report, encoding="utf-8")
        return SimpleNamespace(returncode=self.status, stderr=self.stderr, stdout="")


def test_the_checker_is_asked_elsewhere_for_the_log_as_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("log").write_bytes(b"a\n")
    checker = Checker(monkeypatch)
    assert judge(Path("log"), "3.1.0") == Verdict("3.1.0", True, (), hashlib.sha256(b"a\n").hexdigest())
    usual = ["-m", "mlperf_logging.compliance_checker", "--usage", "training", "--quiet", "--ruleset", "3.1.0"]
    folder = checker.given["cwd"]
    assert checker.command == [sys.executable, *usual, "--log_output", f"{folder}/report", f"{tmp_path}/log"]
    assert checker.given["env"] == {**os.environ, "PYTHONHASHSEED": "0"}
    assert not Path(folder).exists()


@pytest.mark.parametrize(
    ("ruleset", "first"),
    [
        ("4.0.0", b':::MLLOG {"time_ms": 0, "key": "submission_division", "value": "closed", "metadata": {}}\n'),
        ("0.6.0", b':::MLL 0 submission_division: {"value": "closed", "metadata": {}}\n'),
    ],
)
def test_another_division_stands_in_the_place_of_the_logs_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ruleset: str, first: bytes
) -> None:
    log = tmp_path / "log"
    log.write_bytes(b"\xff\n:::MLL x submission_division\nsubmission_division\n:::MLLOG seed\n")
    (tmp_path / "copies").mkdir()
    copy = _with_division(log, ruleset, "closed", tmp_path / "copies")
    assert copy.read_bytes() == first + b"\xff\n\nsubmission_division\n:::MLLOG seed\n"
    checker = Checker(monkeypatch)
    assert judge(log, ruleset, "closed").log_sha256 == digest_of(log)
    assert checker.judged == copy.read_bytes()


@pytest.mark.parametrize(
    ("stderr", "report", "messages"),
    [
        ("", "", ("the checker ended with exit status 7 and no message",)),
        ("Traceback\n  x\nKeyError: 'a'\n", "", ("KeyError: 'a'",)),
        ("KeyError: 'a'", "WARNING -  Required EXACTLY_ONE\n", ("Required EXACTLY_ONE",)),
    ],
)
def test_a_checker_that_fails_is_told_by_its_report_or_else_by_its_last_word(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stderr: str, report: str, messages: tuple[str, ...]
) -> None:
    (tmp_path / "log").touch()
    Checker(monkeypatch, 7, stderr, report)
    verdict = judge(tmp_path / "log", "4.0.0")
    assert (verdict.passed, verdict.messages) == (False, messages)


@pytest.mark.parametrize(
    ("text", "is_rehearsal"),
    [
        (':::MLLOG {"key": "rehearsal"}\n', True), ("x\n:::MLL 17.5 rehearsal: {}\n", True),
        ("x :::MLL 17.5 rehearsal: {}\n", False), (':::MLLOG {"value": "rehearsal"}\n', False),
        (" " * 4096 + ':::MLLOG {"key": "rehearsal"}\n', False),
    ],
)  # fmt: skip
@pytest.mark.parametrize("status", [0, 1])
def test_a_rehearsal_never_passes_and_is_told_by_its_first_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, is_rehearsal: bool, status: int
) -> None:
    (tmp_path / "log").write_text(text, encoding="utf-8")
    Checker(monkeypatch, status, stderr="crash")
    verdict = judge(tmp_path / "log", "4.0.0")
    assert verdict.passed == (status == 0 and not is_rehearsal)
    assert (REHEARSED in verdict.messages) == is_rehearsal
    assert verdict.log_sha256 == hashlib.sha256(text.encode()).hexdigest()


def test_the_digest_of_a_long_log_is_that_of_all_its_bytes(tmp_path: Path) -> None:
    content = bytes(range(256)) * 8200
    (tmp_path / "log").write_bytes(content)
    assert digest_of(tmp_path / "log") == hashlib.sha256(content).hexdigest()


def test_logs_are_judged_in_their_order_each_by_its_ruleset_and_all_by_one_division(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        compliance,
        "judge",
        lambda log, ruleset, division: Verdict(ruleset, passed=True, messages=(f"{log} {division}",)),
    )
    pairs = [(Path(str(number)), f"{number}.0") for number in range(9)]
    assert [(each.ruleset, each.messages) for each in judge_all(pairs, "open")] == [
        (ruleset, (f"{log} open",)) for log, ruleset in pairs
    ]
    (tmp_path / RESULT_FILES["0.6.0"]).touch()
    found = judge_run(tmp_path)
    assert list(found) == ["4.0.0", "0.6.0"]
    assert found["4.0.0"] == Verdict("4.0.0", passed=False, messages=("no result_0.txt was written",))
    assert found["0.6.0"].messages == (f"{tmp_path / RESULT_FILES['0.6.0']} None",)


def test_a_verdict_is_read_as_it_is_meant_and_that_on_a_missing_log_while_it_is_missing(tmp_path: Path) -> None:
    folder = samples.run_folder(tmp_path / "run")
    log, path = folder / "result_0.txt", folder / "verdict.json"
    row = {"passed": True, "messages": ["a", 1], "log_sha256": digest_of(log)}

    def read(**changes: object) -> list[Verdict]:
        path.write_text(json.dumps({"4.0.0": row | changes}), encoding="utf-8")
        return read_verdicts(folder)

    assert read() == [Verdict("4.0.0", True, ("a", "1"), digest_of(log))]
    assert read(passed="yes", messages="no") == [Verdict("4.0.0", False, (), digest_of(log))]
    assert read(log_sha256=None) == []
    log.unlink()
    assert read(log_sha256=None, passed=False) == [Verdict("4.0.0", False, ("a", "1"), None)]
    assert read() == []
    del row["log_sha256"]
    assert read() == []
