"""Rows of a points file: the machine that a row describes, and rows that are refused."""

import csv
import io
from dataclasses import replace
from pathlib import Path

import pytest

from configs.errors import UserError
from train.sim.fit.points import Point, ranks_per_node, read_points
from train.sim.hardware import accelerators, find_accelerator
from train.sim.software import SEPARATE_SUMS
from train.sim.step_time import MAX_BATCH, MAX_RANKS

ROW = {"accelerator": "A100-SXM4-40GB", "n_acc": "16", "batch_per_acc": "64"}


def _read(folder: Path, *rows: dict[str, str]) -> list[Point]:
    text = io.StringIO()
    writer = csv.DictWriter(text, list(rows[0]))
    writer.writeheader()
    writer.writerows(rows)
    (folder / "points.csv").write_text(text.getvalue(), encoding="utf-8")
    return read_points(folder / "points.csv")


def _point(folder: Path, **columns: str) -> Point:
    return _read(folder, ROW | columns)[0]


@pytest.mark.parametrize(
    ("columns", "node", "nics"),
    [
        ({}, 8, 8),
        ({"system": "new_n4"}, 4, 4),  # as many ports for each accelerator as usual
        ({"system": "new_n16", "accelerators_per_node": "2"}, 2, 2),
        ({"n_acc": "1"}, 1, 1),
        ({"accelerators_per_node": "64"}, 16, 8),  # no node has more than there are
        ({"system": "new_n4", "nics": "3"}, 4, 3),
    ],
)
def test_a_node_has_ports_for_its_accelerators(tmp_path: Path, columns: dict[str, str], node: int, nics: int) -> None:
    point = _point(tmp_path, **columns)
    usual = replace(point.accelerator, node=8, nics=8)
    machine = replace(point, accelerator=usual).machine
    assert (machine.accelerator.node, machine.accelerator.nics) == (node, nics)


def test_every_node_has_a_port(tmp_path: Path) -> None:
    point = _point(tmp_path, n_acc="1")
    for usual, nics in ((1, 1), (12, 2)):  # 0.125 and 1.5 of a port
        product = replace(point.accelerator, node=8, nics=usual)
        assert replace(point, accelerator=product).machine.accelerator.nics == nics


def test_cards_in_pcie_slots_are_one_node_up_to_twenty_four_and_some_products_have_one_a_node() -> None:
    card = replace(find_accelerator("A30"), node=4, link_kind="pcie")
    assert [ranks_per_node("", ranks, card) for ranks in (24, 25)] == [24, 4]
    assert ranks_per_node("new_n8", 8, replace(card, node=1)) == 1


def test_a_row_of_the_largest_number_of_accelerators_and_images_is_read(tmp_path: Path) -> None:
    found = _point(tmp_path, n_acc=str(MAX_RANKS), batch_per_acc=str(MAX_BATCH))
    assert (found.ranks, found.batch) == (MAX_RANKS, MAX_BATCH)
    assert _point(tmp_path, batch_per_acc="0.5").batch == 0.5
    for columns in ({"n_acc": str(MAX_RANKS + 1)}, {"batch_per_acc": str(MAX_BATCH + 1)}, {"batch_per_acc": "-1"}):
        with pytest.raises(UserError, match=r"points.csv, row 2: got"):
            _point(tmp_path, **columns)


def test_a_row_that_is_refused_is_named_with_what_it_has(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"points.csv, row 3: got \{'n_acc': '', 'batch_per_acc': 'x', .*16,384\)$"):
        _read(tmp_path, ROW, ROW | {"n_acc": "", "batch_per_acc": "x"})
    for columns, words in (
        ({"precision": "float61"}, "precision: got 'float61', allowed: one of .* 'float16'"),
        ({"layout": "NWHC"}, "layout: got 'NWHC', .*did you mean 'NHWC'"),
        ({"accelerator": "H800"}, r"accelerator: got 'H800', .*node\.accelerator"),
        ({"accelerator": ""}, r"accelerator: got .*node\.accelerator"),
        ({"accelerator": "A1000-SXM-80GB"}, "accelerator: .*did you mean 'A100-SXM-80GB'"),
    ):
        with pytest.raises(UserError, match=f"row 2: {words}"):
            _point(tmp_path, **columns)


def test_a_row_with_more_cells_than_titles_is_read(tmp_path: Path) -> None:
    path = tmp_path / "points.csv"
    path.write_text("n_acc,batch_per_acc,accelerator\n8,64,V100,a note\n", encoding="utf-8")
    (found,) = read_points(path)
    assert (found.ranks, found.measured_time_s, found.measured_init_s) == (8, None, None)


@pytest.mark.parametrize("content", [b"n_acc\n\xff\n", b"n_acc\n\x00\n" + b'"' + b"x" * 200_000], ids=["text", "csv"])
def test_a_file_that_is_no_table_is_one_line(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "points.csv"
    path.write_bytes(content)
    with pytest.raises(UserError, match=rf"^{path}: cannot be read: \S"):
        read_points(path)


@pytest.mark.parametrize(
    ("columns", "traffic"),
    [
        ({"mlperf_round": "0.7"}, SEPARATE_SUMS),
        ({"mlperf_round": "0.6"}, 1.0),
        ({"mlperf_round": "0.7", "n_acc": "8"}, 1.0),  # one node
        ({"mlperf_round": "0.7", "submitter": "Google"}, 1.0),
    ],
)
def test_nvidias_networks_for_several_nodes_make_the_sums_of_batch_norms_apart(
    tmp_path: Path, columns: dict[str, str], traffic: float
) -> None:
    assert _point(tmp_path, **columns).software.norm_traffic == traffic


@pytest.mark.parametrize(
    ("mlperf_round", "bucket_bytes", "graphs"),
    [("0.6", 4 << 20, False), ("0.7", 64 << 20, False), ("1.0", 64 << 20, True)],
)
def test_a_round_has_its_buckets_and_its_graphs(
    tmp_path: Path, mlperf_round: str, bucket_bytes: int, graphs: bool
) -> None:
    software = _point(tmp_path, mlperf_round=mlperf_round).software
    assert (software.bucket_bytes, software.graphs) == (bucket_bytes, graphs)


@pytest.mark.parametrize(
    ("compiler", "traffic", "is_whole", "boundaries"),
    [("xla", 0.5, True, ()), ("synapse", 0.5, True, ()), ("mindspore", 0.5, False, (75, 86)), ("rocm", 1.0, False, ())],
)
def test_a_compiler_fuses_batch_norms_and_may_launch_the_step_as_one_program(
    tmp_path: Path, compiler: str, traffic: float, is_whole: bool, boundaries: tuple[int, ...]
) -> None:
    assert compiler in {each.compiler for each in accelerators()}
    point = _point(tmp_path, mlperf_round="0.6")
    software = replace(point, accelerator=replace(point.accelerator, compiler=compiler)).software
    assert (software.norm_traffic, software.graphs, software.boundaries) == (traffic, is_whole, boundaries)
    assert software.bucket_bytes == (64 << 20 if is_whole else 4 << 20)


def test_every_column_of_a_points_file_is_read(tmp_path: Path) -> None:
    columns = {
        "mlperf_round": "2.1", "submitter": "A", "system": "b", "accelerator": "V100", "n_acc": "16",
        "global_batch": "800", "batch_per_acc": "", "img_per_s": "1234.5", "time_to_train_s (mean)": "99",
        "init_s": "7", "how": "log, incl eval", "network": "resnet18", "precision": "float32", "source": "x",
        "accelerators_per_node": "4", "nics": "2", "nic_bytes_per_s": "5e9",
    }  # fmt: skip
    found = _read(tmp_path, columns)[0]
    assert (found.round, found.submitter, found.system, found.ranks, found.batch) == ("2.1", "A", "b", 16, 50)
    assert (found.measured_images_per_s, found.measured_time_s, found.measured_init_s) == (1234.5, 99, 7)
    assert (found.includes_evaluation, found.network, found.precision) == (True, "resnet18", "float32")
    assert (found.is_framework, found.node, found.nics, found.nic_bytes_per_s) == (True, 4, 2, 5e9)
    assert found.accelerator.chip == "V100"
    bare = _point(tmp_path, accelerator="", system="8x V100", n_acc="8", batch_per_acc="32.5", global_batch="800")
    assert (bare.accelerator.chip, bare.batch, bare.network, bare.precision) == ("V100", 32.5, "resnet50", "float16")
    assert (bare.measured_images_per_s, bare.measured_time_s, bare.measured_init_s) == (None, None, None)
    assert (bare.includes_evaluation, bare.is_framework, bare.node, bare.nics) == (False, False, None, None)
    halves = _point(tmp_path, accelerator="TPU", system="v4-256", n_acc="8", batch_per_acc="32")
    assert halves.accelerator.chip == "TPUv4", "neither column names the chip by itself"


@pytest.mark.parametrize(
    ("system", "ranks", "accelerator", "node"),
    [
        ("dgx1_n130_ngc19.05_mxnet", 1040, "V100-SXM2", 8),
        ("dgx2h_n32_ngc19.05_mxnet", 512, "V100-SXM3-H", 16),
        ("HPE-XL675d_A100-SXM-80GB_16N_mxnet", 128, "A100-SXM-80GB", 8),
        ("new_n4", 64, "A100-SXM4-40GB", 16),
        ("new_n4", 68, "A100-SXM4-40GB", 8),
        ("ESC-N8-E11", 8, "NVIDIA H100-SXM5-80GB", 8),
        ("G5500V7x10xA30", 10, "A30", 10),
        ("new_n64", 64, "A100-SXM4-40GB", 8),  # a single accelerator is no node of a product with eight
        ("new_n0", 32, "A100-SXM4-40GB", 8),
        ("", 4, "A100-SXM4-40GB", 4),
    ],
)
def test_nodes_are_counted_from_a_systems_name(system: str, ranks: int, accelerator: str, node: int) -> None:
    assert ranks_per_node(system, ranks, find_accelerator(accelerator)) == node
