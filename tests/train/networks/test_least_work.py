"""The work of a step is that of every layer, counted by hand, and the floor is the larger of two times."""

import pytest

from train.networks.arch import Network, build_network
from train.networks.kinds import KINDS
from train.networks.layer import Layer
from train.networks.least_work import UPDATE, Work, floor_s, work_of_step

STEM = Layer("stem", KINDS["conv"], ("data",), 3, 8, in_size=4, out_size=4, kernel=3, padding=1)
DEEP = Layer("deep", KINDS["conv"], ("norm",), 8, 16, in_size=4, out_size=2, kernel=1, stride=2)
NORM = Layer("norm", KINDS["bn"], ("stem",), 8, 8, in_size=4, out_size=4)
POOL = Layer("pool", KINDS["max_pool"], ("deep",), 16, 16, in_size=2, out_size=1, kernel=2, stride=2)
TINY = Network("tiny", 4, 3, 10, (STEM, NORM, DEEP, POOL))


def test_a_convolution_passes_twice_if_it_reads_the_images_and_else_three_times() -> None:
    work = work_of_step(TINY, batch=5)["convolution"]
    stem = Work(2 * 5 * 16 * 8 * 27, 4 * (5 * 3 * 16 + 5 * 8 * 16 + 8 * 27))
    deep = Work(2 * 5 * 4 * 16 * 8, 4 * (5 * 8 * 16 + 5 * 16 * 4 + 16 * 8))
    assert work == [stem, stem, deep, deep, deep]


def test_batch_norm_pooling_and_update_only_move_bytes() -> None:
    work = work_of_step(TINY, batch=5)
    assert work["batch norm"] == [Work(0, 4 * 5 * 8 * 8 * 16)]
    assert work[KINDS["max_pool"].group] == [Work(0, 4 * 5 * 2 * (16 * 4 + 16))]
    assert work[UPDATE] == [Work(0, 4 * 7 * (8 * 27 + 16 + 16 * 8))]


def test_every_layer_of_resnet50_is_counted_and_its_products_are_three_times_the_forward() -> None:
    network = build_network("resnet50", num_classes=1000, image_size=64)
    work = work_of_step(network, batch=2)
    assert set(work) == {*(each.group for each in KINDS.values()), UPDATE}
    operations = sum(each.operations for passes in work.values() for each in passes)
    assert operations == 2 * 2 * (3 * network.macs - network.layers[0].macs)


def test_the_floor_is_set_by_operations_or_by_bytes_pass_by_pass() -> None:
    passes = [Work(100, 10), Work(10, 100)]
    assert floor_s(passes, operations_per_s=10, bytes_per_s=20) == pytest.approx(10 + 5)


@pytest.mark.parametrize(
    ("kind", "passes"),
    [
        ("bn", 8),
        ("relu", 5),
        ("sigmoid", 5),
        ("add", 3),
        ("multiply", 5),
        ("concat", 4),
        ("dropout", 4),
        ("avg_pool", 4),
    ],
)
def test_a_layer_without_products_passes_over_its_elements(kind: str, passes: int) -> None:
    network = Network("one", 4, 3, 10, (Layer("one", KINDS[kind], ("data",), 8, 8, in_size=4, out_size=4),))
    assert work_of_step(network, batch=5)[KINDS[kind].group] == [Work(0, 4 * 5 * passes * 8 * 16)]
