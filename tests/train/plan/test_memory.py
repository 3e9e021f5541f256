"""The estimated memory of a rank: MXNet's own allocations, the arithmetic of each part, and the verdict."""

import re
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

import pytest

from configs.errors import ConfigError
from configs.load import load_both
from configs.plan import plan_run
from train.networks.arch import build_network
from train.plan.document import plan_document, render
from train.plan.memory import estimate_input, estimate_memory, require_memory, shortage_here

RECORD = build_network("resnet50", num_classes=1000, image_size=224, input_channels=4)
NORMS = sum(each.size for each in RECORD.parameters if each.kind in ("gamma", "beta"))


def _memory(recipe: str, cluster: str, *overrides: str) -> dict[str, int]:
    given = load_both(recipe, cluster, overrides)
    plan = plan_run(given[0], given[1].world_size)
    found = estimate_memory(*given, plan)
    sums = {"total_bytes": found.total_bytes, "certain_bytes": found.certain_bytes}
    return {**asdict(found), **sums, **estimate_input(*given, plan)}


@pytest.mark.parametrize(
    ("network", "measured"), [("resnet50", 8_421_120), ("densenet121", 12_444_928), ("mobilenet_v2", 17_500_000)]
)
def test_the_activations_of_an_image_are_those_that_mxnet_allocates(network: str, measured: int) -> None:
    """A process of MXNet 1.9.1 grew by so many bytes an image in its first step, 36 images less 4 of them."""
    sets = [f"model.name={network}", "model.image_size=64", "batch.global_size=2", "cluster.engine.name=mxnet"]
    assert _memory("imagenet-b256", "laptop", *sets)["activations_bytes"] == pytest.approx(measured, rel=0.15)


def test_float16_halves_all_but_the_masters_the_moments_and_batch_norm() -> None:
    half, full = (
        _memory("abci-b86016", "abci-v100", f"cluster.engine.precision={name}") for name in ("float16", "float32")
    )
    others = RECORD.num_parameters - NORMS
    assert half["weights_bytes"] == 6 * others + 4 * NORMS
    assert full["weights_bytes"] == full["gradients_bytes"] == 4 * RECORD.num_parameters
    assert half["gradients_bytes"] == 2 * others + 4 * NORMS
    assert 2 * half["activations_bytes"] == full["activations_bytes"]
    assert half["optimizer_bytes"] == full["optimizer_bytes"]


def test_bfloat16_of_mxnet_on_a_cpu_halves_activations_and_adds_casts_of_the_float32_weights() -> None:
    whole = _memory("imagenet-b256", "laptop", "cluster.engine.name=mxnet")
    half = _memory("imagenet-b256", "laptop", "cluster.engine.name=mxnet", "cluster.engine.precision=bfloat16")
    weights, batch_norm = 25_557_032, 2 * 26_560
    assert half["weights_bytes"] == half["gradients_bytes"] == 4 * weights
    assert half["communication_bytes"] == whole["communication_bytes"]
    assert half["activations_bytes"] == whole["activations_bytes"] // 2 + 2 * (weights - batch_norm)


def test_accumulated_float16_gradients_have_float32_sums_beside_them() -> None:
    sets = ["batch.bn_span=21", "cluster.engine.precision=float16"]
    once, twice = (_memory("abci-b86016", "abci-v100", *each) for each in ([], sets))
    assert twice["gradients_bytes"] - once["gradients_bytes"] == 4 * (RECORD.num_parameters - NORMS)
    assert 2 * twice["activations_bytes"] == once["activations_bytes"]


def test_averages_of_weights_and_running_statistics_are_held_and_in_an_evaluation_their_own_too() -> None:
    """ResNet-50 has 25,557,032 weights, and 26,560 channels in its batch norms, each with a mean and a variance."""
    plain, averaged = (
        _memory("mosaic-v20-b2048", "h100-node", f"optimizer.average_half_life_steps={steps}")["optimizer_bytes"]
        for steps in ("null", "100")
    )
    assert averaged - plain == 2 * 4 * (25_557_032 + 2 * 26_560)


def test_every_pipeline_has_decoders_of_its_own_and_two_pinned_buffers_a_thread() -> None:
    three, two = (_memory("abci-b86016", "abci-v100", f"data.plain_from_epoch={each}") for each in ("86", "null"))
    one_pipeline = 3 * 211_025_920 + 3 * 42 * (224 * 224 * 4 * 2 + 600_000)
    assert three["input_bytes"] - two["input_bytes"] == one_pipeline
    assert three["pinned_bytes"] == 3 * 3 * 2 * 140_544_512
    cache = ("cluster.engine.stick_to_shard=true", "cluster.engine.decoded_cache_bytes=400000000")
    assert _memory("abci-b86016", "abci-v100", *cache)["input_bytes"] - three["input_bytes"] == 400_000_000
    threads = _memory("abci-b86016", "abci-v100", "cluster.engine.input_threads=6")
    assert threads["pinned_bytes"] == 2 * three["pinned_bytes"]


def test_the_plan_says_to_the_byte_how_well_a_rank_fits() -> None:
    memory = _memory("digits", "laptop")
    total, certain = memory["total_bytes"], memory["certain_bytes"]
    tight = "TIGHT: fits only if the libraries take less"
    for available, words in ((total, "fits"), (total - 1, tight), (certain, tight), (certain - 1, "DOES NOT FIT: ")):
        document = plan_document(*load_both("digits", "laptop", [f"cluster.node.memory_bytes={2 * available}"]))
        found = re.search(r"^  available .* MB: (.*)$", render(document), re.MULTILINE)
        assert found is not None
        assert found[1].startswith(words)


@pytest.mark.parametrize(
    ("recipe", "cluster", "key", "ranks"),
    [("abci-b86016", "abci-v100", "gpu_memory_bytes", 1), ("digits", "laptop", "memory_bytes", 2)],
)
def test_a_run_is_refused_where_a_rank_surely_needs_more_than_there_is(
    recipe: str, cluster: str, key: str, ranks: int
) -> None:
    needed = ranks * _memory(recipe, cluster)["certain_bytes"]
    require_memory(*load_both(recipe, cluster, [f"cluster.node.{key}={needed}"]))
    with pytest.raises(
        ConfigError,
        match=rf"node\.{key}: got {needed - ranks}, allowed: at least {needed} for {recipe}; use more ranks, or",
    ):
        require_memory(*load_both(recipe, cluster, [f"cluster.node.{key}={needed - ranks}"]))
    require_memory(*load_both(recipe, cluster, [f"cluster.node.{key}=null"]))
    if key == "memory_bytes":  # the ranks of a node share its memory, however many nodes there are
        more = ["cluster.num_nodes=2", "cluster.launcher=mpirun", "cluster.communication.backend=mpi"]
        needed = ranks * _memory(recipe, cluster, *more)["certain_bytes"]
        require_memory(*load_both(recipe, cluster, [f"cluster.node.{key}={needed}", *more]))


@pytest.mark.parametrize(("sets", "pipelines"), [((), 2), (("data.source=synthetic",), 0)])
def test_batches_wait_in_the_pipelines_and_with_the_steps_that_are_queued(sets: Sequence[str], pipelines: int) -> None:
    queues = ("cluster.engine.run_ahead_steps=3", "cluster.engine.prefetch_depth=5")
    found = _memory("digits", "laptop", *sets, *queues)
    assert found["pipelines"] == pipelines
    # Three queued steps hold a batch each, and the step that runs holds one.
    assert found["queued_bytes"] == (pipelines * 5 + 3 + 1) * found["batch_bytes"]
    assert (found["decoder_bytes"], found["pinned_bytes"]) == (0, 0), "a CPU decodes without buffers of its own"


def test_stochastic_depth_holds_nothing_more_and_silu_the_inputs_of_all_relus() -> None:
    """The first ReLU of stages 2 to 4 still has the side of the stage before (version 1.5)."""
    plain, dropped, smooth = (
        _memory("imagenet-b256", "laptop", *each)["activations_bytes"]
        for each in ([], ["model.stochastic_depth=0.1"], ["model.residual={activation: silu}"])
    )
    assert dropped == plain
    within = ((56, 3 * 384 + 128), (28, 4 * 768 - 128 + 256), (14, 6 * 1536 - 256 + 512), (7, 3 * 3072 - 512))
    inputs = 112**2 * 64 + sum(side**2 * channels for side, channels in within)
    assert smooth - plain == 128 * 4 * inputs


ALONE = "cluster.ranks_per_node=1"
SHAMPOO = (
    "optimizer={name: shampoo, beta_2: 0.9, weight_decay: 5e-4, start_preconditioning_step: 2, matrix_epsilon: 1e-6}"
)


_RING = 2 * 16 * 4194304
"""NCCL's buffers of a communicator, of which a node and the nodes may have their own: by default 16 channels, each with
4 MiB to send and to receive."""


@pytest.mark.parametrize(
    ("place", "communication", "expected"),
    [
        ("abci-b86016 abci-v100", "{backend: nccl, allreduce: flat, bucket_bytes: 4096}", 4096 + _RING),
        ("abci-b86016 abci-v100", "{backend: nccl, allreduce: torus, bucket_bytes: 4096}", 4096 + 3 * _RING),
        ("abci-b86016 abci-v100", "{backend: nccl, allreduce: hierarchical, bucket_bytes: 4096}", 4096 + 3 * _RING),
        ("abci-b86016 abci-v100", "{backend: mpi, bucket_bytes: 1000000}", 1_000_000),
        ("digits laptop 2", "{kind: horovod, backend: gloo, bucket_bytes: 1000000}", 1_000_000),
        ("digits laptop 1", "{kind: horovod, backend: gloo}", 0),
        ("digits laptop 2", "{kind: parameter_server}", 0),
        ("digits laptop 1", "{kind: none}", 0),
        ("digits laptop 1", "{kind: shared_memory}", 0),
        ("digits laptop 2", "{kind: shared_memory}", 4 * 272_474 // 2),  # the sum overwrites a share
        ("digits laptop 4", "{kind: shared_memory}", 4 * 272_474),
    ],
)
def test_a_rank_holds_the_buffers_of_its_communicators_or_the_shares_of_its_gradients(
    place: str, communication: str, expected: int
) -> None:
    recipe, cluster, *ranks = place.split()
    sets = [f"cluster.communication={communication}", "cluster.engine.name=mxnet"]
    sets += [f"cluster.ranks_per_node={number}" for number in ranks]
    assert _memory(recipe, cluster, *sets)["communication_bytes"] == expected


@pytest.mark.parametrize(
    ("recipe", "words", "engine", "peaks"),
    [
        ("digits", [], "mxnet", (233, 242)),
        ("digits", [], "torch", (360, 369)),
        ("imagenet-smoke", ["model.image_size=64"], "mxnet", (986, 1167)),
        ("imagenet-smoke", ["model.image_size=64"], "torch", (997, 1200)),
        # One rank, three steps, on two cores of an AMD EPYC.
        ("imagenet-smoke", [ALONE, "model.name=alexnet"], "torch", (2384, 2384)),
        ("imagenet-smoke", [ALONE, "model.name=alexnet"], "mxnet", (1610, 1610)),
        ("imagenet-smoke", [ALONE, SHAMPOO, "model.image_size=64", "data.eval_resize=72"], "torch", (2077, 2077)),
    ],
)
def test_the_memory_of_a_cpu_rank_is_near_the_peak_that_a_run_had(
    recipe: str, words: list[str], engine: str, peaks: tuple[int, int]
) -> None:
    """The peaks are the least and the most ``peak_memory_bytes`` of usage.json, in MB: MXNet 1.9.1, PyTorch 2.13."""
    memory = _memory(recipe, "laptop", *words, f"cluster.engine.name={engine}")
    assert 0.87 * peaks[1] < memory["total_bytes"] / 1e6 < 1.13 * peaks[0]
    assert memory["certain_bytes"] < 1e6 * peaks[0], "nothing is refused that was seen to fit"


def _machine(root: Path, limit: str, available_bytes: int) -> Path:
    """Write the files of a machine whose control group, of version 2, holds this process."""
    for name, text in {
        "proc/self/mountinfo": "30 23 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n",
        "proc/self/cgroup": "0::/job\n",
        "proc/meminfo": f"MemAvailable: {available_bytes >> 10} kB\n",
        "sys/fs/cgroup/job/memory.max": f"{limit}\n",
        "sys/fs/cgroup/job/memory.current": "0\n",
    }.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return root


def test_ranks_that_this_machine_or_its_control_group_cannot_hold_are_refused_with_the_limit(tmp_path: Path) -> None:
    needed = 2 * _memory("digits", "laptop")["certain_bytes"]
    place = load_both("digits", "laptop", [])
    assert shortage_here(*place, _machine(tmp_path, str(needed), 1 << 40)) is None
    words = shortage_here(*place, _machine(tmp_path, str(needed - 1), 1 << 40))
    assert words is not None
    assert words.startswith(
        f"2 ranks of digits would need {needed / 1e9:.2f} GB of memory, and the control group {tmp_path}/"
    )
    assert f"/job (limit {needed / 1e9:.2f} GB) has {needed / 1e9:.2f} GB left" in words
    large = _machine(tmp_path, "max", 16_000_000_000)
    assert "(batch.bn_span)" in str(shortage_here(*load_both("imagenet-b256", "laptop"), large))
    assert shortage_here(*load_both("imagenet-b256", "laptop", ["batch.bn_span=16"]), large) is None
    machine = _machine(tmp_path, "max", 1 << 20)
    assert ", and this machine has 0.00 GB left; " in str(shortage_here(*place, machine))
    by_mpi = ["cluster.launcher=mpirun", "cluster.communication.backend=mpi"]
    for elsewhere in (["cluster.scheduler.kind=slurm"], by_mpi):
        assert shortage_here(*load_both("digits", "laptop", elsewhere), machine) is None
    recipe, cluster = place
    timed = cluster.model_copy(update={"engine": cluster.engine.model_copy(update={"name": "timed"})})
    assert shortage_here(recipe, timed, machine) is None, "a rehearsal invents its network"
    assert shortage_here(*load_both("abci-b86016", "abci-v100", []), machine) is None
