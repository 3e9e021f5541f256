"""The runs of an accuracy study: a cell for each value of each grid, and what a cell sets."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from configs.errors import ConfigError
from configs.study import Cell, Study, load_study
from configs.validate import validate

STUDY = {
    "name": "batches",
    "title": "Batches",
    "purpose": "Tests",
    "recipe": "digits",
    "set": {"run.epochs": 5, "optimizer.momentum": 0.8, "run.eval_first_epoch": 5},
    "swept": "batch.global_size",
    "tuned": "schedule.base_lr",
    "seeds": [3, 1],
    "curves": {
        "LARS": {"grid": {64: [0.5, 1], 128: [2]}},
        "plain SGD": {"set": {"optimizer.momentum": 0.7}, "grid": {32: [0.25]}},
    },
}


def test_a_study_has_a_cell_for_each_value_with_the_first_seed() -> None:
    study = validate(Study, STUDY, "study.")
    cells = [Cell("LARS", 64, 0.5, 3), Cell("LARS", 64, 1, 3), Cell("LARS", 128, 2, 3), Cell("plain SGD", 32, 0.25, 3)]
    assert list(study.grid_cells()) == cells
    assert [cell.folder for cell in cells] == [
        "LARS-64-0.5-seed3", "LARS-64-1-seed3", "LARS-128-2-seed3", "plain-SGD-32-0.25-seed3",
    ]  # fmt: skip
    told = []
    for cell in (cells[2], Cell("plain SGD", 32, 0.25, 1)):
        recipe, cluster = study.load(cell)
        told.append((recipe.batch.global_size, recipe.schedule.base_lr, recipe.run.seed, recipe.optimizer.momentum))
        assert (recipe.run.epochs, cluster.name) == (5, "laptop")
    assert told == [(128, 2.0, 3, 0.8), (32, 0.25, 1, 0.7)], "the curve's own keys come last"


@pytest.mark.parametrize(("keys", "asked_for"), [((), "ranks"), (("seeds",), "swept"), (("ranks",), "batch")])
def test_a_file_that_lacks_keys_is_the_kind_of_study_of_which_it_has_more(
    tmp_path: Path, keys: tuple[str, ...], asked_for: str
) -> None:
    tree = {key: STUDY[key] for key in ("name", "title", "purpose", "recipe")}
    tree |= {"cluster": "laptop"} | {key: [1] for key in keys}
    (tmp_path / "study.yaml").write_text(yaml.safe_dump(tree), encoding="utf-8")
    with pytest.raises(ConfigError, match=rf"study\.{asked_for}: got None, allowed: this key is required"):
        load_study(str(tmp_path / "study.yaml"))
