"""TensorBoard's event files. The only importer of tensorboardX."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tensorboardX import SummaryWriter

from logs.track.trackers import FOLDER


class TensorboardRun:
    """See `logs.track.trackers.Tracker`; also writes the curves of runs that have ended.

    Args:
        folder: The folder of the event files.

    Raises:
        OSError: The folder cannot be made.
    """

    def __init__(self, folder: Path) -> None:
        self._writer = SummaryWriter(logdir=str(folder))

    def add(self, curve: str, value: float, step: int | None, time_s: float) -> None:
        """Add a point of a curve."""
        self._writer.add_scalar(curve, value, step, walltime=time_s)

    def log(self, step: int, time_s: float, values: Mapping[str, float]) -> None:
        """See `Tracker`."""
        for name, value in values.items():
            self.add(name, value, step, time_s)
        self._writer.flush()

    def close(self, *, is_success: bool | None = None) -> None:
        """See `Tracker`."""
        self._writer.close()


def open_tracker(run_folder: Path, settings: Mapping[str, Any]) -> TensorboardRun:
    """Write into ``trackers/tensorboard`` of the run folder: ``tensorboard --logdir`` shows all runs below a folder."""
    run = TensorboardRun(run_folder / FOLDER / "tensorboard")
    run._writer.add_text("settings", "\n".join(f"    {key}: {value}" for key, value in settings.items()))
    return run
