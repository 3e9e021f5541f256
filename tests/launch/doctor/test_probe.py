"""What a rank of the doctor writes, and when: the file of a rank that hangs must show how far the rank came."""

import json
import os
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from configs.errors import UserError
from configs.load import dump, load_both
from configs.registry import ENGINES, installed_engine
from launch.doctor import probe, step_probe
from launch.doctor.facts import StepFacts
from launch.doctor.step_probe import of_gpu, probe_step
from tests.engines import ALONE
from tests.launch.stand_in import write_program
from train.comm.communicator import SingleProcess
from train.rank.identity import Identity
from train.rank.watchdog import StoodStill

pytestmark = pytest.mark.medium

RANK = replace(ALONE, rank=3, local_rank=1, host="node7")
SETS = ["cluster.communication.kind=none", "cluster.ranks_per_node=1",
        "data.source=synthetic", "batch.global_size=4"]  # fmt: skip
BYTES = 4096
FRAMEWORK = ENGINES[installed_engine()].title

Probed = tuple[int, dict[str, Any]]
Run = Callable[..., Probed]


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Return the function that runs a rank whose ranks connect by ``connect``; it returns status and report."""
    monkeypatch.setattr(probe, "PROBE_BYTES", BYTES)
    monkeypatch.setattr(probe, "die_with_parent", lambda: None)

    def run_rank(connect: Callable[[], Any], *words: str, identity: Identity = RANK) -> Probed:
        recipe, cluster = load_both("digits", None, [*SETS, "cluster.communication.timeout_s=33"])
        (tmp_path / "config.yaml").write_text(dump(recipe, cluster), encoding="utf-8")
        watched: list[Any] = []
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(probe, "Watchdog", lambda *told: SimpleNamespace(rest=lambda: watched.append(told)))
            patch.setattr(probe, "read_identity", lambda _: identity)
            patch.setattr(
                probe, "run_ranks_here",
                lambda _cluster, who, ledger, examine: examine(who, ledger, lambda *_: connect()),
            )  # fmt: skip
            status = probe.main(json.dumps(dict.fromkeys(words, True)), str(tmp_path))
        ((limit_s, stood_still),) = watched
        assert limit_s == 33 + (170 if "step" in words else 60)
        found = _written(tmp_path, identity.rank)
        stood_still(StoodStill("no progress", None, waits=True))
        told = {"failure": "no progress", "is_second_hand": True}
        assert _written(tmp_path, identity.rank) == found | told
        return status, found

    return run_rank


def _written(folder: Path, rank: int = 3) -> dict[str, Any]:
    facts: dict[str, Any] = json.loads((folder / f"rank_{rank}.json").read_text(encoding="utf-8"))
    return facts


class _Two(SingleProcess):
    """The communicator of the first of two ranks; the clock of the second one is five seconds fast, give or take."""

    def __init__(self, wrong_round: int | None = None) -> None:
        self._rounds, self._wrong_round = count(), wrong_round
        self._fast_s = iter([60, 5, 4, 5, 61])
        self.gathered: list[str] = []

    def reduce(self, name: str, arrays: Sequence[Any], priority: int = 0) -> None:
        for array in arrays:
            array[:] = 2
            array[5] = 3 if next(self._rounds) == self._wrong_round else 2

    def gather(self, name: str, value: int) -> list[int]:
        self.gathered.append(name)
        return [value, value + next(self._fast_s) * 10**9 if name == "clock" else value]


def test_each_part_is_written_before_the_next_one_begins(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[dict[str, Any]] = []

    def connect() -> SingleProcess:
        seen.append(_written(tmp_path))
        return SingleProcess()

    def take(*given: Any, **_options: Any) -> StepFacts:
        *_, note = given
        note(StepFacts(part="compute"))
        seen.append(_written(tmp_path))
        return StepFacts(part="step", has_ended=True)

    monkeypatch.setattr(probe, "probe_step", take)
    status, facts = run(connect, "step")
    assert status == 0
    first = {"rank": 3, "local_rank": 1, "world_size": 1, "host": "node7", "cores": sorted(os.sched_getaffinity(0))}
    for each in (*seen, facts):
        assert each | first == each
        assert list(each["libraries"])[:2] == [FRAMEWORK, "DALI"], "DALI is loaded before Horovod"
        assert each["libraries"]["DALI"] == {}
        assert each["machine"] is each["data"] is each["failure"] is None, "the first rank of a host tells"
    assert [(each["clock_offsets_s"], (each["step"] or {}).get("part")) for each in (*seen, facts)] == [
        (None, None), ([0.0], "compute"), ([0.0], "step")
    ]  # fmt: skip
    assert facts["bus_bytes_per_s"] is None, "there is nothing to reduce"


@pytest.mark.parametrize("wrong_round", [None, 0, 5])
def test_the_first_allreduce_does_not_count_and_one_wrong_element_of_one_sum_is_told(
    wrong_round: int | None, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    moments = iter([0.0, 0.5, 10, 11, 20, 22, 30, 33, 40, 44, 50, 55])
    monkeypatch.setattr("train.probe.time", SimpleNamespace(perf_counter=lambda: next(moments)))
    monkeypatch.setattr(probe, "time", SimpleNamespace(time_ns=lambda: 7))
    two = _Two(wrong_round)
    status, facts = run(lambda: two, identity=replace(RANK, world_size=2))
    assert status == 0
    assert (facts["bus_bytes_per_s"], facts["sums_are_right"]) == (BYTES / 3, wrong_round is None)
    assert facts["clock_offsets_s"] == [0, 5]
    assert two.gathered[-10:] == ["meet", "clock"] * 5, "ranks read their clocks after they met"


@pytest.mark.parametrize(
    ("error", "failure", "is_second_hand"),
    [
        (OSError("a\nb \n"), "a b", False),
        (RuntimeError("E\nTraceback (most recent call last):\n frames\nRead error [9]\n"), "Read error [9]", True),
    ],
)
def test_a_rank_that_cannot_connect_tells_why_in_one_line(
    error: Exception, failure: str, is_second_hand: bool, run: Run
) -> None:
    def connect() -> None:
        raise error

    status, facts = run(connect)
    assert (status, facts["failure"], facts["is_second_hand"]) == (1, failure, is_second_hand)
    assert isinstance(facts["libraries"][FRAMEWORK]["CUDA"], bool)


def test_a_library_that_is_missing_is_told_in_one_line(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def load() -> None:
        raise OSError("libmpi.so.40:\n  cannot open shared object file\n")

    monkeypatch.setattr(probe, "_load_dali", load)
    _, facts = run(SingleProcess)
    assert facts["libraries"]["DALI"] == "libmpi.so.40: cannot open shared object file"


class _Noting(SingleProcess):
    """Notes the arrays of each reduction; ``missing`` is whether the other rank sees no data set, ``last`` a part."""

    def __init__(self, missing: int = 0, last: str = "") -> None:
        self.reduced: dict[str, list[list[Any]]] = {}
        self._missing, self._last = missing, last

    def gather(self, name: str, value: int) -> list[int]:
        if name == f"doctor: {self._last}":
            raise RuntimeError(name)
        return [value, self._missing if name == "doctor: data set" else 0]

    def reduce(self, name: str, arrays: Sequence[Any], priority: int = 0) -> None:
        self.reduced.setdefault(name, []).append(list(arrays))


def _step(communicator: SingleProcess, *sets: str, **options: Any) -> list[StepFacts]:
    """Take the step of the digits, to its end or to a failure; return its facts before each part and at the end."""
    recipe, cluster = load_both("digits", None, [*SETS, "cluster.communication.bucket_bytes=100000", *sets])
    told: list[StepFacts] = []
    with suppress(RuntimeError):
        told.append(probe_step(recipe, cluster, RANK, communicator, told.append, **options))
    return told


def test_the_reduction_of_each_bucket_is_timed_three_times() -> None:
    *_, facts = _step(communicator := _Noting())
    assert facts.has_ended
    rounds = {name: each for name, each in communicator.reduced.items() if name.startswith("reduction")}
    assert len(rounds) == len(facts.buckets_s) > 1
    assert {len(each) for each in rounds.values()} == {3}
    sizes = [4 * sum(array.size for array in arrays) for arrays, *_ in rounds.values()]
    assert list(facts.buckets_bytes) == sizes


def test_a_step_without_time_for_samples_has_one_of_each_part_in_each_set() -> None:
    *_, facts = _step(_Noting(), times=3, accept_s=1e-6)
    assert [(part, len(values), len({*values})) for part, values in facts.samples.items()] == [
        (part, 3, 1) for part in ("compute", "copy", "input", "allreduce", "step")
    ]


def test_images_are_random_where_a_rank_does_not_see_the_data_set(tmp_path: Path) -> None:
    (tmp_path / "digits").mkdir()
    for files, missing in (((), 0), (("train.rec",), 0), (("train.rec", "train.idx"), 1)):
        for name in files:
            (tmp_path / "digits" / name).touch()
        told = _step(
            _Noting(missing, last="reduction of bucket 0"), "data.source=digits", f"cluster.paths.data={tmp_path}"
        )
        assert [facts.part for facts in told] == ["network", "warm-up", "reduction of bucket 0"], "the last one failed"


@pytest.mark.parametrize(
    ("visible", "gpu", "line", "told"),
    [("4,7", "7", "echo 123", "123"), ("", "1", "echo 123", "123"), ("4,7", "7", "exit 9", "")],
)
def test_a_rank_asks_for_its_own_gpu(
    visible: str, gpu: str, line: str, told: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_program(tmp_path / "nvidia-smi", f'echo "$1 $2" >{tmp_path}/asked\n{line}')
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert of_gpu(RANK, "memory.used") == told
    assert (tmp_path / "asked").read_text(encoding="utf-8") == f"-i {gpu}\n"


@pytest.mark.parametrize("error", [RuntimeError("no memory"), MemoryError(), UserError("no memory")])
def test_a_part_that_fails_is_named_and_ends_the_rank(
    error: Exception, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object, **_others: object) -> None:
        raise error

    monkeypatch.setattr(step_probe, "open_rank", fail)
    status, facts = run(SingleProcess, "step")
    assert (status, facts["failure"], facts["is_second_hand"]) == (1, str(error) or "MemoryError()", False)
    assert (facts["step"]["part"], facts["step"]["has_ended"]) == ("network", False)
