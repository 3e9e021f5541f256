"""A run whose disk has no room for a checkpoint does not begin; the room follows from the recipe alone."""

from pathlib import Path

import pytest

from configs.load import load_recipe
from logs.folder import RunFolder
from tests.runs import TWO_EPOCHS, FinishedRun, train
from tests.small_disk import small_disk
from train.plan.checkpoint_space import checkpoint_bytes


@pytest.mark.ranks
def test_a_checkpoint_is_hardly_larger_than_what_is_asked_for(two_epoch_run: FinishedRun) -> None:
    size = RunFolder(two_epoch_run.folder).checkpoints.files()[0].stat().st_size
    assert 0.9 * size < checkpoint_bytes(load_recipe("digits", TWO_EPOCHS)) <= size


@pytest.mark.parametrize(
    ("settings", "numbers"),
    [
        (["optimizer={name: adam}", "schedule.base_lr=1e-3"], 78_042),  # another moment of each parameter
        (["optimizer={name: lamb}", "schedule.base_lr=1e-3"], 78_042),
        (["optimizer.average_half_life_steps=20"], 78_042 + 672),  # averages of parameters and statistics
    ],
)
def test_moments_and_averages_need_room_as_the_weights_do(settings: list[str], numbers: int) -> None:
    usual, other = (checkpoint_bytes(load_recipe("digits", [*TWO_EPOCHS, *more])) for more in ([], settings))
    assert other - usual == 4 * numbers


@pytest.mark.ranks
def test_a_run_whose_disk_has_no_room_for_its_network_is_refused_in_one_line(tmp_path: Path) -> None:
    with small_disk(tmp_path, "size=600k"):
        refused = train(tmp_path / "below" / "run", *TWO_EPOCHS)
        assert list(tmp_path.iterdir()) == []
    assert (refused.status, refused.errors.count("\n")) == (2, 1)
    assert "0.61 MB free" in refused.errors  # 600 KiB
    assert "needs 0.63 MB" in refused.errors  # 78,042 parameters, as many momenta and 672 statistics, of four bytes
    assert "free some space" in refused.errors
    assert "--run-dir" in refused.errors
    with small_disk(tmp_path, "size=1200k"):
        refused = train(tmp_path / "below" / "run", *TWO_EPOCHS, "cluster.checkpoint.best=true")
    assert refused.status == 2
    assert "1.23 MB free" in refused.errors
    assert "needs 1.25 MB" in refused.errors
    assert "checkpoint.best" in refused.errors
