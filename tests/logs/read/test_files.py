"""A user may name a pipe, standard input, or a folder whose logs have any name."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from configs.load import ROOT
from logs.__main__ import main
from logs.read.files import logs_in
from tests.logs import samples

TEXT = samples.mllog(samples.run_events())


def test_a_folder_of_logs_with_other_names_is_found_by_content(tmp_path: Path) -> None:
    for name, text in {"system/resnet/run.log": TEXT, "system/notes.txt": "nothing", "old.out": TEXT}.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    (tmp_path / "result_9.txt").mkdir()
    assert logs_in(tmp_path) == [tmp_path / "old.out", tmp_path / "system/resnet/run.log"]
    (tmp_path / "result_0.txt").write_text(TEXT)
    assert logs_in(tmp_path) == [tmp_path / "result_0.txt"]


@pytest.mark.ranks
def test_a_log_may_come_through_a_pipe_or_standard_input(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    writer = threading.Thread(target=pipe.write_text, args=(TEXT,))
    writer.start()
    assert main(["check", str(pipe)]) == 0
    writer.join()
    assert capsys.readouterr().out.startswith("PASS  4.0.0")
    command = [sys.executable, "-m", "logs", "report", "--json", "-"]
    done = subprocess.run(command, input=TEXT, capture_output=True, text=True, cwd=ROOT, check=True)
    assert '"time_to_train_s": 82.0' in done.stdout


def test_a_log_does_not_steer_the_terminal(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log = tmp_path / "log.txt"
    log.write_text(TEXT.replace('"lars"', '"\\u001b]0;title\\u0007"').replace('"open"', '"closed"'))
    assert main(["check", str(log)]) == 1
    out = capsys.readouterr().out
    assert "title" in out
    assert "\x1b" not in out
    assert "\x07" not in out


def test_logs_of_runs_below_a_folder_do_not_hide_those_of_the_folder_and_of_names_it_knows_only(tmp_path: Path) -> None:
    (tmp_path / "below" / "deep").mkdir(parents=True)
    for name in ("below/result_0.txt", "below/deep/other.log", "below/.git"):
        (tmp_path / name).write_text(":::MLLOG {}\n", encoding="utf-8")
    (tmp_path / "note.txt").write_text("nothing", encoding="utf-8")
    names = [str(path.relative_to(tmp_path)) for path in logs_in(tmp_path)]
    assert names == ["below/deep/other.log", "below/result_0.txt"]
    (tmp_path / "result_1.txt").touch()
    (tmp_path / "result_0.mll.txt").touch()
    assert [path.name for path in logs_in(tmp_path)] == ["result_0.mll.txt", "result_1.txt"]
