"""What a rank's network and optimizer are built with."""

import numpy as np
import pytest

from configs.load import load_both
from configs.plan import plan_run
from configs.registry import has_engine
from data.shards import stream_seed
from tests.engines import cpu_engine, each_engine, random_batch
from train.engine.build import build_model, layer_seed
from train.engine.init import initial_weights
from train.networks.arch import network_of
from train.plan.document import plan_document

SMALL = ["model.name=resnet8", "model.image_size=16"]


def test_weights_of_a_checkpoint_are_copied_by_name_so_that_a_warm_up_may_drop_its_own() -> None:
    recipe, cluster = load_both("digits", "laptop", SMALL)
    kept = initial_weights(network_of(recipe.model), recipe.model, seed=99)
    model = build_model(cpu_engine(), recipe, cluster, plan_run(recipe, 1), kept)
    model.weights.clear()
    held = model.network.read_weights()
    assert kept.keys() == held.keys()
    assert all(np.array_equal(held[name], kept[name]) for name in kept)


@pytest.mark.skipif(not has_engine("torch"), reason="torch is not installed")
@pytest.mark.parametrize(("ranks", "riders"), [(64, 3), (65, 0)])
def test_a_rank_makes_the_buckets_of_the_plan_for_its_number_of_ranks(ranks: int, riders: int) -> None:
    words = [f"cluster.ranks_per_node={ranks}", f"batch.global_size={ranks}", "cluster.engine.precision=bfloat16"]
    words += ["cluster.engine.name=torch", "cluster.communication={bucket_bytes: 40000}"]
    recipe, cluster = load_both("digits", "laptop", [*SMALL, *words])
    buckets = build_model(cpu_engine("torch"), recipe, cluster, plan_run(recipe, ranks)).buckets
    planned = plan_document(recipe, cluster)["buckets"]
    assert [len(bucket) for bucket in buckets.order] == [bucket["tensors"] for bucket in planned]
    assert buckets.riders == riders, "the last but one, of batch norm, or the first if all sums are float32"


@pytest.mark.parametrize(
    ("source", "precision", "told"),
    [
        ("folders", "float16", "float16"), ("folders", "bfloat16", "float32"), ("folders", "float32", "float32"),
        ("synthetic", "float16", "float32"),
    ],
)  # fmt: skip
def test_only_images_that_are_read_for_float16_are_of_that_type(source: str, precision: str, told: str) -> None:
    recipe, cluster = load_both("digits", "laptop", [*SMALL, f"data.source={source}"])
    settings = cluster.engine.model_copy(update={"precision": precision})
    kept = initial_weights(network_of(recipe.model), recipe.model, seed=99)
    place = cluster.model_copy(update={"engine": settings})
    assert build_model(cpu_engine(), recipe, place, plan_run(recipe, 1), kept).image_type == told


@pytest.mark.medium
@each_engine
@pytest.mark.parametrize("micro_batches", [1, 4])
def test_a_step_keeps_the_share_of_running_statistics_that_the_recipe_says(name: str, micro_batches: int) -> None:
    def statistics(momentum: float) -> dict[str, np.ndarray]:
        words = [f"model.bn_momentum={momentum}", f"batch.accumulation_steps={micro_batches}"]
        recipe, cluster = load_both("digits", "laptop", [*SMALL, *words, f"cluster.engine.name={name}"])
        engine = cpu_engine(name)
        network = build_model(engine, recipe, cluster, plan_run(recipe, 1)).network
        batch = random_batch(engine, network)
        for _ in range(micro_batches):
            network.forward(*batch)
            network.backward()
        return network.read_statistics()

    of_batch = statistics(0)
    for key, value in statistics(0.5).items():
        np.testing.assert_allclose(value, 0.5 * key.endswith("_var") + 0.5 * of_batch[key], rtol=1e-5, atol=1e-6)


def test_the_dropout_of_a_step_has_31_bits_of_the_stream_of_its_rank() -> None:
    seeds = [layer_seed(7, 3, step) for step in range(100)]
    assert seeds == [stream_seed(7, f"dropout, step {step}", 3) & 0x7FFFFFFF for step in range(100)]
    assert max(seeds) > 2**30, "all bits are used"
