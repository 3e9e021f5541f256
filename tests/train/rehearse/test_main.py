"""What the words of ``./run.sh rehearse`` ask for."""

from pathlib import Path
from typing import Any

import pytest

from configs.errors import UserError
from configs.load import load_both, load_run
from train.rehearse import rehearsed_run
from train.rehearse.__main__ import _new_folder, _numbers_of_ranks, _parser, _rehearsed, _usual_launcher, main


@pytest.mark.parametrize(
    ("words", "numbers"),
    [
        (["--ranks", "9"], [9]),
        (["--ranks", "1", "--validate"], [1]),
        (["--ranks", "2", "--validate"], [2]),
        (["--ranks", "9", "--validate"], [2, 4, 8, 9]),
        (["--ranks", "8", "--validate"], [2, 4, 8]),
    ],
)
def test_a_validation_doubles_the_ranks_up_to_those_that_are_asked_for(words: list[str], numbers: list[int]) -> None:
    parser = _parser()
    assert _numbers_of_ranks(parser.parse_args(["digits", "--cluster", "laptop", *words])) == numbers
    if "--validate" in words:
        with pytest.raises(UserError, match="--validate: got --nodes above 1, allowed: one node"):
            _numbers_of_ranks(parser.parse_args(["digits", "--cluster", "laptop", *words, "--nodes", "2"]))


@pytest.mark.parametrize(
    ("words", "ranks", "asked"),
    [
        ([], 2, {"nodes": 1, "launcher": "local", "shrink": 256, "speed": 1.0, "slow_ranks": [], "faults": []}),
        ([], 8, {"launcher": "local"}),
        ([], 9, {"launcher": "mpirun"}),
        (["--launcher", "horovodrun", "--shrink", "8", "--nodes", "3"], 33,
         {"launcher": "horovodrun", "shrink": 8, "nodes": 3}),
        (["--speed", "4", "--slow", "1:2", "--slow", "0:3", "--fail", "kill@9:1"], 2,
         {"speed": 4.0, "slow_ranks": ["1:2", "0:3"], "faults": ["kill@9:1"]}),
    ],
)  # fmt: skip
def test_a_rehearsal_is_told_every_option(
    words: list[str], ranks: int, asked: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    described, told = load_both("digits", "laptop"), list[Any]()
    monkeypatch.setattr("shutil.which", lambda program: f"/bin/{program}")

    def note(*pair: Any, **given: Any) -> Any:
        told.append((pair, given))
        return pair

    monkeypatch.setattr(rehearsed_run, "rehearsed_run", note)
    options = _parser().parse_args(["digits", "--cluster", "laptop", *words])
    assert _rehearsed(described, options, ranks) == described
    ((pair, given),) = told
    assert (pair, given["ranks"]) == (described, ranks)
    assert {name: given[name] for name in asked} == asked


@pytest.mark.parametrize(("words", "shrink", "speed"), [([], 1, 1), (["--shrink", "5", "--speed", "2.5"], 5, 2.5)])
def test_the_config_of_a_job_is_written_and_nothing_runs(
    words: list[str], shrink: int, speed: float, tmp_path: Path
) -> None:
    config = tmp_path / "config.yaml"
    chosen = ["--slow", "1:2", "--fail", "kill@9:0", *words]
    assert main(["rehearse", "imagenet-b256", "--cluster", "dgx-a100", "--config", str(config), *chosen]) == 0
    rehearsal = load_run(config)[1].rehearsal
    assert rehearsal is not None
    assert (rehearsal.shrink, rehearsal.speed, rehearsal.faults) == (shrink, speed, ("kill@9:0",))
    assert dict(rehearsal.slow_ranks) == {"1": 2.0}


def test_many_ranks_start_over_mpi_only_where_it_is_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shutil.which", lambda _: None)
    assert _usual_launcher(9) == "local"


def test_a_new_run_folder_says_that_it_holds_a_rehearsal(tmp_path: Path) -> None:
    folder = _new_folder(tmp_path, "digits")
    assert folder.parent == tmp_path
    assert folder.name.startswith("rehearsal-digits-2")


def test_ctrl_c_ends_with_the_status_of_a_signal(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object, **_others: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("subprocess.run", interrupted)
    assert main(["rehearse", "digits", "--cluster", "dgx-a100", "--ranks", "2"]) == 130
