"""Settings that surely cost a factor on a GPU are told, with the factor, by all who look at a run beforehand."""

import re
from pathlib import Path

import pytest

from configs.load import ROOT, load_both
from train.plan.document import plan_document
from train.plan.slow_settings import slow_settings
from train.plan.text import render
from train.sim.conditions import predict

SLOW = ("cluster.engine.precision=float32", "cluster.engine.layout=NCHW", "cluster.communication.backend=gloo")


def _told(engine: str, *sets: str, gpu: str = "V100-SXM2-16GB", batch: int = 256) -> dict[str, float]:
    """Return the factor of each setting that is told, for eight ranks with a batch each."""
    words = [
        f"cluster.engine.name={engine}", "cluster.device=gpu", "cluster.ranks_per_node=8", f"cluster.node.gpu={gpu}",
        "cluster.communication={}", "mlperf.division=open", "batch.bn_span=null", f"batch.global_size={8 * batch}",
    ]  # fmt: skip
    lines = slow_settings(*load_both("imagenet-b256", "laptop", [*words, *sets]))
    found = [
        re.fullmatch(r"cluster\.([a-z.]+)=\S+ makes a step about (\S+) times .+; set cluster\.\S+", each)
        for each in lines
    ]
    return {match[1]: float(match[2]) for match in found if match}


def test_the_defaults_of_pytorch_on_gpus_are_fast_and_each_slow_value_in_their_place_is_told() -> None:
    assert _told("torch") == {}
    assert _told("torch", "cluster.ranks_per_node=1", SLOW[2], batch=32) == {}, "one rank sums nothing"
    assert list(_told("torch", *SLOW, gpu="H100-SXM", batch=32)) == [
        "communication.backend",
        "engine.precision",
        "engine.layout",
    ]
    assert set(_told("mxnet", *SLOW)) == {"engine.precision", "engine.layout"}, "Horovod sums by NCCL"
    assert slow_settings(*load_both("imagenet-b256", "laptop", ["cluster.engine.name=torch"])) == []


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
    sets = ["batch.global_size=8192", "mlperf.division=open", "batch.bn_span=null"]
    recipe, cluster = load_both("imagenet-b256", path.stem, sets)
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
