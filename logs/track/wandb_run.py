"""Weights & Biases. The only importer of wandb, which takes account, server and offline mode from WANDB_* variables."""

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import wandb

from logs.track.trackers import FOLDER

_PROJECT = "resnet-records"


class WandbRun:
    """See `logs.track.trackers.Tracker`."""

    def __init__(self, run: Any) -> None:
        self._run = run

    def log(self, step: int, time_s: float, values: Mapping[str, float]) -> None:
        """See `Tracker`; W&B's own time is that of the call."""
        self._run.log({**values, "time": time_s}, step=step)

    def close(self, *, is_success: bool | None) -> None:
        """See `Tracker`."""
        self._run.finish(exit_code=0 if is_success else 1)


def open_tracker(run_folder: Path, settings: Mapping[str, Any]) -> WandbRun:
    """Begin a run named after the folder, or go on with the one of this name; WANDB_PROJECT chooses another project."""
    name = run_folder.resolve().name
    identity = re.sub(r"[^A-Za-z0-9_-]", "-", name)[:64]
    run = wandb.init(
        project=os.environ.get("WANDB_PROJECT", _PROJECT),
        name=name,
        id=identity,
        resume="allow",
        dir=str(run_folder / FOLDER),
        config=dict(settings),
        settings=wandb.Settings(console="off"),
    )
    return WandbRun(run)
