"""An accuracy study: which runs it starts, the best value of each point, and its page, table and curves."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from configs import registry
from configs.errors import ConfigError
from configs.plan import Position
from configs.schema import Cluster, Recipe
from configs.study import Cell, Study
from configs.validate import validate
from launch.study.accuracy import DIVERGED, best_cells, run_accuracy, write_study
from logs.checkpoints import SavedState
from logs.folder import RunFolder, Summary
from tests.launch.study.starter import Starter
from train.health import StateNotFinite
from train.measure.progress import LossNotFinite

STUDY: dict[str, Any] = {
    "name": "tiny", "title": "Tiny", "purpose": "Tests.", "notes": "Noted.", "recipe": "digits",
    "swept": "batch.global_size", "tuned": "schedule.base_lr", "seeds": [4, 5], "set": {"run.epochs": 5},
    "curves": {"B": {"grid": {64: [2, 0.5], 32: [1]}}, "A": {"grid": {1024: [0.25]}}},
}  # fmt: skip
GRID = ["B-64-2-seed4", "B-64-0.5-seed4", "B-32-1-seed4", "A-1024-0.25-seed4"]
TOP1 = {
    Cell("B", 64, 2, 4): 0.5, Cell("B", 64, 0.5, 4): 0.5, Cell("B", 32, 1, 4): 0.6, Cell("A", 1024, 0.25, 4): None,
    Cell("B", 64, 0.5, 5): 0.8, Cell("B", 32, 1, 5): 0.7, Cell("A", 1024, 0.25, 5): None,
}  # fmt: skip
ROWS = [
    "| batch.global_size | B | A |",
    "| --- | --- | --- |",
    "| 32 | 0.6500 (0.6000 to 0.7000) at 1 |  |",
    "| 64 | 0.6500 (0.5000 to 0.8000) at 0.5 |  |",
    "| 1,024 |  | diverged at 0.25 |",
    "- B, 32: 0.6000 at 1",
    "- B, 64: 0.5000 at 2, 0.5000 at 0.5",
    "- A, 1,024: diverged at 0.25",
]
TABLE = """\
curve,swept,tuned,seed,top1,steps,run_s,images_per_s,is_best
B,64,2,4,0.5,10,1.5,123.4568,0
B,64,0.5,4,0.5,10,1.5,123.4568,1
B,32,1,4,0.6,10,1.5,123.4568,1
A,1024,0.25,4,,10,1.5,123.4568,1
B,64,0.5,5,0.8,10,1.5,123.4568,1
B,32,1,5,0.7,10,1.5,123.4568,1
A,1024,0.25,5,,10,1.5,123.4568,1
"""


def _study(**changes: Any) -> Study:
    return validate(Study, STUDY | changes, "study.")


def _results(metric: str = "top1", **changes: float | None) -> dict[Cell, Summary]:
    """Return the summaries of all runs; ``changes`` gives that of B at 64 and 2 another accuracy."""
    usual = Summary("digits", "success", steps=10, run_s=1.5, images_per_s=123.45678)
    found = {cell: replace(usual, **{metric: top1}) for cell, top1 in TOP1.items()}  # type: ignore[arg-type]
    first = next(iter(found))
    return found | {first: replace(found[first], **changes)} if changes else found  # type: ignore[arg-type]


def _sweep(folder: Path, starter: Starter, *, is_dry_run: bool = False, **changes: Any) -> int:
    return run_accuracy(_study(**changes), folder / "runs", folder / "out", is_dry_run=is_dry_run, starter=starter)


@pytest.mark.medium
def test_the_grid_runs_at_the_first_seed_and_the_best_of_each_point_at_the_others(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert _sweep(tmp_path, Starter(), is_dry_run=True) == 0
    told = capsys.readouterr().out.splitlines()
    assert told[0] == f"   1/4  {GRID[0]:48}  to run"
    assert told[4:] == ["then 1 more seed at the best of each point"]
    assert not list(tmp_path.iterdir())
    starter = Starter()
    assert _sweep(tmp_path, starter) == 0
    best = ["B-64-2-seed5", "B-32-1-seed5", "A-1024-0.25-seed5"]
    assert starter.started[:4] == GRID
    assert sorted(starter.started[4:]) == sorted(best)
    assert starter.seeds == [4] * 4 + [5] * 3
    assert len(capsys.readouterr().out.splitlines()) == 7
    (tmp_path / "out" / "tiny.md").unlink()
    assert _sweep(tmp_path, again := Starter()) == 0
    assert again.started == []
    assert capsys.readouterr().out.splitlines()[0].split() == ["1/4", GRID[0], "0.2000"]
    assert (tmp_path / "out" / "tiny.md").is_file()


@pytest.mark.medium
def test_a_run_that_diverged_is_a_result_and_one_that_failed_ends_the_study(tmp_path: Path) -> None:
    def diverge(recipe: Recipe) -> Summary:
        if recipe.schedule.base_lr == 2:
            return Summary(recipe.name, "aborted", failure=f"RunFailed: {LossNotFinite(3, ranks=[0])}")
        if recipe.run.seed == 5:  # and one that has missed its target
            return Summary(recipe.name, "aborted", top1=0.05, weights_checksum="0f", failure="target not reached")
        return Summary(recipe.name, "success", top1=recipe.schedule.base_lr / 10)

    starter = Starter(diverge)
    assert DIVERGED in str(LossNotFinite(7, ranks=[0]))
    assert DIVERGED in str(StateNotFinite(Position(2, 38), "stem_weight", ranks=[0]))
    assert _sweep(tmp_path, starter) == 0
    assert "B-64-0.5-seed5" in starter.started
    for status, returned in ((1, 1), (3, 3), (0, 1), (75, 75)):
        failing = Starter(lambda recipe: Summary(recipe.name, "aborted", failure="rank 1 was killed"), status=status)
        assert _sweep(tmp_path / f"failing-{status}", failing) == returned
        assert failing.started == GRID[:1]


@pytest.mark.parametrize("steps", [None, 7])
def test_a_run_that_was_stopped_goes_on_from_its_checkpoint_and_one_that_has_ended_begins_again(
    steps: int | None, tmp_path: Path
) -> None:
    saved = []

    def start(recipe: Recipe, cluster: Cluster, folder: Path) -> int:
        saved.append(folder.exists())
        folder.mkdir(parents=True, exist_ok=True)
        run = RunFolder(folder)
        run.write_settings(recipe, cluster)
        run.checkpoints.write(3, SavedState({}, {}), keep=1)
        run.write_summary(Summary(recipe.name, "aborted", steps=steps, failure="stopped"))
        return 75

    for _ in range(2):
        assert run_accuracy(_study(), tmp_path, tmp_path, is_dry_run=False, starter=start) == 75
    assert saved == [False, steps is None]


def test_a_framework_that_is_not_here_is_refused_before_the_first_run_and_needed_by_no_dry_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(registry, "find_spec", lambda package: None if package == "torch" else package)
    curves = {**STUDY["curves"], "PyTorch": {"set": {"cluster.engine.name": "torch"}, "grid": {32: [1]}}}
    with pytest.raises(ConfigError, match="setup --engine torch adds PyTorch"):
        _sweep(tmp_path, starter := Starter(), curves=curves)
    assert starter.started == []
    assert _sweep(tmp_path, starter, curves=curves, is_dry_run=True) == 0


@pytest.mark.parametrize(
    ("changes", "tuned"),
    [
        ({}, 0.5),  # of equals, the smaller value
        ({"top1": 0.51}, 2),
        ({"top1": None}, 0.5),
        ({"top1": 0.0, "mean_auc": 0.9}, 0.5),  # no image right is an accuracy
        ({"top1": None, "mean_auc": 0.9}, 2),
    ],
)
def test_the_most_accurate_at_the_first_seed_is_best(changes: dict[str, Any], tuned: float) -> None:
    assert best_cells(_study(), _results(**changes))["B", 64].tuned == tuned


def test_page_table_and_curves_of_a_study(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plotted: list[Any] = []
    monkeypatch.setattr("launch.study.accuracy.plot_study", lambda *told: plotted.append(told))
    for _ in range(2):  # The second time, the folder and the files are there.
        write_study(_study(set={"run.epochs": 2, "model.name": "a"}), _results(), tmp_path / "a" / "out")
    first, *lines, last = (tmp_path / "a" / "out" / "tiny.md").read_text(encoding="utf-8").splitlines()
    assert (first, last) == ("# Tiny", "Noted.")
    assert [line for line in lines if line[:2] in ("| ", "- ")] == ROWS
    assert '`digits` on `laptop` with `run.epochs=2`, `model.name="a"`; ' in "\n".join(lines)
    assert (tmp_path / "a" / "out" / "tiny.csv").read_bytes() == TABLE.encode()
    path, curves, swept, metric = plotted[0]
    assert (path, swept, metric) == (tmp_path / "a" / "out" / "tiny.svg", "batch.global_size", "top-1")
    assert curves == {
        "B": [(32, pytest.approx(0.65), 0.6, 0.7), (64, pytest.approx(0.65), 0.5, 0.8)],
        "A": [],
    }


def test_a_seed_that_diverged_is_counted_beside_the_mean_of_the_others(tmp_path: Path) -> None:
    results = _results()
    results[Cell("B", 64, 0.5, 5)] = Summary("digits", "aborted")
    write_study(_study(), results, tmp_path)
    assert "| 64 | 0.5000 (0.5000 to 0.5000) at 0.5; 1 of 2 seeds diverged |" in (tmp_path / "tiny.md").read_text()


@pytest.mark.medium
def test_images_with_several_labels_are_judged_by_their_mean_auc_and_resumed_runs_have_no_time(tmp_path: Path) -> None:
    write_study(_study(), _results("mean_auc"), tmp_path)
    page = (tmp_path / "tiny.md").read_text(encoding="utf-8")
    assert "the mean AUC of 2 seeds" in page
    assert "0.6500 (0.5000 to 0.8000) at 0.5" in page
    assert (tmp_path / "tiny.csv").read_text(encoding="utf-8") == TABLE.replace("top1", "auc")
    assert (tmp_path / "tiny.svg").read_text(encoding="utf-8").startswith("<svg ")
    resumed = {cell: replace(summary, resumed_from_step=4) for cell, summary in _results().items()}
    write_study(_study(), resumed, tmp_path)
    rows = (tmp_path / "tiny.csv").read_text(encoding="utf-8")
    assert rows == TABLE.replace(",1.5,", ",,"), "a time of the last part is not that of the run"
