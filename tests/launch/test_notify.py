"""The user's command that is told how a run ended."""

import os
import select
import subprocess
from functools import partial
from pathlib import Path

import pytest

from configs.load import load_both
from launch.notify import notify
from logs.folder import RunFolder


def _folder(path: Path, command: str) -> RunFolder:
    """Return the folder of a run whose cluster file has the command."""
    recipe, cluster = load_both("digits", "laptop")
    path.mkdir(parents=True, exist_ok=True)
    folder = RunFolder(path)
    folder.write_settings(recipe, cluster.model_copy(update={"notify": command}))
    return folder


def test_the_command_gets_the_facts_and_the_whole_path_of_a_folder_below_this_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    folder = _folder(Path("runs/one"), 'printf "%s|%s|%s" "$RUN_EVENT" "$RUN_MESSAGE" "$RUN_FOLDER" >told')
    notify(folder, "restart", "rank 1 was killed; $(touch harm)")
    told = (tmp_path / "told").read_text(encoding="utf-8")
    assert told == f"restart|rank 1 was killed; $(touch harm)|{tmp_path}/runs/one"


@pytest.mark.usefixtures("typed")
def test_the_command_reads_nothing_of_what_is_typed(tmp_path: Path) -> None:
    notify(_folder(tmp_path, f"cat >{tmp_path}/told"), "end", "")
    assert (tmp_path / "told").read_text(encoding="utf-8") == ""


@pytest.mark.parametrize(
    ("command", "path", "trouble"),
    [
        ("exit 3", None, "ended with status 3"),
        ("sleep 5", None, "did not end within 0.1 s, and was killed"),
        ("echo", "/nowhere", "cannot be run: No such file or directory"),
    ],
)
def test_a_command_that_fails_or_hangs_is_a_warning(
    command: str, path: str | None, trouble: str, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    if path:
        monkeypatch.setenv("PATH", path)
    notify(_folder(tmp_path, command), "end", "success", patience_s=0.1)
    assert capsys.readouterr().err == f"warning: cluster.notify: {command!r} {trouble}\n"


def test_a_command_that_hangs_is_killed_with_all_that_it_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    receives, sends = os.pipe()
    os.set_inheritable(sends, True)
    # Each process has the pipe open, which is at its end when the last one is gone.
    monkeypatch.setattr(subprocess, "Popen", partial(subprocess.Popen, close_fds=False))
    notify(_folder(tmp_path, "sleep 600; (sleep 600; true) & true"), "end", "success", patience_s=1)
    os.close(sends)
    assert select.select([receives], [], [], 60)[0]
    os.close(receives)


def test_a_warning_does_not_show_a_secret_of_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    notify(_folder(tmp_path, "API_TOKEN=abcdefgh; exit 4"), "end", "success")
    told = capsys.readouterr().err
    assert "ended with status 4" in told and "abcdefgh" not in told
