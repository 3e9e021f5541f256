"""Trackers beside a run: what fails or hangs there is a warning, and never the run's affair."""

import importlib.util
import json
import os
import signal
from pathlib import Path

import pytest

from launch.start.tracking import tracked
from logs.folder import RunFolder
from tests.limits import processes_like
from tests.logs import samples

pytestmark = pytest.mark.ranks


def _followers(folder: Path) -> list[int]:
    return processes_like(f"logs.track {folder}")


def test_a_tracker_that_fails_is_a_warning(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    if importlib.util.find_spec("wandb"):
        pytest.skip("wandb is installed, and would look for its server")
    folder = samples.run_folder(tmp_path / "run")
    with tracked(RunFolder(folder), ["wandb"]):
        pass
    (told,) = capfd.readouterr().err.splitlines()
    assert all(words in told for words in ("wandb failed: ", "./run.sh setup --extra wandb", "metrics.jsonl has all"))


def test_a_tracker_that_hangs_is_stopped_with_a_warning(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("tensorboardX")
    folder = samples.run_folder(tmp_path / "run")
    with tracked(RunFolder(folder), ["tensorboard"], patience_s=0.1):
        (follower,) = _followers(folder)
        os.kill(follower, signal.SIGSTOP)
    assert "tensorboard did not end within 0.1 s of the run and was stopped" in capfd.readouterr().err
    assert not _followers(folder)


def test_a_followed_run_is_sent_whole_before_the_launcher_goes_on(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("tensorboardX")
    folder = samples.run_folder(tmp_path / "run")
    with tracked(RunFolder(folder), ["tensorboard"]):
        pass
    # 8 epochs of 1,198 images are 149 steps of 64.
    assert json.loads((folder / "trackers" / "tensorboard.json").read_text())["interval"] == 149 - 1
    assert capfd.readouterr().err == ""
    with tracked(RunFolder(folder), []):
        assert not _followers(folder)
