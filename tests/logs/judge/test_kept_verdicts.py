"""A verdict belongs to a log by its digest."""

from __future__ import annotations

from pathlib import Path

import pytest

from logs.__main__ import main
from logs.judge.compliance import digest_of, read_verdicts
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
