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
from typing import Any

import numpy as np
import pytest

from configs.load import ROOT
from logs.__main__ import main as check
from logs.checkpoints import read, step_of
from logs.folder import RunFolder
from logs.metrics import read_metrics
from logs.read.parse import parse_log
from tests.launch.scheduled import ranks
from tests.runs import TWO_EPOCHS, FinishedRun, read_summary, resume, train, train_command
from tests.small_disk import small_disk

pytestmark = [pytest.mark.ranks, pytest.mark.slow]

_WATCHDOG_S = 10


@pytest.fixture(scope="module")
def undisturbed(two_epoch_run: FinishedRun) -> Path:
    """Return the folder of a run of two epochs that nothing happened to."""
    assert two_epoch_run.status == 0, two_epoch_run.errors
    return two_epoch_run.folder


@contextlib.contextmanager
def _held(folder: Path, held_at: str, target: str, steps: int) -> Iterator["subprocess.Popen[str]"]:
    """Train until rank 0 waits at a file after the last step; yield the launcher."""
    settings = [*TWO_EPOCHS, f"run.target_top1={target}", f"cluster.watchdog_s={_WATCHDOG_S}"]
    pipe = folder.with_name("pipe")
    os.mkfifo(pipe)
    command = train_command(folder, *settings)
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as launcher:
        while not (folder / "config.yaml").exists():
            assert launcher.poll() is None
            time.sleep(0.01)
        (folder / held_at).symlink_to(pipe)
        while not _has_come(folder, held_at, steps):
            assert launcher.poll() is None, launcher.communicate()
            time.sleep(0.05)
        yield launcher


def _has_come(folder: Path, held_at: str, steps: int) -> bool:
    """Return whether the log has its end, and the checkpoint is there that precedes the file."""
    log = folder / "result_0.txt"
    if not (log.exists() and "run_stop" in log.read_text(encoding="utf-8")):
        return False
    newest = next(iter(RunFolder(folder).checkpoints.files()), None)
    if newest is None or step_of(newest) != steps:
        return False
    # The checkpoint of a run's end has no place among the images.
    return held_at == "usage.json" or not read(newest).arrays["data/0"].size


def _weights(folder: Path, step: int) -> dict[str, Any]:
    (path,) = (each for each in RunFolder(folder).checkpoints.files() if step_of(each) == step)
    return {name: array for name, array in read(path).arrays.items() if not name.startswith("data/")}


def _evaluations(folder: Path) -> list[tuple[int, int]]:
    rows = read_metrics(folder / "metrics.jsonl")
    return [(row["epoch"], row["correct"]) for row in rows if row["kind"] == "evaluation"]


@pytest.mark.parametrize(
    ("held_at", "target", "steps", "status"),
    [("usage.json", "0.999", 38, "aborted"), ("classes.json", "0.02", 19, "success")],
)
def test_a_run_that_is_killed_before_its_summary_is_concluded_and_not_trained_on(
    held_at: str, target: str, steps: int, status: str, tmp_path: Path, undisturbed: Path
) -> None:
    """The watchdog leaves a run alone that takes long to write its last file."""
    folder = tmp_path / "run"
    with _held(folder, held_at, target, steps) as launcher:
        if held_at == "classes.json":
            with pytest.raises(subprocess.TimeoutExpired):
                launcher.wait(timeout=_WATCHDOG_S + 2)
        assert ranks(folder)
        for pid in ranks(folder):
            with contextlib.suppress(ProcessLookupError):  # A rank may end by itself when the other one is gone.
                os.kill(pid, signal.SIGKILL)
        output, _ = launcher.communicate(timeout=60)
    assert launcher.returncode == 1, output
    (folder / held_at).unlink()
    done = resume(folder)
    has_failed = status != "success"
    assert done.status == has_failed, done.errors
    summary, epochs = read_summary(folder), steps // 19
    told = {key: summary[key] for key in ("status", "steps", "epochs", "resumed_from_step", "is_saved")}
    assert tuple(told.values()) == (status, steps, epochs, steps, True)
    if steps == 38:
        assert summary["weights_checksum"] == read_summary(undisturbed)["weights_checksum"]
    wanted, found = _weights(undisturbed, steps), _weights(folder, steps)
    assert found.keys() == wanted.keys()
    assert all(np.array_equal(found[each], wanted[each]) for each in wanted)
    assert _evaluations(folder) == _evaluations(undisturbed)[:epochs]
    record = parse_log(folder / "result_0.txt")
    assert (record.status, [each.epoch for each in record.evaluations]) == (status, [1, 2][:epochs])
    assert check(["check", str(folder)]) == has_failed


def test_a_trained_network_that_the_disk_cannot_hold_is_a_failure_and_comes_back_when_there_is_room(
    tmp_path: Path, undisturbed: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    with small_disk(disk, "size=1200k"):  # room for one checkpoint of 0.7 MB
        lost = train(disk / "run", *TWO_EPOCHS)
        assert lost.status == 1, lost.output
        *_, last = lost.output.splitlines()
        assert "not saved" in last
        assert f"--resume {disk}/run" in last
        assert "next:" not in lost.output
        summary = read_summary(disk / "run")
        assert (summary["status"], summary["steps"], summary["is_saved"]) == ("aborted", 38, False)
        assert "the disk is full" in summary["failure"]
        assert check(["check", str(disk / "run")]) == 1
        assert "the disk is full" in capsys.readouterr().out
        subprocess.run(["mount", "-o", "remount,size=8m", disk], check=True)
        done = resume(disk / "run")
        assert done.status == 0, done.errors
        found, wanted = read_summary(disk / "run"), read_summary(undisturbed)
        assert found["weights_checksum"] == wanted["weights_checksum"]
        assert check(["check", str(disk / "run")]) == 0
