"""The trackers by name: which package each needs, and what one has to do. Imports no tracker's package."""

import importlib
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple, Protocol

from configs.errors import UserError
from logs.folder import CONFIG_FILE
from logs.redaction import is_secret
from logs.settings import read_settings

FOLDER = "trackers"
"""The folder of a run folder in which trackers and their followers write."""


class Tracker(Protocol):
    """One run as a tracker sees it."""

    def log(self, step: int, time_s: float, values: Mapping[str, float]) -> None:
        """Send values that were measured after ``step`` steps, at a Unix time; the tracker shows them at once."""

    def close(self, *, is_success: bool | None) -> None:
        """End the run; None: it has not ended, and may be resumed."""


class Entry(NamedTuple):
    """A tracker: the module with its function ``open_tracker``, its package, and how to install the package."""

    module: str
    package: str
    remedy: str


TRACKERS: Mapping[str, Entry] = {
    "tensorboard": Entry("logs.track.tensorboard", "tensorboardX", "./run.sh setup --extra tensorboard"),
    "wandb": Entry("logs.track.wandb_run", "wandb", "./run.sh setup --extra wandb"),
    "mlflow": Entry("logs.track.mlflow_run", "mlflow", "./run.sh setup --extra mlflow"),
}


def require_installed(names: Sequence[str]) -> None:
    """Raise `UserError` if the package of a tracker is not installed."""
    for name in names:
        entry = TRACKERS[name]
        if find_spec(entry.package) is None:
            raise UserError(
                f"cluster.trackers: got {name}, but the package {entry.package} is not installed; run {entry.remedy}, "
                "or leave the tracker out"
            )


def open_tracker(name: str, run_folder: Path) -> Tracker:
    """Begin to track a run, or go on with it; the run is called as its folder.

    The tracker gets the run's settings but those that may hold a secret: a tracker may be a service that others read.
    """
    (run_folder / FOLDER).mkdir(exist_ok=True)
    known = read_settings(run_folder / CONFIG_FILE)
    shown = {key: value for key, value in known.items() if not is_secret(key.rpartition(".")[2], str(value))}
    tracker: Tracker = importlib.import_module(TRACKERS[name].module).open_tracker(run_folder, shown)
    return tracker
