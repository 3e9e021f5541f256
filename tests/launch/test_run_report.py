"""The lines that a run ends with: every figure in its unit, and of a failed check the first complaint."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from configs.load import load_both
from launch import run
from launch.run import _report
from launch.start.local import Outcome
from logs.attempts import ATTEMPTS_FILE
from logs.claims import CLAIMS_FOLDER
from logs.folder import Summary
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
