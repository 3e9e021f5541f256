"""What a rank of the doctor writes, and when: the file of a rank that hangs must show how far the rank came."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from configs.errors import UserError
from configs.load import dump, load_both
from tests.engines import ALONE
from train.comm.communicator import SingleProcess
from train.doctor import machine, probe, step_probe
from train.engine.protocol import open_engine
from train.rank.startup import Ledger

RANK = replace(ALONE, rank=3, local_rank=1, host="node7")
SETS = ["cluster.engine.name=mxnet", "cluster.communication.kind=none", "cluster.ranks_per_node=1"]


def _job(folder: Path, *, has_step: bool) -> probe._Job:
    recipe, cluster = load_both("digits", None, SETS)
    return probe._Job(folder, cluster, recipe, has_data=False, has_step=has_step)


def _written(folder: Path) -> dict[str, Any]:
    facts: dict[str, Any] = json.loads((folder / "rank_3.json").read_text(encoding="utf-8"))
    return facts


def test_each_part_is_written_before_the_next_one_begins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: dict[str, dict[str, Any]] = {}

    def load() -> str:
        seen["libraries"] = _written(tmp_path)
        return "1.9"

    def connect(*_: object) -> SingleProcess:
        seen["connection"] = _written(tmp_path)
        return SingleProcess()

    def probe_step(recipe: Any, cluster: Any, identity: Any, communicator: Any, note: Callable[[Any], None]) -> Any:
        assert (recipe, cluster, identity) == (job.recipe, job.cluster, RANK)
        assert isinstance(communicator, SingleProcess)
        note({"part": "forward"})
        seen["step"] = _written(tmp_path)
        return {"part": "step"}

    monkeypatch.setattr(probe, "_libraries", lambda *_: {"MXNet": load})
    monkeypatch.setattr(probe, "_clock_offsets", lambda _: [0.0, 0.5])
    monkeypatch.setattr(probe, "_allreduce", lambda *_: {"bytes": 7})
    monkeypatch.setattr(step_probe, "probe_step", probe_step)
    job = _job(tmp_path, has_step=True)
    assert probe._examine(job, RANK, Ledger(), connect) == 0
    first = {"rank": 3, "local_rank": 1, "world_size": 1, "host": "node7", "cores": seen["libraries"]["cores"]}
    libraries = {"libraries": {"MXNet": {"has": "1.9"}}}
    connected = {"allreduce": {"bytes": 7}, "clock_offsets_s": [0.0, 0.5]}
    assert seen == {
        "libraries": first,
        "connection": first | libraries,
        "step": first | libraries | connected | {"step": {"part": "forward"}},
    }
    assert _written(tmp_path) == first | libraries | connected | {"step": {"part": "step"}}


@pytest.mark.parametrize("wrong", [None, 0, 1])
def test_one_wrong_element_of_one_sum_is_enough(wrong: int | None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probe, "_ALLREDUCE_BYTES", 32)
    _, cluster = load_both("digits", None, SETS)
    engine = open_engine(cluster, ALONE)
    rounds: list[int] = []

    def reduce(_name: str, arrays: list[Any]) -> None:
        sums = np.full(8, 2, np.float32)
        sums[5] += len(rounds) == wrong
        rounds.append(len(rounds))
        engine.overwrite(arrays[0], engine.from_host(sums))

    two: Any = SimpleNamespace(reduce=reduce, gather=lambda *_: [], complete=lambda: None)
    told = probe._allreduce(two, replace(ALONE, world_size=2), cluster)
    assert told is not None
    assert (told["is_right"], len(rounds)) == (wrong is None, 1 + probe._ROUNDS)


def test_no_step_is_taken_unless_it_is_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probe, "_libraries", lambda *_: {})
    monkeypatch.setattr(step_probe, "probe_step", lambda *_: pytest.fail("nobody asked for a step"))
    assert probe._examine(_job(tmp_path, has_step=False), RANK, Ledger(), lambda *_: SingleProcess()) == 0
    facts = _written(tmp_path)
    assert (facts["allreduce"], facts["clock_offsets_s"]) == (None, [0.0])
    assert "step" not in facts


@pytest.mark.parametrize(("error", "words"), [(RuntimeError(), "RuntimeError()"), (OSError("a\nb \n"), "b")])
def test_a_failure_has_words_even_if_the_error_has_none(
    error: Exception, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(probe, "_libraries", lambda *_: {})

    def connect(*_: object) -> SingleProcess:
        raise error

    assert probe._examine(_job(tmp_path, has_step=False), RANK, Ledger(), connect) == 1
    facts = _written(tmp_path)
    assert (facts["failure"], facts["is_second_hand"]) == (words, False)


def test_a_rank_that_hangs_is_ended_and_each_one_ends_with_its_launcher(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe, cluster = load_both("digits", None, SETS)
    (tmp_path / "config.yaml").write_text(dump(recipe, cluster), encoding="utf-8")
    told: list[Any] = []
    monkeypatch.setattr(probe, "die_with_parent", lambda: told.append("dies with its parent"))
    monkeypatch.setattr(probe, "read_identity", lambda _: RANK)
    monkeypatch.setattr(
        probe, "faulthandler", SimpleNamespace(dump_traceback_later=lambda _, exit: told.append(("exit", exit)))
    )

    def run_ranks_here(given: Any, identity: Any, ledger: Any, examine: Any) -> int:
        told.append((given == cluster, identity, type(ledger), examine.func))
        return 7

    monkeypatch.setattr(probe, "run_ranks_here", run_ranks_here)
    assert probe.main([str(tmp_path)]) == 7
    assert told == ["dies with its parent", ("exit", True), (True, RANK, Ledger, probe._examine)]


def test_adapters_and_memory_are_those_that_the_kernel_lists(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = {
        "proc/meminfo": "MemTotal:       9 kB\nMemAvailable:      5 kB\n",
        "sys/class/net/ib0/operstate": "up\n",
        "sys/class/infiniband/mlx5_0/ports/1/state": "4: ACTIVE\n",
        "sys/class/infiniband/mlx5_0/ports/1/rate": "100 Gb/sec\n",
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text, encoding="ascii")
    (tmp_path / "sys/class/net/eth0").mkdir()
    monkeypatch.setattr(machine, "Path", lambda path: tmp_path / str(path).lstrip("/"))
    facts = machine.inspect_machine(load_both("digits", None, ["cluster.paths.stage=null"])[1])
    assert facts["memory_available_bytes"] == 5 * 1024
    assert facts["interfaces"] == {"ib0": "up", "eth0": None}
    assert facts["adapters"] == {"mlx5_0": {"1": "4: ACTIVE, 100 Gb/sec"}}
    assert facts["shm_free_bytes"] is None, "there is none"
    (tmp_path / "proc/meminfo").write_text("MemTotal: 9 kB\n", encoding="ascii")
    assert machine._available_memory() is None


@pytest.mark.parametrize(("resident", "is_told"), [(None, False), (0, True)])
def test_whether_the_kernel_tells_of_the_page_cache_is_tried_on_the_images_of_evaluations(
    resident: int | None, is_told: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    split = SimpleNamespace(records=3)
    asked: list[list[Path]] = []

    def resident_bytes(paths: list[Path]) -> int | None:
        asked.append(paths)
        return resident

    monkeypatch.setattr(machine, "check_dataset", lambda *_: SimpleNamespace(train=split, eval=split))
    monkeypatch.setattr(machine, "dataset_bytes", lambda _: 7)
    monkeypatch.setattr(machine, "resident_bytes", resident_bytes)
    recipe, cluster = load_both("digits", None, [f"cluster.paths.data={tmp_path}"])
    folder = tmp_path / "digits"
    expected = {"folder": str(folder), "problem": None, "records": 6, "bytes": 7, "is_cache_told": is_told}
    assert machine.inspect_dataset(recipe, cluster) == expected
    assert asked == [[folder / "eval.rec"]]


@pytest.mark.parametrize(
    ("error", "problem", "exists"),
    [(UserError("no manifest"), "no manifest", False), (OSError(5, "Input/output error", "/d/x.rec"),
                                                        "/d/x.rec: Input/output error", True)],
)  # fmt: skip
def test_a_data_set_that_cannot_be_read_is_a_problem_of_its_folder(
    error: Exception, problem: str, exists: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def check(*_: object) -> None:
        raise error

    monkeypatch.setattr(machine, "check_dataset", check)
    recipe, cluster = load_both("digits", None, [f"cluster.paths.data={tmp_path}"])
    expected = {"folder": str(tmp_path / "digits"), "problem": problem, "exists": exists}
    assert machine.inspect_dataset(recipe, cluster) == expected


def test_a_clocks_offset_is_the_median_over_the_rounds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probe, "_ROUNDS", 3)
    times = iter([[10**9, 3 * 10**9], [2 * 10**9, 12 * 10**9], [7 * 10**9, 8 * 10**9]])
    order: list[str] = []

    def gather(name: str, _value: int) -> list[int]:
        order.append(name)
        return next(times) if name == "clock" else []

    communicator: Any = SimpleNamespace(gather=gather)
    assert probe._clock_offsets(communicator) == [0.0, 2.0]  # of 2, 10 and 1 s
    assert order == ["meet", "clock"] * 3


def test_the_staging_folder_of_a_machine_is_told_as_that_of_its_runs(tmp_path: Path) -> None:
    _, cluster = load_both("digits", None, [f"cluster.paths.stage={tmp_path}/later"])
    facts = machine.inspect_machine(cluster)["stage"]
    assert (facts["folder"], facts["is_writable"]) == (str(tmp_path / "later"), True)
    assert facts["free_bytes"] > 0
