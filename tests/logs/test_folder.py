import json
import os
import re
from dataclasses import asdict
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from configs.errors import UserError
from configs.load import dump, load_cluster, load_recipe
from logs.folder import (
    Summary,
    close_aborted,
    create_run_folder,
    default_run_name,
    read_summary,
    write_json,
    write_summary,
)
from logs.judge.compliance import write_verdict
from logs.mlperf import MlperfLog


def test_a_new_or_empty_folder_becomes_a_run(tmp_path: Path) -> None:
    assert create_run_folder(tmp_path / "runs" / "one").is_dir()
    assert create_run_folder(tmp_path / "runs" / "one").is_dir()


def test_a_folder_with_something_in_it_is_refused_and_left_alone(tmp_path: Path) -> None:
    (tmp_path / "kept").write_text("a record")
    with pytest.raises(UserError, match=r"exists already, .*; give another folder, or remove this one"):
        create_run_folder(tmp_path)
    for path in (tmp_path / "kept", tmp_path / "kept" / "run"):
        with pytest.raises(UserError, match="give another"):
            create_run_folder(path)
    assert (tmp_path / "kept").read_text() == "a record"


def test_a_name_has_recipe_and_start_time_and_is_not_in_use(tmp_path: Path) -> None:
    now = datetime(2026, 11, 21, 4, 45)
    names = ["digits-20261121-044500", "digits-20261121-044500-2", "digits-20261121-044500-3"]
    for name in names:
        assert default_run_name("digits", now, tmp_path) == name
        (tmp_path / name).mkdir()


def test_json_is_replaced_atomically_and_is_strict(tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    write_json(path, {"a": 1})
    write_json(path, {"a": [float("nan"), float("inf"), 1.5], "b": tmp_path})
    assert json.loads(path.read_text()) == {"a": [None, None, 1.5], "b": str(tmp_path)}
    with pytest.raises(TypeError):
        write_json(path, object())
    assert [entry.name for entry in tmp_path.iterdir()] == ["x.json"]


def test_on_a_full_disk_the_old_file_stays_and_the_error_is_one_line(tmp_path: Path) -> None:
    path = tmp_path / "summary.json"
    write_json(path, {"a": 1})
    (tmp_path / f".summary.json.{os.getpid()}").symlink_to("/dev/full")
    with pytest.raises(UserError, match=r"summary.json: cannot be written: the disk is full; free some space"):
        write_json(path, {"a": 2})
    assert json.loads(path.read_text()) == {"a": 1}
    assert [entry.name for entry in tmp_path.iterdir()] == ["summary.json"]


def test_a_summary_comes_back_as_it_was(tmp_path: Path) -> None:
    summary = Summary(recipe="digits", status="success", top1=0.97, steps=225, weights_checksum="00ff")
    write_summary(tmp_path, summary)
    assert read_summary(tmp_path) == summary


@pytest.mark.parametrize("text", [None, "{", "[]", '{"status": "success"}'])
def test_a_missing_or_broken_summary_is_named(tmp_path: Path, text: str | None) -> None:
    if text is not None:
        (tmp_path / "summary.json").write_text(text)
    with pytest.raises(UserError, match=r"summary.json: (cannot be read|is not a run's summary)"):
        read_summary(tmp_path)


def test_a_killed_run_is_closed_as_aborted_with_complete_logs_and_a_summary(tmp_path: Path, toy_run: Any) -> None:
    recipe, cluster = load_recipe("digits"), load_cluster("laptop")
    (tmp_path / "config.yaml").write_text(dump(recipe, cluster))
    log = MlperfLog(tmp_path)
    toy_run.log_events(log)
    log.close()
    for path in tmp_path.glob("result_*.txt"):
        path.write_text(path.read_text() + path.read_text()[:50])  # a last line that was cut off
    close_aborted(tmp_path, "rank 1 died by signal 9", failed_rank=1)
    verdicts = write_verdict(tmp_path)
    # 4.0.0 accepts any status if the run has reached the target once.
    assert verdicts["4.0.0"].passed
    (message,) = verdicts["0.6.0"].messages
    assert re.search("'run_stop' failed.*aborted", message)
    summary = read_summary(tmp_path)
    assert (summary.recipe, summary.status, summary.failed_rank) == ("digits", "aborted", 1)
    assert summary.failure == "rank 1 died by signal 9"
    assert (summary.target, summary.world_size) == (recipe.run.target_top1, cluster.world_size)
    before = {path: path.read_bytes() for path in tmp_path.iterdir()}
    close_aborted(tmp_path, "again")
    assert {path: path.read_bytes() for path in tmp_path.iterdir()} == before


def test_a_run_killed_before_it_wrote_anything_gets_only_a_summary(tmp_path: Path) -> None:
    close_aborted(tmp_path, "no rank came up")
    assert [entry.name for entry in tmp_path.iterdir()] == ["summary.json"]
    assert read_summary(tmp_path) == Summary("unknown", "aborted", failure="no rank came up")


def test_what_rank_0_wrote_itself_is_kept(tmp_path: Path, toy_run: Any) -> None:
    toy_run.write(tmp_path)
    write_summary(tmp_path, Summary("digits", "success"))
    before = {path: path.read_bytes() for path in tmp_path.iterdir()}
    close_aborted(tmp_path, "killed while tidying up")
    assert {path: path.read_bytes() for path in tmp_path.iterdir()} == before


def test_what_a_summary_was_not_told_is_unknown() -> None:
    told = {"recipe": "digits", "status": "aborted", "is_rehearsal": False}
    found = asdict(Summary("digits", "aborted"))
    assert {key: value for key, value in found.items() if value is not None} == told


def test_an_aborted_run_has_the_numbers_of_its_configuration(tmp_path: Path) -> None:
    waits = "{forward_s: 1, gradients_s: [1], update_s: 1, evaluation_s: 1, top1: [0.5]}"
    three = ["cluster.ranks_per_node=3"]
    rehearsed = load_cluster("laptop", [*three, "cluster.engine.name=timed", f"cluster.rehearsal={{waits: {waits}}}"])
    recipe = load_recipe("digits", ["run.seed=17", "run.target_top1=0.625", "batch.global_size=48"])
    for cluster, is_rehearsal in ((rehearsed, True), (load_cluster("laptop", three), False)):
        (tmp_path / "config.yaml").write_text(dump(recipe, cluster), encoding="utf-8")
        close_aborted(tmp_path, "killed", failed_rank=2, failed_step=41)
        assert read_summary(tmp_path) == Summary(
            "digits", "aborted", target=0.625, world_size=3, global_batch_size=48, seed=17, failure="killed",
            failed_rank=2, failed_step=41, is_rehearsal=is_rehearsal,
        )  # fmt: skip
        (tmp_path / "summary.json").unlink()


def test_an_aborted_run_names_the_rank_and_the_step_that_failed_and_numbers_as_text_are_no_summary(
    tmp_path: Path,
) -> None:
    for recipe in ("unknown", "digits"):  # A folder without and one with a configuration.
        close_aborted(tmp_path, "killed", failed_rank=1, failed_step=0)
        summary = read_summary(tmp_path)
        assert (summary.recipe, summary.failed_rank, summary.failed_step) == (recipe, 1, 0)
        (tmp_path / "summary.json").unlink()
        (tmp_path / "config.yaml").write_text(dump(load_recipe("digits"), load_cluster("laptop")), encoding="utf-8")
    write_json(tmp_path / "summary.json", {**asdict(summary), "epochs": "8"})
    with pytest.raises(UserError, match="is not a run's summary"):
        read_summary(tmp_path)


def test_a_folder_that_cannot_be_made_is_told_by_its_own_name(tmp_path: Path) -> None:
    file = tmp_path / "kept"
    file.write_text("a record")
    new = "exists already, and a run needs a new or empty folder; give another folder, or remove this one"
    below = "cannot be created, because one of its parent folders is a file; give another folder"
    for path, words in ((file, new), (file / "run", below), (file / "deep" / "run", below)):
        with pytest.raises(UserError) as caught:
            create_run_folder(path)
        assert str(caught.value) == f"{path}: {words}"
