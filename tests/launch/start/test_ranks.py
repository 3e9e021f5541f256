"""Any command can be run once for each rank of a cluster."""

from pathlib import Path

import pytest

from launch.start.ranks import main
from tests.programs import Said


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


@pytest.mark.parametrize("words", [[], ["--"]])
def test_a_wrong_command_line_is_one_line_and_status_2(words: list[str], said: Said) -> None:
    told = said(main, *words, status=2).err
    assert told.startswith("error: ")
    assert "COMMAND" in told
    assert told.count("\n") == 1
