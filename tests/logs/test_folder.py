"""A run folder is made, named, closed and read back as one object."""

import json
import os
import re
from dataclasses import asdict
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from configs.errors import UserError
from configs.load import load_both, load_cluster, load_recipe
from logs import folder as module
from logs.claims import Claims
from logs.folder import RunFolder, Summary
from logs.judge.compliance import write_verdict
from logs.mlperf import MlperfLog


def test_a_folder_with_something_in_it_is_refused_and_left_alone(tmp_path: Path) -> None:
    file = tmp_path / "kept"
    file.write_text("a record")
    new = "exists already, and a run needs a new or empty folder; give another folder, or remove this one"
    gone, circle = tmp_path / "gone", tmp_path / "circle"
    gone.symlink_to("nowhere")
    circle.symlink_to("circle")
    refused = dict.fromkeys((tmp_path, file), new)
    below = (file / "run", file / "deep" / "run", gone, gone / "run", circle, circle / "run")
    refused |= dict.fromkeys(below, "cannot be written: ")
    for path, words in refused.items():
        with pytest.raises(UserError) as caught:
            RunFolder(path).make()
        assert str(caught.value).startswith(f"{path}: {words}")
    assert file.read_text() == "a record"


def test_a_folder_whose_launcher_was_killed_before_it_wrote_the_settings_is_new(tmp_path: Path) -> None:
    Claims(tmp_path).take()
    (tmp_path / ".config.yaml.4711").write_text("recipe:")
    RunFolder(tmp_path).make()
    assert not RunFolder(tmp_path).is_begun


def test_a_name_has_recipe_and_start_time_and_is_not_in_use(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Clock(datetime):
        @classmethod
        def now(cls, tz: Any = None) -> "Clock":
            return cls(2026, 11, 21, 4, 45, tzinfo=tz)

    monkeypatch.setattr(module, "datetime", Clock)
    both = load_both("digits", "laptop", [f"cluster.paths.runs={tmp_path}"])
    for name in ("digits-20261121-044500", "digits-20261121-044500-2", "digits-20261121-044500-3"):
        folder = RunFolder.new(*both)
        assert folder.path == tmp_path / name
        assert not folder.path.exists()
        folder.make()


@pytest.mark.parametrize(
    ("setting", "mode"),
    [
        ("run.seed=2", 0o644),
        ("cluster.environment.MY_TOKEN=abc", 0o600),
        ("cluster.notify=curl https://u:p@host", 0o600),
    ],
)
def test_settings_come_back_and_only_the_owner_reads_those_that_may_hold_a_secret(
    tmp_path: Path, setting: str, mode: int
) -> None:
    both, before = load_both("digits", "laptop", [setting]), os.umask(0o022)
    try:
        RunFolder(tmp_path).write_settings(*both)
    finally:
        os.umask(before)
    assert (tmp_path / "config.yaml").stat().st_mode & 0o777 == mode
    assert RunFolder(tmp_path).settings == both


def test_a_folder_knows_whether_its_run_has_begun_and_ended(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    assert (folder.is_begun, folder.has_summary, folder.has_ended) == (False, False, False)
    folder.write_settings(*load_both("digits", "laptop"))
    folder.write_summary(Summary("digits", "aborted"))
    assert (folder.is_begun, folder.has_summary, folder.has_ended) == (True, True, True)
    (tmp_path / "unfinished").touch()  # A job of this run is to continue it.
    assert (folder.is_begun, folder.has_summary, folder.has_ended) == (True, True, False)


@pytest.mark.medium
def test_a_killed_run_is_closed_as_aborted_with_complete_logs_and_a_summary(tmp_path: Path, toy_run: Any) -> None:
    folder = RunFolder(tmp_path)
    folder.write_settings(*load_both("digits", "laptop"))
    log = MlperfLog(tmp_path)
    toy_run.log_events(log)
    log.close()
    for path in tmp_path.glob("result_*.txt"):
        path.write_text(path.read_text() + path.read_text()[:50])  # a last line that was cut off
    folder.close_aborted("rank 1 died by signal 9", failed_rank=1)
    verdicts = write_verdict(tmp_path)
    # 4.0.0 accepts any status if the run has reached the target once.
    assert verdicts["4.0.0"].passed
    (message,) = verdicts["0.6.0"].messages
    assert re.search("'run_stop' failed.*aborted", message)
    before = {path: path.read_bytes() for path in tmp_path.iterdir()}
    folder.close_aborted("again")
    assert {path: path.read_bytes() for path in tmp_path.iterdir()} == before


def test_an_aborted_run_has_the_numbers_of_its_configuration(tmp_path: Path) -> None:
    waits = "{forward_s: 1, gradients_s: [1], update_s: 1, evaluation_s: 1, top1: [0.5]}"
    three = ["cluster.num_nodes=3", "cluster.ranks_per_node=1", "cluster.launcher=srun"]
    rehearsed = load_cluster("laptop", [*three, "cluster.engine.name=timed", f"cluster.rehearsal={{waits: {waits}}}"])
    recipe = load_recipe("digits", ["run.seed=17", "run.target_top1=0.625", "batch.global_size=48"])
    for cluster, is_rehearsal in ((rehearsed, True), (load_cluster("laptop", three), False)):
        folder = RunFolder(tmp_path)
        folder.write_settings(recipe, cluster)
        folder.close_aborted("killed", failed_rank=2, failed_step=41)
        assert json.loads((tmp_path / "summary.json").read_text(encoding="utf-8")) == asdict(
            Summary(
                "digits", "aborted", target=0.625, world_size=3, global_batch_size=48, seed=17, failure="killed",
                failed_rank=2, failed_step=41, is_rehearsal=is_rehearsal,
            )
        )  # fmt: skip
        (tmp_path / "summary.json").unlink()
