"""A scaling study from its file to its table: real runs, interleaved, and a sweep that is killed and continues."""

import csv
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from configs.errors import ConfigError, UserError
from configs.load import ROOT, load_both, load_cluster
from configs.scaling_study import ScalingCell, ScalingStudy
from configs.schema import Cluster, Recipe
from configs.study import load_study
from launch.study import prediction
from launch.study.prediction import Prediction
from launch.study.scaling_runs import _has_cores, _require_source, run_scaling
from logs.study.cells import PREDICTION_FILE

STUDY = """
name: tiny
title: Tiny
purpose: Shows that grids work.
notes: No more is known.
recipe: digits
set:
  data: {name: none, source: synthetic, train_samples: 256, eval_samples: 64, crop: {kind: none}}
  model: {name: resnet8, num_classes: 10, image_size: 8}
  run: {epochs: 3, target_top1: null, log_every_steps: 4}
  schedule: {base_lr: 1, warmup_steps: 0, decay: {name: polynomial}}
repeats: 2
warmup_steps: 4
ranks: [1]
batch: [16]
network: {small: {}}
communication: {none: {cluster.communication.kind: none}, devices: {cluster.communication.kind: devices}}
data: {synthetic: {}}
"""
BEYOND = """
name: beyond
title: Beyond
purpose: Shows that predictions work.
recipe: imagenet-b256
cluster: dgx-a100
repeats: 1
ranks: [8, 32]
batch: [64]
network: {resnet50: {}, resnet18: {model.name: resnet18}}
communication: {allreduce: {}, server: {cluster.communication.kind: parameter_server}}
data: {synthetic: {}}
times_ranks: {schedule.base_lr: 0.01}
"""


def _study(folder: Path, text: str = STUDY) -> ScalingStudy:
    path = folder / "study.yaml"
    path.write_text(text, encoding="utf-8")
    study = load_study(str(path))
    assert isinstance(study, ScalingStudy)
    return study


def _sweep(folder: Path, *arguments: str) -> subprocess.Popen[str]:
    study = ["sweep", str(folder / "study.yaml"), "--runs", str(folder / "runs")]
    command = [sys.executable, "-m", "launch.study", *study, *arguments]
    return subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def _table(folder: Path, name: str) -> list[dict[str, str]]:
    with (folder / f"{name}.csv").open(encoding="utf-8") as file:
        return list(csv.DictReader(file))


@pytest.mark.slow
@pytest.mark.ranks
def test_a_killed_sweep_loses_nothing_and_repeats_nothing(tmp_path: Path) -> None:
    _study(tmp_path, STUDY.replace("repeats: 2", "repeats: 1"))
    runs = tmp_path / "runs"
    first, second = (runs / f"small-{way}-synthetic-b16-r1-1" for way in ("none", "devices"))
    killed = _sweep(tmp_path)
    while not (second / "config.yaml").exists():
        assert killed.poll() is None
        time.sleep(0.01)
    os.kill(killed.pid, signal.SIGKILL)
    killed.communicate()
    kept = (first / "summary.json").stat()
    assert not (second / "summary.json").exists()

    again = _sweep(tmp_path)
    told, errors = again.communicate(timeout=300)
    assert again.returncode == 0, errors
    assert told.count("to run") == 1
    assert (first / "summary.json").stat() == kept
    rows = _table(runs, "tiny")
    assert [row["communication"] for row in rows] == ["none", "devices"]
    for row in rows:
        assert (row["basis"], row["status"]) == ("measured", "success")
        numbers = {
            key: float(row[key]) for key in ("images_per_s", "first_epoch_s", "later_epoch_s", "wall_s", "cpu_s")
        }
        assert min(numbers.values()) > 0
        assert numbers["cpu_s"] < (os.cpu_count() or 1) * numbers["wall_s"] * 1.05
        assert int(row["peak_memory_bytes"]) > 50e6
    assert max(float(row["efficiency"]) for row in rows) == pytest.approx(1, abs=1e-5)
    page = (runs / "tiny.html").read_text(encoding="utf-8")
    assert "predicted" not in page.partition("</style>")[2]
    assert "Utilisation" in page
    assert "No more is known." in page


@pytest.mark.ranks
def test_cells_beyond_the_machine_are_predicted_and_marked_as_such(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    asked: list[tuple[str, int, float]] = []

    def queue(recipe: Recipe, cluster: Cluster, _folder: Path) -> None:
        asked.append((recipe.model.name, cluster.world_size, recipe.schedule.base_lr))

    study = _study(tmp_path, BEYOND)
    assert run_scaling(study, tmp_path / "runs", tmp_path, is_dry_run=False, starter=queue) == 0
    assert run_scaling(study, tmp_path / "runs", tmp_path, is_dry_run=False, starter=queue) == 0
    # Each cell is submitted once, but no cell with parameter servers, which only the local launcher starts.
    assert asked == [("resnet50", 8, 0.08), ("resnet18", 8, 0.08)]
    assert capsys.readouterr().out.count("waits in the scheduler's queue") == 2
    rows = _table(tmp_path, "beyond")
    assert {row["basis"] for row in rows} == {"predicted"}
    rates = {(row["network"], row["communication"], row["ranks"]): float(row["images_per_s"]) for row in rows}
    assert len(rates) == 8
    assert rates["resnet50", "allreduce", "32"] > 3 * rates["resnet50", "allreduce", "8"]
    assert rates["resnet50", "server", "32"] < rates["resnet50", "allreduce", "32"]
    page = (tmp_path / "beyond.html").read_text(encoding="utf-8")
    assert page.count("<mark>predicted</mark>") == 8


def test_what_a_simulator_that_failed_has_printed_is_no_prediction(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(prediction, "_SIMULATOR", ["bash", "-c", "echo '[{'; exit 1", "simulate"])
    task = Prediction((), *load_both("digits", "abci-v100"), tmp_path / "cell")
    for _ in range(2):  # the second finds the folder of the first
        assert task.start() == 1
        assert task.read() is None


@pytest.mark.parametrize(
    ("cluster", "is_described", "calls"),
    [("laptop", False, ["--calibrate-here", "--json"]), ("laptop", True, ["--json"]), ("abci-v100", False, ["--json"])],
)
def test_a_prediction_for_cpus_measures_this_machine_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cluster: str, is_described: bool, calls: list[str]
) -> None:
    told = tmp_path / "told"
    told.touch()
    monkeypatch.setattr(prediction, "_SIMULATOR", ["bash", "-c", f'printf "%s\\n" "$@" >>{told}; echo []', "simulate"])
    monkeypatch.setattr(prediction, "_DESCRIPTION", told if is_described else tmp_path / "none.yaml")
    task = Prediction((), *load_both("digits", cluster), tmp_path / "cell")
    assert task.start() == 0
    options = told.read_text(encoding="utf-8").split()
    assert [each for each in options if each in ("--calibrate-here", "--json")] == calls
    assert (tmp_path / "cell" / PREDICTION_FILE).read_text(encoding="utf-8") == "[]\n"


@pytest.mark.parametrize(
    ("sets", "more"),
    [
        ([], []),
        (["kind=parameter_server", "servers=3"], ["--algorithm", "ps:3"]),
    ],
)
def test_the_simulator_is_asked_for_all_ranks_of_the_cells_in_the_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sets: list[str], more: list[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(prediction, "_SIMULATOR", ["bash", "-c", 'pwd; printf "%s\\n" "$@"', "simulate"])
    cells = tuple(ScalingCell("", "n", "c", "d", 8, ranks) for ranks in (8, 32))
    pair = load_both("digits", "abci-v100", [f"cluster.communication.{each}" for each in sets])
    assert Prediction(cells, *pair, Path("cell")).start() == 0
    told = (tmp_path / "cell" / PREDICTION_FILE).read_text(encoding="utf-8").splitlines()
    assert told == [str(ROOT), f"{tmp_path}/cell/config.yaml", "--json", "--sweep", "ranks=8,32", *more]


@pytest.mark.parametrize(
    ("place", "sets", "is_enough"),
    [
        ("laptop", ["ranks_per_node={cores}"], True),
        ("laptop", ["ranks_per_node={cores}", "engine.threads=2"], False),
        ("laptop", ["ranks_per_node={more}"], False),
        ("dgx-a100", ["ranks_per_node=8"], True),
        ("dgx-a100", ["ranks_per_node=9"], False),
        ("dgx-a100", ["communication.kind=parameter_server"], False),
        ("dgx-a100", ["communication.kind=parameter_server", "scheduler.kind=none"], False),
        ("dgx-a100", ["communication.kind=parameter_server", "launcher=local"], False),
        ("dgx-a100", ["communication.kind=parameter_server", "launcher=local", "scheduler.kind=none"], True),
    ],
)
def test_a_cell_fits_up_to_the_last_core_or_gpu_of_a_place_that_can_start_it(
    place: str, sets: list[str], is_enough: bool
) -> None:
    cores = len(os.sched_getaffinity(0))
    one = ["node.rank_cores=[]", "ranks_per_node=1", "engine.threads=1", "launcher=srun", "scheduler.kind=slurm"]
    usual = one[:3] if place == "laptop" else one
    changes = [f"cluster.{each.format(cores=cores, more=cores + 1)}" for each in (*usual, *sets)]
    there = load_cluster(place, ["cluster.num_nodes=1"] if place != "laptop" else [])
    assert _has_cores(load_cluster(place, ["cluster.num_nodes=1", *changes]), there) is is_enough


def test_a_dry_run_lists_every_repeat_and_starts_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    cores = len(os.sched_getaffinity(0))
    study = _study(tmp_path, STUDY.replace("ranks: [1]", f"ranks: [1, {cores + 1}]"))
    assert run_scaling(study, tmp_path / "runs", tmp_path, is_dry_run=True, starter=_never) == 0
    told = capsys.readouterr().out.splitlines()
    assert len(told) == 5
    assert f"small-devices-synthetic-b16-r{cores + 1}-predicted" in told[0]
    # Every cell runs once before any cell runs twice.
    assert [line.split()[1] for line in told[1:]] == [
        f"small-{way}-synthetic-b16-r1-{repeat}" for repeat in (1, 2) for way in ("none", "devices")
    ]
    assert [path.name for path in tmp_path.iterdir()] == ["study.yaml"]


def _never(*_arguments: Any) -> int:
    raise AssertionError


def test_a_failed_cell_is_a_row_and_the_others_are_run(tmp_path: Path) -> None:
    seen: list[tuple[str, int]] = []

    def fail(recipe: Recipe, _cluster: Cluster, folder: Path) -> int:
        seen.append((folder.name[-1], recipe.run.seed))
        folder.mkdir(parents=True)
        (folder / "summary.json").write_text(json.dumps({"recipe": "digits", "status": "aborted"}))
        return 1

    assert run_scaling(_study(tmp_path), tmp_path / "runs", tmp_path, is_dry_run=False, starter=fail) == 1
    assert seen == [("1", 1), ("1", 1), ("2", 2), ("2", 2)], "each repeat has a seed of its own"
    rows = _table(tmp_path, "tiny")
    assert [(row["status"], row["images_per_s"]) for row in rows] == [("failed", "")] * 4
    assert "4 failed" in (tmp_path / "tiny.html").read_text(encoding="utf-8")


def test_a_grid_that_cannot_run_is_refused_before_its_first_run(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"^model\.name: "):
        _study(tmp_path, STUDY.replace("resnet8", "resnet9"))
    with pytest.raises(ConfigError, match=r"^study\.ranks: got 24, allowed: up to 16, or a multiple"):
        _study(tmp_path, BEYOND.replace("[8, 32]", "[24]").replace("dgx-a100", str(_wide(tmp_path))))
    with pytest.raises(ConfigError, match=r"^study\.ranks: got \[1, 1\], allowed: every number once"):
        _study(tmp_path, STUDY.replace("ranks: [1]", "ranks: [1, 1]"))


def test_cells_in_leave_out_are_not_run_and_an_unknown_name_in_it_is_refused(tmp_path: Path) -> None:
    text = STUDY.replace("batch: [16]", "batch: [16, 32]") + "leave_out: [{communication: [devices], batch: [32]}]\n"
    cells = [(cell.communication, cell.batch) for cell in _study(tmp_path, text).cells()]
    assert cells == [("none", 16), ("none", 32), ("devices", 16)]
    with pytest.raises(ConfigError, match=r"^study\.leave_out\.batch: got 64, allowed: 16, 32"):
        _study(tmp_path, text.replace("[32]}]", "[64]}]"))


@pytest.mark.ranks
def test_cells_whose_link_cannot_be_shaped_are_predicted_and_the_page_says_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("launch.study.scaling_runs.can_shape", lambda: False)
    slow = "slow: {cluster.communication.link_bytes_per_s: 1e8}}"
    text = STUDY.replace("devices: {cluster.communication.kind: devices}}", slow).replace("repeats: 2", "repeats: 1")
    text += "expects: [{axis: communication, base: none, other: slow, effect: loses, network: small}]\n"
    assert run_scaling(_study(tmp_path, text), tmp_path / "runs", tmp_path, is_dry_run=False, starter=lambda *_: 1) == 1
    rows = {(row["communication"], row["basis"]): row for row in _table(tmp_path, "tiny")}
    assert set(rows) == {("none", "measured"), ("slow", "predicted"), ("slow", "measured")}
    assert rows["slow", "measured"]["status"] == "skipped"
    page = (tmp_path / "tiny.html").read_text(encoding="utf-8")
    assert "1 cell was not run: the loopback cannot be shaped here" in page
    assert "not measured" in page
    told = f"not measured: small loses with slow in place of none\n{tmp_path / 'tiny.html'}\n"
    assert capsys.readouterr().out.endswith(told)


def test_an_expectation_of_something_outside_the_grid_is_refused(tmp_path: Path) -> None:
    text = STUDY + "expects: [{axis: batch, base: 16, other: 32, effect: gains, network: small}]\n"
    with pytest.raises(ConfigError, match=r"^study\.expects\.batch: got 32, allowed: 16"):
        _study(tmp_path, text)


@pytest.mark.ranks
def test_a_study_packs_its_own_data_sets_once_and_says_what_it_cannot_pack(tmp_path: Path) -> None:
    text = STUDY + "prepare: {few: [generated, --train, 3, --eval, 2]}\n"
    text = text.replace("set:", f"set:\n  cluster.paths.data: {tmp_path}")
    ran = run_scaling(_study(tmp_path, text), tmp_path / "runs", tmp_path, is_dry_run=False, starter=lambda *_: 143)
    assert ran == 143
    packed = (tmp_path / "few" / "manifest.json").stat()
    run_scaling(_study(tmp_path, text), tmp_path / "runs", tmp_path, is_dry_run=False, starter=lambda *_: 143)
    assert (tmp_path / "few" / "manifest.json").stat() == packed
    lost = _study(tmp_path, text.replace("few: [gen", "lost: [gone/gen"))
    with pytest.raises(UserError, match="lost: the data set could not be packed"):
        run_scaling(lost, tmp_path / "runs", tmp_path, is_dry_run=False, starter=_never)


@pytest.mark.slow
@pytest.mark.parametrize("path", sorted((ROOT / "configs" / "studies").glob("*.yaml")), ids=lambda path: path.stem)
def test_every_study_that_we_ship_can_be_run(path: Path) -> None:
    study = load_study(path.stem)
    assert study.name == path.stem
    if path.stem.endswith("-laptop"):
        assert isinstance(study, ScalingStudy)
        cells = list(study.cells())
        loaded = [study.load(cell) for cell in cells]
        assert {cluster.device for _, cluster in loaded} == {"cpu"}
        # The studies have real images, and cells that two cores cannot run, which the simulator predicts.
        assert {recipe.data.source for recipe, _ in loaded} & {"idx", "table"}
        assert max(cell.ranks for cell in cells) > 2


def _wide(folder: Path) -> Path:
    """Write a cluster file with sixteen ranks a node."""
    text = (ROOT / "configs" / "clusters" / "dgx-a100.yaml").read_text(encoding="utf-8")
    path = folder / "wide.yaml"
    lines = [line for line in text.splitlines() if "rank_cores" not in line]
    path.write_text("\n".join(lines).replace("ranks_per_node: 8", "ranks_per_node: 16"), encoding="utf-8")
    return path


def test_a_missing_debian_data_set_names_the_command_that_gets_it() -> None:
    with pytest.raises(UserError, match="apt-get install dataset-no-such-set"):
        _require_source(Path("/usr/share/datasets/no-such-set"), "small")
    _require_source(Path("/nowhere"), "small")
