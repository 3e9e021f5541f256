"""What a rank's network and optimizer are built with."""

from pathlib import Path
from typing import Any

import mxnet as mx
import numpy as np
import pytest

from configs.blocks.rehearsal import Rehearsal, Waits
from configs.load import load_both
from configs.plan import plan_run
from data.shards import stream_seed
from tests.engines import cpu_engine
from train.engine import build
from train.engine.build import build_model, dropout_seed
from train.engine.init import initial_weights
from train.networks.arch import network_of

SMALL = ["model.name=resnet8", "model.image_size=16", "cluster.engine.name=mxnet"]


@pytest.mark.parametrize(("accumulation", "adds"), [(1, False), (2, True)])
def test_an_optimizer_divides_by_all_images_of_a_step_and_knows_which_gradients_arrive_first(
    monkeypatch: pytest.MonkeyPatch, accumulation: int, adds: bool
) -> None:
    told: dict[str, Any] = {}
    given = [
        "batch.global_size=64", f"batch.accumulation_steps={accumulation}", "cluster.engine.update_groups=3",
        "cluster.communication.bucket_bytes=4096", "cluster.communication.deferred_fraction=0.3",
    ]  # fmt: skip
    recipe, cluster = load_both("digits", "laptop", [*SMALL, *given])
    engine: Any = cpu_engine()
    make = engine.build_network
    monkeypatch.setattr(
        engine, "build_network", lambda *parts, **options: told.update(options) or make(*parts, **options)
    )
    monkeypatch.setattr(engine, "build_optimizer", lambda *_, **options: told.update(options))
    model = build_model(engine, recipe, cluster, plan_run(recipe, 2))
    arrivals = model.buckets.arrivals(3)
    assert model.buckets.num_deferred > 0
    assert told == {"accumulate": adds, "rescale": 1 / 64, "arrivals": arrivals}


def test_weights_of_a_checkpoint_are_copied_by_name_so_that_a_warm_up_may_drop_its_own() -> None:
    recipe, cluster = load_both("digits", "laptop", SMALL)
    kept = initial_weights(network_of(recipe.model), recipe.model, seed=99)
    model = build_model(cpu_engine(), recipe, cluster, plan_run(recipe, 1), kept)
    model.weights.clear()
    held = model.network.read_weights()
    assert kept.keys() == held.keys()
    assert all(np.array_equal(held[name], kept[name]) for name in kept)


def test_a_rehearsal_reads_no_file_of_parameters_and_a_run_reads_it_with_its_own_engine(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    given = [*SMALL, "model.parameters=a.params", f"cluster.paths.data={tmp_path}", "run.seed=5"]
    recipe, cluster = load_both("digits", "laptop", given)
    table, engine = network_of(recipe.model), cpu_engine()
    drawn = initial_weights(table, recipe.model, 5)
    file: dict[str, np.ndarray] = {name: array + 1 for name, array in drawn.items()}
    for layer in table.layers:
        if layer.kind == "bn":
            file |= {f"{layer.name}_moving_{moment}": np.ones(layer.out_channels) for moment in ("mean", "var")}
    mx.nd.save(str(tmp_path / "a.params"), {name: mx.nd.array(array) for name, array in file.items()})
    read = build._first_weights(engine, recipe, cluster, table)
    assert all(np.array_equal(read[name], drawn[name] + 1) for name in drawn)
    waits = Waits(forward_s=0, gradients_s=(), update_s=0, evaluation_s=0, top1=())
    rehearsed = cluster.model_copy(update={"rehearsal": Rehearsal(waits=waits, shrink=100)})
    short = build._first_weights(engine, recipe, rehearsed, table)
    assert short.keys() == drawn.keys()
    assert all(np.array_equal(short[name], drawn[name].ravel()[: max(1, drawn[name].size // 100)]) for name in drawn)


def test_the_dropout_of_a_step_has_31_bits_of_the_stream_of_its_rank() -> None:
    seeds = [dropout_seed(7, 3, step) for step in range(100)]
    assert seeds == [stream_seed(7, f"dropout, step {step}", 3) & 0x7FFFFFFF for step in range(100)]
    assert max(seeds) > 2**30, "all bits are used"
