"""What an examination asks of ranks, plan and simulator, what it tells, and how it ends when its ranks are stopped."""

import json
import shutil
import signal
from pathlib import Path
from types import SimpleNamespace

import pytest

from configs.errors import UserError
from configs.load import ROOT, load_both, load_cluster, load_run
from configs.programs import Program
from configs.schema import Cluster
from launch.doctor import examination
from launch.doctor.__main__ import main
from launch.doctor.check_result import CheckResult, ProbeReport
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


def _say(monkeypatch: pytest.MonkeyPatch, script: str) -> list[tuple[object, ...]]:
    """Let a shell speak in place of the commands of an examination; return the list that gets their words."""
    asked: list[tuple[object, ...]] = []

    def command(*words: object) -> list[str]:
        asked.append(words)
        return ["sh", "-c", script]

    monkeypatch.setattr(examination, "command_of", command)
    return asked


def test_the_plan_is_that_of_the_recipe_on_this_cluster_with_these_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = _say(monkeypatch, "echo '{\"accumulation_steps\": 3}'")
    assert examination._plan("digits", "laptop", ["run.seed=2", "run.epochs=3"]) == {"accumulation_steps": 3}
    assert examination._plan("digits", None, []) == {"accumulation_steps": 3}
    sets = ["--set", "run.seed=2", "--set", "run.epochs=3"]
    assert asked == [
        (Program.PLAN_VERB, "plan", "digits", "--cluster", "laptop", *sets, "--json"),
        (Program.PLAN_VERB, "plan", "digits", "--json"),
    ]
    _say(monkeypatch, "echo error: too large >&2; exit 2")
    with pytest.raises(UserError, match=r"^too large$"):
        examination._plan("digits", None, [])


@pytest.mark.parametrize(
    ("script", "forecast"),
    [
        ('echo "{\\"place\\": \\"$PWD\\"}"', {"place": str(ROOT)}),
        ("echo warning >&2; echo error: no such GPU >&2; exit 2", {"problem": "no such GPU"}),
        ("exit 3", {"problem": "the simulator failed"}),
    ],
)
def test_a_forecast_that_there_is_not_has_its_reason(
    script: str, forecast: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    asked = _say(monkeypatch, script)
    assert examination._forecast(tmp_path) == forecast
    assert asked == [(Program.SIMULATE_VERB, "simulate", f"{tmp_path}/config.yaml", "--json")]


PLAN = {"accumulation_steps": 1, "per_rank_batch_size": 5}


@pytest.mark.parametrize(
    ("recipe", "wanted", "size", "sets"),
    [
        (None, [], 64, []),
        ("digits", ["--data"], 10, []),
        ("digits", ["--data", "--step"], 10, []),
        ("digits", ["--data", "--step"], 10, ["data.source=idx"]),
    ],
)
def test_the_ranks_probe_what_is_asked_for_and_all_that_is_known_is_judged(
    recipe: str | None, wanted: list[str], size: int, sets: list[str], tmp_path: Path
) -> None:
    judged: list[ProbeReport] = []

    def probe(cluster: Cluster, folder: Path, words: list[str]) -> tuple[list[dict[str, int]], None]:
        assert words == wanted
        ran, place = load_run(folder / "config.yaml")
        assert (ran.batch.global_size, place) == (size, cluster)
        return [{"rank": 0}], None

    def judge(report: ProbeReport) -> list[CheckResult]:
        judged.append(report)
        return [CheckResult("FAIL", "disk", "full", "free some")]

    state = SimpleNamespace(kind=Kind(("mxnet",), "cpu", "/opt/python"), has_mpi=False, is_done=lambda *_: True)
    place, with_step = f"cluster.paths.runs={tmp_path}", "--step" in wanted
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(examination, "_plan", lambda *_: PLAN)
        patch.setattr(examination, "_probe", probe)
        patch.setattr(examination, "_forecast", lambda _folder: {"step_s": 1})
        patch.setattr(examination, "judge", judge)
        patch.setattr(examination, "State", lambda: state)
        found = examination.examine(recipe, None, [place, *sets], with_step=with_step)
    assert [each.topic for each in found.results] == ["set-up", "launcher", "disk"]
    assert (found.cluster_name, found.ranks, found.stopped_by) == ("laptop", [{"rank": 0}], None)
    plan, forecast = PLAN if recipe else None, {"step_s": 1} if with_step else None
    cluster = load_cluster("laptop", [place])
    assert judged == [ProbeReport(cluster, [{"rank": 0}], plan, not sets, forecast, "/opt/python")]
    assert not list(tmp_path.iterdir())


def test_findings_are_lines_or_a_document_and_a_failed_one_is_the_status(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked: list[tuple[object, ...]] = []
    results = [CheckResult("OK", "memory", "enough"), CheckResult("FAIL", "disk", "full", "free some")]

    def examine(*words: object, with_step: bool) -> examination.Examination:
        asked.append((*words, with_step))
        return examination.Examination("laptop", results[: len(asked)], [{"rank": 0}], None)

    monkeypatch.setattr(examination, "examine", examine)
    assert main(["doctor"]) == 0
    assert capsys.readouterr().out == "OK    memory: enough\n"
    words = ["--recipe", "digits", "--cluster", "laptop", "--set", "run.seed=2", "--step"]
    assert main(["doctor", *words]) == 1
    assert capsys.readouterr().out == "OK    memory: enough\nFAIL  disk: full; free some\n"
    assert main(["doctor", *words, "--json"]) == 1
    assert json.loads(capsys.readouterr().out) == {
        "cluster": "laptop",
        "recipe": "digits",
        "ok": False,
        "findings": [
            {"level": "OK", "topic": "memory", "words": "enough", "remedy": "", "hosts": []},
            {"level": "FAIL", "topic": "disk", "words": "full", "remedy": "free some", "hosts": []},
        ],
        "ranks": [{"rank": 0}],
    }
    assert asked == [(None, None, [], False), *[("digits", "laptop", ["run.seed=2"], True)] * 2]
