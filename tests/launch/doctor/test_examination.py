"""What an examination asks of its ranks, what it tells, and how it ends when its ranks are stopped.

A stand-in for the launcher writes the reports of the ranks; `tests.launch.accept.test_acceptance` starts real ones.
"""

import json
import re
import signal
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from configs.errors import REFUSED_STATUS
from configs.load import load_cluster, load_run
from configs.registry import ENGINES
from configs.schema import Cluster, Recipe
from launch.doctor import examination
from launch.doctor.__main__ import main
from launch.doctor.examination import reachable_part
from launch.doctor.facts import FolderFacts, RankFacts, StepFacts, write_facts
from launch.doctor.machine import inspect_machine
from launch.setup.layout import Kind
from launch.start.local import Outcome
from logs.nodes import NodeScore, read_nodes
from tests.programs import Said


@dataclass
class _Ranks:
    """Plays the ranks: keeps what they were started with, and writes their reports."""

    outcome: Outcome = field(default_factory=lambda: Outcome(0))
    full: Collection[str] = ()
    hosts: Sequence[str] = ("here",)
    slow: Mapping[str, float] = field(default_factory=dict)
    silent: Collection[int] = ()
    started: list[tuple[Recipe, Cluster, list[str]]] = field(default_factory=list)

    def __call__(
        self, cluster: Cluster, command: Sequence[str], _variables: Mapping[str, str], *, hosts: Sequence[str] = ()
    ) -> Outcome:
        at = next(number for number, word in enumerate(command) if "/.doctor-" in word)
        folder, wanted = Path(command[at]), json.loads(command[at - 1])
        words = [name for name in ("data", "step") if wanted[name]]
        self.started.append((*load_run(folder / "config.yaml"), words))
        machine = inspect_machine(cluster)
        full = FolderFacts("/full", free_bytes=0, is_writable=True)
        for rank in reversed([rank for rank in range(cluster.world_size) if rank not in self.silent]):
            host, local = self.hosts[rank // cluster.ranks_per_node], rank % cluster.ranks_per_node
            facts = RankFacts(rank, local, cluster.world_size, host, [0, 1])
            if len(self.hosts) > 1:
                libraries: dict[str, Any] = {ENGINES[cluster.engine.name].title: {}}
                offsets = [0.0] * cluster.world_size
                facts = replace(facts, bus_bytes_per_s=1e9, clock_offsets_s=offsets, libraries=libraries)
            taken_s = 0.01 * self.slow.get(host, 1.0)
            samples = {part: [taken_s] for part in ("compute", "allreduce", "step")}
            step = StepFacts("step", images=64, samples=samples, has_ended=True)
            own = replace(machine, runs=full if host in self.full else machine.runs) if local == 0 else None
            write_facts(folder, replace(facts, machine=own, step=step if "step" in words else None))
        return self.outcome


@pytest.fixture
def doctor(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[..., tuple[int, str]]:
    """Return the function that examines a cluster with these ranks and returns the status and what was printed."""

    def run(ranks: _Ranks, *words: str) -> tuple[int, str]:
        monkeypatch.setattr(examination, "run_under", ranks)
        status = main(["doctor", *words, "--set", f"cluster.paths.runs={tmp_path}/new/runs"])
        left = {path.name for path in (tmp_path / "new" / "runs").iterdir()}
        assert left <= {"health.jsonl"}, "the reports of the ranks are left"
        return status, capsys.readouterr().out

    return run


Doctor = Callable[..., tuple[int, str]]


def _topic(document: Mapping[str, Any], topic: str) -> list[str]:
    rows = [row for row in document["findings"] if row["topic"] == topic]
    return [f"{row['level']} {row['words']}; {row['remedy']}" for row in rows]


@pytest.mark.parametrize("outcome", [Outcome(143, interrupted_by=15), Outcome(75, stopped_by=15)])
def test_ranks_that_a_signal_stops_are_not_judged(
    outcome: Outcome, doctor: Doctor, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit, match=str(128 + signal.SIGTERM)):
        doctor(_Ranks(outcome))
    assert capsys.readouterr().out == ""


def test_a_rank_that_a_signal_killed_is_named_with_the_signal(
    doctor: Doctor, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, said: Said
) -> None:
    """Rank 1 is killed before the allreduce ends, or before its first report; rank 0 fails when it misses rank 1."""
    killed = Outcome(137, ((0, 1), (1, 128 + signal.SIGKILL)))
    status, told = doctor(_Ranks(killed))
    assert status == 1
    assert re.search(r"^FAIL  allreduce \(here\): rank 1 on here: was killed by signal 9;", told, re.MULTILINE)
    _, told = doctor(_Ranks(replace(killed, ran_out_of_memory=True)))
    assert re.search(r"^FAIL  allreduce .* was killed by signal 9: the kernel .* memory ran out", told, re.MULTILINE)
    monkeypatch.setattr(examination, "run_under", _Ranks(killed, silent=[1]))
    printed = said(main, "doctor", "--set", f"cluster.paths.runs={tmp_path}", status=1)
    assert re.fullmatch(r"rank 1 on \S+ was killed by signal 9\n", printed.err)
    assert "1 of 2 did not report: 1; see the launcher's output above" in printed.out


@pytest.mark.parametrize(
    ("kind", "is_done", "place", "told"),
    [
        (None, False, "laptop", r"WARN .*; ./run.sh setup"),
        (Kind(("mxnet",), "cpu"), False, "dgx-a100", r"FAIL the environment is for a CPU; .* --engine mxnet --gpu"),
        (Kind(("torch",), "cpu"), True, "laptop",
         r"FAIL the environment is for PyTorch cpu, engine.name: mxnet; ./run.sh setup --engine mxnet"),
        (Kind(("mxnet",), "cpu"), False, "laptop", r"WARN .*: venv, tools, mxnet, wheels, horovod; ./run.sh setup"),
        (Kind(("mxnet",), "cpu"), True, "laptop", r"OK complete, for MXNet cpu; "),
    ],
)  # fmt: skip
def test_an_environment_that_does_not_fit_is_told_with_its_remedy(
    kind: Kind | None, is_done: bool, place: str, told: str, doctor: Doctor, monkeypatch: pytest.MonkeyPatch
) -> None:
    state = SimpleNamespace(kind=kind, is_done=lambda *_: is_done)
    monkeypatch.setattr(examination, "State", lambda: state)
    _, printed = doctor(_Ranks(), "--json", "--cluster", place, "--set", "cluster.engine.name=mxnet")
    (found,) = _topic(json.loads(printed), "set-up")
    assert re.fullmatch(told, found)


def test_what_was_not_examined_is_told(doctor: Doctor, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    image = ["container.runtime=apptainer", "container.image=image.sif", "launcher=srun"]
    sets = [word for each in image for word in ("--set", f"cluster.{each}")]
    document = json.loads(doctor(_Ranks(), "--json", "--cluster", "dgx-a100", *sets)[1])
    (launcher,), (container,) = _topic(document, "launcher"), _topic(document, "container")
    assert launcher.startswith("WARN not inside a job, so only this machine was checked, without srun; srun is not on")
    assert container.startswith("WARN the ranks checked the host, not the image image.sif")
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
        (["--recipe", "digits"], ["data"], (64, 1)),
        (["--recipe", "digits", "--set", "batch.accumulation_steps=4"], ["data"], (64, 4)),
        (["--recipe", "digits", "--step", "--set", "cluster.num_nodes=4", "--set", "cluster.launcher=srun"],
         ["data", "step"], (16, 1)),
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


def test_findings_are_lines_or_a_document_and_a_failed_one_is_the_status(doctor: Doctor) -> None:
    words, full = ["--recipe", "digits", "--step"], _Ranks(full=["here"])
    status, printed = doctor(full, *words)
    lines = printed.splitlines()
    assert any(line.startswith("FAIL  disk (here): 0.0 GB free at /full, 1.0 GB needed") for line in lines)
    assert status == 1
    document = json.loads(doctor(full, *words, "--json")[1])
    assert (document["cluster"], document["recipe"], document["ok"]) == ("laptop", "digits", False)
    assert [rank["rank"] for rank in document["ranks"]] == [0, 1]
    assert document["ranks"][1]["step"]["samples"]["step"] == [0.01]
    assert len(document["findings"]) == len(lines)
    assert {"level", "topic", "words", "remedy", "hosts"} == set(document["findings"][0])


def test_a_site_s_own_mxnet_is_known_to_the_checks(doctor: Doctor, monkeypatch: pytest.MonkeyPatch) -> None:
    state = SimpleNamespace(kind=Kind(("mxnet",), "gpu", "/opt/python"), is_done=lambda *_: True)
    monkeypatch.setattr(examination, "State", lambda: state)
    judged: list[Any] = []
    monkeypatch.setattr(examination, "judge", lambda report: judged.__iadd__([report])[:0])
    doctor(_Ranks(), "--recipe", "digits")
    ((kind, plan),) = ((report.kind, report.plan) for report in judged)
    assert kind == state.kind
    assert plan["total_bytes"] >= plan["certain_bytes"] > 4 * plan["parameters"] > 0


_THREE = [word for each in ("num_nodes=2", "scheduler.spare_nodes=1", "launcher=srun", "communication.backend=mpi")
          for word in ("--set", f"cluster.{each}")]  # fmt: skip


@pytest.mark.medium
@pytest.mark.parametrize(
    ("full", "status", "problems"),
    [([], 0, [False] * 3), (["c"], 0, [False, False, True]), (["b.site", "c"], 1, [False, True, True])],
)
def test_a_run_needs_as_many_nodes_without_a_problem_as_it_has_nodes(
    full: list[str], status: int, problems: list[bool], doctor: Doctor, tmp_path: Path
) -> None:
    ranks = _Ranks(full=full, hosts=["a", "b.site", "c"], slow={"a": 2.0})
    (tmp_path / "config.yaml").touch()
    run = ["--recipe", "digits", "--step", "--run", str(tmp_path), "--hosts", "a,b,c", *_THREE]
    assert doctor(ranks, *run)[0] == status
    assert [cluster.num_nodes for _, cluster, _ in ranks.started] == [3]
    found = sorted(read_nodes(tmp_path), key=lambda node: node.host)
    assert [node.host for node in found] == ["a", "b", "c"]
    assert found[0] == NodeScore("a", 1.0, "compute", is_slow=True, delay=1.0)
    assert [bool(node.problem) for node in found] == problems
    assert doctor(ranks, *(word for word in run if word not in ("--run", str(tmp_path))))[0] == (1 if full else 0)
    document = json.loads(doctor(ranks, *run, "--json")[1])
    assert {node["host"]: node["is_slow"] for node in document["nodes"]} == {"a": True, "b": False, "c": False}


def test_hosts_that_are_listed_by_address_keep_that_name(doctor: Doctor, tmp_path: Path) -> None:
    """The ranks report their hosts by name."""
    hosts = ["--set", "cluster.launcher=mpirun", "--hosts", "10.0.0.1,10.0.0.2,10.0.0.3"]
    ranks = _Ranks(hosts=["a", "b", "c"], slow={"b": 2.0})
    doctor(ranks, "--recipe", "digits", "--step", *_THREE, *hosts, "--run", str(tmp_path))
    assert next((node.host, node.is_slow) for node in read_nodes(tmp_path)) == ("10.0.0.2", True)


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--hosts", "elsewhere.invalid"], "--hosts: got elsewhere.invalid, "),  # the ranks would examine this machine
        (["--hosts", "localhost,elsewhere.invalid"], "--hosts: got elsewhere.invalid, "),
        (["--hosts", ""], "--hosts: got '', "),
        (["--run", "{}"], "--run: got {}, "),
        (["--run", "{}/none"], "--run: got {}/none, "),
    ],
)
def test_hosts_out_of_reach_and_folders_of_no_run_are_refused(
    words: list[str], told: str, tmp_path: Path, said: Said
) -> None:
    (photo := tmp_path / "photo.jpg").touch()
    printed = said(main, "doctor", *(word.format(tmp_path) for word in words), status=REFUSED_STATUS).err
    assert told.format(tmp_path) in printed
    assert list(tmp_path.iterdir()) == [photo]


@pytest.mark.medium
def test_a_node_that_was_slow_in_two_jobs_is_named(
    doctor: Doctor, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "new" / "runs" / "health.jsonl"
    words = ["--recipe", "digits", "--step", "--json", "--hosts", "a,b,c", *_THREE]
    slow, sound = _Ranks(hosts=["a", "b", "c"], slow={"b": 1.5}), _Ranks(hosts=["a", "b", "c"])
    told = []
    for job, ranks in (("7", slow), ("7", slow), ("8", sound), ("9", slow)):
        monkeypatch.setenv("SLURM_JOB_ID", job)
        told.append(_topic(json.loads(doctor(ranks, *words)[1]), "history"))
        with file.open("a", encoding="utf-8") as other:
            other.write('{"time": "2026\n')
    assert told[:3] == [[], [], []]
    assert told[3][0].startswith("WARN slow in 3 of the last 4 checks, in compute, by up to 50.0 %")
    rows = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()[::2]]
    assert [row["job"] for row in rows] == ["7", "7", "8", "9"]
    assert (rows[3]["cluster"], rows[3]["recipe"], rows[3]["num_nodes"]) == ("laptop", "digits", 3)
    assert [each["host"] for each in rows[3]["slow"]] == ["b"]


def test_a_history_that_cannot_be_kept_is_a_warning(doctor: Doctor, tmp_path: Path) -> None:
    ranks = _Ranks(hosts=["a", "b", "c"])
    words = ["--recipe", "digits", "--step", "--hosts", "a,b,c", *_THREE]
    status, printed = doctor(ranks, *words, "--set", f"cluster.health={tmp_path}")
    assert status == 0
    assert f"WARN  history: {tmp_path}: cannot be written: " in printed


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--recipe", "digit"], "did you mean 'digits'?"),
        (["--step"], "name one with --recipe"),
        (["--set", "cluster.paths.runs=/proc/none"], "/proc/none: cannot be written: No such file or directory"),
    ],
)
def test_wrong_arguments_are_one_line_and_status_2(words: list[str], message: str, said: Said) -> None:
    told = said(main, "doctor", *words, status=2).err
    assert message in told
    assert told.startswith("error: ")
    assert told.count("\n") == 1
