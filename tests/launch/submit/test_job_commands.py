"""What the commands of a job script pass on, tell and limit; `test_job` has the attempts that they lead to."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from configs.errors import UserError
from configs.load import dump, load_both
from launch.start.outlived import kill_launcher_of
from launch.submit import job
from launch.submit.job import begin, end, main
from logs.checkpoints import SavedState, write
from logs.claims import BEAT_S, STALE_S, holder, take
from logs.folder import Summary, write_summary


def _make(folder: Path, *sets: str) -> Path:
    (folder / "config.yaml").write_text(dump(*load_both("digits", "laptop", list(sets))), encoding="utf-8")
    return folder


def test_a_job_is_queued_again_no_oftener_than_allowed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    notify = "cluster.notify=echo $RUN_EVENT, $RUN_MESSAGE >$RUN_FOLDER/told"
    run = _make(tmp_path, "cluster.scheduler.max_requeues=1", notify)
    for step, status, words in (
        (3, 75, ""),
        (5, 1, "; it is not queued again: it was stopped or lost 2 times, and scheduler.max_requeues is 1"),
    ):
        assert begin(run)
        assert f"digits on laptop: 2 ranks, {run}\n" in capsys.readouterr().err
        write(run, step, SavedState({}, {}), keep=1)
        assert end(run, 75, was_signalled=True, is_near_limit=True) == status
        assert capsys.readouterr().err == f"{run}: the run was stopped before its end{words}\n"
        told = (run / "told").read_text(encoding="utf-8")
        assert told == f"stop, digits: the run was stopped before its end{words}\n"


def test_a_job_that_was_lost_is_continued_no_oftener_than_allowed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    run = _make(tmp_path, "cluster.scheduler.max_requeues=1")
    for step, goes_on in ((3, True), (5, True), (7, False)):
        with subprocess.Popen(["sleep", "60"]) as script:
            assert begin(run, script=script.pid) is goes_on
            assert (holder(run) is not None) is goes_on, "a script that trains nothing keeps nobody out"
            script.kill()
        write(run, step, SavedState({}, {}), keep=1)
    reason = "not continued: it was stopped or lost 2 times, and scheduler.max_requeues is 1"
    assert capsys.readouterr().err.splitlines()[-1] == f"{run}: {reason}"


def test_a_run_that_ended_while_its_job_waited_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked: list[dict[str, Any]] = []

    def take_late(folder: Path, **options: Any) -> Path:
        asked.append(options)
        write_summary(folder, Summary("digits", "success", steps=9))
        return take(folder, pid=options["pid"])

    monkeypatch.setattr(job, "take", take_late)
    assert not begin(_make(tmp_path), script=os.getpid(), patience_s=7)
    assert asked == [{"pid": os.getpid(), "patience_s": 7}]
    assert capsys.readouterr().err == f"{tmp_path}: the run ended in an earlier attempt of this job\n"


def test_trouble_with_the_disk_after_the_ranks_is_a_failed_run_that_nobody_holds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(*_: object) -> int:
        raise UserError("the disk is full")

    assert begin(_make(tmp_path))
    monkeypatch.setattr(job, "finish_run", fail)
    assert end(tmp_path, 0, was_signalled=False) == 1
    assert capsys.readouterr().err.endswith("error: the disk is full\n")
    assert holder(tmp_path) is None


def test_the_words_of_a_job_script_are_passed_on_with_the_script_as_the_owner(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[tuple[Any, ...]] = []

    def note(*words: Any, **options: Any) -> int:
        asked.append((*words, options))
        return 0

    monkeypatch.setattr(job, "begin", note)
    monkeypatch.setattr(job, "end", note)
    folder, parent = str(tmp_path), os.getppid()
    main(["begin", folder])
    main(["end", folder, "--status", "3", "--signals", "0"])
    main(["end", folder, "--status", "143", "--signals", "1", "--near-limit", "1", "--hosts", "a b"])
    usual: dict[str, Any] = {"was_signalled": False, "is_near_limit": False, "script": parent, "hosts": []}
    assert asked == [
        (tmp_path, {"script": parent, "patience_s": STALE_S + BEAT_S}),
        (tmp_path, 3, usual),
        (tmp_path, 143, {**usual, "was_signalled": True, "is_near_limit": True, "hosts": ["a", "b"]}),
    ]


def test_the_holder_of_a_claim_leaves_signals_to_the_script_and_keeps_set_up_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[Any] = []

    @contextmanager
    def note() -> Iterator[None]:
        told.append("in use")
        yield

    class Watch:
        def __init__(self, folder: Path, kill: Any) -> None:
            told.append((folder, kill.func, kill.args))

    monkeypatch.setattr(signal, "signal", lambda *words: told.append(words))
    monkeypatch.setattr(job, "in_use", note)
    monkeypatch.setattr(job, "OutlivedLauncher", Watch)
    with Path("/dev/null").open(encoding="utf-8") as stdin:
        monkeypatch.setattr(sys, "stdin", stdin)
        assert main(["hold", str(tmp_path)]) == 0
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGHUP)
    assert told == [
        *((number, signal.SIG_IGN) for number in numbers),
        (tmp_path, kill_launcher_of, (os.getppid(), tmp_path)),
        "in use",
    ]


def test_a_script_that_starts_its_ranks_again_keeps_its_claim(tmp_path: Path) -> None:
    run = _make(tmp_path)
    with subprocess.Popen(["sleep", "60"]) as script:
        for _ in range(2):
            assert begin(run, script=script.pid) is True
            assert [path.name for path in (run / "claims").glob("*.json")] == ["1.json"]
            assert f"process {script.pid}" in (holder(run) or "")
        script.kill()


def test_trouble_is_one_line_with_the_status_of_a_refusal(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for words in (["begin", str(tmp_path)], ["end", str(tmp_path), "--status", "0", "--signals", "0"]):
        assert main(words) == 2
        told = capsys.readouterr().err
        assert told.startswith("error: ")
        assert f"{tmp_path}/config.yaml" in told
        assert told.count("\n") == 1
