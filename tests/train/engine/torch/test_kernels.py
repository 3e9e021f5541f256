"""The kernels of a GPU: steps in every number type against float32 on the CPU, and a run over NCCL on one rank."""

import json
from pathlib import Path

import pytest

from configs.arguments import override_words
from configs.programs import Program, command_of
from train.bench.bench_gpu import ALLOWED_ERROR, KERNEL_NETWORK
from train.bench.launching import Jobs

pytest.importorskip("torch")
on_gpu = pytest.mark.gpu("torch")

ALONE = ("cluster.engine.name=torch", "cluster.ranks_per_node=1")


@pytest.mark.medium
@pytest.mark.parametrize("recipe", ["imagenet-b256", "mlperf-b3264"])  # by SGD and by LARS
@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
@pytest.mark.parametrize(("device", "kind"), [
    ("cpu", "float32"), ("cpu", "bfloat16"), *(pytest.param("gpu", kind, marks=on_gpu) for kind in ALLOWED_ERROR),
])  # fmt: skip
def test_two_steps_are_those_of_float32_on_a_cpu_but_for_rounding(
    recipe: str, layout: str, device: str, kind: str
) -> None:
    from train.bench.programs.gpu_kernels import differences

    place = [f"cluster.device={device}", f"cluster.engine.layout={layout}", "cluster.communication.kind=none"]
    found = differences(recipe, [*ALONE, *place, *KERNEL_NETWORK], kind)
    names = {"logits_error", "loss_error", "gradient_error", "statistics_error", "update_error", "second_update_error"}
    assert set(found) == names
    assert {name: error for name, error in found.items() if error > ALLOWED_ERROR[kind]} == {}
    if kind == "bfloat16":
        assert found["gradient_error"] > 0.002, "its eight bits of fraction were not used"


@on_gpu
@pytest.mark.ranks
@pytest.mark.parametrize("precision", ["float16", "bfloat16"])
def test_a_run_over_nccl_reaches_its_end_on_one_rank(precision: str, tmp_path: Path) -> None:
    sets = [
        *ALONE,
        "cluster.device=gpu",
        "cluster.communication.kind=torch_distributed",
        "cluster.communication.backend=nccl",
        f"cluster.engine.precision={precision}",
        "data.source=synthetic",
        "batch.bn_span=null",
    ]
    words = ["train", "imagenet-smoke", "--run-dir", str(tmp_path / "run"), *override_words(sets)]
    Jobs().run(command_of(Program.TRAIN_VERB, *words)).check()
    summary = json.loads((tmp_path / "run" / "summary.json").read_text(encoding="utf-8"))
    assert (summary["status"], summary["steps"]) == ("success", 2)
