"""The first step and the evaluation of real runs on two ranks, number by number against NumPy.

One run with Adam accumulates two micro-batches of four images a rank. Batch norm keeps no memory (momentum 0), so the
ranks' running statistics are those of different micro-batches when the run is evaluated.
"""

import io
import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from configs.load import dump, load_both, load_cluster
from configs.rank_variables import rank_environment
from configs.schema import EngineSettings, Recipe
from data.input.synthetic import open_synthetic_evaluation, open_synthetic_training
from launch.start.local import run_ranks
from tests.forward import Forward, resnet8
from tests.host_arrays import HostArrays
from tests.oracles import adam_steps, smoothed_cross_entropy
from tests.programs import python
from train.engine.init import initial_weights
from train.networks.arch import build_network

pytestmark = [pytest.mark.ranks, pytest.mark.xdist_group("first_step")]

RANKS, ACCUMULATED, MICRO_BATCH = 2, 2, 4
BATCH = RANKS * ACCUMULATED * MICRO_BATCH
SMOOTHING, LR, BETA_1, BETA_2, EPSILON, DECAY = 0.2, 0.01, 0.8, 0.95, 1e-3, 0.01
TINY = [
    "model={name: resnet8, num_classes: 10, image_size: 8, bn_momentum: 0.0, bn_epsilon: 1e-3, classifier_std: 0.2}",
    "data={name: none, source: synthetic, train_samples: 256, eval_samples: 101, crop: {kind: none}}",
    f"batch={{global_size: {BATCH}, accumulation_steps: {ACCUMULATED}}}",
    f"loss.label_smoothing={SMOOTHING}",
    # The second of five warm-up steps has 2/5 of the base rate; the first one, which is taken, has 1/5.
    f"schedule={{base_lr: {5 * LR}, warmup_steps: 5, decay: {{name: polynomial}}}}",
    f"optimizer={{name: adam, momentum: {BETA_1}, beta_2: {BETA_2}, epsilon: {EPSILON}, weight_decay: {DECAY}}}",
    "run={epochs: 2, target_top1: null, max_steps: 1, log_every_steps: 1, seed: 3}",
]


@dataclass(frozen=True)
class Ran:
    """What a run of one step left, and what it began with."""

    recipe: Recipe
    rows: list[dict[str, Any]]
    arrays: dict[str, np.ndarray]
    start: dict[str, np.ndarray]

    def named(self, prefix: str) -> dict[str, np.ndarray]:
        """Return the arrays of the checkpoint below ``prefix``."""
        return {name.removeprefix(prefix): each for name, each in self.arrays.items() if name.startswith(prefix)}


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> Ran:
    folder = tmp_path_factory.mktemp("first") / "run"
    sets = [word for override in TINY for word in ("--set", override)]
    done = python("-m", "launch", "train", "digits", "--run-dir", str(folder), *sets, timeout=120)
    assert done.returncode == 0, done.stderr
    recipe, _ = load_both(str(folder / "config.yaml"), None)
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    (checkpoint,) = (folder / "checkpoints").iterdir()
    with np.load(io.BytesIO(checkpoint.read_bytes())) as members:
        arrays = {name: members[name] for name in members.files}
    table = build_network("resnet8", num_classes=10, image_size=8)
    return Ran(recipe, rows, arrays, initial_weights(table, recipe.model, seed=3))


def _micro_batches(recipe: Recipe) -> list[tuple[np.ndarray, np.ndarray]]:
    """Return the images and labels of the run's first micro-batches, as one rank would read them in turn."""
    source = open_synthetic_training(
        recipe, EngineSettings(), arrays=HostArrays(), batch_size=MICRO_BATCH, rank=0, world_size=1
    )
    source.begin_epoch(1)
    batches = [source.next_batch() for _ in range(RANKS * ACCUMULATED)]
    return [(batch.images, batch.labels.astype(int)) for batch in batches]


def _loss(weights: dict[str, np.ndarray], batches: list[tuple[np.ndarray, np.ndarray]]) -> float:
    """Return the mean loss over all micro-batches, each normalised by its own statistics."""
    losses = [
        smoothed_cross_entropy(resnet8(Forward(weights, 1e-3, is_training=True), images), labels, SMOOTHING, "uniform")
        for images, labels in batches
    ]
    return float(np.concatenate(losses).mean())


def _gradients(ran: Ran) -> dict[str, np.ndarray]:
    """Return the gradients (means over the batch) that Adam's first moments tell: m = (1 - beta_1)(g + wd w)."""
    return {
        name: ran.arrays[f"momenta/{number}"].astype(np.float64) / (1 - BETA_1)
        - (DECAY * weight.astype(np.float64) if name.endswith("_weight") else 0)
        for number, (name, weight) in enumerate(ran.start.items())
    }


def test_the_reported_loss_is_the_mean_over_ranks_and_accumulation(ran: Ran) -> None:
    (row,) = [row for row in ran.rows if row["kind"] == "interval"]
    assert row["loss"] == pytest.approx(_loss(ran.start, _micro_batches(ran.recipe)), rel=1e-5)
    assert (row["step"], row["epoch"], row["lr"]) == (0, 1, pytest.approx(LR))


def test_the_gradient_is_that_of_the_mean_loss(ran: Ran) -> None:
    batches, gradients, random = _micro_batches(ran.recipe), _gradients(ran), np.random.default_rng(0)
    width = 1e-5
    for name in ("stem_weight", "stage1_block1_conv2_bn_gamma", "stage2_block1_projection_weight",
                 "stage3_block1_conv2_bn_beta", "classifier_weight", "classifier_bias"):  # fmt: skip
        gradient, scale = gradients[name], np.abs(gradients[name]).max()
        for place in random.choice(gradient.size, 2, replace=False):
            index = np.unravel_index(place, gradient.shape)
            losses = []
            for moved in (width, -width):
                weights = {key: each.astype(np.float64) for key, each in ran.start.items()}
                weights[name][index] += moved
                losses.append(_loss(weights, batches))
            assert (losses[0] - losses[1]) / (2 * width) == pytest.approx(gradient[index], abs=2e-3 * scale), name


def test_the_first_step_is_the_papers_from_moments_that_no_warm_up_has_touched(ran: Ran) -> None:
    count = len(ran.start)
    trained = ran.named("weights/")
    assert list(trained) == list(ran.start)
    gradients = _gradients(ran)
    for number, (name, weight) in enumerate(ran.start.items()):
        decay = DECAY if name.endswith("_weight") else 0.0
        decayed = gradients[name] + decay * weight.astype(np.float64)
        second = ran.arrays[f"momenta/{count + number}"]
        np.testing.assert_allclose(second, (1 - BETA_2) * decayed**2, rtol=1e-4, atol=1e-12, err_msg=name)
        expected = adam_steps(weight, [gradients[name]], [LR], (BETA_1, BETA_2, EPSILON, decay))
        np.testing.assert_allclose(trained[name], expected, rtol=1e-5, atol=1e-7, err_msg=name)


def _statistics(ran: Ran, rank: int) -> dict[str, np.ndarray]:
    """Return the running statistics of a rank: with momentum 0, those of the last micro-batch it saw."""
    images, _ = _micro_batches(ran.recipe)[RANKS * (ACCUMULATED - 1) + rank]
    passed = Forward(ran.start, 1e-3, is_training=True)
    resnet8(passed, images)
    rows = passed.batch_statistics.items()
    return {f"{name}_moving_{moment}": row[at] for name, row in rows for at, moment in enumerate(("mean", "var"))}


def test_ranks_are_evaluated_with_the_mean_of_their_statistics(ran: Ran) -> None:
    of_ranks = [_statistics(ran, rank) for rank in range(RANKS)]
    mean = {name: (of_ranks[0][name] + of_ranks[1][name]) / 2 for name in of_ranks[0]}
    kept = {name: each[0] for name, each in ran.named("statistics/").items()}
    assert kept.keys() == mean.keys()
    for name, each in mean.items():
        np.testing.assert_allclose(kept[name], each, rtol=1e-4, atol=1e-5, err_msg=name)
    (row,) = [row for row in ran.rows if row["kind"] == "evaluation"]
    assert (row["correct"], row["total"]) == (_correct(ran, mean), 101)
    assert row["top1"] == row["correct"] / 101
    others = {_correct(ran, statistics) for statistics in of_ranks}
    assert row["correct"] not in others, "the ranks' own statistics would have given another count"


def _correct(ran: Ran, statistics: dict[str, np.ndarray]) -> int:
    """Count the evaluation images that the trained weights get right with these statistics."""
    (batch,) = open_synthetic_evaluation(
        ran.recipe, EngineSettings(), arrays=HostArrays(), batch_size=101, rank=0, world_size=1
    ).batches()
    logits = resnet8(Forward(ran.named("weights/") | statistics, 1e-3), batch.images)
    return int((logits.argmax(axis=1) == batch.labels).sum())


def test_ranks_that_begin_with_different_weights_end_the_run_before_its_first_step(tmp_path: Path) -> None:
    for rank, seed in enumerate((3, 4)):
        (tmp_path / str(rank)).mkdir()
        recipe, cluster = load_both("digits", None, [*TINY, f"run.seed={seed}"])
        (tmp_path / str(rank) / "config.yaml").write_text(dump(recipe, cluster), encoding="utf-8")
    command = ["bash", "-c", 'exec "$0" -m train "$1/$RANK"', sys.executable, str(tmp_path)]
    cluster = load_cluster("laptop")
    assert run_ranks(command, 2, rank_environment(cluster), kind=cluster.communication.kind).exit_status == 1
    for rank in range(2):
        failure = json.loads((tmp_path / str(rank) / f"failure_{rank}.json").read_text(encoding="utf-8"))
        assert all(words in failure["message"] for words in ("before the run", "of 2 ranks, no value"))
        assert failure["suspects"] == []
        assert failure["second_hand"] is False
    events = (tmp_path / "0" / "result_0.txt").read_text(encoding="utf-8")
    assert "init_start" in events
    assert "run_start" not in events
