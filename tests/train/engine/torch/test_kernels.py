"""The kernels of a GPU, and of a CPU in the same way: every case of ``bench gpu``, DALI's batches, runs over NCCL."""

import shutil
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest

from configs.load import load_both, load_cluster
from logs.checkpoints import read
from logs.folder import RunFolder
from logs.metrics import read_metrics
from logs.usage import read_samples
from tests.engines import ALONE
from tests.runs import read_summary, resume, train
from train.bench.bench_gpu import ALLOWED_ERROR, EXECUTIONS, KERNEL_CASES
from train.engine.protocol import open_engine

pytest.importorskip("torch")
on_gpu = pytest.mark.gpu("torch")

KINDS = [("cpu", "float32"), *(("gpu", kind) for kind in ALLOWED_ERROR)]
IN_SECONDS = {"eager", "fused", "graph", "sums between graphs"}
"""The executions that are tried on a CPU, too: compilers take minutes."""
FIGURES = {
    "steps": {"logits", "loss", "gradient", "statistics", "update", "second_update", "evaluation"},
    "layers": {"logits", "loss", "gradient", "statistics"},
}


@pytest.mark.medium
@pytest.mark.parametrize(("name", "device", "kind", "execution"), [
    pytest.param(name, device, kind, execution, marks=on_gpu if device == "gpu" else [])
    for name, case in KERNEL_CASES.items() for device, kind in KINDS if kind in case.kinds
    for execution in case.executions
    if device == "gpu" or execution in IN_SECONDS
])  # fmt: skip
def test_a_device_computes_as_a_cpu_in_float32_but_for_rounding(
    name: str, device: str, kind: str, execution: str
) -> None:
    from train.bench.programs.gpu import errors

    case = KERNEL_CASES[name]
    found = errors(case, [f"cluster.device={device}", *EXECUTIONS[execution]], kind)
    has_batch_norm = "mnist_small_cnn" not in " ".join(case.changes)
    wanted = FIGURES[case.check] - (set() if has_batch_norm else {"statistics"})
    assert found.keys() == {f"{figure}_error" for figure in wanted}
    assert {figure: error for figure, error in found.items() if error > ALLOWED_ERROR[kind]} == {}
    if kind == "bfloat16":
        assert max(found.values()) > 0.002, "its eight bits of fraction were not used"


def test_the_settings_of_all_cases_are_allowed_on_a_gpu() -> None:
    for case in KERNEL_CASES.values():
        for execution in case.executions:
            words = [*case.overrides, *EXECUTIONS[execution], "cluster.device=gpu"]
            _, cluster = load_both(case.recipe, "laptop", words)
            assert (cluster.communication.backend, cluster.ranks_per_node) == ("nccl", 1)


@on_gpu
@pytest.mark.parametrize("kind", ["float16", "float32"])
def test_a_batch_of_dali_arrives_as_it_was_and_outlives_the_next_one(kind: str) -> None:
    import torch

    tensors = pytest.importorskip("nvidia.dali.tensors")
    engine = open_engine(load_cluster("laptop", ["cluster.engine.name=torch", "cluster.device=gpu"]), ALONE)
    batches = np.random.default_rng(0).standard_normal((2, 4, 8, 8, 3)).astype(kind)
    arrays = []
    for values in batches:
        held = torch.from_numpy(values).cuda()
        torch.cuda.synchronize()
        arrays.append(engine.from_dali(tensors.TensorGPU(held, "NHWC"), is_on_host=False))
    for array, values in zip(arrays, batches, strict=True):
        assert array.device.type == "cuda"
        np.testing.assert_array_equal(engine.to_host(array), values)


@on_gpu
@pytest.mark.ranks
@pytest.mark.parametrize(
    ("precision", "source", "execution"),
    [("float16", "generated", "eager"), ("bfloat16", "synthetic", "eager"),
     *(("float16", "synthetic", execution) for execution in EXECUTIONS)],
)  # fmt: skip
def test_a_run_over_nccl_on_one_rank_is_evaluated_and_goes_on_from_a_checkpoint_as_if_nothing_had_happened(
    precision: str, source: str, execution: str, tmp_path: Path
) -> None:
    if source == "generated":
        pytest.importorskip("nvidia.dali")
    whole = train(
        tmp_path / "whole",
        "model.name=resnet8", "model.image_size=32", "batch.global_size=8", f"data.source={source}",
        f"cluster.paths.data={tmp_path}", "schedule.warmup_epochs=1", "run.epochs=2", "run.max_steps=null",
        "run.eval_every_epochs=1", "run.eval_first_epoch=1", "cluster.checkpoint={every_epochs: 1, keep: 2}",
        "cluster.engine.name=torch", "cluster.engine.layout=NHWC", f"cluster.engine.precision={precision}",
        "cluster.device=gpu", "cluster.ranks_per_node=1", "cluster.communication.kind=torch_distributed",
        *EXECUTIONS[execution], recipe="imagenet-smoke",
    )  # fmt: skip
    assert whole.status == 0, whole.errors
    shutil.copytree(whole.folder, tmp_path / "again")
    last, _ = RunFolder(tmp_path / "again").checkpoints.files()
    for file in (last, tmp_path / "again" / "summary.json"):
        file.unlink()  # as if the launcher had been killed in the second epoch
    again = resume(tmp_path / "again")
    assert again.status == 0, again.errors
    summaries = [read_summary(run.folder) for run in (whole, again)]
    assert [(each["steps"], each["resumed_from_step"]) for each in summaries] == [(8, None), (8, 4)]
    for run in (whole, again):
        rows = read_metrics(run.folder / "metrics.jsonl")
        assert [row["epoch"] for row in rows if row["kind"] == "evaluation"] == [1, 2]
    one, other = (read(RunFolder(run.folder).checkpoints.files()[0]).arrays for run in (whole, again))
    assert one.keys() == other.keys()
    # cuDNN's sums over a batch come in any order.
    for name, values in one.items():
        assert np.linalg.norm(other[name] - values) <= 0.05 * np.linalg.norm(values), name
    if find_spec("pynvml"):
        assert any(sample.gpu_memory_bytes for run in (whole, again) for sample in read_samples(run.folder))
