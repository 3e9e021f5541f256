"""An accuracy study from its file to its page: real runs, chosen values, and a sweep that continues where it was."""

import csv
import json
import subprocess
import sys
from pathlib import Path

import pytest

from configs.errors import ConfigError
from configs.load import ROOT, dump
from configs.study import Study, load_study
from launch.study.accuracy_runs import DIVERGED
from train.measure.progress import LossNotFinite

STUDY = """
name: tiny
title: Tiny
purpose: Shows that sweeps work.
notes: No more is known.
recipe: digits
set:
  data: {name: none, source: synthetic, train_samples: 64, eval_samples: 64, crop: {kind: none}}
  model: {name: resnet8, num_classes: 10, image_size: 8}
  run: {epochs: 1, target_top1: null}
  schedule: {base_lr: 1, warmup_steps: 0, decay: {name: polynomial}}
  cluster.ranks_per_node: 1
swept: batch.global_size
tuned: schedule.base_lr
seeds: [1, 2]
curves:
  SGD: {set: {optimizer: {name: sgd, weight_decay: 1e-4}}, grid: {32: [0.1, 1000]}}
"""


def _write(folder: Path, text: str = STUDY) -> Path:
    path = folder / "tiny.yaml"
    path.write_text(text, encoding="utf-8")
    return path


def _sweep(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "launch.study", "sweep", str(folder / "tiny.yaml"), "--runs", str(folder / "runs")]
    return subprocess.run([*command, *arguments], cwd=ROOT, capture_output=True, text=True, check=False, timeout=180)


@pytest.mark.slow
@pytest.mark.ranks
def test_a_sweep_runs_what_is_missing_and_reports_the_best_of_each_point(tmp_path: Path) -> None:
    study = load_study(str(_write(tmp_path)))
    assert isinstance(study, Study)
    stopped, wanted = study.grid_cells()
    folder = tmp_path / "runs" / stopped.folder
    folder.mkdir(parents=True)
    (folder / "config.yaml").write_text(dump(*study.load(stopped)), encoding="utf-8")
    aborted = {"recipe": "digits", "status": "aborted", "failure": "stopped by a signal"}
    (folder / "summary.json").write_text(json.dumps(aborted), encoding="utf-8")
    planned = _sweep(tmp_path, "--dry-run")
    assert planned.stdout.count("to run") == 2
    assert "then 1 more seeds at the best of each point\n" in planned.stdout
    assert not (tmp_path / "runs" / wanted.folder).exists()

    first = _sweep(tmp_path)
    assert first.returncode == 0, first.stderr
    with (tmp_path / "runs" / "tiny.csv").open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert [(row["tuned"], row["seed"]) for row in rows[:2]] == [("0.1", "1"), ("1000", "1")]
    best = max(rows[:2], key=lambda row: float(row["top1"] or 0))["tuned"]
    assert (rows[2]["tuned"], rows[2]["seed"], len(rows)) == (best, "2", 3)
    assert {row["tuned"] for row in rows if row["is_best"] == "1"} == {best}
    page = (tmp_path / "runs" / "tiny.md").read_text(encoding="utf-8")
    assert "| batch.global_size | SGD |" in page
    assert "No more is known." in page
    assert (tmp_path / "runs" / "tiny.svg").read_text(encoding="utf-8").startswith("<svg ")

    (tmp_path / "runs" / "tiny.md").unlink()
    again = _sweep(tmp_path)
    assert again.returncode == 0, again.stderr
    assert "to run" not in again.stdout
    assert (tmp_path / "runs" / "tiny.md").read_text(encoding="utf-8") == page


@pytest.mark.ranks
def test_a_folder_with_other_settings_is_refused_not_mixed_in(tmp_path: Path) -> None:
    _write(tmp_path)
    study = load_study(str(tmp_path / "tiny.yaml"))
    assert isinstance(study, Study)
    cell = next(study.grid_cells())
    folder = tmp_path / "runs" / cell.folder
    folder.mkdir(parents=True)
    (folder / "config.yaml").write_text(dump(*study.load(cell)), encoding="utf-8")
    _write(tmp_path, STUDY.replace("epochs: 1", "epochs: 2"))
    done = _sweep(tmp_path, "--dry-run")
    assert done.returncode == 2
    assert done.stderr.startswith(f"error: {folder}: holds a run with other settings")


def test_a_run_that_diverged_is_known_by_the_words_of_its_failure() -> None:
    assert DIVERGED in str(LossNotFinite(7, ranks=[0]))


def test_a_study_that_cannot_run_is_refused_before_its_first_run(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"^schedule\.base_lr: .*less than or equal to 1000"):
        load_study(str(_write(tmp_path, STUDY.replace("1000]", "1001]"))))
    with pytest.raises(ConfigError, match="did you mean 'large-batch'"):
        load_study("large-bach")
    with pytest.raises(ConfigError, match=r"^model\.name: "):
        load_study(str(_write(tmp_path, STUDY.replace("resnet8", "resnet9"))))


def test_the_large_batch_study_compares_equal_epochs_at_the_issues_batches() -> None:
    study = load_study("large-batch")
    assert isinstance(study, Study)
    assert {tuple(curve.grid) for curve in study.curves.values()} == {(256, 1024, 4096, 8192)}
    assert len(study.seeds) == 3
    recipes = [study.load(cell)[0] for cell in study.grid_cells()]
    assert {recipe.optimizer.name for recipe in recipes} == {"lars", "sgd"}
    assert len({(recipe.run.epochs, recipe.data.model_dump_json(), recipe.batch.bn_span) for recipe in recipes}) == 1
