"""A user may name a pipe, standard input, or a folder whose logs have any name."""

import errno
import io
import os
import subprocess
import sys
import threading
from pathlib import Path
from types import SimpleNamespace

import pytest

from configs.errors import UserError
from configs.load import ROOT
from logs.__main__ import main
from logs.read.files import logs_in, regular_file
from tests.logs import samples

TEXT = samples.mllog(samples.run_events())


def test_a_folder_of_logs_with_other_names_is_found_by_content(tmp_path: Path) -> None:
    for name, text in {
        "system/resnet/run.log": TEXT, "system/notes.txt": "nothing", "old.out": TEXT, ".git/d": TEXT,
    }.items():  # fmt: skip
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
    assert capsys.readouterr().out == f"PASS  4.0.0  {pipe}\n"
    command = [sys.executable, "-m", "logs", "report", "--json", "-"]
    done = subprocess.run(command, input=TEXT, capture_output=True, text=True, cwd=ROOT, check=True)
    assert '"time_to_train_s": 82.0' in done.stdout
    assert '/stdin"' in done.stdout


def test_a_stream_without_an_event_and_a_file_larger_than_any_log_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with (tmp_path / "sparse").open("wb") as file:
        file.truncate(10 << 30)
    for path, words in {
        "/dev/null": "no line of an MLPerf log",
        str(tmp_path / "sparse"): "larger than 1,073,741,824",
    }.items():
        for verb in ("report", "check"):
            assert main([verb, path]) == 2
            told = capsys.readouterr().err
            assert told.startswith(f"error: {path}: ")
            assert words in told
            assert told.count("\n") == 1


@pytest.mark.medium
def test_a_log_does_not_steer_the_terminal(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log = tmp_path / "log.txt"
    log.write_text(TEXT.replace('"lars"', '"\\u001b]0;title\\u0007"').replace('"open"', '"closed"'))
    assert main(["check", str(log)]) == 1
    out = capsys.readouterr().out
    assert "title" in out
    assert "\x1b" not in out
    assert "\x07" not in out


def test_a_stream_that_cannot_be_read_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    class Broken(io.BytesIO):
        def read(self, size: int | None = -1, /) -> bytes:
            raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=Broken()))
    with pytest.raises(UserError) as caught:
        regular_file(Path("-"))
    assert str(caught.value) == "-: cannot be read (Input/output error); give a log"
