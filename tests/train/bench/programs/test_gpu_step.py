"""A step on a GPU by clocks of the test's own: how many make a sample, their figures, and the memory that they took."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from configs.load import load_both
from configs.plan import plan_run
from train.bench.samples import read_samples
from train.networks.arch import network_of
from train.plan.memory import estimate_input, estimate_memory

pytest.importorskip("torch")


@pytest.mark.parametrize(
    ("seconds", "asked", "samples"),
    [
        ("0.001", [3, 1, 1], 1),  # at least one
        ("8", [3, 1, 5, 5, 5, 5], 4),  # a quarter of the time in a sample, and one step more
    ],
)
def test_a_sample_is_a_quarter_of_the_time_and_has_the_figures_of_one_step(
    seconds: str, asked: list[int], samples: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from train.bench.programs import gpu_step

    told: list[int] = []

    def time_s(action: Callable[[], object]) -> float:
        action()
        return 0.5 * told[-1]

    parts = SimpleNamespace(identity=SimpleNamespace(rank=0), plan=SimpleNamespace(global_batch_size=6))
    rank: Any = SimpleNamespace(parts=parts, time_s=time_s)
    monkeypatch.setattr(gpu_step, "open_rank", lambda overrides, recipe: (overrides, recipe) == (["a=1"], "r") and rank)
    monkeypatch.setitem(gpu_step._VARIANTS, "graph", lambda of: told.append if of is rank else None)
    monkeypatch.setattr(gpu_step, "_memory", lambda of: {"memory_bytes": 7.0} if of is rank else {})
    words = ["--recipe", "r", "--set", "a=1", "--variant", "graph", "--seconds", seconds]
    assert gpu_step.main(words) == 0
    assert told == asked
    sample = {"step_ms": 500.0, "images_per_s": 12.0, "memory_bytes": 7.0}
    assert read_samples(capsys.readouterr().out) == {"step": [sample] * samples}


@pytest.mark.parametrize("is_gpu", [True, False])
def test_memory_stands_beside_the_plans_estimate_of_what_a_step_takes(
    is_gpu: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    from train.bench.programs import gpu_step

    monkeypatch.setattr("torch.cuda.is_available", lambda: is_gpu)
    monkeypatch.setattr("torch.cuda.max_memory_allocated", lambda: 12_345)
    recipe, cluster = load_both("digits", "laptop")
    plan = plan_run(recipe, cluster.world_size)
    rank: Any = SimpleNamespace(parts=SimpleNamespace(recipe=recipe, cluster=cluster, plan=plan))
    buffers = estimate_input(recipe, cluster, plan)
    planned = estimate_memory(recipe, cluster, plan, network_of(recipe.model), buffers)
    step = planned.weights_bytes + planned.gradients_bytes + planned.optimizer_bytes + planned.activations_bytes
    assert gpu_step._memory(rank) == ({"memory_bytes": 12_345.0, "planned_bytes": float(step)} if is_gpu else {})


@pytest.mark.parametrize(("variant", "is_short"), [("tf32", True), ("eager", False)])
def test_products_have_fewer_bits_only_where_that_is_asked_for(
    variant: str, is_short: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    from train.bench.programs import gpu_step

    cudnn, matmul = SimpleNamespace(allow_tf32=False), SimpleNamespace(allow_tf32=False)
    backends = SimpleNamespace(cudnn=cudnn, cuda=SimpleNamespace(matmul=matmul))
    monkeypatch.setattr(gpu_step, "torch", SimpleNamespace(backends=backends))  # not the switches of this process
    monkeypatch.setattr(gpu_step, "steps_of", lambda *given: given)
    parts = SimpleNamespace(communicator="sums", model=SimpleNamespace(buckets="buckets"))
    rank: Any = SimpleNamespace(parts=parts)
    steps: Any = gpu_step._VARIANTS[variant](rank)
    assert steps == (rank, "sums", "buckets")
    assert (cudnn.allow_tf32, matmul.allow_tf32) == (is_short, is_short)
