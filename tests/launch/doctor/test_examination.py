"""What an examination asks of its ranks, what it tells, and how it ends when its ranks are stopped.

A stand-in for the launcher writes the reports of the ranks; `test_doctor` starts real ones.
"""

import json
import re
import shutil
import signal
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from configs.load import load_both, load_cluster, load_run
from configs.schema import Cluster, Recipe
from launch.doctor import examination
from launch.doctor.__main__ import main
from launch.doctor.examination import reachable_part
from launch.doctor.facts import FolderFacts, RankFacts, StepFacts, write_facts
from launch.doctor.machine import inspect_machine
from launch.setup.layout import Kind
from launch.start.local import Outcome

_SECONDS = dict.fromkeys(["forward", "forward and backward", "update", "evaluation", "warm-up", "step"], 0.01)


@dataclass
class _Ranks:
    """Plays the ranks: keeps what they were started with, and writes their reports."""

    outcome: Outcome = field(default_factory=lambda: Outcome(0))
    has_problem: bool = False
    started: list[tuple[Recipe, Cluster, list[str]]] = field(default_factory=list)

    def __call__(self, cluster: Cluster, command: Sequence[str], _variables: Mapping[str, str]) -> Outcome:
        at = next(number for number, word in enumerate(command) if "/.doctor-" in word)
        folder, words = Path(command[at]), [*command[at + 1 :]]
        self.started.append((*load_run(folder / "config.yaml"), words))
        machine = inspect_machine(cluster)
        runs = FolderFacts("/full", free_bytes=0, is_writable=True) if self.has_problem else machine.runs
        for rank in reversed(range(cluster.world_size)):
            facts = RankFacts(rank, rank, cluster.world_size, "here", [0, 1])
            step = StepFacts("step", _SECONDS, images=64, memory_bytes=7, has_ended=True) if "--step" in words else None
            write_facts(folder, replace(facts, machine=None if rank else replace(machine, runs=runs), step=step))
        return self.outcome


@pytest.fixture
def doctor(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[..., tuple[int, str]]:
    """Return the function that examines a cluster with these ranks and returns the status and what was printed."""

    def run(ranks: _Ranks, *words: str) -> tuple[int, str]:
        monkeypatch.setattr(examination, "run_under", ranks)
        status = main(["doctor", *words, "--set", f"cluster.paths.runs={tmp_path}/new/runs"])
        assert list((tmp_path / "new" / "runs").iterdir()) == [], "the reports of the ranks are left"
        return status, capsys.readouterr().out

    return run


Doctor = Callable[..., tuple[int, str]]


def _topic(document: Mapping[str, Any], topic: str) -> list[str]:
    rows = [row for row in document["findings"] if row["topic"] == topic]
    return [f"{row['level']} {row['words']}; {row['remedy']}" for row in rows]


@pytest.mark.parametrize("outcome", [Outcome(143, interrupted_by=15), Outcome(75, stopped_by=15)])
def test_ranks_that_a_signal_stops_are_not_judged(outcome: Outcome, doctor: Doctor) -> None:
    assert doctor(_Ranks(outcome)) == (128 + signal.SIGTERM, "")


def test_reports_that_cannot_be_removed_do_not_hide_how_the_ranks_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def run(*_: object) -> Outcome:
        shutil.rmtree(next(tmp_path.glob(".doctor-*")))
        return Outcome(143, interrupted_by=15)

    monkeypatch.setattr(examination, "run_under", run)
    assert main(["doctor", "--set", f"cluster.paths.runs={tmp_path}"]) == 128 + signal.SIGTERM


def test_ctrl_c_ends_an_examination_with_130(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def interrupt(*_: object) -> Outcome:
        raise KeyboardInterrupt

    monkeypatch.setattr(examination, "run_under", interrupt)
    assert main(["doctor", "--set", f"cluster.paths.runs={tmp_path}"]) == 130
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("kind", "is_done", "place", "told"),
    [
        (None, False, "laptop", "WARN .venv was not made by set-up; ./run.sh setup"),
        (Kind(("mxnet",), "cpu"), False, "dgx-a100", "FAIL the environment is for a CPU; ./run.sh setup --gpu"),
        (Kind(("torch",), "cpu"), True, "laptop",
         "FAIL the environment is for PyTorch cpu, engine.name: mxnet; ./run.sh setup --engine mxnet"),
        (Kind(("mxnet",), "cpu"), False, "laptop",
         "WARN not done, or changed since: venv, tools, mxnet, wheels, horovod; ./run.sh setup"),
        (Kind(("mxnet",), "cpu"), True, "laptop", "OK complete, for MXNet cpu; "),
    ],
)  # fmt: skip
def test_an_environment_that_does_not_fit_is_told_with_its_remedy(
    kind: Kind | None, is_done: bool, place: str, told: str, doctor: Doctor, monkeypatch: pytest.MonkeyPatch
) -> None:
    state = SimpleNamespace(kind=kind, has_mpi=False, is_done=lambda *_: is_done)
    monkeypatch.setattr(examination, "State", lambda: state)
    _, printed = doctor(_Ranks(), "--json", "--cluster", place, "--set", "cluster.engine.name=mxnet")
    (found,) = _topic(json.loads(printed), "set-up")
    assert found.replace(f"{Path.cwd()}/", "") == told


def test_what_was_not_examined_is_told(doctor: Doctor, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    image = ["container.runtime=apptainer", "container.image=image.sif", "launcher=srun"]
    sets = [word for each in image for word in ("--set", f"cluster.{each}")]
    document = json.loads(doctor(_Ranks(), "--json", "--cluster", "dgx-a100", *sets)[1])
    assert _topic(document, "launcher") == [
        "WARN not inside a job, so only this machine was checked, without srun; srun is not on this machine; run the "
        "doctor again inside a job: salloc, qrsh, qsub -I, bsub -I"
    ]
    assert _topic(document, "container") == [
        "WARN the ranks checked the host, not the image image.sif; run ./run.sh doctor inside the image to check its "
        "libraries"
    ]
    document = json.loads(doctor(_Ranks(), "--json")[1])
    assert _topic(document, "launcher") == ["OK local, as in the cluster file; "]
    assert _topic(document, "container") == []


def test_outside_a_job_only_this_node_is_checked_by_the_local_launcher_without_mpi() -> None:
    cluster = load_cluster("abci-v100")
    here = reachable_part(cluster, {})
    assert (here.num_nodes, here.launcher, here.world_size) == (1, "local", 4)
    assert reachable_part(cluster, {"PE_HOSTFILE": "/hosts"}) is cluster
    assert reachable_part(load_cluster("dgx-a100"), {"PBS_NODEFILE": "/hosts"}).launcher == "local"
    laptop = load_cluster("laptop")
    assert reachable_part(laptop, {}) is laptop
    sets = ["cluster.num_nodes=2", "cluster.launcher=mpirun"]
    for backend, allreduce, there in (("mpi", "hierarchical", "gloo"), ("nccl", "torus", "nccl")):
        choice = [f"cluster.communication.backend={backend}", f"cluster.communication.allreduce={allreduce}"]
        communication = reachable_part(load_cluster("dgx-a100", [*sets, *choice]), {}).communication
        assert (communication.backend, communication.allreduce) == (there, "flat")


@pytest.mark.parametrize(
    ("words", "wanted", "batch"),
    [
        ([], [], (64, 1)),
        (["--recipe", "digits"], ["--data"], (64, 1)),
        (["--recipe", "digits", "--set", "batch.accumulation_steps=4"], ["--data"], (64, 4)),
        (["--recipe", "digits", "--step", "--set", "cluster.num_nodes=4", "--set", "cluster.launcher=srun"],
         ["--data", "--step"], (16, 1)),
    ],
)  # fmt: skip
def test_the_ranks_that_can_be_started_get_the_micro_batches_of_the_plan(
    words: list[str], wanted: list[str], batch: tuple[int, int], doctor: Doctor
) -> None:
    ranks = _Ranks()
    doctor(ranks, *words)
    ((recipe, cluster, asked),) = ranks.started
    assert asked == wanted
    assert (recipe.batch.global_size, recipe.batch.accumulation_steps or 1) == batch
    assert (cluster.num_nodes, cluster.launcher, cluster.world_size) == (1, "local", 2)


@pytest.mark.parametrize("has_problem", [False, True])
def test_findings_are_lines_or_a_document_and_a_failed_one_is_the_status(has_problem: bool, doctor: Doctor) -> None:
    words = ["--recipe", "digits", "--step"]
    status, printed = doctor(_Ranks(has_problem=has_problem), *words)
    lines = printed.splitlines()
    assert [line for line in lines if line.startswith("FAIL  disk")] == (
        ["FAIL  disk (here): 0.0 GB free at /full, 1.0 GB needed for a run; free some space, or set cluster.paths.runs "
         "to another disk"] if has_problem else []
    )  # fmt: skip
    assert status == 1, "the ranks of this test did not reduce"
    _, printed = doctor(_Ranks(has_problem=has_problem), *words, "--json")
    document = json.loads(printed)
    assert (document["cluster"], document["recipe"], document["ok"]) == ("laptop", "digits", False)
    assert [rank["rank"] for rank in document["ranks"]] == [0, 1]
    assert document["ranks"][1]["step"]["seconds"]["step"] == 0.01
    assert len(document["findings"]) == len(lines)
    assert {"level", "topic", "words", "remedy", "hosts"} == set(document["findings"][0])


def test_the_step_is_compared_with_the_forecast_or_told_why_not(doctor: Doctor) -> None:
    words = ["--recipe", "digits", "--step", "--json"]
    for sets, told in (
        (["--set", "cluster.engine.name=mxnet", "--set", "cluster.engine.precision=bfloat16"], "WARN not compared: "),
        (["--cluster", "dgx-a100", "--set", "batch.global_size=64"], "images/s, the simulator expects "),
    ):
        (found,) = _topic(json.loads(doctor(_Ranks(), *words, *sets)[1]), "forecast")
        assert told in found
        if bounds := re.search(r"expects ([\d.,]+) \(([\d.,]+) to ([\d.,]+)\)", found):
            expected, low, high = (float(each.replace(",", "")) for each in bounds.groups())
            assert low < expected < high


def test_a_site_s_own_mxnet_and_a_data_set_of_the_user_are_known_to_the_checks(
    doctor: Doctor, monkeypatch: pytest.MonkeyPatch
) -> None:
    state = SimpleNamespace(kind=Kind(("mxnet",), "gpu", "/opt/python"), has_mpi=False, is_done=lambda *_: True)
    monkeypatch.setattr(examination, "State", lambda: state)
    judged: list[Any] = []
    monkeypatch.setattr(examination, "judge", lambda report: judged.__iadd__([report])[:0])
    doctor(_Ranks(), "--recipe", "digits")
    doctor(_Ranks(), "--recipe", "digits", "--set", "data.source=idx")
    assert [(report.base, report.is_packed_on_demand) for report in judged] == [
        ("/opt/python", True), ("/opt/python", False)
    ]  # fmt: skip
    recipe, cluster = load_both("digits", None)
    assert judged[0].plan.parameters > 0
    assert judged[0].plan.total_bytes >= judged[0].plan.certain_bytes > 4 * judged[0].plan.parameters
    assert (judged[0].cluster.name, judged[0].cluster.world_size) == (cluster.name, 2)
    assert recipe.data.source == "digits"
