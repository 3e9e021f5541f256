"""What happens before and after the ranks of a run, and the lines that it ends with: every figure in its unit."""

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from configs.errors import UserError
from configs.load import ROOT, dump, load_both, load_run
from configs.programs import Program, command_of
from configs.rank_variables import rank_environment
from configs.registry import packing_words
from configs.schema import Cluster, Recipe
from launch import run
from launch.run import _report
from launch.start.local import Outcome
from logs.attempts import ATTEMPTS_FILE, add_attempt
from logs.checkpoints import SavedState, list_checkpoints, resume_checkpoint, write
from logs.claims import CLAIMS_FOLDER
from logs.folder import Summary, read_summary
from logs.judge.compliance import Verdict

SUMMARY = Summary(
    "digits", "success", top1=0.98333, target=0.97, epochs=8, steps=150, world_size=2, init_s=3.25, run_s=12.34,
    images_per_s=1234.56, input_wait_fraction=0.0123, comm_exposed_fraction=0.21, resumed_from_step=19,
    changes=["4 ranks instead of 2"], rcp={"words": "normal: 36 epochs"},
)  # fmt: skip
VERDICTS = {
    "4.0.0": Verdict("4.0.0", passed=True, messages=()),
    "0.6.0": Verdict("0.6.0", passed=False, messages=("No log lines detected", "second")),
}


def test_a_run_ends_with_its_figures_and_verdicts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "runs" / "one"
    folder.mkdir(parents=True)
    attempt = {"time": "t", "outcome": "lost", "cause": "gone", "host": None, "from_step": 0, "kept_step": 19}
    (folder / ATTEMPTS_FILE).write_text(json.dumps(attempt | {"goes_on": True}) + "\n", encoding="utf-8")
    assert _report(folder, SUMMARY, VERDICTS).splitlines() == [
        "digits: success",
        "  top-1 0.9833 (target 0.97) after epoch 8, step 150",
        "  resumed from step 19: not for submission; times and rates are of the last part",
        "  resumed with 4 ranks instead of 2",
        "  an attempt lost: gone; from step 0, kept step 19, went on by itself",
        "  12.3 s of training, 3.2 s of start-up, 1,234.6 images/s on 2 ranks",
        "  waiting for input 1.2% of a step, communication exposed 21.0%",
        "  reference convergence: normal: 36 epochs",
        "  MLPerf training 4.0.0 log check: passes",
        "  MLPerf training 0.6.0 log check: fails: the file contains no MLPerf event, or none in the format of this "
        "ruleset; give the log of a run, or another --ruleset",
        "  runs/one",
    ]


def test_what_was_not_measured_is_left_out_and_a_rehearsal_has_no_verdict(tmp_path: Path) -> None:
    bare = Summary("digits", "aborted", failure="rank 1 was killed", is_rehearsal=True)
    assert _report(tmp_path, bare, VERDICTS).splitlines() == [
        "digits: aborted (rehearsal: nothing was trained, accuracies are invented): rank 1 was killed",
        f"  {tmp_path}",
    ]
    labels = replace(bare, mean_auc=0.75, epochs=3, steps=9, is_rehearsal=False)
    assert "  mean ROC-AUC 0.7500 after epoch 3, step 9" in _report(tmp_path, labels, {}).splitlines()


@pytest.mark.parametrize("status", [0, 1, run.REFUSED])
def test_a_launcher_that_lost_its_folder_leaves_it_to_the_other_one(
    status: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "run"
    started: list[None] = []

    def lose(*_: object) -> Outcome:
        started.append(None)
        (folder / "claims" / "2.json").write_text("{}", encoding="utf-8")
        return Outcome(status)

    monkeypatch.setattr(run, "_check_and_pack", lambda *_: None)
    monkeypatch.setattr(run, "_run_ranks", lose)
    restarts = ["cluster.scheduler.max_restarts=3"]
    assert run.launch_run(*load_both("digits", "laptop", restarts), folder) == 1
    assert capsys.readouterr().err.endswith(
        "error: " + run.short_path(folder) + ": the folder has another owner now, and is left to it\n"
    )
    assert len(started) == 1
    assert {path.name for path in folder.iterdir()} == {"config.yaml", "claims"}


def test_ranks_get_the_whole_path_of_a_run_folder_below_this_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    commands: list[list[str]] = []
    monkeypatch.chdir(tmp_path)
    (tmp_path / "one").mkdir()
    monkeypatch.setattr(run, "record_environment", lambda *_: None)
    monkeypatch.setattr(run, "run_under", lambda _cluster, command, _variables: commands.append(command))
    run._run_ranks(Path("one"), *load_both("digits", "laptop"))
    assert [command[-1] for command in commands] == [f"{tmp_path}/one"]


@pytest.mark.parametrize(
    ("setting", "mode"),
    [("run.seed=2", 0o044), ("cluster.environment.MY_TOKEN=abc", 0), ("cluster.notify=curl https://u:p@host", 0)],
)
def test_only_the_owner_reads_a_config_that_may_hold_a_secret(tmp_path: Path, setting: str, mode: int) -> None:
    run._write_config(tmp_path, *load_both("digits", "laptop", [setting]))
    assert (tmp_path / "config.yaml").stat().st_mode & 0o044 == mode


@pytest.mark.parametrize("others", [(), ("attempt-1",)])
def test_a_run_that_the_ranks_refused_leaves_only_what_is_of_others(tmp_path: Path, others: tuple[str, ...]) -> None:
    folder = tmp_path / "one"
    for name in (CLAIMS_FOLDER, *others):
        (folder / name).mkdir(parents=True)
    (folder / "config.yaml").touch()
    run._remove_refused(folder)
    assert folder.exists() == bool(others)
    assert [path.name for path in tmp_path.glob("one/*")] == list(others)


REFUSED = Outcome(run.REFUSED)


def _launch(folder: Path | None, monkeypatch: pytest.MonkeyPatch, outcome: Outcome, *sets: str) -> int:
    monkeypatch.setattr(run, "_check_and_pack", lambda *_: None)
    monkeypatch.setattr(run, "_run_ranks", lambda *_: outcome)
    return run.launch_run(*load_both("digits", "laptop", list(sets)), folder)


@pytest.mark.parametrize("left", ["checkpoint", "attempt"])
def test_ranks_that_refuse_to_go_on_with_a_run_leave_its_folder(
    left: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "config.yaml").write_text(dump(*load_both("digits", "laptop")), encoding="utf-8")
    if left == "checkpoint":
        write(tmp_path, 3, SavedState({}, {}), keep=1)
    else:
        assert add_attempt(tmp_path, "failed", "broke", limit=1) is None
    before = {path.name for path in tmp_path.iterdir()}
    assert _launch(tmp_path, monkeypatch, REFUSED) == run.REFUSED
    assert {path.name for path in tmp_path.iterdir()} >= before
    assert len(list_checkpoints(tmp_path)) == (left == "checkpoint")
    summary = read_summary(tmp_path)
    assert (summary.status, summary.failure) == ("aborted", "the ranks refused to resume")


def test_a_restart_goes_on_from_the_newest_checkpoint_without_the_reports_of_the_failure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "run"
    begun_from: list[Path | None] = []
    report = {"rank": 0, "host": "here", "step": 7, "message": "broke", "second_hand": False, "status": 1, "time": 1.0}

    def fail(*_: object) -> Outcome:
        begun_from.append(resume_checkpoint(folder))
        assert not (folder / "failure_0.json").exists()
        (folder / "failure_0.json").write_text(json.dumps(report), encoding="utf-8")
        write(folder, 3 * len(begun_from), SavedState({}, {}), keep=2)
        return Outcome(1)

    monkeypatch.setattr(run, "_check_and_pack", lambda *_: None)
    monkeypatch.setattr(run, "_run_ranks", fail)
    assert run.launch_run(*load_both("digits", "laptop", ["cluster.scheduler.max_restarts=2"]), folder) == 1
    names = [None if path is None else path.name for path in begun_from]
    assert names == [None, "step-00000003.ckpt", "step-00000006.ckpt"]


def test_trouble_with_the_disk_after_the_ranks_is_a_failed_run_and_no_refusal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(*_: object) -> int:
        raise UserError("the disk is full")

    monkeypatch.setattr(run, "finish_run", fail)
    assert _launch(tmp_path / "run", monkeypatch, Outcome(0)) == 1
    assert capsys.readouterr().err.endswith("error: the disk is full\n")


def test_what_cannot_start_is_refused_before_data_are_packed_or_a_folder_is_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    packed: list[object] = []
    monkeypatch.setattr(run, "pack", packed.append)
    data = f"cluster.paths.data={tmp_path}/data"
    for sets in (["cluster.launcher=mpirun"], ["cluster.ranks_per_node=3"]):
        with pytest.raises(UserError):
            run.launch_run(*load_both("digits", "laptop", [data, *sets]), tmp_path / "run")
    assert not packed
    assert not list(tmp_path.iterdir())


def test_a_run_without_a_folder_gets_one_below_the_clusters_and_its_data_are_packed_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    packed: list[Sequence[str]] = []

    def pack(words: Sequence[str]) -> None:
        assert not (tmp_path / "runs").exists()
        packed.append(words)

    def look(folder: Path, recipe: Recipe, cluster: Cluster) -> Outcome:
        assert load_run(folder / "config.yaml") == (recipe, cluster)
        assert folder.parent == tmp_path / "runs"
        assert folder.name.startswith("digits-")
        return Outcome(0)

    monkeypatch.setattr(run, "pack", pack)
    monkeypatch.setattr(run, "_run_ranks", look)
    monkeypatch.setattr(run, "finish_run", lambda *_: 42)
    recipe, cluster = load_both(
        "digits", "laptop", [f"cluster.paths.data={tmp_path}/data", f"cluster.paths.runs={tmp_path}/runs"]
    )
    assert run.launch_run(recipe, cluster, None) == 42
    sizes = {"train": recipe.data.train_samples, "eval": recipe.data.eval_samples, "classes": recipe.model.num_classes}
    assert packed == [packing_words("digits", f"{tmp_path}/data/{recipe.data.name}", **sizes)]


def test_the_folder_of_a_job_is_made_after_its_data_were_packed_and_holds_its_config(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    packed: list[Sequence[str]] = []
    monkeypatch.setattr(run, "pack", packed.append)
    sets = [f"cluster.paths.data={tmp_path}/data"]
    with pytest.raises(UserError, match="a multiple of 3"):
        run.open_run(*load_both("digits", "laptop", [*sets, "cluster.ranks_per_node=3"]), tmp_path / "run")
    assert not list(tmp_path.iterdir())
    own = load_both("digits", "laptop", [*sets, "data.source=idx"])
    run.open_run(*own, tmp_path / "run")
    assert load_run(tmp_path / "run" / "config.yaml") == own
    assert not packed, "nobody but the user has these images"
    with pytest.raises(UserError, match="exists already"):
        run.open_run(*load_both("digits", "laptop", sets), tmp_path / "run")
    assert len(packed) == 1


def test_a_data_set_is_packed_by_the_program_in_its_own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[object, ...]] = []

    def command(*words: object) -> list[str]:
        asked.append(words)
        return ["sh", "-c", f'test "$PWD" = "{ROOT}"']

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(run, "command_of", command)
    run.pack(["digits", "data"])
    assert asked == [(Program.PREPARE_VERB, "prepare", "digits", "data")]


def test_ranks_are_started_with_the_variables_that_are_recorded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    recipe, cluster = load_both("digits", "laptop", ["cluster.ranks_per_node=1"])
    told: list[object] = []

    def note_environment(*words: object) -> list[str]:
        told.append(words)
        return ["CPU a instead of b", "c"]

    def note_start(*words: object) -> Outcome:
        told.append(words)
        return Outcome(7)

    monkeypatch.setattr(run, "write_environment", note_environment)
    monkeypatch.setattr(run, "run_under", note_start)
    assert run._run_ranks(tmp_path, recipe, cluster) == Outcome(7)
    variables = rank_environment(cluster)
    assert told == [
        (tmp_path, variables),
        (cluster, command_of(Program.RANK, str(tmp_path)), variables),
    ]
    assert capsys.readouterr().err.splitlines() == [
        f"warning: {tmp_path}: the run is resumed with CPU a instead of b; c: the results will differ in their last "
        "bits from those of a run without a change; environment.json keeps both",
        f"digits on laptop: 1 ranks, {tmp_path}",
    ]
