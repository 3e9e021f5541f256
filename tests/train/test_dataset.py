"""What the log says of caches is what was done, on every host; a copy on the local disk is read, and goes."""

import hashlib
import json
import logging
import re
import shutil
from pathlib import Path

import numpy as np
import pytest

from configs.errors import UserError
from configs.load import load_both
from configs.plan import plan_run
from data.prepare import prepare
from data.sources.catalogue import open_source
from data.sources.image_source import Settings
from tests.engines import cpu_engine
from tests.runs import FinishedRun
from train.comm.communicator import SingleProcess
from train.dataset import Images, images_of, local_folder, require_cold
from train.rank.identity import Identity


@pytest.mark.ranks
@pytest.mark.skipif(not Path("/dev/shm").is_dir(), reason="no /dev/shm here, whose pages nobody can clear")
def test_pages_that_cannot_be_dropped_leave_no_cache_clear_in_the_log_of_a_good_run(other_run: FinishedRun) -> None:
    run, told = other_run.folder, other_run.output + other_run.errors
    assert other_run.status == 0, told
    asked = re.findall("cache_clear is not logged|not for submission: images were in memory", told)
    assert len(asked) == 2, "the first says why, the second what it means"
    assert "cache_clear" not in (run / "result_0.txt").read_text(encoding="utf-8")
    assert not json.loads((run / "verdict.json").read_text(encoding="utf-8"))["0.6.0"]["passed"]


def test_a_stage_whose_variable_is_not_set_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("JOB_DISK", raising=False)
    with pytest.raises(UserError, match=r"cluster\.paths\.stage: \$JOB_DISK/sets names a variable that is not set"):
        local_folder("$JOB_DISK/sets")


class _Hosts(SingleProcess):
    """A world whose ranks say these values."""

    def __init__(self, values: list[int]) -> None:
        self._values = values

    def gather(self, name: str, value: int) -> list[int]:
        return self._values


def test_a_log_that_would_say_too_much_is_refused_and_names_the_hosts() -> None:
    for values in ([1], [0], [1, 1, 1], [0, 1, 0]):
        require_cold(_Hosts(values), is_cold=True)
    with pytest.raises(UserError, match=r"the log says cache_clear, but the hosts of ranks 1, 3 hold images in memory"):
        require_cold(_Hosts([1, 0, 1, 0]), is_cold=True)


@pytest.fixture(scope="module")
def packed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Pack a small ``set`` once, which the tests only read."""
    folder = tmp_path_factory.mktemp("packed")
    prepare(open_source("generated", Settings(train=12, eval=5, classes=3, quality=50)), folder / "set")
    return folder


SMALL = ["data.name=set", "data.train_samples=12", "data.eval_samples=5", "model.image_size=16", "data.eval_resize=16"]


def _images(data: Path, *overrides: str, local_rank: int = 0, **changes: object) -> Images:
    """Return the images of the second of two ranks, on a cluster with other values of some fields."""
    given = [*SMALL, "batch.global_size=8", f"cluster.paths.data={data}", *overrides]
    recipe, cluster = load_both("imagenet-smoke", "laptop", given)
    identity = Identity(rank=1, world_size=2, local_rank=local_rank, local_size=1, host="b", launcher="none")
    return images_of(recipe, cluster.model_copy(update=changes), plan_run(recipe, 2), identity)


@pytest.mark.medium
@pytest.mark.parametrize("keeps", [False, True])
def test_packed_images_continue_where_their_state_says(packed: Path, keeps: bool) -> None:
    images, engine = _images(packed, f"data.keep_batches={str(keeps).lower()}"), cpu_engine()

    def batches(state: bytes, num: int) -> tuple[list[np.ndarray], bytes]:
        source = images.open_training(engine, state)
        source.begin_epoch(1)
        read = [engine.to_host(source.next_batch().images) for _ in range(num)]
        told = source.state()
        source.close()
        return read, told

    (first, second, third), _ = batches(b"", 3)  # an epoch has one and a half batches
    assert first.shape == (4, 3, 16, 16)
    assert np.array_equal(first, third) == keeps
    assert not np.array_equal(first, second)
    state = batches(b"", 1)[1]
    (after_one,), state_after_two = batches(state, 1)
    np.testing.assert_array_equal(after_one, second)
    np.testing.assert_array_equal(batches(state_after_two, 1)[0][0], third)
    assert batches(state, 0)[1] == state, "a run that is stopped again before it takes a batch loses nothing"


@pytest.mark.medium
@pytest.mark.parametrize("keeps", [False, True])
def test_a_staged_copy_is_what_is_read_and_stays_only_if_it_is_kept(
    packed: Path, tmp_path: Path, keeps: bool, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "train.dataset")
    data, disk = tmp_path / "shared", tmp_path / "disk"
    shutil.copytree(packed, data)
    stage = f"cluster.paths.stage={disk}", f"cluster.paths.keep_stage={str(keeps).lower()}"
    images, other = _images(data, *stage, local_rank=1), _images(data, *stage)
    images.prepare()
    other.prepare()
    (told,) = caplog.messages
    assert told.startswith(f"data set copied to {disk}"), "by the first user of a host alone"
    shutil.rmtree(data)
    other.close()
    source = images.open_evaluation(cpu_engine())
    assert sum(batch.num_valid for batch in source.batches()) == 3
    source.close()
    images.close()
    assert bool([each for each in disk.iterdir() if each.is_dir()]) == keeps


@pytest.mark.medium
@pytest.mark.parametrize(
    ("stays", "is_wanted"), [(None, True), ("4,096 bytes stay", True), ("4,096 bytes stay", False)]
)
def test_the_first_rank_of_each_host_clears_the_cache_and_says_what_stays_if_the_log_is_wanted(
    packed: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, stays: str | None, is_wanted: bool
) -> None:
    cleared: list[Path] = []

    def clear(folder: Path) -> str | None:
        cleared.append(folder)
        return stays

    monkeypatch.setattr("train.dataset.clear_dataset", clear)
    for rank, local_rank in ((0, 0), (1, 1), (2, 0), (3, 1)):
        submits = f"mlperf.submits={str(is_wanted).lower()}"
        recipe, cluster = load_both("imagenet-smoke", "laptop", [*SMALL, submits, f"cluster.paths.data={packed}"])
        identity = Identity(rank=rank, world_size=4, local_rank=local_rank, local_size=2, host="a", launcher="none")
        found = images_of(recipe, cluster, plan_run(recipe, 4), identity).prepare()
        assert found.is_cold is (local_rank == 1 or stays is None)
        files = ((packed / "set" / name).read_bytes() for name in ("train.rec", "eval.rec"))
        manifest = json.loads((packed / "set" / "manifest.json").read_text(encoding="utf-8"))
        assert found.class_counts is not None
        assert list(found.class_counts.train) == manifest["train"]["class_counts"]
        assert list(found.class_counts.eval) == manifest["eval"]["class_counts"]
        assert list(found.checksums.values()) == [hashlib.sha256(each).hexdigest() for each in files]
    assert cleared == [packed / "set"] * 2
    recipe, cluster = load_both("imagenet-smoke", "laptop", [*SMALL, submits, f"cluster.paths.data={packed}"])
    identity = Identity(rank=0, world_size=4, local_rank=1, local_size=2, host="a", launcher="none")
    two_hosts = images_of(recipe, cluster.model_copy(update={"num_nodes": 2}), plan_run(recipe, 4), identity)
    assert two_hosts.prepare().is_cold is is_wanted, "of other hosts this rank knows nothing"
    told = f"{packed / 'set'}: cache_clear is not logged, because the page cache could not be cleared: {stays}"
    assert [each.startswith(told) for each in caplog.messages] == ([True] * 2 if stays and is_wanted else [])
