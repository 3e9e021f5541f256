"""A user may name a pipe, standard input, or a folder whose logs have any name."""

import atexit
import errno
import io
import os
import shutil
import subprocess
import sys
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from configs.errors import UserError
from configs.load import ROOT
from logs.__main__ import main
from logs.read import files
from logs.read.files import logs_in, regular_file
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


def test_a_path_that_is_no_stream_stays_as_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("-").write_text("a file of this name")
    Path("log").touch()
    for path in (Path("-"), Path("log"), tmp_path, Path("none")):
        assert regular_file(path) == path


def test_standard_input_and_a_pipe_are_kept_in_files_that_go_at_the_end_of_the_program(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    at_end: list[Any] = []
    monkeypatch.setattr(atexit, "register", lambda *told, **named: at_end.append((told, named)))
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=io.BytesIO(b"from\xffstdin")))
    copy = regular_file(Path("-"))
    assert (copy.name, copy.read_bytes()) == ("stdin", b"from\xffstdin")
    pipe = tmp_path / "a.log"
    os.mkfifo(pipe)
    writer = threading.Thread(target=pipe.write_text, args=("from the pipe",))
    writer.start()
    other = regular_file(pipe)
    writer.join()
    assert (other.name, other.read_text()) == ("a.log", "from the pipe")
    nothing = regular_file(Path("/dev/null"))
    assert (nothing.name, nothing.read_bytes()) == ("null", b"")
    copies = (copy, other, nothing)
    assert at_end == [((shutil.rmtree, each.parent), {"ignore_errors": True}) for each in copies]
    for each in copies:
        shutil.rmtree(each.parent)


def test_a_stream_that_cannot_be_read_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    class Broken(io.BytesIO):
        def read(self, size: int | None = -1, /) -> bytes:
            raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=Broken()))
    with pytest.raises(UserError) as caught:
        regular_file(Path("-"))
    assert str(caught.value) == "-: cannot be read (Input/output error); give a log"


def test_of_a_large_folder_the_first_files_are_searched_each_in_its_first_part(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("a", "b", "c", ".git/d"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(f"{name} :::MLL\n")
    monkeypatch.setattr(files, "_MOST_FILES", 2)
    assert [path.name for path in logs_in(tmp_path)] == ["a", "b"]
    monkeypatch.setattr(files, "_MOST_FILES", 9)
    assert [path.name for path in logs_in(tmp_path)] == ["a", "b", "c"]
    (tmp_path / "b").write_text("12345:::ML")
    for size, names in ((10, ["a", "b", "c"]), (9, ["a", "c"])):
        monkeypatch.setattr(files, "_READ_BYTES", size)
        assert [path.name for path in logs_in(tmp_path)] == names
    whole = Path.open

    def refuse(path: Path, *told: Any, **named: Any) -> Any:
        if path.name == "a":
            raise PermissionError
        return whole(path, *told, **named)

    monkeypatch.setattr(Path, "open", refuse)
    assert [path.name for path in logs_in(tmp_path)] == ["c"]
