"""The command line of ``./run.sh sweep``: which study runs where, with what in place of ranks."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from configs.load import ROOT
from configs.study import ScalingStudy, Study
from launch.run import launch_run
from launch.study.__main__ import main
from launch.submit.submission import submit_run
from tests.configs.studies import GRID, SMALL
from tests.launch.study.test_accuracy import STUDY

SCALING = {**GRID, **SMALL, "cluster": "laptop", "recipe": "digits", "set": {}, "times_ranks": {}}


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """Return the list to which each study that is run adds what it is run with."""
    found: list[dict[str, Any]] = []

    def note(study: Study | ScalingStudy, runs: Path, output: Path, **others: Any) -> int:
        found.append({"study": study.name, "runs": runs, "output": output, **others})
        return 7

    monkeypatch.setattr("launch.study.accuracy.run_accuracy", note)
    monkeypatch.setattr("launch.study.scaling.run_scaling", note)
    return found


@pytest.mark.parametrize("tree", [STUDY, SCALING], ids=["accuracy", "scaling"])
def test_runs_are_below_the_clusters_folder_and_the_page_is_with_the_runs_unless_told_otherwise(
    tree: dict[str, Any], tmp_path: Path, told: list[dict[str, Any]]
) -> None:
    path = tmp_path / "study.yaml"
    path.write_text(yaml.safe_dump(tree | {"set": {"cluster.paths.runs": f"{tmp_path}/ours"}}), encoding="utf-8")
    usual = {"study": tree["name"], "is_dry_run": False, "starter": launch_run}
    runs, output = ["--runs", f"{tmp_path}/a"], ["--output", f"{tmp_path}/b"]
    for words in ([], runs, output, [*runs, *output, "--dry-run"]):
        assert main(["sweep", str(path), *words]) == 7
    ours, a, b = tmp_path / "ours" / tree["name"], tmp_path / "a", tmp_path / "b"
    assert told == [
        {**usual, "runs": ours, "output": ours},
        {**usual, "runs": a, "output": a},
        {**usual, "runs": ours, "output": b},
        {**usual, "runs": a, "output": b, "is_dry_run": True},
    ]
    path.write_text(yaml.safe_dump(tree | {"set": {}}), encoding="utf-8")
    assert main([str(path)]) == 7
    assert told[-1]["runs"] == ROOT / "runs" / tree["name"]


def test_cells_of_a_cluster_with_a_scheduler_are_jobs(tmp_path: Path, told: list[dict[str, Any]]) -> None:
    path = tmp_path / "study.yaml"
    job = {"cluster.scheduler": {"kind": "slurm", "wall_time_s": 600}, "cluster.launcher": "srun"}
    path.write_text(yaml.safe_dump(SCALING | {"set": job}), encoding="utf-8")
    assert main(["sweep", str(path)]) == 7
    assert told[0]["starter"] is submit_run


def test_a_study_that_is_not_there_is_refused_in_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["sweep", "large-bach"]) == 2
    told = capsys.readouterr().err
    assert told.startswith("error: ")
    assert "did you mean 'large-batch'" in told
    assert told.count("\n") == 1
