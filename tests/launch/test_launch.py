"""A whole run without its ranks: outcomes and files stand for them. `test_run` and `test_resume` start real ranks."""

import hashlib
import io
import json
import os
import re
import shutil
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from configs.errors import REFUSED_STATUS, UserError
from configs.load import dump, load_both, load_run
from configs.rank_variables import rank_environment
from configs.registry import has_engine
from configs.schema import Cluster
from launch import run
from launch.__main__ import main
from launch.run import launch_run, open_run
from launch.start.local import Outcome
from logs.checkpoints import SavedState
from logs.claims import Claims
from logs.folder import RunFolder, Summary
from tests.programs import Said, run_program
from tests.runs import begin_logs

BROKEN = {"rank": 0, "host": "here", "step": 7, "message": "broke", "second_hand": False, "status": 1, "time": 1.0}
RESTARTS = "cluster.scheduler.max_restarts=2"


class Ranks:
    """Stands for the ranks of runs: plays the given endings, one for each start.

    Attributes:
        endings: What each start does in the run folder, and how the launcher ends.
        started: The run folder, the cluster and the variables of each start.
    """

    def __init__(self) -> None:
        self.endings: list[Callable[[RunFolder], Outcome]] = []
        self.started: list[tuple[Path, Cluster, dict[str, str]]] = []

    def run_under(self, cluster: Cluster, command: list[str], variables: dict[str, str]) -> Outcome:
        folder = Path(command[-1])
        self.started.append((folder, cluster, variables))
        assert load_run(folder / "config.yaml")[1] == cluster
        return self.endings[len(self.started) - 1](RunFolder(folder))


def succeeds(folder: RunFolder) -> Outcome:
    folder.write_summary(Summary("digits", "success", steps=9, is_rehearsal=True))  # which needs no log
    return Outcome(0)


@pytest.fixture
def ranks(monkeypatch: pytest.MonkeyPatch) -> Ranks:
    """Replace the start of ranks, which takes seconds."""
    found = Ranks()
    monkeypatch.setattr(run, "run_under", found.run_under)
    return found


@pytest.fixture
def sets(packed_digits: Path) -> list[str]:
    """Settings with which no data set has to be packed."""
    return [f"cluster.paths.data={packed_digits}"]


def test_ranks_get_the_recorded_variables_and_the_whole_path_of_a_folder_below_this_one(
    tmp_path: Path, sets: list[str], ranks: Ranks, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    recipe, cluster = load_both("digits", "laptop", [*sets, "cluster.ranks_per_node=1"])
    ranks.endings = [succeeds]
    assert launch_run(recipe, cluster, Path("runs/one")) == 0
    assert ranks.started == [(tmp_path / "runs" / "one", cluster, rank_environment(cluster))]
    recorded = json.loads((tmp_path / "runs" / "one" / "environment.json").read_text(encoding="utf-8"))
    assert recorded["variables"].items() >= {"OMP_NUM_THREADS": ranks.started[0][2]["OMP_NUM_THREADS"]}.items()
    told = capsys.readouterr()
    assert told.err == "digits on laptop: 1 rank, runs/one\n"
    assert told.out.splitlines()[-1] == "  runs/one"


@pytest.mark.medium
@pytest.mark.parametrize("outcome", [Outcome(130, stopped_by=2), Outcome(130, interrupted_by=2)])
def test_ctrl_c_before_the_first_step_leaves_no_folder_and_after_it_says_how_to_go_on(
    outcome: Outcome, tmp_path: Path, sets: list[str], ranks: Ranks, capsys: pytest.CaptureFixture[str]
) -> None:
    both, folder = load_both("digits", "laptop", sets), tmp_path / "the run"
    ranks.endings = [lambda _: outcome] * 2
    assert launch_run(*both, folder) == 130
    assert not folder.exists()
    told = "digits: stopped by Ctrl-C before training began: nothing was saved, nothing is left"
    assert capsys.readouterr().err.splitlines()[1:] == [told]
    folder.mkdir()
    RunFolder(folder).write_settings(*both)
    RunFolder(folder).checkpoints.write(3, SavedState({}, {}), keep=1)
    begin_logs(folder)
    assert launch_run(*both, folder, must_resume=True) == 130
    assert capsys.readouterr().out.splitlines() == [
        "digits: " + ("stopped by Ctrl-C" if outcome.stopped_by else "ended at once by a second Ctrl-C"),
        f"  continue with ./run.sh train --resume '{folder}'",
        f"  {folder}",
    ]
    assert RunFolder(folder).checkpoints.files()


def test_a_run_that_one_rank_refused_is_kept_with_rank_and_reason(
    tmp_path: Path, sets: list[str], ranks: Ranks, capsys: pytest.CaptureFixture[str]
) -> None:
    def ends_others(folder: RunFolder) -> Outcome:
        for rank, status in ((0, 75), (1, 2)):
            row = BROKEN | {"rank": rank, "host": f"node{rank}", "step": None, "status": status, "message": "no file"}
            row["second_hand"] = status == 75
            (folder / f"failure_{rank}.json").write_text(json.dumps(row), encoding="utf-8")
        return Outcome(75)

    ranks.endings = [ends_others]
    folder = tmp_path / "run"
    assert launch_run(*load_both("digits", "laptop", [*sets, RESTARTS]), folder) == 2
    summary = RunFolder(folder).summary()
    assert (summary.status, summary.failed_rank) == ("aborted", 1)
    assert summary.failure == "rank 1 on node1 refused to start: no file"
    assert f"error: {folder}: {summary.failure}" in capsys.readouterr().err
    assert len(ranks.started) == 1


@pytest.mark.medium
@pytest.mark.parametrize("left", ["checkpoint", "attempt", "files of an attempt"])
def test_ranks_that_refuse_to_resume_leave_the_folder(left: str, tmp_path: Path, sets: list[str], ranks: Ranks) -> None:
    both, folder = load_both("digits", "laptop", sets), RunFolder(tmp_path)
    folder.write_settings(*both)
    if left == "checkpoint":
        folder.checkpoints.write(3, SavedState({}, {}), keep=1)
        begin_logs(tmp_path)
    elif left == "attempt":
        assert folder.attempts.add("failed", "broke", limit=1) is None
    else:
        (folder / "metrics.jsonl").touch()
    before = {path.name for path in tmp_path.iterdir()} - {"metrics.jsonl"}
    ranks.endings = [lambda _: Outcome(REFUSED_STATUS)]
    assert launch_run(*both, tmp_path) == 2
    if left == "files of an attempt":
        assert {path.name for path in tmp_path.iterdir()} == {"attempt-1"}
        return
    assert {path.name for path in tmp_path.iterdir()} >= before
    assert len(folder.checkpoints.files()) == (left == "checkpoint")
    assert (folder.summary().status, folder.summary().failure) == ("aborted", "the ranks refused to start")


@pytest.mark.parametrize("status", [0, 1, REFUSED_STATUS])
def test_a_launcher_that_lost_its_folder_leaves_it_to_the_other_one(
    status: int, tmp_path: Path, sets: list[str], ranks: Ranks, capsys: pytest.CaptureFixture[str]
) -> None:
    def lose_folder(folder: RunFolder) -> Outcome:
        (folder / "claims" / "2.json").write_text("{}", encoding="utf-8")
        return Outcome(status)

    ranks.endings = [lose_folder]
    assert launch_run(*load_both("digits", "laptop", [*sets, RESTARTS]), tmp_path / "run") == 1
    words = f"error: {tmp_path / 'run'}: was taken over by another run; this run stops\n"
    assert capsys.readouterr().err.endswith(words)
    left = {path.name for path in (tmp_path / "run").iterdir()}
    assert left == {"config.yaml", "environment.json", "claims", "utilisation.jsonl"}


@pytest.mark.medium
def test_trouble_with_the_disk_after_the_ranks_is_a_failed_run_and_no_refusal(
    tmp_path: Path, sets: list[str], ranks: Ranks, capsys: pytest.CaptureFixture[str]
) -> None:
    def leave_a_full_disk(folder: RunFolder) -> Outcome:
        (folder / f".summary.json.{os.getpid()}").symlink_to("/dev/full")
        return Outcome(1)

    ranks.endings = [leave_a_full_disk]
    assert launch_run(*load_both("digits", "laptop", sets), tmp_path / "run") == 1
    *_, cause, trouble = capsys.readouterr().err.splitlines()
    assert cause == "digits: the launcher ended with status 1"
    assert "summary.json: cannot be written: the disk is full; " in trouble


def test_a_run_whose_environment_was_moved_meanwhile_tells_how_it_ended_and_why_it_is_not_judged(
    tmp_path: Path, sets: list[str], ranks: Ranks, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def move_the_environment(folder: RunFolder) -> Outcome:
        folder.write_summary(Summary("digits", "success", steps=9))
        (folder / "result_0.txt").touch()
        monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
        return Outcome(0)

    ranks.endings = [move_the_environment]
    assert launch_run(*load_both("digits", "laptop", sets), tmp_path / "run") == 1
    *_, ended, trouble = capsys.readouterr().err.splitlines()
    assert ended == "digits: success"
    assert all(words in trouble for words in (sys.executable, ".venv was moved", "put it back"))


def test_a_folder_in_which_somebody_trains_stays_as_it_is(tmp_path: Path, sets: list[str]) -> None:
    both = load_both("digits", "laptop", sets)
    RunFolder(tmp_path).write_settings(*both)
    for name in ("stop", "metrics.jsonl"):
        (tmp_path / name).touch()
    Claims(tmp_path).take()
    with pytest.raises(UserError, match="a run is active in it"):
        launch_run(*both, tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {"config.yaml", "stop", "metrics.jsonl", "claims"}


ENDED = "the run in it has ended, {} after step 9; give another folder with --run-dir, or leave the option out; "


def _begun(path: Path, sets: list[str], summary: Summary) -> RunFolder:
    """Return the folder of a run that has a checkpoint and a summary."""
    folder = RunFolder(path)
    folder.write_settings(*load_both("digits", "laptop", sets))
    folder.checkpoints.write(3, SavedState({}, {}), keep=1)
    begin_logs(path)
    folder.write_summary(summary)
    return folder


@pytest.mark.parametrize(
    ("summary", "more", "refusal"),
    [
        (Summary("digits", "success", steps=9), [], ENDED.format("success")),
        (Summary("digits", "success", steps=9), ["run.epochs=99"], ENDED.format("success")),
        (Summary("digits", "aborted"), ["run.seed=2"], "run.seed: got 2, the run was started with 1"),
    ],
)
def test_a_run_that_has_ended_or_another_one_is_not_resumed(
    summary: Summary, more: list[str], refusal: str, tmp_path: Path, sets: list[str]
) -> None:
    folder = _begun(tmp_path, sets, summary)
    before = {path: path.read_bytes() for path in tmp_path.iterdir() if path.is_file()}
    with pytest.raises(UserError) as refused:
        launch_run(*load_both("digits", "laptop", [*sets, *more]), tmp_path)
    assert {path: path.read_bytes() for path in tmp_path.iterdir() if path.is_file()} == before
    assert refusal in str(refused.value)
    assert str(refused.value).startswith(f"{tmp_path}: ")
    assert folder.claims.holder() is None


@pytest.mark.medium
@pytest.mark.parametrize(
    ("ended", "told"),
    [
        ({}, ""),
        ({"steps": 9, "is_saved": False}, ""),
        ({"steps": 9}, "warning: {}: the run continues with 99 epochs instead of .*\n"),
    ],
)
def test_a_run_is_resumed_that_was_stopped_or_not_saved_or_gets_more_epochs_after_it_missed_its_target(
    ended: dict[str, Any], told: str, tmp_path: Path, sets: list[str], ranks: Ranks, capsys: pytest.CaptureFixture[str]
) -> None:
    _begun(tmp_path, sets, Summary("digits", "aborted", **ended))
    more = ["run.epochs=99"] if told else []
    ranks.endings = [succeeds]
    assert launch_run(*load_both("digits", "laptop", [*sets, *more]), tmp_path, must_resume=True) == 0
    first = f"resumes from {tmp_path}/checkpoints/step-00000003.ckpt\n"
    assert re.match(f"{told.format(tmp_path)}{first}", capsys.readouterr().err)


@pytest.mark.medium
def test_a_run_is_resumed_without_the_files_of_its_end_from_its_newest_finite_checkpoint_and_refused_without_one(
    tmp_path: Path, sets: list[str], ranks: Ranks, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = RunFolder(tmp_path)
    folder.write_settings(*load_both("digits", "laptop", sets))
    whole, odd = (folder.checkpoints.write(step, SavedState({}, {}), keep=2) for step in (3, 5))
    _spoil(odd)
    gone, stays = {"stop", "verdict.json", "failure_1.json"}, {"metrics.jsonl", "hosts", "result_0.txt"}
    begin_logs(tmp_path)
    for name in (*gone, *stays):
        (tmp_path / name).touch()
    folder.write_summary(Summary("digits", "aborted"))

    def look(folder: RunFolder) -> Outcome:
        left = {path.name for path in folder.path.iterdir()}
        assert not left & {*gone, "summary.json"}
        assert stays <= left
        assert folder.checkpoints.resume_point() == whole
        return Outcome(1, stopped_by=15)

    ranks.endings = [look]
    assert launch_run(*folder.settings, tmp_path) == 75
    first, second, *_ = capsys.readouterr().err.splitlines()
    assert all(words in first for words in (str(odd), "momenta/0", "not finite", f"{whole.name} is taken"))
    assert second == f"resumes from {whole}"
    _spoil(whole)
    for must_resume in (False, True):
        with pytest.raises(UserError, match=rf"{whole}: momenta/0 is not finite.* --run-dir$"):
            launch_run(*folder.settings, tmp_path, must_resume=must_resume)
    assert capsys.readouterr().err == ""
    assert whole.exists()


def _spoil(path: Path) -> None:
    """Write a checkpoint that is not finite, as earlier versions did."""
    file = io.BytesIO()
    np.savez(file, **{"meta": np.array("{}"), "momenta/0": np.array([1, np.nan], np.float32)})
    path.write_bytes(file.getvalue() + hashlib.blake2b(file.getvalue(), digest_size=32).digest())


@pytest.mark.medium
def test_attempts_without_a_checkpoint_are_closed_numbered_and_set_aside(
    tmp_path: Path, sets: list[str], ranks: Ranks
) -> None:
    folder, job = RunFolder(tmp_path), {"hosts", "job.sh", "job.json", "unfinished", "energy_0.json"}
    folder.write_settings(*load_both("digits", "laptop", sets))
    for name in job:
        (tmp_path / name).touch()
    (tmp_path / "resume-from").write_text("step-00000003.ckpt\n", encoding="utf-8")  # its checkpoint is damaged now

    def leave_metrics(folder: RunFolder) -> Outcome:
        assert folder.checkpoints.resume_point() is None
        (folder / "metrics.jsonl").touch()
        return Outcome(1, stopped_by=15)

    ranks.endings = [leave_metrics] * 3
    for attempts in (1, 2):
        assert launch_run(*folder.settings, tmp_path) == 75
        assert {path.name for path in tmp_path.iterdir() if path.is_dir()} == {
            "claims", *(f"attempt-{number}" for number in range(1, attempts + 1))
        }  # fmt: skip
        assert {path.name for path in tmp_path.iterdir()} >= job
    closed = RunFolder(tmp_path / "attempt-1").summary()
    assert (closed.status, closed.failure) == ("aborted", "the attempt ended without closing its log")
    assert (tmp_path / "attempt-2" / "metrics.jsonl").is_file()
    shutil.rmtree(tmp_path / "attempt-1")
    (tmp_path / "attempt-notes").mkdir()
    assert launch_run(*folder.settings, tmp_path) == 75
    assert {path.name for path in tmp_path.glob("attempt-?")} == {"attempt-2", "attempt-3"}


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ([], "{folder}: no config.yaml in it; --resume needs the folder of a run"),
        (
            ["config.yaml"],
            "{folder}: no complete checkpoint in it; start the run again: "
            "./run.sh train {folder}/config.yaml --run-dir {folder}",
        ),
    ],
)
def test_resume_refuses_a_folder_without_a_run_to_resume(
    content: list[str], words: str, tmp_path: Path, sets: list[str]
) -> None:
    both = load_both("digits", "laptop", sets)
    if content:
        RunFolder(tmp_path).write_settings(*both)
    with pytest.raises(UserError) as refusal:
        launch_run(*both, tmp_path, must_resume=True)
    assert str(refusal.value) == words.format(folder=tmp_path)


_NO_COMPILER = ["engine.name=torch", "engine.compile=true", "environment={CXX: no-such-compiler}"]


@pytest.mark.usefixtures("with_mxnet")
@pytest.mark.parametrize(
    ("changes", "words"),
    [
        (["launcher=mpirun"], "allowed: mpi or nccl under mpirun"),
        (["ranks_per_node=3"], "a multiple of 3"),
        pytest.param(_NO_COMPILER, "no C++ compiler (no-such-compiler)",
                     marks=pytest.mark.skipif(not has_engine("torch"), reason="torch is not installed")),
    ],
)  # fmt: skip
def test_what_cannot_start_is_refused_before_data_are_packed_or_a_folder_is_made(
    changes: list[str], words: str, tmp_path: Path
) -> None:
    sets = [f"cluster.{each}" for each in (f"paths.data={tmp_path}/data", *changes)]
    with pytest.raises(UserError, match=re.escape(words)):
        launch_run(*load_both("digits", "laptop", sets), tmp_path / "run")
    assert not list(tmp_path.iterdir())


@pytest.mark.medium
def test_a_run_without_a_folder_gets_one_of_its_name_and_its_data_are_packed_first(
    tmp_path: Path, ranks: Ranks
) -> None:
    places = [f"cluster.paths.data={tmp_path}/data", f"cluster.paths.runs={tmp_path}/runs"]

    def look(folder: RunFolder) -> Outcome:
        assert (tmp_path / "data" / "digits" / "manifest.json").is_file()
        assert folder.path.parent == tmp_path / "runs"
        assert folder.path.name.startswith("digits-")
        return succeeds(folder)

    ranks.endings = [look]
    assert launch_run(*load_both("digits", "laptop", places), None) == 0


@pytest.mark.medium
def test_the_folder_of_a_job_is_made_after_its_data_were_packed_and_holds_its_config(
    tmp_path: Path, sets: list[str], capfd: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "run"
    with pytest.raises(UserError, match="a multiple of 3"):
        open_run(*load_both("digits", "laptop", [*sets, "cluster.ranks_per_node=3"]), folder)
    with pytest.raises(UserError, match="/file/digits: the data set could not be packed, for the reason given above"):
        (tmp_path / "file").touch()
        open_run(*load_both("digits", "laptop", [f"cluster.paths.data={tmp_path}/file"]), folder)
    assert not folder.exists()
    own = load_both("digits", "laptop", [f"cluster.paths.data={tmp_path}/none", "data.source=idx"])
    open_run(*own, folder)  # Nobody but the user has these images.
    assert "classes" not in capfd.readouterr().err
    open_run(*load_both("digits", "laptop", [*sets, "model.num_classes=12"]), tmp_path / "wider")
    assert "10 classes, the recipe says model.num_classes: 12" in capfd.readouterr().err
    assert load_run(folder / "config.yaml") == own
    with pytest.raises(UserError, match="exists already"):
        open_run(*own, folder)


def test_slow_and_contradictory_settings_are_told_before_the_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sets = ["cluster.engine.name=torch", "cluster.device=gpu", "cluster.ranks_per_node=8"]
    open_run(*load_both("imagenet-b256", "laptop", sets), tmp_path / "fast")
    assert "warning" not in capsys.readouterr().err
    sets += ["cluster.engine.precision=float32", "data.train_samples=240"]
    open_run(*load_both("imagenet-b256", "laptop", sets), tmp_path / "slow")
    told = capsys.readouterr().err
    for words in ("batch.global_size=256", "cluster.engine.precision=float32", "schedule.decay.boundaries"):
        assert f"warning: {words}" in told


@pytest.mark.medium
@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["digits", "--run-dir", "{run}/new"], ("digits", "laptop", 0, 0, "new")),
        (["digits", "--trace", "--run-dir", "{run}/new"], ("digits", "laptop", 0, 3, "new")),
        (["--resume", "{run}/old"], ("digits-once", "a-lab", 0, 0, "old")),
        (["--resume", "{run}/old", "--cluster", "laptop"], ("digits-once", "laptop", 0, 0, "old")),
    ],
)
def test_the_arguments_of_train_say_what_is_run_where(
    arguments: list[str], told: tuple[Any, ...], tmp_path: Path, sets: list[str], ranks: Ranks
) -> None:
    recipe, cluster = load_both("digits", "laptop", sets)
    (tmp_path / "old").mkdir()
    old = RunFolder(tmp_path / "old")
    old.checkpoints.write(3, SavedState({}, {}), keep=1)
    begin_logs(old.path)
    old.write_settings(recipe.model_copy(update={"name": "digits-once"}), cluster.model_copy(update={"name": "a-lab"}))
    found: list[tuple[Any, ...]] = []

    def note(folder: RunFolder) -> Outcome:
        recipe, cluster = load_run(folder / "config.yaml")
        found.append((recipe.name, cluster.name, cluster.scheduler.max_restarts, cluster.trace_steps, folder.path.name))
        return succeeds(folder)

    ranks.endings = [note]
    place = [word for each in sets for word in ("--set", each)]
    assert main(["train", *(argument.format(run=tmp_path) for argument in arguments), *place]) == 0
    assert found == [told]


def test_neither_a_recipe_nor_a_run_and_weights_for_a_run_that_has_its_own_are_refused(said: Said) -> None:
    for words, told in (([], "RECIPE is missing"), (["digits", "--from", "a", "--resume", "b"], "--from begins a new")):
        assert said(main, "train", *words, status=2).err.startswith(f"error: {told}")


def test_a_key_that_this_version_lacks_is_told_with_the_file_of_the_run(tmp_path: Path, said: Said) -> None:
    text = dump(*load_both("digits", None)).replace("seed:", "sede:")
    (tmp_path / "config.yaml").write_text(text, encoding="utf-8")
    told = said(main, "train", "--resume", tmp_path, status=2).err
    assert told.startswith(f"error: {tmp_path}/config.yaml: run.sede: no such key; ")
    assert told.endswith("; environment.json beside it names the commit that wrote it\n")


def test_a_python_without_the_programs_packages_is_led_to_the_command() -> None:
    bare = os.path.realpath(sys.executable)  # that of no environment
    done = run_program(bare, "-ES", "-m", "launch", "train", "digits")
    assert (done.returncode, done.stderr.count("\n"), "start the program by ./run.sh" in done.stderr) == (2, 1, True)


@pytest.mark.medium
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGHUP])
def test_a_second_signal_does_not_keep_the_log_from_being_closed(
    number: signal.Signals, tmp_path: Path, sets: list[str], ranks: Ranks
) -> None:
    """The user's own command sends the signal, while the launcher closes the run."""

    def is_interrupted(folder: RunFolder) -> Outcome:
        (folder / "startup.json").touch()  # which ranks leave that have begun to train
        return Outcome(130, interrupted_by=signal.SIGINT)

    ranks.endings = [is_interrupted]
    notify = f"cluster.notify=kill -{number:d} $PPID; touch $RUN_FOLDER/told"
    assert launch_run(*load_both("digits", "laptop", [*sets, notify]), tmp_path / "run") == 130
    assert (tmp_path / "run" / "told").exists()
    assert RunFolder(tmp_path / "run").claims.holder() is None
