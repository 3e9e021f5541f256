"""What a cell of a scaling study runs: seeds, batches, machines and the keys of its axes."""

import itertools
from pathlib import Path
from typing import Any

import pytest

from configs.errors import ConfigError
from configs.load import dump, load_cluster, load_recipe
from configs.scaling_study import Expectation, LeftOut, ScalingCell, ScalingStudy, _placement
from configs.validate import validate

GRID = {
    "name": "grid",
    "title": "Grid",
    "purpose": "Tests",
    "recipe": "imagenet-b256",
    "cluster": "dgx-a100",
    "set": {"run.seed": 7, "cluster.num_nodes": 8, "run.epochs": 50},
    "ranks": [4, 16],
    "batch": [32, 96],
    "network": {"deep": {"model.name": "resnet101"}, "plain": {}},
    "communication": {
        "torus": {"cluster.communication.allreduce": "torus"},
        "alone": {"cluster.communication.kind": "none"},
        "devices": {"cluster.communication.kind": "devices"},
    },
    "data": {"real": {}, "short": {"run.epochs": 40}},
    "times_ranks": {"schedule.base_lr": 0.0125},
}

EXPECTS = {"axis": "batch", "base": 32, "other": 96, "effect": "gains", "network": "deep"}


def scaling_study(**changes: Any) -> ScalingStudy:
    return validate(ScalingStudy, GRID | changes, "study.")


def test_cells_are_the_grid_without_what_cannot_be() -> None:
    cells = [cell.axes for cell in scaling_study().cells()]
    # A rank alone is no 4 or 16, and devices are those of one machine of eight.
    assert len(cells) == 2 * 2 * 2 * (2 + 1)
    assert not any(communication == "alone" for _, _, communication, *_ in cells)
    assert {ranks for _, _, communication, _, _, ranks in cells if communication == "devices"} == {4}
    left_out = scaling_study(leave_out=[{"network": ["plain"], "ranks": [16]}, {"batch": [96]}])
    assert {(network, batch, ranks) for _, network, _, _, batch, ranks in (cell.axes for cell in left_out.cells())} == {
        ("deep", 32, 4),
        ("deep", 32, 16),
        ("plain", 32, 4),
    }


def test_a_cell_sets_batch_rate_machines_and_the_keys_of_its_axes() -> None:
    study = scaling_study()
    (cell,) = [cell for cell in study.cells() if cell.axes == ("", "deep", "torus", "short", 96, 16)]
    recipe, cluster = study.load(cell)
    assert recipe.batch.global_size == 96 * 16
    assert recipe.schedule.base_lr == pytest.approx(0.0125 * 16)
    assert (recipe.model.name, cluster.communication.allreduce, recipe.run.epochs) == ("resnet101", "torus", 40)
    assert (cluster.num_nodes, cluster.ranks_per_node, cluster.world_size) == (2, 8, 16)
    assert cell.name == "deep-torus-short-b96-r16"
    (few,) = [cell for cell in study.cells() if cell.axes == ("", "plain", "devices", "real", 32, 4)]
    recipe, cluster = study.load(few)
    assert (cluster.num_nodes, cluster.ranks_per_node, recipe.run.epochs) == (1, 4, 50)
    assert cluster.node.rank_cores == study.base_cluster().node.rank_cores[:4], "the first ranks keep their cores"
    assert len(set(study.base_cluster().node.rank_cores)) == 8


def test_a_global_batch_is_split_over_the_ranks_that_divide_it_beside_the_grid() -> None:
    study = scaling_study(global_batch=[128, 24], batch=[32], communication={"flat": {}}, data={"real": {}})
    sizes = [(cell.batch, cell.ranks) for cell in study.cells() if cell.network == "deep"]
    assert sizes == [(32, 4), (32, 16), (8, 16), (6, 4)]


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({}, "deep gains with batch 96 in place of batch 32"),
        ({"than": ["plain", "small"]}, "deep gains more than plain and small with batch 96 in place of batch 32"),
        (
            {"axis": "data", "base": "real", "other": "short", "effect": "loses"},
            "deep loses with short in place of real",
        ),
    ],
)
def test_an_expectation_is_a_sentence(changes: dict[str, Any], sentence: str) -> None:
    assert Expectation.model_validate(EXPECTS | changes).sentence == sentence


def test_a_framework_is_an_axis_whose_keys_the_cells_have() -> None:
    frameworks = {"MXNet": {"cluster.engine.name": "mxnet"}, "PyTorch": {"cluster.engine.name": "torch"}}
    left_out = [{"framework": ["PyTorch"], "communication": ["torus", "devices"]}]
    study = scaling_study(framework=frameworks, leave_out=left_out, ranks=[1], batch=[32], data={"real": {}})
    names = [cell.name for cell in study.cells() if cell.network == "deep"]
    assert names == [
        f"{name}-deep-{way}-real-b32-r1"
        for name, way in (("MXNet", "torus"), ("MXNet", "alone"), ("MXNet", "devices"), ("PyTorch", "alone"))
    ]
    assert {(cell.framework, study.load(cell)[1].engine.name) for cell in study.cells()} == {
        ("MXNet", "mxnet"), ("PyTorch", "torch")
    }  # fmt: skip
    with pytest.raises(ConfigError, match=r"leave_out\.framework: got 'torch', allowed: MXNet, PyTorch"):
        scaling_study(framework=frameworks, leave_out=[{"framework": ["torch"]}])


def test_each_repeat_has_the_next_seed() -> None:
    study = scaling_study()
    cell = next(study.cells())
    assert [study.load(cell, repeat)[0].run.seed for repeat in range(3)] == [7, 8, 9]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"ranks": [4, 12]}, "study.ranks: got 12, allowed: up to 8, or a multiple of 8"),
        ({"ranks": [4, 4]}, "study.ranks: got [4, 4], allowed: every number once"),
        ({"ranks": [4, 8, 4]}, "study.ranks: got [4, 8, 4], allowed: every number once"),
        ({"batch": [32, 32]}, "study.batch: got [32, 32], allowed: every number once"),
        ({"global_batch": [64, 64]}, "study.global_batch: got [64, 64], allowed: every number once"),
        ({"leave_out": [{"batch": [64]}]}, "leave_out.batch: got 64, allowed: 32, 96"),
        ({"leave_out": [{}]}, "leave_out: got '{}', allowed: at least one axis"),
        ({"expects": [EXPECTS | {"other": 64}]}, "expects.batch: got 64"),
        ({"expects": [EXPECTS | {"axis": "framework", "base": "a", "other": "b"}]}, "expects.framework: got 'a'"),
        ({"expects": [EXPECTS | {"than": ["no"]}]}, "expects.network: got 'no'"),
    ],
)
def test_a_grid_that_contradicts_itself_is_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        list(scaling_study(**changes).cells())
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("cluster", "sets", "ranks", "placed"),
    [("laptop", [], 6, (1, 6)), ("dgx-a100", [], 8, (1, 8)), ("dgx-a100", [], 16, (2, 8)),
     ("laptop", ["cluster.launcher=mpirun", "cluster.communication.backend=mpi"], 6, (3, 2))],
)  # fmt: skip
def test_ranks_fill_machines_and_any_number_shares_the_cpu_of_one(
    cluster: str, sets: list[str], ranks: int, placed: tuple[int, int]
) -> None:
    keys = _placement(ranks, load_cluster(cluster, sets))
    assert (keys["cluster.num_nodes"], keys["cluster.ranks_per_node"]) == placed


LAYERS = ("set", "framework", "network", "communication", "data", "times_ranks")
SMALL = {"ranks": [4], "batch": [32], "network": {"n": {}}, "communication": {"c": {}}, "data": {"d": {}}}


@pytest.mark.parametrize(("lower", "upper"), itertools.combinations(LAYERS, 2))
def test_the_keys_of_a_later_axis_come_over_those_of_an_earlier_one(lower: str, upper: str) -> None:
    changes: dict[str, Any] = {**SMALL, "set": {}, "times_ranks": {}}
    for layer, rate in ((lower, 2.0), (upper, 3.0)):
        keys = {"schedule.base_lr": rate}
        changes[layer] = keys if layer in ("set", "times_ranks") else {layer[0]: keys}
    study = scaling_study(**changes)
    (cell,) = study.cells()
    assert study.load(cell)[0].schedule.base_lr == (12.0 if upper == "times_ranks" else 3.0)


@pytest.mark.parametrize("layer", LAYERS[1:5])
def test_no_axis_changes_the_batch_and_the_machines_of_a_cell(layer: str) -> None:
    keys = {"batch.global_size": 7, "cluster.num_nodes": 3, "cluster.ranks_per_node": 3}
    study = scaling_study(**{**SMALL, "ranks": [16], layer: {layer[0]: keys}})
    (cell,) = study.cells()
    recipe, cluster = study.load(cell)
    assert (recipe.batch.global_size, cluster.num_nodes, cluster.ranks_per_node) == (512, 2, 8)


@pytest.mark.parametrize(
    ("cluster", "sets", "ranks", "placed"),
    [
        ("a100-node", [], 8, {"num_nodes": 1, "ranks_per_node": 8}),
        ("a100-node", [], 3, {"num_nodes": 1, "ranks_per_node": 3}),
        ("a100-node", [], 16, {"num_nodes": 2, "ranks_per_node": 8, "launcher": "horovodrun"}),
        ("a100-node", ["launcher=srun"], 16, {"num_nodes": 2, "ranks_per_node": 8}),
        ("laptop", [], 64, {"num_nodes": 1, "ranks_per_node": 64}),
        ("laptop", ["device=gpu"], 4, {"num_nodes": 2, "ranks_per_node": 2, "launcher": "horovodrun"}),
        ("laptop", ["launcher=mpirun"], 2, {"num_nodes": 1, "ranks_per_node": 2}),
        ("laptop", ["node.rank_cores=['0','1']"], 1, {"num_nodes": 1, "ranks_per_node": 1, "node.rank_cores": ("0",)}),
        ("laptop", ["launcher=srun", "node.rank_cores=['0','1']"], 4, {"num_nodes": 2, "ranks_per_node": 2}),
        ("dgx-a100", [], 24, {"num_nodes": 3, "ranks_per_node": 8}),
    ],
)
def test_a_cell_gets_as_few_machines_as_possible(
    cluster: str, sets: list[str], ranks: int, placed: dict[str, Any]
) -> None:
    both = ["engine.name=mxnet", "communication.kind=horovod"]
    keys = [f"cluster.{each}" for each in (*both, *sets)]
    assert _placement(ranks, load_cluster(cluster, keys)) == {f"cluster.{key}": value for key, value in placed.items()}


@pytest.mark.parametrize(("cluster", "ranks"), [("a100-node", 9), ("dgx-a100", 12), ("dgx-a100", 15)])
def test_ranks_that_would_not_fill_the_last_machine_are_refused(cluster: str, ranks: int) -> None:
    with pytest.raises(ConfigError, match=rf"^study\.ranks: got {ranks}, allowed: up to 8, or a multiple of 8; change"):
        _placement(ranks, load_cluster(cluster))


@pytest.mark.parametrize("said_by", ["axis", "set", "file"])
@pytest.mark.parametrize(
    ("kind", "ranks", "cluster", "cells"),
    [
        ("none", [1, 2], "laptop", [1]),
        ("none", [1, 8, 16], "dgx-a100", [1]),
        ("devices", [1, 2, 8], "laptop", [1, 2, 8]),
        ("devices", [1, 8, 16], "dgx-a100", [1, 8]),
        ("horovod", [1, 8, 16], "dgx-a100", [1, 8, 16]),
    ],
)
def test_cells_that_cannot_exist_are_left_out_whoever_says_the_kind(
    said_by: str, kind: str, ranks: list[int], cluster: str, cells: list[int], tmp_path: Path
) -> None:
    keys = {"cluster.communication.kind": kind, "cluster.engine.name": "mxnet", "cluster.num_nodes": 1}
    if said_by != "axis" and kind == "none":
        keys["cluster.ranks_per_node"] = 1  # A cluster of this kind has a single rank.
        ranks = [1]
    path = tmp_path / "config.yaml"
    place = load_cluster(cluster, [f"{key}={value}" for key, value in keys.items()] if said_by == "file" else [])
    path.write_text(dump(load_recipe("imagenet-b256"), place), encoding="utf-8")
    ways: dict[str, dict[str, Any]] = {"axis": {"communication": {"c": keys}}, "set": {"set": keys}, "file": {}}
    study = scaling_study(
        **{**SMALL, "ranks": ranks, "set": {}, "times_ranks": {}, "cluster": str(path), **ways[said_by]}
    )
    assert [cell.ranks for cell in study.cells()] == cells
    assert {study.load(cell)[1].communication.kind for cell in study.cells()} == {kind}


def test_the_keys_set_in_every_run_decide_the_machines_of_a_cell() -> None:
    study = scaling_study(**{**SMALL, "set": {"cluster.ranks_per_node": 4}, "ranks": [8]})
    (cell,) = study.cells()
    _, cluster = study.load(cell)
    assert (cluster.num_nodes, cluster.ranks_per_node) == (2, 4)


@pytest.mark.parametrize(
    ("names", "name"),
    [
        (("", "ResNet 50", "in/box", "x y/z"), "ResNet-50-in-box-x-y-z-b32-r4"),
        (("My Torch", "a", "b", "c"), "My-Torch-a-b-c-b32-r4"),
    ],
)
def test_the_name_of_a_cell_is_the_name_of_a_folder(names: tuple[str, str, str, str], name: str) -> None:
    assert ScalingCell(*names, 32, 4).name == name


@pytest.mark.parametrize(
    ("left_out", "is_left_out"),
    [
        ({"network": ["n"]}, True),
        ({"network": ["m", "n"], "ranks": [4, 8]}, True),
        ({"network": ["n"], "ranks": [8]}, False),
        ({"batch": [32], "framework": ["f"]}, True),
        ({"batch": [4]}, False),
        ({"batch": [32], "data": ["x"]}, False),
    ],
)
def test_a_cell_is_left_out_if_it_has_a_listed_value_on_every_listed_axis(
    left_out: dict[str, Any], is_left_out: bool
) -> None:
    assert LeftOut.model_validate(left_out).matches(ScalingCell("f", "n", "c", "d", 32, 4)) is is_left_out


def test_a_batch_of_strong_scaling_may_be_left_out() -> None:
    changes = {**SMALL, "global_batch": [64, 6], "leave_out": [{"batch": [16]}]}
    assert [cell.batch for cell in scaling_study(**changes).cells()] == [32]
    with pytest.raises(ConfigError, match=r"leave_out\.batch: got 1, allowed: 32, 16$"):
        scaling_study(**changes | {"leave_out": [{"batch": [16, 1]}]})


def test_an_expectation_of_another_batch_names_a_batch_and_of_another_axis_a_value() -> None:
    study = {**SMALL, "batch": [32, 96], "framework": {"32": {}, "96": {}}, "expects": [EXPECTS | {"network": "n"}]}
    assert scaling_study(**study).expects[0].sentence == "n gains with batch 96 in place of batch 32"
    each = Expectation.model_validate(EXPECTS | {"axis": "framework"})
    assert each.sentence == "deep gains with 96 in place of 32"
    for key in ("base", "other"):
        with pytest.raises(ConfigError, match=r"^study\.expects\.batch: got 5, allowed: 32, 96$"):
            scaling_study(**study | {"expects": [EXPECTS | {"network": "n", key: 5}]})
