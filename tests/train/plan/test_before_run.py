"""What is said of a run before it begins: of its disk, and of values that make it slow."""

from pathlib import Path

import pytest

from configs.load import ROOT, load_both, load_cluster, load_recipe
from logs.folder import RunFolder
from tests.runs import TWO_EPOCHS, FinishedRun, train
from tests.small_disk import small_disk
from train.plan.before_run import checkpoint_bytes, slow_values
from train.plan.document import plan_document, render


@pytest.mark.ranks
def test_a_checkpoint_is_hardly_larger_than_what_is_asked_for(two_epoch_run: FinishedRun) -> None:
    size = RunFolder(two_epoch_run.folder).checkpoints.files()[0].stat().st_size
    assert 0.9 * size < checkpoint_bytes(load_recipe("digits", TWO_EPOCHS)) <= size


@pytest.mark.parametrize(
    ("settings", "numbers"),
    [
        (["optimizer={name: adam}", "schedule.base_lr=1e-3"], 78_042),  # another moment of each parameter
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
    # 600 KiB; 78,042 parameters, as many momenta and 672 statistics, of four bytes
    for words in ("0.61 MB free", "needs 0.63 MB", "free some space", "--run-dir"):
        assert words in refused.errors
    with small_disk(tmp_path, "size=1200k"):
        refused = train(tmp_path / "below" / "run", *TWO_EPOCHS, "cluster.checkpoint.best=true")
    assert refused.status == 2
    for words in ("1.23 MB free", "needs 1.25 MB", "checkpoint.best"):
        assert words in refused.errors


GPUS = ("cluster.device=gpu", "cluster.communication={}", "cluster.ranks_per_node=8")
SLOW = ("cluster.engine.precision=float32", "cluster.engine.layout=NCHW", "cluster.communication.backend=gloo")


@pytest.mark.parametrize(
    ("settings", "better"),
    [
        (["torch", *GPUS], []),
        (["torch", *GPUS, *SLOW], ["engine.precision=float16", "engine.layout=NHWC", "communication.backend=nccl"]),
        (["torch", *GPUS, *SLOW[2:], "cluster.ranks_per_node=1"], []),  # one rank sums nothing
        (["mxnet", *GPUS, *SLOW], ["engine.precision=float16", "engine.layout=NHWC"]),  # Horovod sums by NCCL
        (["torch"], []),  # a CPU
    ],
)
def test_each_slow_value_on_gpus_is_told_with_the_better_one(settings: list[str], better: list[str]) -> None:
    told = slow_values(load_cluster("laptop", [f"cluster.engine.name={settings[0]}", *settings[1:]]))
    assert [line.rpartition("; set cluster.")[2] for line in told] == better


@pytest.mark.parametrize("path", sorted((ROOT / "configs" / "clusters").glob("*.yaml")), ids=lambda path: path.stem)
def test_no_shipped_cluster_has_a_slow_value(path: Path) -> None:
    assert slow_values(load_cluster(path.stem)) == []


def test_the_plan_shows_slow_values_beside_the_forecast() -> None:
    settings = ["cluster.engine.name=torch", "cluster.device=gpu", "cluster.node.gpu=H200", SLOW[0]]
    document = plan_document(*load_both("imagenet-b256", "laptop", settings))
    (line,) = document["slow_settings"]
    assert f"\n  slow       {line}\n" in render(document)
