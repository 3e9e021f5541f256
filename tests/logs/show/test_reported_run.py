"""What a report reads of a run folder, with and without the files that the log stands in for."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from logs.read.record import RunRecord
from logs.show.reported_run import ReportedRun, gather_run, summarise
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
    assert damaged.problem is not None
    assert damaged.problem.words.startswith("config.yaml: not YAML: ")
    config.unlink()
    foreign = gather_run(run)
    assert foreign.settings == logged


def test_the_figures_of_a_log_are_all_that_it_tells(tmp_path: Path) -> None:
    (tmp_path / "log").write_text(samples.mllog(samples.run_events()) + ":::MLLOG {\n")
    assert summarise(gather_run(tmp_path / "log")) == {
        "log": str(tmp_path / "log"), "submitter": "Anyone", "benchmark": "resnet", "ruleset": "4.0.0",
        "division": "open", "platform": "made up", "status": "success", "global_batch_size": 3264, "epochs": 8,
        "final_accuracy": 0.76, "init_s": 20.0, "time_to_train_s": 82.0, "median_epoch_s": 10.0, "evaluations": 2,
        "is_rehearsal": False,
        "images_per_s": round(8 * 1281167 / 82, 3), "no_images_per_s_because": None, "energy": None,
        "seeds": [17],
        "curve": [
            {"epoch": 4, "at_s": 41.0, "accuracy": 0.38, "seconds": 1.0},
            {"epoch": 8, "at_s": 82.0, "accuracy": 0.76, "seconds": 1.0},
        ],
        "unreadable_records": 1,
    }  # fmt: skip


@pytest.mark.parametrize(("steps", "images"), [(100, 100 * 3264), (3141, 8 * 1281167), (None, 8 * 1281167)])
def test_of_an_epoch_that_max_steps_cut_short_only_the_trained_images_count(
    tmp_path: Path, steps: int | None, images: int
) -> None:
    folder = samples.run_folder(tmp_path / "run")
    (folder / "result_0.txt").write_text(samples.mllog(samples.run_events()))
    (folder / "summary.json").write_text(json.dumps({"steps": steps}))
    assert summarise(gather_run(folder))["images_per_s"] == round(images / 82, 3)


def test_the_log_is_that_of_the_newer_ruleset_or_else_the_first(tmp_path: Path) -> None:
    (tmp_path / "config.yaml").touch()
    assert gather_run(tmp_path).log is None
    (tmp_path / "result_0a.txt").mkdir()
    found = []
    for name in ("result_9.txt", "result_3.txt", "result_0.mll.txt", "result_0.txt"):
        (tmp_path / name).touch()
        log = gather_run(tmp_path).log
        assert log is not None
        found.append(log.name)
    assert found == ["result_9.txt", "result_3.txt", "result_0.mll.txt", "result_0.txt"]


def _run(path: Path, **record: Any) -> ReportedRun:
    return ReportedRun("a", path, None, RunRecord(path, **record))


@pytest.mark.parametrize(
    ("record", "summary", "in_folder", "target"),
    [
        ({"target": 0.7}, {}, False, 0.7), ({"target": 0.7}, {"target": 1}, False, 1.0),
        ({"benchmark": "resnet", "division": "closed"}, {}, False, 0.759),
        ({"benchmark": "resnet", "division": "closed"}, {}, True, None),
        ({"benchmark": "resnet", "division": "open"}, {}, False, None),
        ({"benchmark": "bert", "division": "closed"}, {}, False, None), ({}, {}, False, None),
    ],
)  # fmt: skip
def test_the_target_is_the_summary_s_or_the_log_s_or_that_of_the_rules(
    tmp_path: Path, record: dict[str, Any], summary: dict[str, Any], in_folder: bool, target: float | None
) -> None:
    run = replace(_run(tmp_path if in_folder else tmp_path / "log", **record), summary=summary)
    assert run.target == target
