"""What a cell of a study of either kind runs, and which files are no study."""

import itertools
from dataclasses import astuple
from pathlib import Path
from typing import Any

import pytest
import yaml

from configs import registry
from configs.errors import ConfigError, UserError
from configs.load import ROOT, dump, load_cluster, load_recipe
from configs.study import Cell, ScalingCell, ScalingStudy, Study, load_study
from configs.validate import validate
from tests.configs.studies import GRID, SMALL, scaling_study

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


def _load(folder: Path, tree: dict[str, Any]) -> Study | ScalingStudy:
    (folder / "study.yaml").write_text(yaml.safe_dump(tree), encoding="utf-8")
    return load_study(str(folder / "study.yaml"))


def test_an_accuracy_study_has_a_cell_for_each_value_with_the_first_seed() -> None:
    study = validate(Study, STUDY, "study.")
    cells = [Cell("LARS", 64, 0.5, 3), Cell("LARS", 64, 1, 3), Cell("LARS", 128, 2, 3), Cell("plain SGD", 32, 0.25, 3)]
    assert list(study.cells()) == cells
    assert [cell.name for cell in cells] == [
        "LARS-64-0.5-seed3", "LARS-64-1-seed3", "LARS-128-2-seed3", "plain-SGD-32-0.25-seed3",
    ]  # fmt: skip
    assert Cell("c", 64, 0.1 + 0.2, 12).name == "c-64-0.3-seed12"
    assert Cell("../a\n/b", 64, 1, 3).name == "..-a--b-64-1-seed3", "one folder, below that of the study"
    told = []
    for cell in (cells[2], Cell("plain SGD", 32, 0.25, 1)):
        recipe, cluster = study.load(cell)
        told.append((recipe.batch.global_size, recipe.schedule.base_lr, recipe.run.seed, recipe.optimizer.momentum))
        assert (recipe.run.epochs, cluster.name) == (5, "laptop")
    assert told == [(128, 2.0, 3, 0.8), (32, 0.25, 1, 0.7)], "the curve's own keys come last"


def test_a_cell_comes_over_its_curve_and_a_study_sets_nothing_truth_and_lists_as_a_file_does() -> None:
    sets: dict[str, Any] = {"batch.global_size": 2, "schedule.base_lr": 9, "data.flip": False, "data.eval_resize": None}
    sets |= {"data.mean": [1, 2.5, 3], "card.purpose": "null"}
    curves = {"LARS": {"set": {"batch.global_size": 4, "run.seed": 8}, "grid": {64: [0.5]}}}
    study = validate(Study, STUDY | {"set": sets, "curves": curves, "cluster": "a100-node"}, "study.")
    recipe, cluster = study.load(Cell("LARS", 64, 0.5, 3))
    assert (recipe.batch.global_size, recipe.schedule.base_lr, recipe.run.seed) == (64, 0.5, 3)
    assert (recipe.data.flip, recipe.data.eval_resize, recipe.data.mean) == (False, None, (1, 2.5, 3))
    assert (recipe.card.purpose, cluster.name) == ("null", "a100-node")


@pytest.mark.parametrize("key", ["cluster.environment.A_SITE: 1.10", "cluster.environment: {A_SITE: 1.10}"])
def test_a_variable_in_a_study_is_the_text_as_written(key: str, tmp_path: Path) -> None:
    text = yaml.safe_dump(STUDY | {"set": {}}).replace("set: {}\nswept", f"set:\n  {key}\nswept")
    (tmp_path / "study.yaml").write_text(text, encoding="utf-8")
    study = load_study(str(tmp_path / "study.yaml"))
    assert isinstance(study, Study)
    assert study.load(next(study.cells()))[1].environment == {"A_SITE": "1.10"}


@pytest.mark.parametrize(("keys", "asked_for"), [((), "ranks"), (("seeds",), "swept"), (("ranks",), "batch")])
def test_a_file_that_lacks_keys_is_the_kind_of_study_of_which_it_has_more(
    tmp_path: Path, keys: tuple[str, ...], asked_for: str
) -> None:
    tree = {key: STUDY[key] for key in ("name", "title", "purpose", "recipe")}
    with pytest.raises(ConfigError, match=rf"^study\.{asked_for}: required, and missing"):
        _load(tmp_path, tree | {"cluster": "laptop"} | {key: [1] for key in keys})


# What is changed in a study, and how its refusal begins.
OF_CURVES: list[tuple[dict[str, Any], str]] = [
    ({"seeds": [1, 2, 1]}, "study.seeds: got [1, 2, 1], allowed: every number once"),
    ({"seeds": []}, "study.seeds: got "),
    ({"curves": {"C": {"grid": {64: [1], 63: [1]}}}}, "batch.global_size: got 63, allowed: a multiple of 2 ranks"),
    ({"seedz": [1]}, "study.seedz: no such key; did you mean 'seeds'?"),
    ({"curves": {"a": {"griid": {64: [0.5]}}}}, "study.curves.a.griid: no such key; did you mean 'grid'?"),
    ({"curves": {"a": {"grid": {64: ["half", 2]}}}}, "study.curves.a.grid.64.0: got 'half', allowed: a number"),
    ({"curves": {"a": {"grid": {64: [0.5, 0]}}}}, "schedule.base_lr: got 0"),
    ({"curves": {"a": {"grid": {64: [0.5]}}, "b": {"set": {"run.epochs": 0}, "grid": {64: [0.5]}}}},
     "run.epochs: got 0"),
    ({"curves": {"a": {"grid": {64: [1, 2, 1.0]}}}}, "study: 2 of its cells would have the folder a-64-1-seed3; list"),
    ({"curves": {each: {"grid": {64: [1]}} for each in ("a b", "a-b")}}, "study: 2 of its cells"),
    ({"swept": "schedule.base_lr"}, "study.swept: got 'schedule.base_lr', allowed: a key that neither tuned nor seeds"),
    ({"tuned": "run.seed"}, "study.tuned: got 'run.seed', allowed: another key"),
]  # fmt: skip
OF_A_GRID: list[tuple[dict[str, Any], str]] = [
    ({"ranks": [4, 12]}, "study.ranks: got 12, allowed: up to 8, or a multiple of 8; change"),
    ({"ranks": []}, "study.ranks: got "),
    ({"ranks": [0, 4]}, "study.ranks.0: got 0, allowed: greater than or equal to 1"),
    ({"netwwork": {}}, "study.netwwork: no such key; did you mean 'network'?"),
    ({"batch": []}, "study.batch: got [], allowed: "),
    ({"leave_out": [{"batch": [64]}]}, "study.leave_out.batch: got 64, allowed: 32, 96"),
    ({"leave_out": [{"rank": [1]}]}, "study.leave_out: got 'rank', allowed: framework, network, "),
    ({"leave_out": [{"ranks": []}]}, "study.leave_out.0.ranks: got [], allowed: "),
    ({"leave_out": [{"framework": ["torch"]}]}, "study.leave_out.framework: got 'torch', allowed: "),
    ({"leave_out": [{}]}, "study.leave_out: got '{}', allowed: at least one axis"),
    ({"set": {"batch.bn_span": 5}}, "batch.global_size: got 128, allowed: a multiple of"),
    ({"network": {"a b": {}, "a/b": {}}}, "study: 2 of its cells would have the folder a-b-"),
]


@pytest.mark.parametrize(
    ("whole", "changes", "message"), [*((STUDY, *row) for row in OF_CURVES), *((GRID, *row) for row in OF_A_GRID)]
)
def test_a_study_with_a_mistake_or_a_cell_that_cannot_run_is_refused_in_one_line(
    whole: dict[str, Any], changes: dict[str, Any], message: str, tmp_path: Path
) -> None:
    with pytest.raises(UserError) as caught:
        _load(tmp_path, whole | changes)
    assert str(caught.value).startswith(message)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("left_out", "kept"),
    [
        ([], {("deep", 32, 4), ("deep", 32, 16), ("deep", 96, 4), ("deep", 96, 16), ("plain", 32, 4),
              ("plain", 32, 16), ("plain", 96, 4), ("plain", 96, 16)}),
        ([{"network": ["plain"], "ranks": [4, 16]}, {"batch": [96]}], {("deep", 32, 4), ("deep", 32, 16)}),
        ([{"network": ["plain"], "ranks": [16]}, {"batch": [96], "data": ["real", "short"]}],
         {("deep", 32, 4), ("deep", 32, 16), ("plain", 32, 4)}),
    ],
)  # fmt: skip
def test_cells_are_the_grid_without_what_is_left_out(left_out: list[Any], kept: set[Any]) -> None:
    cells = list(scaling_study(leave_out=left_out).cells())
    assert {(cell.network, cell.batch, cell.ranks) for cell in cells} == kept
    assert {cell.data for cell in cells} == {"real", "short"}


@pytest.mark.parametrize(
    ("said_by", "kind", "ranks", "cluster", "cells"),
    [
        ("axis", "none", [1, 2], "laptop", [1]),
        ("axis", "none", [1, 8, 16], "dgx-a100", [1]),
        ("axis", "devices", [1, 2, 8], "laptop", [1, 2, 8]),
        *((each, "none", [1], "laptop", [1]) for each in ("set", "file")),
        *((each, "devices", [1, 8, 16], "dgx-a100", [1, 8]) for each in ("axis", "set", "file")),
        ("axis", "horovod", [1, 8, 16], "dgx-a100", [1, 8, 16]),
    ],
)
def test_cells_that_cannot_exist_are_left_out_wherever_the_kind_is_set(
    said_by: str, kind: str, ranks: list[int], cluster: str, cells: list[int], tmp_path: Path
) -> None:
    keys = {"cluster.communication.kind": kind, "cluster.engine.name": "mxnet", "cluster.num_nodes": 1}
    if said_by != "axis" and kind == "none":
        keys["cluster.ranks_per_node"] = 1  # A cluster of this kind has a single rank.
    path = tmp_path / "config.yaml"
    place = load_cluster(cluster, [f"{key}={value}" for key, value in keys.items()] if said_by == "file" else [])
    path.write_text(dump(load_recipe("imagenet-b256"), place), encoding="utf-8")
    ways: dict[str, dict[str, Any]] = {"axis": {"communication": {"c": keys}}, "set": {"set": keys}, "file": {}}
    changes = {**SMALL, "ranks": ranks, "set": {}, "times_ranks": {}, "cluster": str(path), **ways[said_by]}
    study = scaling_study(**changes)
    assert [cell.ranks for cell in study.cells()] == cells
    assert {study.load(cell)[1].communication.kind for cell in study.cells()} == {kind}


def test_a_cell_sets_batch_rate_machines_and_the_keys_of_its_axes() -> None:
    study = scaling_study()
    (cell,) = [cell for cell in study.cells() if astuple(cell) == ("", "deep", "torus", "short", 96, 16)]
    recipe, cluster = study.load(cell)
    assert recipe.batch.global_size == 96 * 16
    assert recipe.schedule.base_lr == pytest.approx(0.0125 * 16)
    assert (recipe.model.name, cluster.communication.allreduce, recipe.run.epochs) == ("resnet101", "torus", 40)
    assert (cluster.num_nodes, cluster.ranks_per_node, cluster.world_size) == (2, 8, 16)
    (few,) = [cell for cell in study.cells() if astuple(cell) == ("", "plain", "devices", "real", 32, 4)]
    recipe, cluster = study.load(few)
    assert (cluster.num_nodes, cluster.ranks_per_node, recipe.run.epochs) == (1, 4, 50)
    assert cluster.node.rank_cores == study.base_cluster.node.rank_cores[:4], "the first ranks keep their cores"
    assert [study.load(few, repeat)[0].run.seed for repeat in range(3)] == [7, 8, 9]


LAYERS = ("set", "framework", "network", "communication", "data", "times_ranks")


@pytest.mark.parametrize(("lower", "upper"), itertools.pairwise(LAYERS))
def test_the_keys_of_a_later_axis_come_over_those_of_an_earlier_one(lower: str, upper: str) -> None:
    changes: dict[str, Any] = {**SMALL, "set": {}, "times_ranks": {}}
    for layer, rate in ((lower, 2.0), (upper, 3.0)):
        keys = {"schedule.base_lr": rate}
        changes[layer] = keys if layer in ("set", "times_ranks") else {layer[0]: keys}
    study = scaling_study(**changes)
    (cell,) = study.cells()
    assert study.load(cell)[0].schedule.base_lr == (12.0 if upper == "times_ranks" else 3.0)


def test_no_axis_changes_the_batch_and_the_machines_of_a_cell() -> None:
    keys = {"batch.global_size": 7, "cluster.num_nodes": 3, "cluster.ranks_per_node": 3}
    study = scaling_study(**{**SMALL, "ranks": [16], "data": {"d": keys}})
    (cell,) = study.cells()
    recipe, cluster = study.load(cell)
    assert (recipe.batch.global_size, cluster.num_nodes, cluster.ranks_per_node) == (512, 2, 8)


@pytest.mark.parametrize(
    ("cluster", "sets", "ranks", "placed"),
    [
        ("a100-node", {}, 8, (1, 8, "local")),
        ("a100-node", {}, 16, (2, 8, "horovodrun")),
        ("a100-node", {"launcher": "srun"}, 16, (2, 8, "srun")),
        ("laptop", {}, 64, (1, 64, "local")),
        ("laptop", {"launcher": "mpirun", "communication.backend": "mpi"}, 6, (3, 2, "mpirun")),
        ("dgx-a100", {"ranks_per_node": 4, "node.rank_cores": []}, 8, (2, 4, "srun")),
    ],
)
def test_a_cell_gets_as_few_machines_as_possible_and_one_cpu_takes_any_number(
    cluster: str, sets: dict[str, Any], ranks: int, placed: tuple[int, int, str]
) -> None:
    keys = {"engine.name": "mxnet", "communication.kind": "horovod", "num_nodes": 1, **sets}
    changes = {"set": {f"cluster.{key}": value for key, value in keys.items()}, "times_ranks": {}, "batch": [48]}
    study = scaling_study(**{**SMALL, **changes, "cluster": cluster, "ranks": [ranks]})
    (cell,) = study.cells()
    _, place = study.load(cell)
    assert (place.num_nodes, place.ranks_per_node, place.launcher) == placed


def test_a_global_batch_is_split_over_the_ranks_that_divide_it_beside_the_grid_and_may_be_left_out() -> None:
    changes = {**SMALL, "ranks": [4, 16], "global_batch": [128, 24]}
    assert [(cell.batch, cell.ranks) for cell in scaling_study(**changes).cells()] == [
        (32, 4), (32, 16), (8, 16), (6, 4),
    ]  # fmt: skip
    study = scaling_study(**changes, leave_out=[{"batch": [8, 6]}])
    assert [cell.batch for cell in study.cells()] == [32, 32]


def test_a_framework_is_an_axis_whose_keys_the_cells_have() -> None:
    frameworks = {"MXNet": {"cluster.engine.name": "mxnet"}, "PyTorch": {"cluster.engine.name": "torch"}}
    left_out = [{"framework": ["PyTorch"], "communication": ["torus", "devices"]}]
    study = scaling_study(framework=frameworks, leave_out=left_out, ranks=[1], batch=[32], data={"real": {}})
    names = [cell.name for cell in study.cells() if cell.network == "deep"]
    assert names == [
        f"{name}-deep-{way}-real-b32-r1"
        for name, way in (("MXNet", "torus"), ("MXNet", "alone"), ("MXNet", "devices"), ("PyTorch", "alone"))
    ]
    found = {(cell.framework, study.load(cell)[1].engine.name) for cell in study.cells()}
    assert found == {("MXNet", "mxnet"), ("PyTorch", "torch")}
    assert ScalingCell("My Torch", "ResNet 50", "in/box", "x y", 32, 4).name == "My-Torch-ResNet-50-in-box-x-y-b32-r4"


@pytest.mark.slow
@pytest.mark.parametrize("path", sorted((ROOT / "configs" / "studies").glob("*.yaml")), ids=lambda path: path.stem)
def test_every_study_that_we_ship_can_be_run(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "find_spec", lambda package: package)
    study = load_study(path.stem)
    assert study.name == path.stem
    if isinstance(study, Study):
        recipes = [study.load(cell)[0] for cell in study.cells()]
        equal = {(each.run.epochs, each.data.model_dump_json(), each.batch.bn_span) for each in recipes}
        assert len(equal) == 1 or study.name != "large-batch", "it compares optimizers after equal epochs"
    elif path.stem.endswith("-laptop"):
        cells = list(study.cells())
        loaded = [study.load(cell) for cell in cells]
        assert {cluster.device for _, cluster in loaded} == {"cpu"}
        # The studies have real images, and cells that two cores cannot run, which the simulator predicts.
        assert {recipe.data.source for recipe, _ in loaded} & {"idx", "table"}
        assert max(cell.ranks for cell in cells) > 2
        # PyTorch has no devices and no parameter servers, and runs all the other cells.
        monkeypatch.setattr(registry, "find_spec", lambda package: package if package == "torch" else None)
        alone = load_study(path.stem)
        assert isinstance(alone, ScalingStudy)
        apart = {cell: why for cell, why in alone.grid() if why}
        assert {cell.communication for cell in apart} <= {"devices", "parameter server"}
        assert {*alone.cells(), *apart} == {*cells}
        assert {alone.load(cell)[1].engine.name for cell in alone.cells()} == {"torch"}
