"""The time of a part of a step."""

import subprocess
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from configs.load import load_both, load_cluster
from configs.plan import plan_run
from tests.engines import ALONE
from train.comm.communicator import SingleProcess
from train.doctor import step_probe
from train.networks.arch import network_of


def test_a_part_takes_the_median_of_its_rounds(monkeypatch: pytest.MonkeyPatch) -> None:
    moments = iter([0.0, 0.9, 1.0, 1.1, 2.0, 2.3])  # rounds of 0.9, 0.1 and 0.3 s
    monkeypatch.setattr(step_probe, "time", SimpleNamespace(perf_counter=lambda: next(moments)))
    told: list[str] = []
    results = iter("abc")
    parts = step_probe._Parts(SingleProcess(), lambda facts: told.append(facts["part"]))
    monkeypatch.setattr(step_probe, "_ENOUGH_S", 99.0)
    assert parts.run("forward", lambda: next(results), rounds=3) == "c"
    assert parts.facts["seconds"] == {"forward": pytest.approx(0.3)}
    assert told == ["forward"]


def test_a_part_that_takes_long_is_timed_less_often(monkeypatch: pytest.MonkeyPatch) -> None:
    moments = iter([0.0, 3.0, 3.0, 6.0])
    monkeypatch.setattr(step_probe, "time", SimpleNamespace(perf_counter=lambda: next(moments)))
    parts = step_probe._Parts(SingleProcess(), lambda _: None)
    parts.run("step", lambda: None, rounds=3)
    assert parts.facts["seconds"] == {"step": 3.0}


@pytest.mark.parametrize(("visible", "gpu"), [("4,7", "7"), ("", "1"), ("4", "1")])
def test_the_memory_of_a_gpu_is_that_of_the_ranks_own_in_bytes(
    visible: str, gpu: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[list[str]] = []

    def run(command: list[str], **_: Any) -> Any:
        told.append(command)
        return SimpleNamespace(stdout="123\n")

    monkeypatch.setattr("subprocess.run", run)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    rank = replace(ALONE, rank=5, local_rank=1)
    assert step_probe._used_bytes(load_cluster("a100-node"), rank) == 123 << 20
    assert told[0][:3] == ["nvidia-smi", "-i", gpu]


class _Lacking(SingleProcess):
    """The communicator of a rank beside one that does not see the data set."""

    def gather(self, name: str, value: int) -> list[int]:
        return [value, 1]


@pytest.mark.parametrize(
    ("files", "others"),
    [((), SingleProcess()), (("train.rec",), SingleProcess()), (("train.rec", "train.idx"), _Lacking())],
)
def test_images_are_random_where_a_rank_does_not_see_the_data_set(
    files: tuple[str, ...], others: SingleProcess, tmp_path: Path
) -> None:
    recipe, cluster = load_both("digits", None, [f"cluster.paths.data={tmp_path}"])
    (tmp_path / "digits").mkdir()
    for name in files:
        (tmp_path / "digits" / name).touch()
    parts = step_probe._Parts(others, lambda _: pytest.fail("nothing is read"))
    rank: Any = SimpleNamespace(recipe=recipe, cluster=cluster)
    assert step_probe._real_batch(rank, parts) is None
    assert parts.facts["has_real_images"] is False


class _Noting(SingleProcess):
    """Notes the arrays of each reduction."""

    def __init__(self) -> None:
        self.reduced: dict[str, list[Any]] = {}

    def reduce(self, name: str, arrays: Sequence[Any], priority: int = 0) -> None:
        self.reduced[name] = list(arrays)


def test_a_real_step_is_timed_part_by_part_and_each_bucket_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    sets = ["cluster.engine.name=mxnet", "cluster.communication.kind=none", "cluster.ranks_per_node=1"]
    sets += ["data.source=synthetic", "batch.global_size=4", "cluster.communication.bucket_bytes=100000"]
    recipe, cluster = load_both("digits", None, sets)
    told: list[str] = []
    communicator, used = _Noting(), iter((1, 2))
    monkeypatch.setattr(step_probe, "_used_bytes", lambda *_: next(used))
    facts = step_probe.probe_step(recipe, cluster, ALONE, communicator, lambda facts: told.append(facts["part"]))
    assert facts["failure"] is None
    assert [*facts["seconds"]] == [part for part in told if not part.startswith("reduction")]
    assert [*facts["seconds"]][-4:] == ["forward and backward", "update", "evaluation", "step"]
    alone = {name: arrays for name, arrays in communicator.reduced.items() if name.startswith("reduction")}
    assert len(alone) == len(facts["buckets_s"]) > 1
    sizes = [array.size for arrays in alone.values() for array in arrays]
    assert sum(sizes) == network_of(recipe.model).num_parameters
    assert facts["images"] == 4
    assert (facts["memory_before_bytes"], facts["memory_bytes"]) == (1, 2)


def test_a_part_that_failed_on_another_rank_alone_ends_this_one_without_a_failure_of_its_own() -> None:
    parts = step_probe._Parts(_Lacking(), lambda _: None)
    with pytest.raises(step_probe._PartFailed):
        parts.run("update", lambda: None)
    assert parts.facts["failure"] is None
    assert [*parts.facts["seconds"]] == ["update"]


def test_a_failure_without_words_is_named_by_its_kind_and_has_no_seconds() -> None:
    def fail() -> None:
        raise MemoryError

    parts = step_probe._Parts(SingleProcess(), lambda _: None)
    with pytest.raises(step_probe._PartFailed):
        parts.run("forward", fail)
    assert parts.facts["failure"] == {"part": "forward", "words": "MemoryError()"}
    assert parts.facts["seconds"] == {}


@pytest.mark.parametrize(
    "error", [FileNotFoundError("nvidia-smi"), subprocess.TimeoutExpired("nvidia-smi", 60), ValueError("[N/A]")]
)
def test_memory_that_nobody_can_tell_is_unknown(error: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    def run(*_: object, **_others: object) -> None:
        raise error

    monkeypatch.setattr("subprocess.run", run)
    assert step_probe._used_bytes(load_cluster("a100-node"), ALONE) is None


def test_random_images_have_the_shape_and_the_type_of_the_ranks_batch() -> None:
    recipe, cluster = load_both("digits", None, ["batch.global_size=6", "cluster.ranks_per_node=2"])
    network = SimpleNamespace(image_shape=(3, 8, 8), label_shape=(14,))
    rank: Any = SimpleNamespace(
        recipe=recipe, cluster=cluster, plan=plan_run(recipe, 2), identity=ALONE,
        model=SimpleNamespace(network=network), engine=SimpleNamespace(from_host=lambda array: array),
    )  # fmt: skip
    images, labels = step_probe._random_batch(rank)
    assert (images.shape, labels.shape) == ((3, 3, 8, 8), (3, 14))
    assert (images.dtype.name, labels.dtype.name, labels.any()) == ("float32", "float32", False)
    assert images.std() == pytest.approx(1, abs=0.15)


@pytest.mark.parametrize("is_seen", [True, False])
def test_a_real_batch_is_the_first_of_the_first_epoch_and_its_pipeline_is_closed(
    is_seen: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[Any] = []
    batches = iter(["first", "second"])
    source = SimpleNamespace(
        begin_epoch=lambda epoch: told.append(("epoch", epoch)), next_batch=lambda: next(batches),
        close=lambda: told.append("closed"),
    )  # fmt: skip
    images = SimpleNamespace(load=lambda: told.append("loaded"), open_training=lambda _: source)
    monkeypatch.setattr(step_probe, "images_of", lambda *_: images)
    recipe, cluster = load_both("digits", None, [f"cluster.paths.data={tmp_path}"])
    (tmp_path / "digits").mkdir()
    for name in ("train.rec", "train.idx")[: 1 + is_seen]:
        (tmp_path / "digits" / name).touch()
    engine = SimpleNamespace(wait_all=lambda: told.append("made"))
    rank: Any = SimpleNamespace(recipe=recipe, cluster=cluster, plan=None, identity=ALONE, engine=engine)
    parts = step_probe._Parts(SingleProcess(), lambda _: None)
    batch: Any = step_probe._real_batch(rank, parts)
    assert batch == ("first" if is_seen else None)
    assert told == (["loaded", ("epoch", 1), "made", "closed"] if is_seen else [])
    assert parts.facts["has_real_images"] is is_seen
