"""The user's command that is told how a run ended."""

from pathlib import Path

import pytest

from configs.load import load_cluster
from launch import notify as module
from launch.notify import notify


def test_the_command_gets_the_facts(tmp_path: Path) -> None:
    command = f'printf "%s|%s|%s" "$RUN_EVENT" "$RUN_MESSAGE" "$RUN_FOLDER" >{tmp_path}/told'
    cluster = load_cluster("laptop").model_copy(update={"notify": command})
    notify(cluster, tmp_path, "restart", "rank 1 was killed; $(touch harm)")
    told = (tmp_path / "told").read_text(encoding="utf-8")
    assert told == f"restart|rank 1 was killed; $(touch harm)|{tmp_path}"


def test_the_command_gets_the_whole_path_of_a_folder_below_this_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    notify(load_cluster("laptop", ["cluster.notify=echo $RUN_FOLDER >told"]), Path("runs/one"), "end", "success")
    assert (tmp_path / "told").read_text(encoding="utf-8") == f"{tmp_path}/runs/one\n"


@pytest.mark.usefixtures("typed")
def test_the_command_reads_nothing_of_what_is_typed(tmp_path: Path) -> None:
    notify(load_cluster("laptop", [f"cluster.notify=cat >{tmp_path}/told"]), tmp_path, "end", "")
    assert (tmp_path / "told").read_text(encoding="utf-8") == ""


def test_without_a_bash_the_run_ends_with_a_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    notify(load_cluster("laptop", ["cluster.notify=echo"]), tmp_path, "end", "success")
    assert capsys.readouterr().err == ("warning: cluster.notify: 'echo' cannot be run: No such file or directory\n")


@pytest.mark.parametrize(
    ("command", "trouble"), [("exit 3", "ended with status 3"), ("sleep 5", "did not end within 0.1 s")]
)
def test_a_command_that_fails_or_hangs_is_a_warning(
    command: str, trouble: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(module, "_PATIENCE_S", 0.1)
    notify(load_cluster("laptop", [f"cluster.notify={command}"]), tmp_path, "end", "success")
    assert capsys.readouterr().err == f"warning: cluster.notify: {command!r} {trouble}\n"
