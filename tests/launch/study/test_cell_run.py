"""The runs of studies with a starter in place of ranks: what is started, kept, counted, and when it ends."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from configs import registry
from configs.errors import ConfigError, UserError
from configs.load import dump, load_both, load_cluster, with_resolved_paths
from configs.scaling_study import ScalingCell, ScalingStudy
from configs.schema import Cluster, Recipe
from configs.study import Study
from configs.validate import validate
from launch.study import prediction, scaling_runs
from launch.study.accuracy_runs import run_accuracy
from launch.study.cell_run import CellRun
from launch.study.runner import run_study
from launch.study.scaling_runs import _has_cores, _predictions, run_scaling
from logs.claims import take
from logs.folder import Summary, write_summary
from logs.study.cells import ScalingRow
from tests.configs.test_scaling_study import scaling_study
from tests.launch.study.test_runner import _Number, _Numbers

TORCH = {"set": {"cluster.engine.name": "torch"}}
STUDY: dict[str, Any] = {
    "name": "tiny", "title": "Tiny", "purpose": "Tests", "recipe": "digits", "swept": "batch.global_size",
    "tuned": "schedule.base_lr", "seeds": [1, 2, 3],
    "curves": {"LARS": {"grid": {32: [0.5, 1, 2], 64: [1]}}},
}  # fmt: skip


class Starter:
    """Ends every run at once; the accuracy is the rate's."""

    def __init__(self, end: Callable[[Recipe], Summary | None] | None = None, status: int | None = 0) -> None:
        self.end = end or (lambda recipe: Summary(recipe.name, "success", top1=recipe.schedule.base_lr / 10))
        self.status = status
        self.started: list[str] = []

    def __call__(self, recipe: Recipe, cluster: Cluster, folder: Path) -> int | None:
        self.started.append(folder.name)
        assert not folder.exists(), "the rest of an earlier attempt"
        folder.mkdir(parents=True)
        (folder / "config.yaml").write_text(dump(recipe, cluster), encoding="utf-8")
        if summary := self.end(recipe):
            write_summary(folder, summary)
        return self.status


def _sweep(folder: Path, starter: Starter) -> int:
    study = validate(Study, STUDY, "study.")
    return run_accuracy(study, folder / "runs", folder / "out", is_dry_run=False, starter=starter)


GRID = ["LARS-32-0.5-seed1", "LARS-32-1-seed1", "LARS-32-2-seed1", "LARS-64-1-seed1"]


def test_the_grid_runs_at_the_first_seed_and_the_best_of_each_point_at_the_others(tmp_path: Path) -> None:
    starter = Starter()
    assert _sweep(tmp_path, starter) == 0
    others = [f"LARS-{point}-seed{seed}" for point in ("32-2", "64-1") for seed in (2, 3)]
    assert starter.started == [*GRID, *others]
    assert _sweep(tmp_path, again := Starter()) == 0
    assert again.started == []


def test_a_run_that_diverged_is_a_result_and_one_that_failed_ends_the_study(tmp_path: Path) -> None:
    def diverge(recipe: Recipe) -> Summary:
        if recipe.schedule.base_lr == 2:
            return Summary(recipe.name, "aborted", failure="RunFailed: loss not finite at step 3, first on rank 0")
        return Summary(recipe.name, "success", top1=recipe.schedule.base_lr / 10)

    starter = Starter(diverge)
    assert _sweep(tmp_path, starter) == 0
    assert starter.started[len(GRID) :] == [f"LARS-{point}-seed{seed}" for point in ("32-1", "64-1") for seed in (2, 3)]
    failing = Starter(lambda recipe: Summary(recipe.name, "aborted", failure="rank 1 was killed"), status=1)
    assert _sweep(tmp_path / "failing", failing) == 1
    assert failing.started == GRID[:1]


@pytest.mark.parametrize("number", [1, 2, 15])
def test_any_signal_that_stops_a_task_stops_the_study(number: int) -> None:
    stopping = _Number(2, status=128 + number)
    stopping.read = lambda: None  # type: ignore[method-assign]
    study = _Numbers([_Number(1), stopping, _Number(3)])
    assert run_study(study, is_dry_run=False) == 128 + number
    assert study.results == [1]


def _cell(folder: Path, starter: Starter) -> CellRun:
    return CellRun(*load_both("digits", "laptop"), folder / "cell", starter)


def test_what_is_left_of_an_attempt_without_an_end_is_cleared_away(tmp_path: Path) -> None:
    (tmp_path / "cell").mkdir()
    (tmp_path / "cell" / "metrics.jsonl").touch()
    run = _cell(tmp_path, Starter())
    assert run.start() == 0
    summary = run.summary()
    assert summary is not None
    assert summary.status == "success"
    (run.folder / "summary.json").unlink()
    assert run.summary() is None, "a run of these settings that has not ended"


def test_a_run_that_was_a_job_has_absolute_paths_and_the_settings_of_its_cell(tmp_path: Path) -> None:
    run = _cell(tmp_path, Starter())
    assert run.start() == 0
    recipe, cluster = load_both("digits", "laptop")
    absolute = with_resolved_paths(cluster)
    assert absolute != cluster
    (run.folder / "config.yaml").write_text(dump(recipe, absolute), encoding="utf-8")
    assert run.summary() is not None


def test_a_job_in_a_queue_is_handed_over_once_and_again_only_on_request(tmp_path: Path) -> None:
    starter = Starter(lambda _recipe: None, status=None)
    run = _cell(tmp_path, starter)
    assert (run.start(), run.start(), len(starter.started)) == (None, None, 1)
    assert run.state() == "waits in the scheduler's queue"
    write_summary(run.folder, Summary("digits", "aborted", failure="out of time"))
    assert (run.start(), len(starter.started)) == (1, 1)
    assert run.state() == "failed; remove cell.submitted to try again"
    run.ticket.unlink()
    assert (run.start(), len(starter.started)) == (None, 2)


def test_a_run_that_was_refused_names_its_folder(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="cell: the run was refused"):
        _cell(tmp_path, Starter(status=2)).start()


@pytest.mark.parametrize(("threads", "word"), [(1, "to run"), (512, "to predict")])
def test_a_cell_is_measured_if_there_is_a_core_for_each_thread(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], threads: int, word: str
) -> None:
    study = scaling_study(
        recipe="digits", cluster="laptop", ranks=[1], batch=[32], times_ranks={}, data={"real": {}}, repeats=1,
        network={"plain": {}}, communication={"alone": {}}, set={"cluster.engine.threads": threads},
    )  # fmt: skip
    assert run_scaling(study, tmp_path / "runs", tmp_path, is_dry_run=True, starter=Starter()) == 0
    assert word in capsys.readouterr().out.splitlines()[0]


def test_a_framework_that_is_not_here_is_named_and_the_other_one_runs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(registry, "find_spec", lambda package: None if package == "torch" else package)
    study = scaling_study(
        recipe="digits", cluster="laptop", ranks=[1, 512], batch=[32], times_ranks={}, data={"real": {}}, repeats=1,
        network={"plain": {}}, communication={"alone": {}}, set={},
        framework={"MXNet": {"cluster.engine.name": "mxnet"}, "PyTorch": {"cluster.engine.name": "torch"}},
    )  # fmt: skip
    assert run_scaling(study, tmp_path / "runs", tmp_path, is_dry_run=True, starter=Starter()) == 0
    assert capsys.readouterr().out.splitlines() == [
        "not run: 1 cell: too large for this machine; the simulator has one rate for all frameworks",
        "not run: 2 cells: PyTorch is not in this environment: ./run.sh setup --engine torch adds it",
        f"   1/1  {'MXNet-plain-alone-real-b32-r1-1':48}  to run",
    ]


def test_an_accuracy_study_is_refused_before_its_first_run_if_a_framework_is_not_here(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(registry, "find_spec", lambda package: None if package == "torch" else package)
    starter, curves = Starter(), {**STUDY["curves"], "PyTorch": {**TORCH, "grid": {32: [1]}}}
    study = validate(Study, STUDY | {"curves": curves}, "study.")
    with pytest.raises(ConfigError, match="setup --engine torch adds PyTorch"):
        run_accuracy(study, tmp_path / "runs", tmp_path, is_dry_run=False, starter=starter)
    assert starter.started == []


@pytest.mark.parametrize(("ranks", "fits"), [(15, True), (16, True), (17, False)])
def test_a_cell_fits_a_cluster_that_has_a_gpu_for_each_rank(ranks: int, fits: bool) -> None:
    place = load_cluster("dgx-a100", ["cluster.num_nodes=2", "cluster.launcher=srun"])
    cluster = place.model_copy(update={"num_nodes": 1, "ranks_per_node": ranks})
    assert _has_cores(cluster, place) == fits


def test_a_cell_in_which_somebody_trains_is_left_to_him(tmp_path: Path) -> None:
    run = _cell(tmp_path, starter := Starter())
    run.folder.mkdir()
    take(run.folder)
    with pytest.raises(UserError, match=f"^{run.folder}: a run is going on in it: .*; wait for its end$"):
        run.start()
    assert starter.started == []
    assert run.folder.is_dir()


def test_a_run_that_has_ended_and_was_no_job_leaves_no_mark_beside_its_folder(tmp_path: Path) -> None:
    run = _cell(tmp_path, Starter(lambda _recipe: None, status=1))
    assert (run.start(), run.state()) == (1, "to run")
    assert [path.name for path in tmp_path.iterdir()] == ["cell"]


def _grid(**changes: Any) -> ScalingStudy:
    usual: dict[str, Any] = {
        "recipe": "digits", "cluster": "laptop", "ranks": [1], "batch": [32], "times_ranks": {}, "data": {"real": {}},
        "repeats": 2, "network": {"plain": {}}, "communication": {"alone": {}}, "set": {},
    }  # fmt: skip
    return scaling_study(**(usual | changes))


def test_every_repeat_that_succeeded_is_measured_after_the_warm_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    told: list[tuple[object, ...]] = []

    def measure(cell: ScalingCell, *words: object) -> ScalingRow:
        told.append(words)
        return ScalingRow(*cell.axes, len(told) - 1, "measured", images_per_s=1234.56)

    monkeypatch.setattr(scaling_runs, "measured", measure)
    monkeypatch.setattr(scaling_runs, "write_scaling", lambda *_: None)
    monkeypatch.setattr(scaling_runs, "write_scaling_page", lambda *_: None)
    study, runs = _grid(warmup_steps=7), tmp_path / "runs"
    for _ in range(2):
        assert run_scaling(study, runs, tmp_path, is_dry_run=False, starter=Starter()) == 0
    assert told == [(repeat, runs / f"plain-alone-real-b32-r1-{repeat + 1}", 7) for repeat in (0, 1)] * 2
    again = capsys.readouterr().out.splitlines()[3:]
    assert [line.split("  ")[-1].strip() for line in again[:2]] == ["1,234.6 images/s"] * 2


def test_lines_of_cells_beyond_the_machine_are_predicted_from_their_largest_cell(tmp_path: Path) -> None:
    kinds = {
        "ring": {},
        "server": {"cluster.communication.kind": "parameter_server"},
        "async": {"cluster.communication.kind": "parameter_server_async"},
    }
    study = _grid(ranks=[512, 1, 64], communication=kinds, times_ranks={"schedule.base_lr": 0.001})
    found = list(_predictions(study, tmp_path))
    assert [each.folder for each in found] == [
        tmp_path / f"plain-{way}-real-b32-r512-predicted" for way in ("ring", "server")
    ]
    assert [[cell.ranks for cell in each.cells] for each in found] == [[512, 1, 64]] * 2
    assert [each.cluster.world_size for each in found] == [512] * 2
    assert [each.recipe.schedule.base_lr for each in found] == pytest.approx([0.512] * 2)
    assert [each.describe(None) for each in found[:1]] == ["to predict for 512, 1, 64 ranks"]
    assert found[0].describe([]) == "predicted for 512, 1, 64 ranks"
    assert found[0].failure() == [], "no trace in the table"
    assert not list(_predictions(_grid(framework={"MXNet": {}}, ranks=[512]), tmp_path))
    assert not list(_predictions(_grid(), tmp_path)), "every cell fits"


def test_a_prediction_of_other_settings_is_refused_and_one_of_these_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[tuple[object, ...]] = []
    monkeypatch.setattr(prediction, "predicted", lambda *words: told.append(words))
    monkeypatch.setattr(prediction, "_SIMULATOR", ["echo"])
    (task,) = _predictions(_grid(ranks=[512]), tmp_path)
    task.read()
    assert told == []
    assert task.start() == 0
    task.read()
    assert told == [(task.cells, task.folder, task.recipe.data.train_samples)]
    (other,) = _predictions(_grid(ranks=[512], set={"run.seed": 9}), tmp_path)
    with pytest.raises(UserError, match="holds a run with other settings"):
        other.read()


def test_data_sets_of_a_study_are_packed_where_they_are_missing_and_not_in_a_dry_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    packed: list[list[str]] = []
    monkeypatch.setattr(scaling_runs, "pack", packed.append)
    monkeypatch.setattr(scaling_runs, "run_study", lambda *_, **__: 0)
    (tmp_path / "here").mkdir()
    (tmp_path / "here" / "manifest.json").touch()
    sets = {"cluster.paths.data": str(tmp_path)}
    study = _grid(set=sets, prepare={"here": ["generated"], "few": ["generated", "--train", 3]})
    assert run_scaling(study, tmp_path, tmp_path, is_dry_run=True, starter=Starter()) == 0
    assert packed == []
    assert run_scaling(study, tmp_path, tmp_path, is_dry_run=False, starter=Starter()) == 0
    assert packed == [["generated", f"{tmp_path}/few", "--train", "3"]]


def test_a_dry_run_of_an_accuracy_study_needs_no_framework_and_tells_how_many_runs_follow(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(registry, "find_spec", lambda package: None if package == "torch" else package)
    curves = {"PyTorch": {**TORCH, "grid": {32: [1]}}}
    study = validate(Study, STUDY | {"curves": curves}, "study.")
    assert run_accuracy(study, tmp_path / "runs", tmp_path, is_dry_run=True, starter=Starter()) == 0
    told = capsys.readouterr().out.splitlines()
    assert told == [f"   1/1  {'PyTorch-32-1-seed1':48}  to run", "then 2 more seeds at the best of each point"]
    assert not list(tmp_path.iterdir())
