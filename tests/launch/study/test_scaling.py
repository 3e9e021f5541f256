"""A scaling study: what is measured, predicted, packed and left out, and what its table and its page say of it."""

import csv
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from configs import registry
from configs.errors import ConfigError, UserError
from configs.schema import Cluster, Recipe
from configs.study import ScalingStudy
from launch.study import scaling
from launch.study.scaling import run_scaling
from launch.submit.submission import JOB_FILE
from logs.folder import Summary
from tests.configs.studies import GRID, scaling_study
from tests.launch.study.starter import Starter
from tests.programs import python
from train.sim.conditions import predict

LAPTOP: dict[str, Any] = {
    "recipe": "digits", "cluster": "laptop", "ranks": [1], "batch": [32], "times_ranks": {}, "data": {"real": {}},
    "repeats": 1, "network": {"plain": {}}, "communication": {"alone": {}}, "set": {},
}  # fmt: skip
GPUS: dict[str, Any] = {
    "recipe": "imagenet-b256", "cluster": "dgx-a100", "ranks": [32, 8], "batch": [64], "data": {"synthetic": {}},
    "times_ranks": {"schedule.base_lr": 0.01}, "repeats": 1, "set": {},
    "network": {"resnet50": {}, "resnet18": {"model.name": "resnet18"}},
    "communication": {"allreduce": {}, "server": {"cluster.communication.kind": "parameter_server"},
                      "async": {"cluster.communication.kind": "parameter_server_async",
                                "cluster.engine.precision": "float32"}},
}  # fmt: skip
CORES = len(os.sched_getaffinity(0))


def _run(study: ScalingStudy, folder: Path, starter: Callable[..., Any] | None = None) -> int:
    """Run a study, or only list its tasks if nothing is given to run them."""
    return run_scaling(
        study, folder / "runs", folder, is_dry_run=starter is None, starter=starter or (lambda *_: pytest.fail("ran"))
    )


def _table(folder: Path) -> list[dict[str, str]]:
    with (folder / "grid.csv").open(encoding="utf-8") as file:
        return list(csv.DictReader(file))


def _tasks(capsys: pytest.CaptureFixture[str]) -> dict[str, str]:
    """Return folder -> state of each task that was listed."""
    lines = [line.split(maxsplit=2) for line in capsys.readouterr().out.splitlines() if line.startswith("  ")]
    return {folder: state for _, folder, state in lines}


@pytest.mark.slow
@pytest.mark.ranks
def test_a_cell_that_a_real_rank_runs_fills_the_table_and_the_page(tmp_path: Path) -> None:
    small = {
        "data": {"name": "none", "source": "synthetic", "train_samples": 256, "eval_samples": 64,
                 "crop": {"kind": "none"}},
        "model": {"name": "resnet8", "num_classes": 10, "image_size": 8},
        "run": {"epochs": 3, "target_top1": None, "log_every_steps": 4},
        "schedule": {"base_lr": 1, "warmup_steps": 0, "decay": {"name": "polynomial"}},
    }  # fmt: skip
    study = {**GRID, **LAPTOP, "set": small, "batch": [16], "warmup_steps": 4, "notes": "No more."}
    (tmp_path / "study.yaml").write_text(yaml.safe_dump(study, sort_keys=False), encoding="utf-8")
    runs = tmp_path / "runs"
    done = python("-m", "launch.study", "sweep", str(tmp_path / "study.yaml"), "--runs", str(runs), timeout=300)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("to run") == 1
    (row,) = _table(runs)
    assert (row["communication"], row["basis"], row["status"]) == ("alone", "measured", "success")
    numbers = {key: float(row[key]) for key in ("images_per_s", "first_epoch_s", "later_epoch_s", "wall_s", "cpu_s")}
    assert min(numbers.values()) > 0
    assert numbers["cpu_s"] < (os.cpu_count() or 1) * numbers["wall_s"] * 1.05
    assert int(row["peak_memory_bytes"]) > 50e6
    assert float(row["efficiency"]) == 1
    page = (runs / "grid.html").read_text(encoding="utf-8").partition("</style>")[2]
    assert "predicted" not in page
    assert "No more." in page


def test_a_dry_run_lists_predictions_and_every_repeat_and_starts_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    changes = {"ranks": [CORES + 1, 1], "batch": [8, 16], "repeats": 2}
    assert _run(scaling_study(**LAPTOP | changes), tmp_path) == 0
    # Every cell runs once before any cell runs twice.
    assert list(_tasks(capsys).items()) == [
        *((f"plain-alone-real-b{b}-r{CORES + 1}-predicted", f"to predict for 1, {CORES + 1} ranks") for b in (8, 16)),
        *((f"plain-alone-real-b{b}-r1-{repeat}", "to run") for repeat in (1, 2) for b in (8, 16)),
    ]
    assert not list(tmp_path.iterdir())


@pytest.mark.medium
@pytest.mark.usefixtures("with_mxnet")
def test_cells_beyond_the_machine_are_predicted_in_lines_along_the_ranks(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    asked: list[tuple[str, int, float]] = []

    def queue(recipe: Recipe, cluster: Cluster, folder: Path) -> None:
        folder.mkdir(parents=True)
        (folder / JOB_FILE).touch()
        asked.append((recipe.model.name, cluster.world_size, recipe.schedule.base_lr))

    study = scaling_study(**GPUS)
    assert _run(study, tmp_path, queue) == 0
    told = _tasks(capsys)
    assert told["resnet18-server-synthetic-b64-r32-predicted"] == "predicted for 8, 32 ranks"
    # Each cell is submitted once, but no cell with parameter servers, which only the local launcher starts.
    assert asked == [("resnet50", 8, 0.08), ("resnet18", 8, 0.08)]
    assert _run(study, tmp_path, queue) == 0
    assert len(asked) == 2
    assert _tasks(capsys)["resnet18-allreduce-synthetic-b64-r8-1"] == "waits in the scheduler's queue"
    rows = _table(tmp_path)
    assert {row["basis"] for row in rows} == {"predicted"}
    rates = {(row["network"], row["communication"], row["ranks"]): float(row["images_per_s"]) for row in rows}
    assert len(rates) == len(rows) == 8, "an asynchronous server is not predicted"
    cell = next(cell for cell in study.cells() if (cell.network, cell.ranks) == ("resnet18", 32))
    assert rates["resnet18", "allreduce", "32"] == pytest.approx(predict(*study.load(cell)).images_per_s, rel=1e-5)
    images = [float(row["images_per_s"]) * float(row["later_epoch_s"]) for row in rows]
    assert images == pytest.approx([1281167] * 8, rel=1e-4), "an epoch"
    assert rates["resnet50", "server", "32"] < rates["resnet50", "allreduce", "32"]
    assert (tmp_path / "grid.html").read_text(encoding="utf-8").count("<mark>predicted</mark>") == 8
    more = {"server": GPUS["communication"]["server"] | {"cluster.communication.servers": 4}}
    (tmp_path / "more").mkdir()
    assert _run(scaling_study(**GPUS | {"communication": more}), tmp_path / "more", queue) == 0
    servers = {(row["network"], row["ranks"]): float(row["images_per_s"]) for row in _table(tmp_path / "more")}
    assert servers["resnet50", "32"] > rates["resnet50", "server", "32"], "four servers share the gradients"


@pytest.mark.usefixtures("with_mxnet")
def test_a_prediction_that_fails_is_a_failure_without_a_row(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    study = scaling_study(
        **GPUS | {"set": {"cluster.node.gpu": None}, "ranks": [32], "communication": {"allreduce": {}}}
    )
    assert _run(study, tmp_path, lambda *_: 1) == 1
    assert capsys.readouterr().err.startswith("error: node.gpu: got None")
    assert _table(tmp_path) == []


def test_a_cell_that_failed_is_a_row_and_the_others_are_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    study = scaling_study(**LAPTOP | {"batch": [32, 64], "repeats": 2})
    failing = Starter(lambda recipe: Summary(recipe.name, "aborted", failure="broke"), status=1)
    assert _run(study, tmp_path, failing) == 1
    assert failing.seeds == [1, 1, 2, 2], "each repeat has a seed of its own"
    rows = _table(tmp_path)
    assert [row["folder"] for row in rows] == failing.started
    assert {(row["basis"], row["status"], row["images_per_s"]) for row in rows} == {("measured", "failed", "")}
    assert "4 failed" in (tmp_path / "grid.html").read_text(encoding="utf-8")
    assert capsys.readouterr().out.splitlines()[-1] == f"{tmp_path}/grid.html"


@pytest.mark.parametrize(("status", "is_stopped"), [(1, False), (128, False), (129, True), (143, True), (75, True)])
def test_a_run_that_a_signal_stopped_ends_the_study_and_one_that_failed_does_not(
    status: int, is_stopped: bool, tmp_path: Path
) -> None:
    starter = Starter(lambda _: None, status=status)
    assert _run(scaling_study(**LAPTOP | {"batch": [32, 64]}), tmp_path, starter) == (status if is_stopped else 1)
    assert len(starter.started) == (1 if is_stopped else 2)
    assert (tmp_path / "grid.html").exists() is not is_stopped


@pytest.mark.usefixtures("with_mxnet")
@pytest.mark.parametrize(
    ("place", "sets", "is_run"),
    [
        (("laptop", 3), {}, True),
        (("laptop", 3), {"engine.threads": 2}, False),
        (("laptop", 4), {}, False),
        (("laptop", 2), {"launcher": "srun", "num_nodes": 512, "node.rank_cores": []}, True),
        (("dgx-a100", 8), {}, True),
        (("dgx-a100", 16), {}, False),
        (("dgx-a100", 16), {"num_nodes": 2}, True),
        (("dgx-a100", 8), {"communication.kind": "parameter_server"}, False),
        (("dgx-a100", 8), {"communication.kind": "parameter_server", "launcher": "local", "scheduler.kind": "none",
                         "container.runtime": "none"}, True),
    ],
)  # fmt: skip
def test_a_cell_is_run_up_to_the_last_core_or_gpu_of_a_place_that_can_start_it(
    place: tuple[str, int], sets: dict[str, Any], is_run: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    cluster, ranks = place
    monkeypatch.setattr("os.cpu_count", lambda: 64)
    monkeypatch.setattr("os.sched_getaffinity", {0: {1, 4, 5}}.__getitem__)  # this process may use three cores
    keys = {"engine.name": "mxnet", "communication.kind": "horovod", "num_nodes": 1, "engine.threads": 1} | sets
    changes = {f"cluster.{key}": value for key, value in keys.items()}
    study = scaling_study(**LAPTOP | {"cluster": cluster, "set": changes, "ranks": [ranks], "batch": [48]})
    assert _run(study, tmp_path) == 0
    assert list(_tasks(capsys).values()) == ["to run" if is_run else f"to predict for {ranks} ranks"]


def test_a_framework_that_is_not_here_is_named_and_the_other_one_runs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(registry, "find_spec", lambda package: None if package == "torch" else package)
    frameworks = {"MXNet": {"cluster.engine.name": "mxnet"}, "PyTorch": {"cluster.engine.name": "torch"}}
    assert _run(scaling_study(**LAPTOP | {"ranks": [1, 512], "framework": frameworks}), tmp_path) == 0
    assert capsys.readouterr().out.splitlines() == [
        "not run: 1 cell: too large for this machine; the simulator has one rate for all frameworks",
        "not run: 2 cells: PyTorch is not in this environment: ./run.sh setup --engine torch adds it",
        f"   1/1  {'MXNet-plain-alone-real-b32-r1-1':48}  to run",
    ]


def test_a_communication_that_an_engine_does_not_have_is_left_out_by_name_and_the_rest_runs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(registry, "find_spec", lambda package: package)
    ways = {"alone": {}, "server": {"cluster.communication.kind": "parameter_server"}}
    changes = LAPTOP | {"communication": ways, "set": {"cluster.engine.name": "torch"}}
    assert _run(scaling_study(**changes), tmp_path) == 0
    assert capsys.readouterr().out.splitlines() == [
        "not run: 1 cell: PyTorch has no communication.kind parameter_server",
        f"   1/1  {'plain-alone-real-b32-r1-1':48}  to run",
    ]
    assert _run(scaling_study(**changes), tmp_path, lambda *_: 1) == 1
    rows = [(row["communication"], row["status"]) for row in _table(tmp_path)]
    assert rows == [("server", "skipped"), ("alone", "failed")]
    typo = {"typo": {"cluster.communication.kind": "parameter"}}
    with pytest.raises(ConfigError, match=r"communication\.kind: got 'parameter'"):
        _run(scaling_study(**changes | {"communication": typo}), tmp_path)


def test_a_cell_whose_link_cannot_be_shaped_is_predicted_and_the_page_says_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    slow = {"plain": {}, "slow": {"cluster.communication.link_bytes_per_s": 1e8}}
    monkeypatch.setattr("subprocess.run", lambda *_, **__: pytest.fail("the CPU is known by its name"))
    monkeypatch.setattr(scaling, "DESCRIPTION", tmp_path / "none.yaml")
    study = scaling_study(**LAPTOP | {"communication": slow, "set": {"cluster.node.cpu": "EPYC 7763"}})
    monkeypatch.setattr(scaling, "can_shape", lambda: True)
    assert _run(study, tmp_path) == 0
    assert list(_tasks(capsys)) == ["plain-plain-real-b32-r1-1", "plain-slow-real-b32-r1-1"]
    monkeypatch.setattr(scaling, "can_shape", lambda: False)
    assert _run(study, tmp_path, lambda *_: 1) == 1
    assert list(_tasks(capsys)) == ["plain-slow-real-b32-r1-predicted", "plain-plain-real-b32-r1-1"]
    rows = {(row["communication"], row["basis"]): row["status"] for row in _table(tmp_path)}
    assert rows == {("plain", "measured"): "failed", ("slow", "predicted"): "success", ("slow", "measured"): "skipped"}
    page = (tmp_path / "grid.html").read_text(encoding="utf-8")
    assert "1 cell was not run: the loopback cannot be shaped here" in page


@pytest.mark.ranks
def test_a_study_packs_its_own_data_sets_once_and_says_what_it_cannot_pack(tmp_path: Path) -> None:
    def study(*arguments: str | int) -> ScalingStudy:
        sets = {"cluster.paths.data": str(tmp_path)}
        return scaling_study(**LAPTOP | {"set": sets, "prepare": {"few": arguments}})

    generated = study("generated", "--train", 3, "--eval", 2)
    assert _run(generated, tmp_path) == 0
    assert not (tmp_path / "few").exists(), "a dry run packs nothing"
    assert _run(generated, tmp_path, lambda *_: 143) == 143
    packed = (tmp_path / "few" / "manifest.json").stat()
    assert _run(generated, tmp_path, lambda *_: 143) == 143
    assert (tmp_path / "few" / "manifest.json").stat() == packed
    (tmp_path / "few").rename(tmp_path / "gone")
    with pytest.raises(UserError, match="few: the data set could not be packed"):
        _run(study("nowhere/at/all"), tmp_path, Starter())
