"""What a cell of a scaling study runs: seeds, batches, machines and the keys of its axes."""

from __future__ import annotations

from typing import Any

import pytest

from configs.errors import ConfigError
from configs.load import load_cluster
from configs.scaling_study import Expectation, ScalingStudy, _placement
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
