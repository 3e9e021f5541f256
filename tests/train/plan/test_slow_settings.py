"""What surely slows a run on GPUs is told: settings, with their factor, and an input that cannot keep up."""

import re
from pathlib import Path
from typing import Any

import pytest

from configs.load import ROOT, load_both, load_cluster
from train.plan.before_run import slow_values
from train.plan.document import plan_document
from train.plan.slow_settings import input_rates, slow_settings
from train.plan.text import render
from train.sim.conditions import predict

OPEN = ("mlperf.division=open", "batch.bn_span=null")
SLOW = ("cluster.engine.precision=float32", "cluster.engine.layout=NCHW", "cluster.communication.backend=gloo")


def _told(engine: str, *sets: str, gpu: str = "V100-SXM2-16GB", batch: int = 256) -> dict[str, float]:
    """Return the factor of each setting that is told, for eight ranks with a batch each."""
    words = [
        f"cluster.engine.name={engine}", "cluster.device=gpu", "cluster.ranks_per_node=8", f"cluster.node.gpu={gpu}",
        "cluster.communication={}", *OPEN, f"batch.global_size={8 * batch}",
    ]  # fmt: skip
    lines = slow_settings(*load_both("imagenet-b256", "laptop", [*words, *sets]))
    found = [
        re.fullmatch(r"cluster\.([a-z.]+)=\S+ makes a step about (\S+) times .+; set cluster\.\S+", each)
        for each in lines
    ]
    return {match[1]: float(match[2]) for match in found if match}


def test_the_defaults_of_pytorch_on_gpus_are_fast_and_each_slow_value_in_their_place_is_told() -> None:
    """The words of a run that begins have the better value, and no factor, which would cost it a second."""
    assert _told("torch") == {}
    assert _told("torch", "cluster.ranks_per_node=1", SLOW[2], batch=32) == {}, "one rank sums nothing"
    assert list(_told("torch", *SLOW, gpu="H100-SXM", batch=32)) == [
        "communication.backend",
        "engine.precision",
        "engine.layout",
    ]
    assert set(_told("mxnet", *SLOW)) == {"engine.precision", "engine.layout"}, "Horovod sums by NCCL"
    assert slow_settings(*load_both("imagenet-b256", "laptop", ["cluster.engine.name=torch"])) == []
    gpus = ("cluster.engine.name=torch", "cluster.device=gpu", "cluster.communication={}", "cluster.ranks_per_node=8")
    better = [line.rpartition("; set cluster.")[2] for line in slow_values(load_cluster("laptop", [*gpus, *SLOW]))]
    assert better == ["engine.precision=float16", "engine.layout=NHWC", "communication.backend=nccl"]


@pytest.mark.parametrize(
    ("engine", "gpu", "published"),
    [("torch", "V100-SXM2-16GB", 3.26), ("torch", "V100-SXM2-32GB", 3.24), ("mxnet", "A100-SXM4-80GB", 2.63)],
)
def test_float32_costs_what_nvidia_measured(engine: str, gpu: str, published: float) -> None:
    """DeepLearningExamples, ResNet-50 v1.5 in PyTorch, one GPU, 256 images: float32 on V100, TF32 on A100, and AMP."""
    assert _told(engine, SLOW[0], gpu=gpu)["engine.precision"] == pytest.approx(published, rel=0.25)


def test_the_layout_costs_what_pytorch_measured() -> None:
    """The tutorial of PyTorch's channels last: 8 % to 35 % with 16 bits; ResNet-50 22 %."""
    assert 1.08 <= _told("torch", SLOW[1])["engine.layout"] <= 1.35


@pytest.mark.parametrize("path", sorted((ROOT / "configs" / "clusters").glob("*.yaml")), ids=lambda path: path.stem)
def test_no_shipped_cluster_has_such_a_setting(path: Path) -> None:
    recipe, cluster = load_both("imagenet-b256", path.stem, ["batch.global_size=8192", *OPEN])
    assert slow_settings(recipe, cluster) == []
    assert cluster.device == "cpu" or predict(recipe, cluster).images_per_s > 0


def test_the_plan_shows_the_lines_beside_the_forecast() -> None:
    sets = ["cluster.engine.name=torch", "cluster.device=gpu", "cluster.node.gpu=H200", SLOW[0]]
    document = plan_document(*load_both("imagenet-b256", "laptop", sets))
    (line,) = document["slow_settings"]
    assert f"\n  slow       {line}\n" in render(document)


def test_what_costs_a_small_network_next_to_nothing_is_not_told() -> None:
    sets = ["cluster.engine.name=torch", "cluster.device=gpu", "cluster.node.gpu=H100-SXM", SLOW[1]]
    assert slow_settings(*load_both("fashion-mnist", "laptop", sets)) == []


def test_a_gpu_that_nobody_knows_is_taken_for_an_a100() -> None:
    sets = ["cluster.engine.name=torch", "cluster.device=gpu", SLOW[0]]
    (line,) = slow_settings(*load_both("imagenet-b256", "laptop", sets))
    assert "(simulated on A100-SXM4-80GB, because cluster.node.gpu names no known GPU)" in line


IMAGES = 1_281_167
"""Of ImageNet; a JPEG has 110 KB, decoded 0.6 MB."""


def _rates(cluster: str, *sets: str, images_per_s: float = 8000.0) -> dict[str, Any]:
    found = input_rates(*load_both("imagenet-b256", cluster, [*OPEN, *sets]), images_per_s)
    assert found is not None
    return found


def test_a_node_reads_and_its_gpus_decode_what_steps_take_but_for_images_that_are_kept() -> None:
    none = _rates("h100-node", "cluster.engine.decoded_cache_bytes=0")
    assert none["read_bytes_per_s_per_node"] == pytest.approx(8000 * 110_000)
    assert none["decoded_per_s_per_gpu"] == pytest.approx(1000)
    assert (none["node_bytes"], none["in_memory_share"], none["missing"]) == (IMAGES * 110_000, 1.0, [])
    some = _rates("h100-node")
    share = 12 * 2**30 / (IMAGES / 8 * 600_000)
    assert some["cached_share"] == pytest.approx(share, rel=1e-4)
    assert some["decoded_per_s_per_gpu"] == pytest.approx(1000 * (1 - share), rel=1e-4)
    assert some["read_bytes_per_s_per_node"] == pytest.approx(8000 * 110_000 * (1 - share), rel=1e-4)


def test_more_nodes_share_what_is_read_and_eight_keep_all_of_imagenet_decoded() -> None:
    four, eight = (_rates("h100-cluster", f"cluster.num_nodes={nodes}", "batch.global_size=2048") for nodes in (4, 8))
    assert four["node_bytes"] == pytest.approx(IMAGES * 110_000 / 4)
    assert 0.4 < four["cached_share"] < 0.6
    assert four["images_per_s_per_node"] == 2000
    assert (eight["cached_share"], eight["decoded_per_s_per_gpu"], eight["read_bytes_per_s_per_node"]) == (1, 0, 0)
    rotating = ("cluster.engine.stick_to_shard=false", "cluster.engine.decoded_cache_bytes=0")
    assert _rates("h100-cluster", "cluster.num_nodes=4", *rotating)["node_bytes"] == IMAGES * 110_000


def test_what_the_decoders_or_the_memory_lack_is_told_with_the_share_and_the_remedy() -> None:
    uncached = "cluster.engine.decoded_cache_bytes=0"
    assert _rates("h100-node", uncached, images_per_s=8 * 6999)["missing"] == []
    (decoder,) = _rates("h100-node", uncached, images_per_s=8 * 9000)["missing"]
    assert "7,000 images/s of the 9,000" in decoder
    assert "cluster.engine.decoded_cache_bytes" in decoder
    half = f"cluster.node.memory_bytes={IMAGES * 55_000}"
    (memory,) = _rates("h100-node", uncached, half)["missing"]
    assert "50%" in memory
    assert "440 MB/s" in memory
    assert "stick_to_shard" in memory
    assert _rates("h100-node", half, "cluster.node.gpu=X1")["possible_per_s_per_gpu"] is None


@pytest.mark.parametrize(
    ("recipe", "cluster", "sets"),
    [("digits", "h100-node", []), ("imagenet-b256", "laptop", []),
     ("imagenet-b256", "h100-node", ["data.source=synthetic"])],
)  # fmt: skip
def test_where_no_gpu_decodes_images_of_that_size_nothing_is_told(recipe: str, cluster: str, sets: list[str]) -> None:
    assert input_rates(*load_both(recipe, cluster, [*OPEN, *sets]), 8000.0) is None


@pytest.mark.medium
def test_the_plan_tells_the_rates_of_the_forecast_and_what_is_too_slow() -> None:
    sets = [*OPEN, "model.name=resnet18", "batch.global_size=2048", "cluster.engine.decoded_cache_bytes=0"]
    document = plan_document(*load_both("imagenet-b256", "h100-node", sets))
    assert document["input"]["images_per_s_per_node"] == document["simulated"]["images_per_s"][0] > 8 * 7000
    text = render(document)
    assert "  too slow   a GPU decodes about 7,000 images/s" in text
    unknown = plan_document(*load_both("imagenet-b256", "h100-node", [*OPEN, "cluster.node.gpu=X1"]))
    assert unknown["input"] is None
    assert "a GPU decodes" not in render(unknown)
