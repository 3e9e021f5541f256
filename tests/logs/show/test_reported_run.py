"""What a report reads of a run folder, with and without the files that the log stands in for."""

from dataclasses import replace
from pathlib import Path

import pytest

from logs.show.bars import _shares
from logs.show.lean_svg import _rounded
from logs.show.report import _names
from logs.show.reported_run import gather_run, summarise
from logs.show.wording import notes_of
from tests.logs import samples


def test_the_settings_are_those_of_the_config_or_else_those_of_the_log(tmp_path: Path) -> None:
    run = samples.run_folder(tmp_path / "run", seed=3)
    config, log = run / "config.yaml", run / "result_0.txt"
    assert gather_run(run).settings["recipe.name"] == "digits"
    logged = gather_run(log).settings
    assert (logged["global_batch_size"], logged["seed"]) == (64, "3")
    config.write_text("recipe: [")
    (run / "startup.json").unlink()
    damaged = gather_run(run)
    assert damaged.settings == logged
    unreadable, missing = damaged.problems
    assert unreadable.startswith("config.yaml: not YAML: ")
    assert missing == "missing in the run folder: startup.json"
    config.unlink()
    foreign = gather_run(run)
    assert foreign.settings == logged
    assert foreign.problems == (), "another program's run has no such files"


def test_the_figures_of_a_log_are_all_that_it_tells(tmp_path: Path) -> None:
    (tmp_path / "log").write_text(samples.mllog(samples.run_events()) + ":::MLLOG {\n")
    assert summarise(gather_run(tmp_path / "log")) == {
        "log": str(tmp_path / "log"), "submitter": "Anyone", "benchmark": "resnet", "ruleset": "4.0.0",
        "division": "open", "platform": "made up", "status": "success", "global_batch_size": 3264, "epochs": 8,
        "final_accuracy": 0.76, "init_s": 20.0, "time_to_train_s": 82.0, "median_epoch_s": 10.0, "evaluations": 2,
        "images_per_s": round(8 * 1281167 / 82, 3), "no_images_per_s_because": None, "seeds": [17],
        "curve": [
            {"epoch": 4, "at_s": 41.0, "accuracy": 0.38, "seconds": 1.0},
            {"epoch": 8, "at_s": 82.0, "accuracy": 0.76, "seconds": 1.0},
        ],
        "unreadable_records": 1,
    }  # fmt: skip


def test_a_run_in_the_working_folder_has_the_folder_s_name_and_one_without_a_log_its_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "config.yaml").touch()
    run = gather_run(Path())
    assert (run.name, summarise(run)["log"]) == (tmp_path.name, ".")


def test_the_images_of_a_run_of_this_program_need_no_note(tmp_path: Path) -> None:
    run = samples.run_folder(tmp_path / "run")
    (tmp_path / "log").write_text((run / "result_0.txt").read_text())
    noted = [any("training images" in note for note in notes_of(gather_run(path))) for path in (run, tmp_path / "log")]
    assert noted == [False, True]


def test_a_folder_has_the_newest_verdict_first_no_setting_of_the_card_and_lacks_files_only_at_its_end(
    tmp_path: Path,
) -> None:
    folder = samples.run_folder(tmp_path / "run")
    run = gather_run(folder)
    assert [verdict.ruleset for verdict in run.verdicts] == ["4.0.0", "0.6.0"]
    assert "recipe.name" in run.settings
    assert not [key for key in run.settings if "card" in key]
    (folder / "startup.json").unlink()
    assert gather_run(folder).problems == ("missing in the run folder: startup.json",)
    log = folder / "result_0.txt"
    log.write_text("".join(line for line in log.read_text().splitlines(True) if "run_stop" not in line))
    assert gather_run(folder).problems == (), "the run goes on"


def test_folders_of_one_name_are_told_apart_by_the_folders_above_them(tmp_path: Path) -> None:
    for name in ("one/run", "two/run"):
        (tmp_path / name).mkdir(parents=True)
    assert _names([tmp_path / "one/run"]) == ["run"]
    assert _names([tmp_path / "one/run", tmp_path / "two/run"]) == ["one/run", "two/run"]


def test_a_run_without_a_summary_has_the_shares_of_its_newest_interval(tmp_path: Path) -> None:
    folder = samples.run_folder(tmp_path / "run")
    (folder / "summary.json").unlink()
    rows = [{"input_wait_fraction": wait, "comm_exposed_fraction": 0.25} for wait in (0.0, 0.5)]
    (bar,) = _shares([replace(gather_run(folder), intervals=rows, summary={})])
    assert [(each.begin, each.end) for each in bar.stretches] == [(0, 25), (25, 50), (50, 100)]


def test_coordinates_of_a_drawing_keep_one_decimal() -> None:
    assert _rounded("M 100.00 0.00 L 12.345\n -7.04 10.0") == "M 100 0 L 12.3 -7 10.0"
