"""A verdict belongs to a log by its digest."""

import json
import os
import re
from dataclasses import replace
from pathlib import Path

import pytest

from logs.__main__ import main
from logs.judge import compliance
from logs.judge.compliance import Verdict, digest_of, keep_verdicts, read_verdicts
from logs.judge.eligible import contradiction, missing_files
from logs.read.parse import parse_log
from logs.show.reported_run import gather_run
from logs.show.wording import lead, notes_of, state_of
from tests.logs import samples

LOG = "result_0.txt"


def test_a_verdict_on_an_earlier_log_is_not_kept_and_check_writes_the_one_on_the_present_log(tmp_path: Path) -> None:
    folder = samples.run_folder(tmp_path / "run", best=0.98)
    assert {verdict.ruleset: verdict.passed for verdict in read_verdicts(folder)} == {"4.0.0": True, "0.6.0": True}
    lines = (folder / LOG).read_text().splitlines(keepends=True)
    (folder / LOG).write_text("".join(line for line in lines if "run_start" not in line))
    assert [verdict.ruleset for verdict in read_verdicts(folder)] == ["0.6.0"]
    assert main(["check", str(folder)]) == 1
    found = {verdict.ruleset: verdict for verdict in read_verdicts(folder)}
    assert not found["4.0.0"].passed
    assert found["4.0.0"].log_sha256 == digest_of(folder / LOG)


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


def test_the_verdict_on_a_run_of_others_is_told_and_not_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compliance, "judge", samples.passed)
    folder = samples.run_folder(tmp_path / "run", best=0.98)
    (folder / "verdict.json").unlink()
    asked: list[tuple[Path, int]] = []
    monkeypatch.setattr(os, "access", lambda *given: asked.append(given))  # as of a folder that may only be read
    assert main(["check", str(folder)]) == 0
    assert asked == [(folder, os.W_OK)]
    assert not (folder / "verdict.json").exists()


@pytest.mark.parametrize("name", ["result_0.txt", "result_0.mll.txt", "metrics.jsonl", "summary.json"])
def test_an_accuracy_edited_in_one_file_fails_the_check_and_is_no_success_on_the_page(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setattr(compliance, "judge", samples.passed)
    folder = samples.run_folder(tmp_path / "run", best=0.98)
    assert main(["check", str(folder)]) == 0
    text = (folder / name).read_text()
    assert "0.98" in text
    (folder / name).write_text(text.replace("0.98", "0.99"))
    assert main(["check", str(folder)]) == 1
    assert re.search(r"FAIL  files .*\n      result_0.txt: accuracy .*0.9[89].* in the log, but 0.9[89]",
                     capsys.readouterr().out)  # fmt: skip
    run = gather_run(folder)
    assert state_of(run) == ("files disagree", False)
    assert "No run has reached its target" in lead([run])
    assert any(note.startswith("Files disagree: result_0.txt: accuracy") for note in notes_of(run))


@pytest.mark.parametrize("name", ["result_0.txt", "result_0.mll.txt", "metrics.jsonl", "summary.json"])
def test_a_run_that_has_ended_and_lacks_a_file_that_confirms_its_log_fails_the_check(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setattr(compliance, "judge", samples.passed)
    folder = samples.run_folder(tmp_path / "run", best=0.98)
    (folder / name).unlink()
    assert main(["check", str(folder)]) == 1
    words = f"missing: {name}; nobody can tell whether the rest was changed"
    assert f"FAIL  files  {folder}\n      {words}\n" in capsys.readouterr().out
    for own in ("config.yaml", "summary.json", "metrics.jsonl"):
        (folder / own).unlink(missing_ok=True)
    assert main(["check", str(folder)]) == 0, "other submitters' logs stand alone"


def test_a_summary_that_nobody_can_read_fails_the_check(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = samples.run_folder(tmp_path / "run", best=0.98)
    (folder / "summary.json").write_text('{"status"')
    assert main(["check", str(folder)]) == 1
    assert "      summary.json: cannot be read" in capsys.readouterr().out


def test_metrics_that_nobody_can_read_confirm_no_log_and_fail_the_check(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compliance, "judge", samples.passed)
    folder = samples.run_folder(tmp_path / "run", best=0.98)
    text = (folder / "metrics.jsonl").read_bytes()
    (folder / "metrics.jsonl").write_bytes(text[:100] + b"\0" * 50 + text[150:])
    assert main(["check", str(folder)]) == 1
    assert "      metrics.jsonl: line 1 is not a row of metrics" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("pattern", "time", "words"),
    [
        (r'("time_ms": )\d+', r"\1-5", "run_start is missing, or is before 1970"),
        (r'("time_ms": )\d+(.*run_stop)', r"\g<1>9\2", "run_stop is earlier than run_start, or has no time"),
    ],
)
def test_times_that_cannot_be_fail_the_check_although_the_official_checker_passes_them(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], pattern: str, time: str, words: str
) -> None:
    log = tmp_path / "log.txt"
    log.write_text(re.sub(pattern, time, samples.mllog(samples.run_events())))
    assert main(["check", str(log)]) == 1
    assert f"FAIL  times  {log}\n      {words}\n" in capsys.readouterr().out
    assert state_of(gather_run(log)) == ("impossible times", False)
    assert f"The times of the log cannot be: {words}." in notes_of(gather_run(log))


def test_files_that_a_finished_run_lacks_are_named(tmp_path: Path) -> None:
    folder = samples.run_folder(tmp_path / "run")
    (folder / "metrics.jsonl").unlink()
    (folder / "startup.json").unlink()
    (folder / "utilisation.jsonl").symlink_to("utilisation.jsonl")
    notes = notes_of(gather_run(folder))
    assert "missing in the run folder: metrics.jsonl, startup.json." in notes
    assert "utilisation.jsonl: cannot be read, because it is no file." in notes


def test_a_success_below_its_target_is_called_so(tmp_path: Path) -> None:
    assert state_of(gather_run(samples.run_folder(tmp_path / "run", best=0.96))) == ("below its target", False)


@pytest.mark.parametrize("content", ["[", "[]", '{"4.0.0": 1}', '{"4.0.0": {"passed": true}}'])
def test_a_damaged_or_old_file_has_no_verdict(tmp_path: Path, content: str) -> None:
    folder = samples.run_folder(tmp_path / "run")
    (folder / "verdict.json").write_text(content)
    assert read_verdicts(folder) == []


def test_check_by_another_division_changes_no_kept_verdict(tmp_path: Path) -> None:
    folder = samples.run_folder(tmp_path / "run", best=0.98)
    before = (folder / "verdict.json").read_bytes()
    main(["check", str(folder), "--division", "closed", "--ruleset", "4.0.0"])
    assert (folder / "verdict.json").read_bytes() == before


def test_only_verdicts_on_the_runs_own_logs_by_their_own_rulesets_are_kept(tmp_path: Path) -> None:
    folder = samples.run_folder(tmp_path / "run", best=0.98)
    logs = {"4.0.0": folder / LOG, "0.6.0": folder / "result_0.mll.txt"}
    right = {
        ruleset: Verdict(ruleset, passed=True, messages=(), log_sha256=digest_of(log)) for ruleset, log in logs.items()
    }
    copy = tmp_path / "elsewhere" / LOG
    wrong = [(copy, replace(right["4.0.0"], passed=False)), (logs["4.0.0"], replace(right["0.6.0"], passed=False)),
             (logs["4.0.0"], replace(right["4.0.0"], ruleset="3.0.0"))]  # fmt: skip
    own = [(logs[ruleset], verdict) for ruleset, verdict in right.items()]
    for order in ([*own, *wrong], [*wrong, *own]):
        keep_verdicts(folder, order)
        assert {verdict.ruleset: verdict for verdict in read_verdicts(folder)} == right
    keep_verdicts(folder, [*wrong, *own[:1]])
    content = json.loads((folder / "verdict.json").read_text(encoding="utf-8"))
    assert {ruleset: (each["passed"], each["messages"]) for ruleset, each in content.items()} == {
        "4.0.0": (True, []), "0.6.0": (False, ["no result_0.mll.txt was written"]),
    }  # fmt: skip


def test_a_log_that_has_not_ended_contradicts_a_summary_of_success_alone(tmp_path: Path) -> None:
    folder = samples.run_folder(tmp_path / "run", best=0.98)
    record = parse_log(folder / LOG)
    assert contradiction(folder, record) == ""
    words = contradiction(folder, replace(record, status=None))
    assert words == "run_stop is missing in the log, but summary.json has status success"
    words = contradiction(folder, replace(record, status="aborted"))
    assert words == "run_stop has status aborted in the log, but success in summary.json"
    (folder / "summary.json").unlink()
    assert contradiction(folder, replace(record, status="aborted")) == ""
    assert missing_files(folder, replace(record, status=None)) == ""
    assert missing_files(folder, record).startswith("missing: summary.json; ")
