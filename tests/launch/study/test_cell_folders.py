"""What a study takes for a result of its own, leaves beside its folders, and says of what it found there."""

import errno
import os
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from configs.errors import UserError
from configs.load import ROOT, dump, load_both, load_cluster
from configs.programs import Program, command_of
from configs.study import Study
from configs.validate import validate
from launch.start.link import CANNOT_SHAPE
from launch.study import accuracy_runs, prediction, scaling_runs
from launch.study.accuracy_runs import run_accuracy
from launch.study.cell_run import CellRun, require_same_settings
from launch.study.prediction import Prediction
from launch.study.scaling_runs import _has_cores, _require_source, run_scaling
from logs.claims import take
from logs.folder import Summary, write_summary
from logs.study.cells import PREDICTION_FILE, ScalingRow
from tests.launch.study.test_cell_run import STUDY, Starter, _grid

OTHER = ": holds a run with other settings than the study has now; remove the folder, or give another --runs"


def _cell(folder: Path, status: int | None = None) -> CellRun:
    return CellRun(*load_both("digits", "laptop"), folder, lambda *_: status)


def test_a_summary_without_its_settings_is_nobodys_result(tmp_path: Path) -> None:
    write_summary(tmp_path, Summary("digits", "success", top1=0.9))
    run = _cell(tmp_path)
    assert require_same_settings(tmp_path, run.recipe, run.cluster) is False
    assert run.summary() is None
    (tmp_path / PREDICTION_FILE).write_text("[]\n", encoding="utf-8")
    assert Prediction((), run.recipe, run.cluster, tmp_path).read() is None


def test_a_folder_of_other_settings_or_with_a_run_in_it_is_named_with_what_to_do(tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text(dump(*load_both("digits", "laptop", ["run.seed=9"])), encoding="utf-8")
    with pytest.raises(UserError) as refusal:
        _cell(tmp_path).summary()
    assert str(refusal.value) == f"{tmp_path}{OTHER}"
    refused = _cell(tmp_path / "cell", status=2)
    with pytest.raises(UserError) as refusal:
        refused.start()
    assert str(refusal.value) == ("cell: the run was refused (see above); correct the study, finished runs are kept")
    assert not refused.ticket.exists()
    take(tmp_path)
    with pytest.raises(UserError, match=f"^{tmp_path}: a run is going on in it: [^:]*process {os.getpid()}.*; wait"):
        _cell(tmp_path).start()


def test_a_job_leaves_its_mark_also_where_there_is_no_folder_yet_and_says_where_it_cannot(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("first", "second", "at 2.5 Gbit"):  # the second finds the folder of the first
        run = _cell(tmp_path / "deep" / "runs" / name)
        assert run.start() is None
        assert run.ticket == tmp_path / "deep" / "runs" / f"{name}.submitted"
        assert run.ticket.is_file()

    def fail(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Path, "touch", fail)
    with pytest.raises(UserError, match=r"third\.submitted: cannot be written: the disk is full"):
        _cell(tmp_path / "third").start()


def test_a_prediction_makes_its_folder_or_says_why_it_cannot(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prediction, "_SIMULATOR", ["echo"])
    pair = load_both("digits", "abci-v100")
    assert Prediction((), *pair, tmp_path / "deep" / "cell").start() == 0
    assert (tmp_path / "deep" / "cell" / PREDICTION_FILE).is_file()

    def fail(*_: object, **__: object) -> None:
        raise OSError(errno.EROFS, "Read-only file system")

    monkeypatch.setattr(Path, "mkdir", fail)
    with pytest.raises(UserError, match=f"^{tmp_path}/none: cannot be written: the file system is read-only"):
        Prediction((), *pair, tmp_path / "none").start()


def test_the_simulator_is_that_of_run_sh_and_measures_this_machine_in_the_folder_of_the_program(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert command_of(Program.SIMULATE_VERB, "simulate") == prediction._SIMULATOR
    assert ROOT / "runs" / "this-machine.yaml" == prediction._DESCRIPTION
    monkeypatch.chdir(tmp_path)
    # A measurement that fails is the simulator's to report.
    script = f'[ "$1" != --calibrate-here ] || {{ pwd >{tmp_path}/place; exit 1; }}'
    monkeypatch.setattr(prediction, "_SIMULATOR", ["sh", "-c", script, "simulate"])
    monkeypatch.setattr(prediction, "_DESCRIPTION", tmp_path / "none.yaml")
    assert Prediction((), *load_both("digits", "laptop"), tmp_path / "cell").start() == 0
    assert (tmp_path / "place").read_text(encoding="utf-8") == f"{ROOT}\n"


def test_a_finished_accuracy_study_tells_each_result_once_and_writes_its_page(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    written: list[tuple[Any, ...]] = []
    monkeypatch.setattr(accuracy_runs, "write_study", lambda *words: written.append(words))
    study = validate(Study, STUDY | {"seeds": [1, 2], "curves": {"LARS": {"grid": {32: [0.5, 1]}}}}, "study.")
    for _ in range(2):
        capsys.readouterr()
        assert run_accuracy(study, tmp_path / "runs", tmp_path / "out", is_dry_run=False, starter=Starter()) == 0
    assert [line.split() for line in capsys.readouterr().out.splitlines()] == [
        ["1/2", "LARS-32-0.5-seed1", "0.0500"],
        ["2/2", "LARS-32-1-seed1", "0.1000"],
        ["1/1", "LARS-32-1-seed2", "0.1000"],
    ]
    of_which, results, folder = written[1]
    assert (of_which, folder) == (study, tmp_path / "out")
    assert [cell.folder for cell in results] == ["LARS-32-0.5-seed1", "LARS-32-1-seed1", "LARS-32-1-seed2"]


def test_a_measurement_that_failed_is_no_rate_but_a_row_with_its_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    rows: list[ScalingRow] = []
    monkeypatch.setattr(
        scaling_runs, "write_scaling", lambda _study, found, _folder: rows.__setitem__(slice(None), found)
    )
    monkeypatch.setattr(scaling_runs, "write_scaling_page", lambda *_: None)
    effect = {"axis": "batch", "base": 32, "other": 64, "effect": "gains", "network": "plain"}
    study = _grid(repeats=1, batch=[32, 64], expects=[effect])
    failing = Starter(lambda recipe: Summary(recipe.name, "aborted", failure="broke"), status=1)
    assert run_scaling(study, tmp_path / "runs", tmp_path, is_dry_run=False, starter=failing) == 1
    names = [f"plain-alone-real-b{batch}-r1-1" for batch in (32, 64)]
    told = [{name: asdict(row)[name] for name in ("basis", "status", "folder")} for row in rows]
    assert told == [{"basis": "measured", "status": "failed", "folder": name} for name in names]
    assert capsys.readouterr().out.splitlines()[-2:] == [
        "not measured: plain gains with batch 64 in place of batch 32",
        f"{tmp_path}/{study.name}.html",
    ]


def test_the_cores_of_a_place_are_those_that_this_process_may_use(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.cpu_count", lambda: 64)
    monkeypatch.setattr("os.sched_getaffinity", {0: {1, 4, 5}}.__getitem__)
    place = load_cluster("laptop")
    place = load_cluster("laptop")
    assert [_has_cores(load_cluster("laptop", [f"cluster.ranks_per_node={n}"]), place) for n in (3, 4)] == [True, False]
    # Neither the machines of a scheduler nor those with GPUs are limited by the cores of this one.
    jobs = load_cluster("laptop", ["cluster.num_nodes=4", "cluster.launcher=srun"])
    assert _has_cores(load_cluster("laptop", ["cluster.ranks_per_node=8"]), jobs)
    gpus = load_cluster("a100-node", ["cluster.launcher=local"])
    assert (gpus.device, gpus.launcher) == ("gpu", "local")
    assert _has_cores(gpus, gpus)


def test_a_cell_whose_link_cannot_be_shaped_is_told_and_has_a_row_and_the_others_are_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    slow = {"plain": {}, "slow": {"cluster.communication.link_bytes_per_s": 1e8}}
    study = _grid(repeats=1, communication=slow)
    for can_shape in (True, False):
        monkeypatch.setattr(scaling_runs, "can_shape", lambda can_shape=can_shape: can_shape)
        assert run_scaling(study, tmp_path / "runs", tmp_path, is_dry_run=True, starter=Starter()) == 0
        told = capsys.readouterr().out
        assert ("not run: 1 cell: the loopback cannot be shaped here" in told) is not can_shape
        assert ("plain-slow-real-b32-r1-1 " in told) is can_shape
        assert "plain-plain-real-b32-r1-1 " in told
    (row,) = scaling_runs._skipped(study)
    (cell,) = [cell for cell in study.cells() if cell.communication == "slow"]
    assert row == ScalingRow(*cell.axes, 0, "measured", "skipped", note=CANNOT_SHAPE)


def test_data_of_a_debian_package_is_asked_for_where_it_is_missing_and_before_it_is_packed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scaling_runs, "_DEBIAN_DATASETS", tmp_path)
    monkeypatch.setattr(scaling_runs, "pack", lambda _words: pytest.fail("nothing is there to be packed"))
    study = _grid(
        set={"cluster.paths.data": str(tmp_path / "packed")}, prepare={"small": [f"{tmp_path}/fashion/images"]}
    )
    with pytest.raises(UserError) as refusal:
        run_scaling(study, tmp_path, tmp_path, is_dry_run=False, starter=Starter())
    assert str(refusal.value) == (
        f"study.prepare.small: {tmp_path}/fashion/images is missing; it comes with Debian's package dataset-fashion: "
        "apt-get install dataset-fashion, or name another folder of IDX files in the study"
    )
    (tmp_path / "fashion" / "images").mkdir(parents=True)
    _require_source(tmp_path / "fashion" / "images", "small")
