"""What nodes and GPUs must read and decode is told, and what they surely cannot."""

from typing import Any

import pytest

from configs.load import load_both
from train.plan.document import plan_document, render
from train.plan.input_rates import input_rates

OPEN = ("mlperf.division=open", "batch.bn_span=null")

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
