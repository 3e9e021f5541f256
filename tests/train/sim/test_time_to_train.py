"""The time of a whole run, epochs by batch, and start-up."""

import json
from pathlib import Path
from statistics import mean

import mlperf_logging
import pytest

from configs.load import load_cluster, load_recipe
from train.sim.convergence import _REFERENCE, epochs_to_target
from train.sim.forecast import has_reference
from train.sim.hardware import described_accelerator
from train.sim.startup_time import predict_startup
from train.sim.time_to_train import run_time


@pytest.mark.parametrize(
    ("batch", "epochs"), [(408, 35), (3264, 35), (4096, 40), (13056, 46), (32768, 56), (65536, 84), (86016, 90)]
)
def test_epochs_pass_through_the_reference_points(batch: int, epochs: int) -> None:
    assert abs(epochs_to_target(batch) - epochs) <= 1


def test_epochs_never_fall_with_the_batch_and_grow_beyond_the_last_point() -> None:
    found = [epochs_to_target(batch) for batch in range(256, 200_000, 512)]
    assert found == sorted(found)
    assert epochs_to_target(172_032) == 119  # 90, and 28.5 for the doubling, rounded up


@pytest.mark.parametrize(
    ("batch", "mlperf_round", "epochs"),
    [
        (40132, "", 62),  # the geometric mean of 32,768 and 49,152: the mean of 56 and 68
        (17378, "", 48),  # 47.76
        (16963, "", 47),  # 47.45
        (1, "", 35),
        (1664, "0.5", 60),
        (1664, "banana", 35),
    ],
)
def test_between_known_batches_epochs_grow_with_the_logarithm(batch: int, mlperf_round: str, epochs: int) -> None:
    assert epochs_to_target(batch, mlperf_round) == epochs


def test_earlier_rounds_needed_more_epochs() -> None:
    assert epochs_to_target(1664, "0.6") == 60
    assert epochs_to_target(54080, "0.6") == 86
    assert epochs_to_target(1664, "4.0") == 35


@pytest.mark.parametrize(
    ("rate", "epochs", "nodes", "mlperf_round", "seconds"),
    [
        (1_722_000, 90, 512, "0.6", 70.4),
        (1_144_921, 86, 130, "0.6", 101.4),
        (167_670, 35, 8, "2.0", 270.2),
        (318_223, 35, 8, "3.1", 149.7),
    ],
)
def test_measured_rates_and_epochs_give_the_published_times(
    rate: float, epochs: int, nodes: int, mlperf_round: str, seconds: float
) -> None:
    assert run_time(rate, epochs, nodes, mlperf_round=mlperf_round).total_s == pytest.approx(seconds, rel=0.04)


def test_a_faster_machine_at_a_larger_batch_can_be_slower() -> None:
    smaller = run_time(1e6, epochs_to_target(32768), 128).total_s
    larger = run_time(1.4e6, epochs_to_target(65536), 256).total_s
    assert larger > smaller


def test_start_up_of_the_record_and_what_seeding_and_overlap_save() -> None:
    best = predict_startup(2048)
    assert best.total_s == pytest.approx(25.5 + 16.0, rel=0.1)
    assert predict_startup(2048, overlapped=False).total_s == pytest.approx(best.total_s + best.pipeline_s)
    assert predict_startup(2048, seeded=False).total_s > best.total_s + 3
    assert predict_startup(1, seeded=False).weights_s == 0
    assert predict_startup(1).total_s == pytest.approx(8.0 + 3.6 + 0.25 + 0.5)


def test_the_epochs_of_each_batch_are_those_of_the_official_reference_runs() -> None:
    folder = Path(mlperf_logging.__file__).parent / "rcp_checker"
    measured: dict[int, list[float]] = {}
    for file in folder.glob("training_*/rcps_resnet.json"):
        for point in json.loads(file.read_text(encoding="utf-8")).values():
            kept = sorted(point["Epochs to converge"])[1:-1]
            measured.setdefault(point["BS"], []).append(mean(kept))
    submitted = {16384: 47, 86016: 90}  # round 2.1; the 2019 record
    assert set(_REFERENCE) - set(submitted) <= set(measured)
    for batch, epochs in _REFERENCE.items():
        assert min(abs(epochs - each) for each in measured.get(batch, [submitted.get(batch, 0)])) < 0.2, batch


@pytest.mark.parametrize(
    ("mlperf_round", "published"),
    [
        ("0.6", {1664: 60, 4096: 62, 16384: 66, 33280: 72, 54080: 86, 59904: 90, 86016: 90}),
        ("0.7", {832: 38, 1664: 38, 3264: 41, 4096: 43, 8192: 44, 34560: 59, 44544: 70, 53360: 82, 86016: 90}),
        (
            "",
            {1632: 35, 3264: 35, 4096: 40, 8192: 42, 16384: 47, 32768: 56, 49152: 68, 58880: 80, 67840: 86, 86016: 90},
        ),
    ],
)
def test_a_published_batch_needs_its_published_epochs(mlperf_round: str, published: dict[int, int]) -> None:
    assert {batch: epochs_to_target(batch, mlperf_round) for batch in published} == published


@pytest.mark.parametrize(("images", "has_one"), [(1_000_000, True), (999_999, False)])
def test_the_reference_is_for_all_of_imagenet(images: int, has_one: bool) -> None:
    assert has_reference(load_recipe("imagenet-b256", [f"data.train_samples={images}"])) is has_one


@pytest.mark.parametrize(("link", "kind", "bytes_per_s"), [("null", "pcie", 12e9), ("5e10", "nvlink", 5e10)])
def test_a_data_sheets_kind_of_link_counts_beside_its_rate_only(link: str, kind: str, bytes_per_s: float) -> None:
    rates = "float16_flops: 1e14, float32_flops: 1e13, memory_bytes_per_s: 1e12"
    sheet = f"{{{rates}, cache_bytes: 6e6, units: 80, link: nvlink}}"
    sets = ["cluster.node.gpu=X1", f"cluster.node.accelerator={sheet}", f"cluster.node.gpu_link_bytes_per_s={link}"]
    found = described_accelerator(load_cluster("a100-node", sets))
    assert found is not None
    assert (found.link_kind, found.link) == (kind, bytes_per_s)
