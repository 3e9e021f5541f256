"""Any command can be run once for each rank of a cluster."""

from pathlib import Path
from typing import Any

import pytest

from configs.programs import Program
from launch.start import local
from launch.start.ranks import main


def test_the_command_runs_once_for_each_rank_of_the_laptop_and_of_another_cluster(tmp_path: Path) -> None:
    for number, words in enumerate(([], ["--cluster", "laptop", "--set", "cluster.ranks_per_node=3"])):
        folder = tmp_path / str(number)
        folder.mkdir()
        assert main([*words, "--", "sh", "-c", f"touch {folder}/$RANK"]) == 0
        assert sorted(path.name for path in folder.iterdir()) == [str(rank) for rank in range(2 + number)]


def test_a_command_that_fails_fails_the_whole() -> None:
    assert main(["--set", "cluster.ranks_per_node=1", "--", "sh", "-c", "exit 3"]) == 3


def test_dashes_that_belong_to_the_command_stay(tmp_path: Path) -> None:
    words = ["--set", "cluster.ranks_per_node=1", "--", "sh", "-c", f'echo "$@" > {tmp_path}/told', "name", "--", "a"]
    assert main(words) == 0
    assert (tmp_path / "told").read_text(encoding="utf-8") == "-- a\n"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "COMMAND is missing; give the command of every rank after --"),
        (["--"], "COMMAND is missing; give the command of every rank after --"),
        (["--cluster", "labtop", "--", "true"], "did you mean 'laptop'?"),
    ],
)
def test_a_wrong_command_line_is_one_line_and_status_2(
    words: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(words) == 2
    told = capsys.readouterr().err
    assert told.startswith("error: ")
    assert message in told
    assert told.count("\n") == 1


def test_every_rank_has_the_given_variables_and_what_its_servers_tell(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(local, "command_of", lambda _program: ["sleep", "60"])
    monkeypatch.setenv("LEFT", "here")
    told = f'echo "$OWN $LEFT $DMLC_ROLE $DMLC_NUM_SERVER $DMLC_NUM_WORKER" >{tmp_path}/$RANK'
    variables = {"OWN": "1", "DMLC_ROLE": "none"}
    outcome = local.run_ranks(["sh", "-c", told], 2, variables, kind="parameter_server", servers=3)
    assert outcome == local.Outcome(0)
    assert {path.name: path.read_text(encoding="utf-8") for path in tmp_path.iterdir()} == {
        "0": "1 here worker 3 2\n", "1": "1 here worker 3 2\n"
    }  # fmt: skip


def test_a_launcher_behind_a_link_is_told_what_to_start_and_with_which_variables(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[tuple[object, ...]] = []

    def command(*words: object) -> list[str]:
        asked.append(words)
        return ["sh", "-c", f'echo "$OWN" >{tmp_path}/told; exit 3']

    monkeypatch.setattr(local, "command_of", command)
    monkeypatch.setattr(local, "require_link", lambda: None)
    monkeypatch.setattr(local, "shaped", lambda *words: asked.append(words) or [])  # type: ignore[func-returns-value]
    monkeypatch.setattr(local, "GRACE_S", 0.0)
    for servers, senders in ((0, 4), (3, 6)):
        options: dict[str, Any] = {"bytes_per_s": 1e6, "kind": "k", "servers": servers}
        assert local.run_ranks_on_link(["rank", "a"], 4, {"OWN": "1"}, **options) == local.Outcome(3)
        words = (Program.LOCAL_LAUNCHER, "--kind", "k", "--servers", str(servers), "4", "rank", "a")
        assert asked == [words, (1e6, senders)]
        asked.clear()
    assert (tmp_path / "told").read_text(encoding="utf-8") == "1\n"
