"""How an examination ends when its ranks are stopped."""

from __future__ import annotations

import shutil
import signal
from pathlib import Path
from types import SimpleNamespace

import pytest

from configs.errors import UserError
from configs.load import load_both, load_cluster
from launch.doctor import examination
from launch.doctor.__main__ import main
from launch.doctor.check_result import CheckResult
from launch.setup.layout import Kind
from launch.start.local import Outcome


@pytest.mark.parametrize("outcome", [Outcome(143, interrupted_by=15), Outcome(75, stopped_by=15)])
def test_ranks_that_a_signal_stops_are_not_judged(
    outcome: Outcome, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(examination, "run_under", lambda *_: outcome)
    assert main(["doctor", "--set", f"cluster.paths.runs={tmp_path}"]) == 128 + signal.SIGTERM
    assert "OK" not in capsys.readouterr().out
    assert list(tmp_path.iterdir()) == [], "the reports of the ranks are left"


def test_reports_are_in_the_order_of_the_ranks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for rank in (10, 9, 0, 1):
        (tmp_path / f"rank_{rank}.json").write_text(f'{{"rank": {rank}}}', encoding="utf-8")
    monkeypatch.setattr(examination, "run_under", lambda *_: Outcome(0))
    reports, stopped_by = examination._probe(load_cluster("laptop"), tmp_path, [])
    assert ([report["rank"] for report in reports], stopped_by) == ([0, 1, 9, 10], None)


def test_reports_that_cannot_be_removed_do_not_hide_how_the_ranks_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def run(*_: object) -> Outcome:
        shutil.rmtree(next(tmp_path.glob(".doctor-*")))
        return Outcome(143, interrupted_by=15)

    monkeypatch.setattr(examination, "run_under", run)
    assert main(["doctor", "--set", f"cluster.paths.runs={tmp_path}"]) == 128 + signal.SIGTERM


@pytest.mark.parametrize(
    ("kind", "cluster", "level", "words"),
    [
        (None, "laptop", "WARN", "was not made by set-up; ./run.sh setup"),
        (None, "dgx-a100", "WARN", "was not made by set-up; ./run.sh setup"),
        (Kind(("mxnet",), "cpu"), "dgx-a100", "FAIL", "the environment is for a CPU; ./run.sh setup --gpu"),
        (
            Kind(("torch",), "cpu"),
            "laptop",
            "FAIL",
            "the environment is for PyTorch cpu, engine.name: mxnet; ./run.sh setup --engine mxnet",
        ),
        (
            Kind(("mxnet",), "cpu"),
            "laptop",
            "WARN",
            "not done, or changed since: venv, tools, mxnet, wheels, horovod; ./run.sh setup",
        ),
    ],
)
def test_an_environment_that_does_not_fit_is_told_with_its_remedy(
    kind: Kind | None, cluster: str, level: str, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    state = SimpleNamespace(kind=kind, has_mpi=False, is_done=lambda *_: False)
    monkeypatch.setattr(examination, "State", lambda: state)
    result = examination._set_up(load_cluster(cluster, ["cluster.engine.name=mxnet"]))
    assert (result.level, result.topic) == (level, "set-up")
    assert str(result).endswith(words)


def test_an_environment_that_is_complete_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    state = SimpleNamespace(kind=Kind(("mxnet",), "cpu"), has_mpi=False, is_done=lambda *_: True)
    monkeypatch.setattr(examination, "State", lambda: state)
    result = examination._set_up(load_cluster("laptop", ["cluster.engine.name=mxnet"]))
    assert str(result) == "OK    set-up: complete, for MXNet cpu"


def test_the_reports_are_in_a_folder_of_their_own_below_that_of_the_runs(tmp_path: Path) -> None:
    cluster = load_cluster("laptop", [f"cluster.paths.runs={tmp_path}/new/runs"])
    one, other = (examination._make_folder(cluster) for _ in range(2))
    assert one.parent == other.parent == tmp_path / "new" / "runs"
    (tmp_path / "file").touch()
    with pytest.raises(UserError, match=f"^{tmp_path}/file/runs: Not a directory; set cluster.paths.runs to a folder"):
        examination._make_folder(load_cluster("laptop", [f"cluster.paths.runs={tmp_path}/file/runs"]))


def test_what_was_not_examined_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    image = ["cluster.container.runtime=docker", "cluster.container.image=registry.example/image"]
    cluster = load_cluster("dgx-a100", ["cluster.launcher=srun", *image])
    here = examination.reachable_part(cluster, {})
    assert [str(each) for each in (examination._scope(cluster, here), *examination._image(cluster))] == [
        "WARN  launcher: not inside a job, so only this machine was checked, without srun; srun is not on this "
        "machine; run the doctor again inside a job: salloc, qrsh, qsub -I, bsub -I",
        "WARN  container: the ranks checked the host, not the image registry.example/image; run ./run.sh doctor "
        "inside the image to check its libraries",
    ]
    laptop = load_cluster("laptop")
    assert str(examination._scope(laptop, laptop)) == "OK    launcher: local, as in the cluster file"
    assert examination._image(laptop) == []


def test_ranks_outside_a_job_do_not_need_mpi() -> None:
    sets = ["cluster.num_nodes=2", "cluster.launcher=mpirun"]
    for backend, allreduce, there in (("mpi", "hierarchical", "gloo"), ("nccl", "torus", "nccl")):
        choice = [f"cluster.communication.backend={backend}", f"cluster.communication.allreduce={allreduce}"]
        cluster = load_cluster("dgx-a100", [*sets, *choice])
        communication = examination.reachable_part(cluster, {}).communication
        assert (communication.backend, communication.allreduce) == (there, "flat")


def test_the_ranks_of_a_part_get_the_micro_batches_of_the_plan() -> None:
    recipe, _ = load_both("digits", "laptop", [])
    recipe = recipe.model_copy(update={"batch": recipe.batch.model_copy(update={"bn_span": 32})})
    plan = {"accumulation_steps": 3, "per_rank_batch_size": 5}
    batch = examination._for_ranks(recipe, plan, 2).batch
    assert (batch.global_size, batch.accumulation_steps, batch.bn_span) == (30, 3, None)


@pytest.mark.parametrize(
    ("levels", "has_failed"), [([], False), (["OK", "WARN"], False), (["FAIL"], True), (["OK", "FAIL", "OK"], True)]
)
def test_one_check_that_failed_is_enough(levels: list[str], has_failed: bool) -> None:
    results = [CheckResult(level, "topic", "words") for level in levels]  # type: ignore[arg-type]
    assert examination.Examination("laptop", results, [], None).has_failed is has_failed
