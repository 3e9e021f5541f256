"""What comes after the last step of a run: its network is saved, its summary written, whatever disturbs it. Real ranks.

Rank 0 writes usage.json before the last checkpoint, and classes.json after it. Where one of them is a link to a pipe
without a reader, rank 0 waits there.
"""

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

from configs.load import ROOT
from configs.registry import has_engine, installed_engine
from logs.__main__ import main as check
from logs.checkpoints import read, step_of
from logs.folder import RunFolder
from logs.metrics import read_metrics
from logs.read.parse import parse_log
from tests.launch.scheduled import ranks
from tests.runs import TWO_EPOCHS, FinishedRun, read_summary, resume, train, train_command
from tests.small_disk import small_disk

pytestmark = [pytest.mark.ranks, pytest.mark.slow]


def _needs(engine: str) -> pytest.MarkDecorator:
    return pytest.mark.skipif(not has_engine(engine), reason=f"{engine} is not installed")


ENGINES = [pytest.param(engine, marks=_needs(engine)) for engine in ("mxnet", "torch")]


class Case(NamedTuple):
    """A run that is held at one of its last files, the target that it has, and how it is to end."""

    engine: str
    held_at: str
    target: str
    steps: int
    status: str


@pytest.fixture(scope="module")
def undisturbed(two_epoch_run: FinishedRun, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Return for each engine the folder of a run of two epochs that nothing happened to."""
    runs = {installed_engine(): two_epoch_run}
    for engine in {"mxnet", "torch"} - runs.keys():
        if has_engine(engine):
            folder = tmp_path_factory.mktemp(engine) / "run"
            runs[engine] = train(folder, *TWO_EPOCHS, f"cluster.engine.name={engine}")
    for done in runs.values():
        assert done.status == 0, done.errors
    return {engine: done.folder for engine, done in runs.items()}


@contextlib.contextmanager
def _held(folder: Path, case: Case, *sets: str) -> Iterator[tuple["subprocess.Popen[str]", Path]]:
    """Train until rank 0 waits at the case's file; yield the launcher and the pipe."""
    settings = [*TWO_EPOCHS, f"cluster.engine.name={case.engine}", f"run.target_top1={case.target}", *sets]
    pipe = folder.with_name("pipe")
    os.mkfifo(pipe)
    command = train_command(folder, *settings)
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as launcher:
        while not (folder / "config.yaml").exists():
            assert launcher.poll() is None
            time.sleep(0.01)
        (folder / case.held_at).symlink_to(pipe)
        while not _has_come(folder, case):
            assert launcher.poll() is None, launcher.communicate()
            time.sleep(0.05)
        yield launcher, pipe


def _has_come(folder: Path, case: Case) -> bool:
    """Return whether the log has its end, and the checkpoint is there that precedes the file of the case."""
    log = folder / "result_0.txt"
    if not (log.exists() and "run_stop" in log.read_text(encoding="utf-8")):
        return False
    newest = next(iter(RunFolder(folder).checkpoints.files()), None)
    if newest is None or step_of(newest) != case.steps:
        return False
    # The checkpoint of a run's end has no place among the images.
    return case.held_at == "usage.json" or not read(newest).arrays["data/0"].size


def _weights(folder: Path, step: int) -> dict[str, Any]:
    (path,) = (each for each in RunFolder(folder).checkpoints.files() if step_of(each) == step)
    return {name: array for name, array in read(path).arrays.items() if not name.startswith("data/")}


def _evaluations(folder: Path) -> list[tuple[int, int]]:
    rows = read_metrics(folder / "metrics.jsonl")
    return [(row["epoch"], row["correct"]) for row in rows if row["kind"] == "evaluation"]


@pytest.mark.parametrize(
    "case",
    [
        pytest.param(case, marks=_needs(case.engine), id="-".join(map(str, case)))
        for case in (
            Case("mxnet", "usage.json", "null", 38, "success"),
            Case("mxnet", "classes.json", "0.02", 19, "success"),
            Case("mxnet", "classes.json", "0.999", 38, "aborted"),
            Case("torch", "usage.json", "null", 38, "success"),
        )
    ],
)
def test_a_run_that_is_killed_before_its_summary_is_concluded_and_not_trained_on(
    case: Case, tmp_path: Path, undisturbed: dict[str, Path]
) -> None:
    folder, whole = tmp_path / "run", undisturbed[case.engine]
    with _held(folder, case) as (launcher, _):
        for pid in ranks(folder):
            with contextlib.suppress(ProcessLookupError):  # A rank may end by itself when the other one is gone.
                os.kill(pid, signal.SIGKILL)
        output, _ = launcher.communicate(timeout=60)
    assert launcher.returncode == 1, output
    (folder / case.held_at).unlink()
    done = resume(folder)
    has_failed = case.status != "success"
    assert done.status == has_failed, done.errors
    summary, epochs = read_summary(folder), case.steps // 19
    told = {key: summary[key] for key in ("status", "steps", "epochs", "resumed_from_step", "is_saved")}
    assert tuple(told.values()) == (case.status, case.steps, epochs, case.steps, True)
    if case.steps == 38:
        assert summary["weights_checksum"] == read_summary(whole)["weights_checksum"]
    wanted, found = _weights(whole, case.steps), _weights(folder, case.steps)
    assert found.keys() == wanted.keys()
    assert all(np.array_equal(found[each], wanted[each]) for each in wanted)
    assert _evaluations(folder) == _evaluations(whole)[:epochs]
    record = parse_log(folder / "result_0.txt")
    assert (record.status, [each.epoch for each in record.evaluations]) == (case.status, [1, 2][:epochs])
    assert check(["check", str(folder)]) == has_failed
    assert "has ended" in resume(folder).errors


def test_a_conclusion_that_takes_longer_than_the_watchdog_waits_is_not_ended(tmp_path: Path) -> None:
    case = Case(installed_engine(), "classes.json", "null", 38, "success")
    with _held(tmp_path / "run", case, "cluster.watchdog_s=10") as (launcher, pipe):
        with pytest.raises(subprocess.TimeoutExpired):
            launcher.wait(timeout=20)
        assert ranks(tmp_path / "run")
        pipe.read_bytes()
        output, _ = launcher.communicate(timeout=60)
    assert launcher.returncode == 0, output


@pytest.mark.parametrize("engine", ENGINES)
def test_a_trained_network_that_the_disk_cannot_hold_is_a_failure_and_comes_back_when_there_is_room(
    engine: str, tmp_path: Path, undisturbed: dict[str, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    disk, sets = tmp_path / "disk", [*TWO_EPOCHS, f"cluster.engine.name={engine}"]
    disk.mkdir()
    with small_disk(disk, "size=1200k"):  # room for one checkpoint of 0.7 MB
        lost = train(disk / "run", *sets)
        assert lost.status == 1, lost.output
        *_, last = lost.output.splitlines()
        assert "not saved" in last
        assert f"--resume {disk}/run" in last
        assert "from step 19" in last
        assert "next:" not in lost.output
        summary = read_summary(disk / "run")
        assert (summary["status"], summary["steps"], summary["is_saved"]) == ("aborted", 38, False)
        assert "the disk is full" in summary["failure"]
        assert check(["check", str(disk / "run")]) == 1
        assert "the disk is full" in capsys.readouterr().out
        subprocess.run(["mount", "-o", "remount,size=8m", disk], check=True)
        done = resume(disk / "run")
        assert done.status == 0, done.errors
        found, wanted = read_summary(disk / "run"), read_summary(undisturbed[engine])
        assert found["weights_checksum"] == wanted["weights_checksum"]
        assert check(["check", str(disk / "run")]) == 0
