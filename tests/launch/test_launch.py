"""What the launcher does around the ranks, with outcomes in place of ranks; `test_run` and `test_resume` have them."""

import json
import os
import queue
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from configs.errors import UserError
from configs.load import dump, load_both
from configs.schema import Cluster, Recipe
from launch import resume, run
from launch.__main__ import main
from launch.start.local import Outcome
from logs.checkpoints import SavedState, resume_checkpoint, write
from logs.claims import holder, owned_by, take
from logs.folder import Summary, read_summary, write_summary
from logs.judge.compliance import Verdict

STOPPED = {"rank": 0, "host": "here", "step": 7, "message": "told to stop", "second_hand": False, "status": 75,
           "time": 1.0}  # fmt: skip
SUCCESS = Summary("digits", "success", steps=9)
ABORTED = Summary("digits", "aborted", failure="loss not finite", steps=9)


@pytest.mark.parametrize(
    ("summary", "outcome", "passed", "status", "told"),
    [
        (SUCCESS, Outcome(0), True, 0, ("end", "digits: success")),
        (SUCCESS, Outcome(0), False, 1, ("end", "digits: success")),
        (Summary("digits", "success", resumed_from_step=3), Outcome(0), False, 0, ("end", "digits: success")),
        (Summary("digits", "success", is_rehearsal=True), Outcome(0), False, 0, ("end", "digits: success")),
        (ABORTED, Outcome(0), True, 1, ("failure", "digits: aborted: loss not finite")),
        (ABORTED, Outcome(9), True, 1, ("failure", "digits: aborted: loss not finite")),
        (ABORTED, Outcome(130, interrupted_by=2), True, 130, ("failure", "digits: aborted: loss not finite")),
        (ABORTED, Outcome(75, stopped_by=15), True, 75, ("stop", "digits: aborted: loss not finite")),
        (None, Outcome(9), True, 1, ("failure", "digits: aborted: the launcher ended with status 9")),
        (None, Outcome(1), True, 75, ("stop", "digits: aborted: told to stop")),
        (None, Outcome(1, lost_server=3), True, 1,
         ("failure", "digits: aborted: a parameter server ended with status 3 before the ranks did")),
        (None, Outcome(205), True, 1, ("failure", "digits: aborted: the launcher ended with status 205; mpirun "
                                                "has lost a host, or the network to it")),
    ],
)  # fmt: skip
def test_the_end_of_a_run_makes_the_exit_status_and_is_told(
    summary: Summary | None, outcome: Outcome, passed: bool, status: int, told: tuple[str, str], tmp_path: Path
) -> None:
    recipe, cluster = load_both("digits", "laptop", ["cluster.notify=echo $RUN_EVENT, $RUN_MESSAGE >$RUN_FOLDER/told"])
    recipe = recipe.model_copy(update={"mlperf": recipe.mlperf.model_copy(update={"ruleset": "4.0.0"})})
    (tmp_path / "config.yaml").write_text(dump(recipe, cluster), encoding="utf-8")
    if told[0] == "stop":
        (tmp_path / "failure_0.json").write_text(json.dumps(STOPPED), encoding="utf-8")
    (tmp_path / "result_0.txt").touch()
    if summary:
        write_summary(tmp_path, summary)
    verdicts = {name: Verdict(name, passed == (name == "4.0.0"), ("bad",)) for name in ("4.0.0", "0.6.0")}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(run, "write_verdict", lambda _: verdicts)
        assert run.finish_run(tmp_path, recipe, cluster, outcome) == status
    if summary is None:
        made = read_summary(tmp_path)
        assert (made.failed_rank, made.failed_step) == (None, 7 if told[0] == "stop" else None)
    assert (tmp_path / "told").read_text(encoding="utf-8") == f"{told[0]}, {told[1]}\n"


def _launch(folder: Path, monkeypatch: pytest.MonkeyPatch, *outcomes: Outcome, **options: Any) -> tuple[int, int]:
    """Return the exit status of a run whose ranks end so, and how often they were started."""
    left = list(outcomes)
    monkeypatch.setattr(run, "_check_and_pack", lambda *_: None)
    monkeypatch.setattr(run, "_run_ranks", lambda *_: left.pop(0))
    monkeypatch.setattr(run, "finish_run", lambda *_: 42)
    overrides = options.pop("overrides", [])
    return run.launch_run(*load_both("digits", "laptop", overrides), folder, **options), len(outcomes) - len(left)


def test_ranks_that_refuse_leave_no_folder_and_failed_ones_are_started_as_often_as_allowed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "run"
    assert _launch(folder, monkeypatch, Outcome(2)) == (2, 1)
    assert not folder.exists()
    assert _launch(folder, monkeypatch, Outcome(1)) == (42, 1)
    restarts = ["cluster.scheduler.max_restarts=1"]
    assert _launch(folder.with_name("wrong"), monkeypatch, Outcome(2), overrides=restarts) == (2, 1)
    assert not folder.with_name("wrong").exists()
    assert _launch(tmp_path / "again", monkeypatch, Outcome(1), Outcome(0), overrides=restarts) == (42, 2)
    assert _launch(tmp_path / "twice", monkeypatch, Outcome(1), Outcome(1), overrides=restarts) == (42, 2)


@pytest.mark.parametrize("secret", [True, False])
def test_a_config_with_a_secret_is_its_owners(secret: bool, tmp_path: Path) -> None:
    overrides = ["cluster.environment={MY_TOKEN: a}"] if secret else []
    before = os.umask(0o022)
    try:
        run._write_config(tmp_path, *load_both("digits", "laptop", overrides))
    finally:
        os.umask(before)
    assert (tmp_path / "config.yaml").stat().st_mode & 0o777 == (0o600 if secret else 0o644)


def test_a_data_set_that_cannot_be_packed_is_told_and_a_packed_one_is_left_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe, _ = load_both("digits", "laptop")
    monkeypatch.setattr(run, "command_of", lambda *_: ["false"])
    with pytest.raises(UserError) as refusal:
        run._pack_built_in(recipe, tmp_path)
    assert str(refusal.value) == f"{tmp_path}: the data set could not be packed, for the reason given above"
    (tmp_path / "manifest.json").touch()
    run._pack_built_in(recipe, tmp_path)


@pytest.mark.parametrize(
    ("content", "options", "words"),
    [
        ([], {"must_resume": True}, "{folder}: no config.yaml in it; --resume needs the folder of a run"),
        (["config.yaml"], {"must_resume": True},
         "{folder}: no whole checkpoint in it; begin the run anew with --run-dir {folder}"),
        (["config.yaml", "summary.json"], {},
         "{folder}: the run in it has ended, success after step 9; give another folder with --run-dir, or leave the "
         "option out"),
    ],
)  # fmt: skip
def test_a_folder_without_a_run_to_go_on_with_is_refused(
    content: list[str], options: dict[str, Any], words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if "config.yaml" in content:
        (tmp_path / "config.yaml").write_text(dump(*load_both("digits", "laptop")), encoding="utf-8")
    if "summary.json" in content:
        write_summary(tmp_path, SUCCESS)
    with pytest.raises(UserError) as refusal:
        _launch(tmp_path, monkeypatch, **options)
    assert str(refusal.value) == words.format(folder=tmp_path)


def test_a_run_goes_on_from_its_checkpoint_without_the_files_of_its_end(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for step in (3, 5):
        write(tmp_path, step, SavedState({}, {}), keep=2)
    (tmp_path / "checkpoints" / "step-00000005.ckpt").write_bytes(b"damaged")
    gone = {"stop", "summary.json", "verdict.json", "failure_1.json"}
    for name in (*gone, "result_0.txt", "metrics.jsonl", "hosts"):
        (tmp_path / name).touch()
    checkpoint = tmp_path / "checkpoints" / "step-00000003.ckpt"
    assert resume.prepare_attempt(tmp_path) == checkpoint
    told = capsys.readouterr()
    assert told.out == ""
    first, last = told.err.splitlines()
    assert first.startswith("warning: ")
    assert first.endswith("; the checkpoint before it is used")
    assert last == f"resumes from {checkpoint}"
    left = {path.name for path in tmp_path.iterdir()}
    assert not left & gone
    assert {"result_0.txt", "metrics.jsonl", "hosts"} <= left


def test_attempts_without_a_checkpoint_are_numbered(tmp_path: Path) -> None:
    for number in (1, 2):
        (tmp_path / "metrics.jsonl").touch()
        assert resume.prepare_attempt(tmp_path) is None
        assert (tmp_path / f"attempt-{number}" / "metrics.jsonl").is_file()
        assert not (tmp_path / "metrics.jsonl").exists()
    assert {path.name for path in tmp_path.iterdir()} == {"attempt-1", "attempt-2"}


def test_an_attempt_without_a_checkpoint_is_closed_and_leaves_the_job_s_files_and_the_hosts(tmp_path: Path) -> None:
    kept = {"config.yaml", "unfinished", "hosts", "job.sh", "job.json", "attempts.jsonl"}
    for name in kept:
        (tmp_path / name).touch()
    (tmp_path / "claims").mkdir()
    assert resume.prepare_attempt(tmp_path) is None
    assert not (tmp_path / "summary.json").exists(), "there was no attempt"
    (tmp_path / "goes-on-from").write_text("step-00000003.ckpt\n", encoding="utf-8")  # its checkpoint is damaged now
    assert resume.prepare_attempt(tmp_path) is None
    assert {path.name for path in tmp_path.iterdir()} == {*kept, "claims", "attempt-1"}
    closed = read_summary(tmp_path / "attempt-1")
    assert (closed.status, closed.failure) == ("aborted", "the attempt ended without closing its log")
    assert resume_checkpoint(tmp_path) is None


def test_a_run_is_prepared_and_trained_under_a_claim_that_ends_with_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder, both = tmp_path / "run", load_both("digits", "laptop")
    with resume.prepared_folder(folder, *both, must_resume=False) as checkpoint:
        assert checkpoint is None
        assert owned_by(folder, os.getpid())
        (folder / "config.yaml").write_text(dump(*both), encoding="utf-8")
        write(folder, 3, SavedState({}, {}), keep=1)
    assert holder(folder) is None
    longer = load_both("digits", "laptop", ["run.epochs=99"])
    with pytest.raises(OSError), resume.prepared_folder(folder, *longer, must_resume=True) as checkpoint:
        assert checkpoint == folder / "checkpoints" / "step-00000003.ckpt"
        raise OSError
    assert holder(folder) is None
    assert f"warning: {folder}: the run goes on with 99 epochs instead of " in capsys.readouterr().err
    write_summary(folder, ABORTED)
    with pytest.raises(UserError, match="has ended, aborted after step 9"):
        _enter(folder, *both)
    with resume.prepared_folder(folder, *longer, must_resume=True):
        pass
    with pytest.raises(UserError, match=r"run\.seed: got 2"):
        _enter(folder, *load_both("digits", "laptop", ["run.seed=2"]))
    assert holder(folder) is None


def _enter(folder: Path, recipe: Recipe, cluster: Cluster) -> None:
    with resume.prepared_folder(folder, recipe, cluster, must_resume=False):
        pass


def test_a_folder_in_which_somebody_trains_is_not_prepared(tmp_path: Path) -> None:
    both = load_both("digits", "laptop")
    (tmp_path / "config.yaml").write_text(dump(*both), encoding="utf-8")
    for name in ("stop", "metrics.jsonl"):
        (tmp_path / name).touch()
    take(tmp_path)
    with pytest.raises(UserError, match="a run is going on in it"):
        _enter(tmp_path, *both)
    assert {path.name for path in tmp_path.iterdir()} == {"config.yaml", "stop", "metrics.jsonl", "claims"}


def test_a_claim_that_was_lost_is_told_at_once_and_not_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    told: queue.SimpleQueue[str] = queue.SimpleQueue()
    monkeypatch.setattr("logs.claims.BEAT_S", 0.001)
    monkeypatch.setattr(sys, "stderr", SimpleNamespace(write=told.put))
    with resume.prepared_folder(tmp_path / "run", *load_both("digits", "laptop"), must_resume=False):
        claims = tmp_path / "run" / "claims"
        (claims / "2.json").write_text("{}", encoding="utf-8")
        words = told.get(timeout=20)
    assert words.startswith(f"error: {tmp_path / 'run'}: taken over by ")
    assert words.count("\n") == 1
    assert told.empty()
    assert "ended" not in json.loads((claims / "1.json").read_text(encoding="utf-8"))


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["digits"], ("digits", "laptop", 0, 0, None, False)),
        (["digits", "--trace", "--run-dir", "a"], ("digits", "laptop", 0, 3, Path("a"), False)),
        (["digits", "--max-restarts", "4", "--cluster", "a100-node"], ("digits", "a100-node", 4, 0, None, False)),
        (["--resume", "{run}"], ("digits-once", "a-lab", 0, 0, Path("{run}"), True)),
        (["digits", "--resume", "{run}"], ("digits", "a-lab", 0, 0, Path("{run}"), True)),
        (["--resume", "{run}", "--cluster", "laptop"], ("digits-once", "laptop", 0, 0, Path("{run}"), True)),
    ],
)
def test_the_words_of_train_say_what_is_run_where(
    words: list[str], told: tuple[Any, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe, cluster = load_both("digits", "laptop")
    recorded = recipe.model_copy(update={"name": "digits-once"}), cluster.model_copy(update={"name": "a-lab"})
    (tmp_path / "config.yaml").write_text(dump(*recorded), encoding="utf-8")
    found: list[tuple[Any, ...]] = []

    def note(recipe: Any, cluster: Any, folder: Path | None, *, must_resume: bool) -> int:
        place = folder if folder != tmp_path else Path("{run}")
        found.append(
            (recipe.name, cluster.name, cluster.scheduler.max_restarts, cluster.trace_steps, place, must_resume)
        )
        return 7

    monkeypatch.setattr(run, "launch_run", note)
    assert main(["train", *(word.format(run=tmp_path) for word in words)]) == 7
    assert found == [told]


def test_train_without_a_recipe_is_told_what_to_give_and_ctrl_c_has_its_status(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["train"]) == 2
    assert capsys.readouterr().err == (
        "error: RECIPE is missing: give a name in configs/recipes, for example digits; see ./run.sh train --help\n"
    )

    def stop(*_: object, **__: object) -> int:
        raise KeyboardInterrupt

    monkeypatch.setattr(run, "launch_run", stop)
    assert main(["train", "digits"]) == 130
