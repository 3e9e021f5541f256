"""The page and the table of an accuracy study, word by word, from runs with unlike numbers."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from configs.study import Cell, Study
from configs.validate import validate
from logs.folder import Summary
from logs.study import accuracy
from logs.study.accuracy import accuracy_text, best_cells, write_study

STUDY = validate(
    Study,
    {
        "name": "tiny", "title": "Tiny", "purpose": "Tests.", "notes": "Noted.", "recipe": "digits",
        "swept": "batch.global_size", "tuned": "schedule.base_lr", "seeds": [4, 5], "set": {"run.epochs": 2},
        "curves": {"B": {"grid": {64: [2, 0.5], 32: [1]}}, "A": {"grid": {1024: [0.25]}}},
    },
    "study.",
)  # fmt: skip
TOP1 = {
    Cell("B", 64, 2, 4): 0.5, Cell("B", 64, 0.5, 4): 0.5, Cell("B", 32, 1, 4): 0.6, Cell("A", 1024, 0.25, 4): None,
    Cell("B", 64, 0.5, 5): 0.8, Cell("B", 32, 1, 5): 0.7, Cell("A", 1024, 0.25, 5): 0.25,
}  # fmt: skip
PAGE = """\
# Tiny

Tests.

Recipe `digits` on `laptop` with `run.epochs=2`; made by `./run.sh sweep tiny`.
Each point is the mean top-1 of 2 seeds (lowest to highest), at the value of
`schedule.base_lr` that is best for seed 4.

| batch.global_size | B | A |
| --- | --- | --- |
| 32 | 0.6500 (0.6000 to 0.7000) at 1 |  |
| 64 | 0.6500 (0.5000 to 0.8000) at 0.5 |  |
| 1,024 |  | 0.1250 (0.0000 to 0.2500) at 0.25 |

![Tiny](tiny.svg)

The top-1 of all values that were tried, at seed 4:

- B, 32: 0.6000 at 1
- B, 64: 0.5000 at 2, 0.5000 at 0.5
- A, 1,024: diverged at 0.25

Noted.
"""
TABLE = """\
curve,swept,tuned,seed,top1,steps,run_s,images_per_s,is_best
B,64,2,4,0.5,10,1.5,123.4568,0
B,64,0.5,4,0.5,10,1.5,123.4568,1
B,32,1,4,0.6,10,1.5,123.4568,1
A,1024,0.25,4,,10,1.5,123.4568,1
B,64,0.5,5,0.8,10,1.5,123.4568,1
B,32,1,5,0.7,10,1.5,123.4568,1
A,1024,0.25,5,0.25,10,1.5,123.4568,1
"""


def _summary(*, top1: float | None = None, mean_auc: float | None = None) -> Summary:
    numbers = {"steps": 10, "run_s": 1.5, "images_per_s": 123.45678}
    return replace(Summary("digits", "success", top1=top1, mean_auc=mean_auc), **numbers)  # type: ignore[arg-type]


def test_page_table_and_curves_of_a_study(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plotted: list[Any] = []
    monkeypatch.setattr(accuracy, "plot_study", lambda *told: plotted.append(told))
    write_study(STUDY, {cell: _summary(top1=top1) for cell, top1 in TOP1.items()}, tmp_path / "out")
    assert (tmp_path / "out" / "tiny.md").read_text(encoding="utf-8") == PAGE
    assert (tmp_path / "out" / "tiny.csv").read_text(encoding="utf-8") == TABLE
    ((path, curves, swept, metric),) = plotted
    assert (path, swept, metric) == (tmp_path / "out" / "tiny.svg", "batch.global_size", "top-1")
    assert curves == {
        "B": [(32, pytest.approx(0.65), 0.6, 0.7), (64, pytest.approx(0.65), 0.5, 0.8)],
        "A": [(1024, 0.125, 0.0, 0.25)],
    }


def test_the_most_accurate_at_the_first_seed_is_best_and_of_equals_the_smaller() -> None:
    results = {cell: _summary(top1=top1) for cell, top1 in TOP1.items()}
    assert best_cells(STUDY, results)["B", 64].tuned == 0.5
    results[Cell("B", 64, 2, 4)] = _summary(top1=0.51)
    assert best_cells(STUDY, results)["B", 64].tuned == 2


def test_images_with_several_labels_are_judged_by_their_mean_auc(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(accuracy, "plot_study", lambda *told: None)
    assert accuracy_text(_summary(mean_auc=0.75)) == "0.7500"
    write_study(STUDY, {cell: _summary(mean_auc=value) for cell, value in TOP1.items()}, tmp_path)
    assert "the mean AUC of 2 seeds" in (tmp_path / "tiny.md").read_text(encoding="utf-8")
    assert (tmp_path / "tiny.csv").read_text(encoding="utf-8").startswith("curve,swept,tuned,seed,auc,steps")


def test_a_run_that_got_no_image_right_has_an_accuracy() -> None:
    assert accuracy_text(Summary("tiny", "success", top1=0.0, mean_auc=0.9)) == "0.0000"


def test_of_runs_that_all_diverged_the_smallest_value_is_best_and_a_run_that_learned_nothing_no_better() -> None:
    for top1 in (None, 0.0):
        results = {cell: _summary() for cell in TOP1} | {Cell("B", 64, 2, 4): _summary(top1=top1)}
        assert best_cells(STUDY, results)["B", 64].tuned == 0.5
    results[Cell("B", 64, 2, 4)] = _summary(top1=0.001)
    assert best_cells(STUDY, results)["B", 64].tuned == 2


def test_a_study_without_notes_ends_with_its_values_in_files_with_plain_line_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(accuracy, "plot_study", lambda *told: None)
    quiet = STUDY.model_copy(update={"notes": "", "set": {"run.epochs": 2, "model.name": "a"}})
    for _ in range(2):  # The second time, the folder and the files are there.
        write_study(quiet, {cell: _summary(top1=top1) for cell, top1 in TOP1.items()}, tmp_path / "a" / "b")
    page = (tmp_path / "a" / "b" / "tiny.md").read_text(encoding="utf-8")
    assert page.endswith("- A, 1,024: diverged at 0.25\n")
    assert 'with `run.epochs=2`, `model.name="a"`; made by' in page
    assert (tmp_path / "a" / "b" / "tiny.csv").read_bytes() == TABLE.encode()
