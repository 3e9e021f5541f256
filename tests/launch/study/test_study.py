"""The words of ``./run.sh sweep``: which study runs where, with what in place of ranks."""

from pathlib import Path
from typing import Any

import pytest

from configs.load import ROOT
from configs.scaling_study import ScalingStudy
from configs.study import Study
from launch.run import launch_run
from launch.study.__main__ import main
from launch.submit.submission import submit_run
from tests.launch.study.test_accuracy_runs import STUDY as ACCURACY
from tests.launch.study.test_scaling_runs import STUDY as SCALING

DEVICES = ", devices: {cluster.communication.kind: devices}"
OWN = "cluster.paths.runs: {folder}/ours\n  "
JOB = "cluster.scheduler: {kind: slurm, wall_time_s: 600}\n  cluster.launcher: srun\n  "


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """Return the list to which each study that is run adds what it is run with."""
    found: list[dict[str, Any]] = []

    def note(study: Study | ScalingStudy, runs: Path, output: Path, *, is_dry_run: bool, starter: object) -> int:
        found.append(
            {"study": study.name, "runs": runs, "output": output, "is_dry_run": is_dry_run, "starter": starter}
        )
        return 7

    monkeypatch.setattr("launch.study.accuracy_runs.run_accuracy", note)
    monkeypatch.setattr("launch.study.scaling_runs.run_scaling", note)
    return found


@pytest.mark.parametrize("text", [ACCURACY, SCALING], ids=["accuracy", "scaling"])
def test_runs_are_below_the_clusters_folder_and_the_page_is_with_the_runs_unless_told_otherwise(
    text: str, tmp_path: Path, told: list[dict[str, Any]]
) -> None:
    path = tmp_path / "tiny.yaml"
    path.write_text(text.replace("set:\n  ", f"set:\n  {OWN.format(folder=tmp_path)}"), encoding="utf-8")
    usual = {"study": "tiny", "is_dry_run": False, "starter": launch_run}
    runs, output = ["--runs", f"{tmp_path}/a"], ["--output", f"{tmp_path}/b"]
    for words in ([], runs, output, [*runs, *output, "--dry-run"]):
        assert main(["sweep", str(path), *words]) == 7
    ours, a, b = (tmp_path / name for name in ("ours/tiny", "a", "b"))
    assert told == [
        {**usual, "runs": ours, "output": ours},
        {**usual, "runs": a, "output": a},
        {**usual, "runs": ours, "output": b},
        {**usual, "runs": a, "output": b, "is_dry_run": True},
    ]
    path.write_text(text, encoding="utf-8")
    assert main([str(path)]) == 7
    assert told[-1]["runs"] == ROOT / "runs" / "tiny"


def test_cells_of_a_cluster_with_a_scheduler_are_jobs(tmp_path: Path, told: list[dict[str, Any]]) -> None:
    path = tmp_path / "tiny.yaml"
    path.write_text(SCALING.replace("set:\n  ", f"set:\n  {JOB}").replace(DEVICES, ""), encoding="utf-8")
    assert main(["sweep", str(path)]) == 7
    assert told[0]["starter"] is submit_run


def test_a_study_that_is_not_there_is_refused_in_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["sweep", "large-bach"]) == 2
    told = capsys.readouterr().err
    assert told.startswith("error: ")
    assert told.count("\n") == 1


def test_the_words_of_the_process_are_taken_where_none_are_given(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.argv", ["launch/study/__main__.py", "sweep", "large-bach"])
    assert main() == 2
    told = capsys.readouterr().err
    assert told.startswith("error: ")
    assert "large-bach" in told
    assert told.endswith("\n")
