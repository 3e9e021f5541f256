"""What a study takes for a run of its own, leaves beside its folder, and starts again."""

import os
import shutil
from pathlib import Path

import pytest

from configs.errors import UserError
from configs.load import dump, load_both, with_resolved_paths
from launch.study.tasks import Task
from logs.folder import RunFolder, Summary
from tests.launch.study.starter import Starter


def _cell(folder: Path, starter: Starter) -> Task[Summary]:
    return Task(*load_both("digits", "laptop"), folder / "cell", starter, lambda ended: ended, str)


def test_a_run_without_an_end_is_cleared_away_and_one_of_the_same_settings_counts(tmp_path: Path) -> None:
    run = _cell(tmp_path, Starter())
    run.folder.mkdir()
    notes = run.folder / "notes.txt"
    notes.touch()
    with pytest.raises(UserError, match=f"^{run.folder}: exists already"):  # The folder of no run is not cleared.
        run.start()
    (run.folder / "config.yaml").write_text(dump(run.recipe, run.cluster), encoding="utf-8")
    assert run.start() == 0
    assert not notes.exists()
    assert [path.name for path in tmp_path.iterdir()] == ["cell"], "no mark of a job"
    assert run.read() == Summary("digits", "success", top1=run.recipe.schedule.base_lr / 10)
    absolute = with_resolved_paths(run.cluster)
    assert absolute != run.cluster
    (run.folder / "config.yaml").write_text(dump(run.recipe, absolute), encoding="utf-8")
    assert run.read() is not None, "a job has absolute paths"
    (run.folder / "summary.json").unlink()
    assert run.read() is None


def test_a_folder_of_other_settings_is_refused_and_a_summary_without_settings_is_no_result(tmp_path: Path) -> None:
    run = _cell(tmp_path, Starter())
    run.folder.mkdir()
    RunFolder(run.folder).write_summary(Summary("digits", "success", top1=0.9))
    assert run.read() is None
    other = dump(*load_both("digits", "laptop", ["run.seed=9"]))
    (run.folder / "config.yaml").write_text(other, encoding="utf-8")
    with pytest.raises(
        UserError, match=f"^{run.folder}: .* settings differ .* remove the folder, or give another --runs"
    ):
        run.read()


def test_a_job_in_a_queue_is_handed_over_once_and_again_only_on_request(tmp_path: Path) -> None:
    starter = Starter(lambda _recipe: None, status=None)
    run = _cell(tmp_path / "deep", starter)
    assert run.describe(None) == "to run"
    assert (run.start(), run.start(), len(starter.started)) == (None, None, 1)
    assert run.describe(None) == "waits in the scheduler's queue"
    RunFolder(run.folder).write_summary(Summary("digits", "aborted", failure="out of time"))
    assert (run.start(), len(starter.started)) == (1, 1)
    assert run.describe(None) == f"failed; remove {run.folder} to try again"
    shutil.rmtree(run.folder)
    assert (run.start(), len(starter.started)) == (None, 2)


def test_a_run_that_was_refused_and_one_that_another_process_trains_are_left_as_they_are(tmp_path: Path) -> None:
    run = _cell(tmp_path, starter := Starter(status=2))
    with pytest.raises(UserError, match=r"^cell: the run was refused \(see above\); correct the study"):
        run.start()
    assert [path.name for path in tmp_path.iterdir()] == ["cell"]
    RunFolder(run.folder).claims.take()
    with pytest.raises(UserError, match=f"^{run.folder}: a run is active in it: .*process {os.getpid()}.*; wait for"):
        run.start()
    assert len(starter.started) == 1
    assert run.folder.is_dir()
