"""The record's step on one machine: by accumulation it is the same step, however many ranks share it."""

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from configs.load import load_cluster
from configs.rank_variables import rank_environment
from launch.start.local import run_ranks

# The record's schedule, optimizer and loss; a thirty-second of its 86,016 images, and a network, images and a BN span
# that take a core seconds, not hours: below 84 images, a micro-batch costs the same, because then the number of
# operators counts.
SMALL = [
    "model.name=resnet8", "model.image_size=8", "model.num_classes=10", "data.source=synthetic", "batch.bn_span=84",
    "batch.global_size=2688",
]  # fmt: skip


def _step(folder: Path, ranks: int, overrides: list[str]) -> dict[str, Any]:
    file = folder / f"{ranks}.npz"
    command = [sys.executable, "-m", "tests.train.one_step", str(file), "abci-b86016", *overrides]
    cluster = load_cluster("laptop")
    outcome = run_ranks(command, ranks, rank_environment(cluster), kind=cluster.communication.kind)
    assert outcome.exit_status == 0
    return dict(np.load(file))


@pytest.mark.ranks
def test_a_step_of_32_micro_batches_is_the_same_on_one_rank_and_on_two(tmp_path: Path) -> None:
    one, two = (_step(tmp_path, ranks, SMALL) for ranks in (1, 2))
    assert (one.pop("accumulation_steps"), two.pop("accumulation_steps")) == (32, 16)
    assert one.pop("images") == two.pop("images") == 2688
    assert one.pop("loss") / 2688 == pytest.approx(two.pop("loss") / 2688, rel=1e-6)
    assert len(one) == 29
    for name, update in one.items():
        assert np.linalg.norm(update) > 0, name
        assert np.linalg.norm(two[name] - update) <= 1e-5 * np.linalg.norm(update), name
