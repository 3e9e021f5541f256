"""The runs of an accuracy study: a cell for each value of each grid, and what a cell sets."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from configs.errors import ConfigError
from configs.scaling_study import ScalingStudy
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


@pytest.mark.parametrize(
    ("sets", "curve", "told"),
    [
        ({"card.purpose": "study"}, {}, "study"),
        ({"card.purpose": "study"}, {"card.purpose": "curve"}, "curve"),
        ({"batch.global_size": 2, "schedule.base_lr": 9, "run.seed": 9}, {"batch.global_size": 4, "run.seed": 8}, None),
    ],
)
def test_a_cell_comes_over_its_curve_and_the_curve_over_the_study(
    sets: dict[str, Any], curve: dict[str, Any], told: str | None
) -> None:
    curves = {"LARS": {"set": curve, "grid": {64: [0.5]}}}
    study = validate(Study, STUDY | {"set": sets, "curves": curves, "cluster": "a100-node"}, "study.")
    recipe, cluster = study.load(Cell("LARS", 64, 0.5, 3))
    assert (recipe.batch.global_size, recipe.schedule.base_lr, recipe.run.seed) == (64, 0.5, 3)
    assert told in (None, recipe.card.purpose)
    assert cluster.name == "a100-node"


def test_a_study_sets_nothing_truth_and_lists_as_a_file_does() -> None:
    sets = {"data.flip": False, "data.eval_resize": None, "data.mean": [1, 2.5, 3], "card.purpose": "null"}
    study = validate(Study, STUDY | {"set": sets}, "study.")
    recipe, _ = study.load(Cell("LARS", 64, 0.5, 3))
    assert (recipe.data.flip, recipe.data.eval_resize, recipe.data.mean) == (False, None, (1, 2.5, 3))
    assert recipe.card.purpose == "null"


def test_the_folder_of_a_cell_has_a_short_number() -> None:
    assert Cell("my curve", 64, 0.1 + 0.2, 12).folder == "my-curve-64-0.3-seed12"
    assert Cell("c", 64, 2.0, 1).folder == "c-64-2-seed1"
    assert Cell("c", 64, 1e-5, 1).folder == "c-64-1e-05-seed1"


@pytest.mark.parametrize("seeds", [[1, 1], [1, 2, 1]])
def test_a_seed_stands_once(seeds: list[int]) -> None:
    with pytest.raises(ConfigError, match=r"^study\.seeds: got .*, allowed: every number once"):
        validate(Study, STUDY | {"seeds": seeds}, "study.")


@pytest.mark.parametrize(
    ("curves", "key"),
    [
        ({"a": {"grid": {64: [0.5, 0]}}}, "schedule.base_lr"),
        ({"a": {"grid": {64: [0.5], 0: [0.5]}}}, "batch.global_size"),
        ({"a": {"grid": {64: [0.5]}}, "b": {"set": {"run.epochs": 0}, "grid": {64: [0.5]}}}, "run.epochs"),
    ],
)
def test_a_study_is_refused_for_any_cell_that_cannot_run(tmp_path: Path, curves: dict[str, Any], key: str) -> None:
    path = tmp_path / "study.yaml"
    path.write_text(yaml.safe_dump(STUDY), encoding="utf-8")
    assert isinstance(load_study(str(path)), Study)
    path.write_text(yaml.safe_dump(STUDY | {"curves": curves}), encoding="utf-8")
    with pytest.raises(ConfigError, match=rf"^{key}: got "):
        load_study(str(path))


def test_a_grid_is_refused_for_a_cell_whose_batch_does_not_divide(tmp_path: Path) -> None:
    grid: dict[str, Any] = {
        "name": "grid",
        "title": "Grid",
        "purpose": "Tests",
        "recipe": "digits",
        "ranks": [1, 2],
        "batch": [32],
    }
    grid |= {axis: {"only": {}} for axis in ("network", "communication", "data")}
    path = tmp_path / "study.yaml"
    path.write_text(yaml.safe_dump(grid), encoding="utf-8")
    assert isinstance(load_study(str(path)), ScalingStudy)
    path.write_text(yaml.safe_dump(grid | {"set": {"batch.bn_span": 5}}), encoding="utf-8")
    with pytest.raises(ConfigError, match=r"^batch\.global_size: got 32, allowed: a multiple of 1 ranks x 5 images"):
        load_study(str(path))
