"""Sends the rows of a growing ``metrics.jsonl`` to a tracker, each once, also over attempts at a run."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from configs.errors import UserError
from logs.disk import read_object, write_json
from logs.metrics import METRICS_FILE, MetricsFollower
from logs.read.lines import to_number
from logs.track.trackers import FOLDER, Tracker

_NAMES = {
    "interval": {
        "loss": "loss", "lr": "learning_rate", "images_per_s": "images_per_s",
        "input_wait_fraction": "input_wait_fraction", "comm_exposed_fraction": "comm_exposed_fraction",
    },
    "evaluation": {
        "top1": "accuracy", "mean_auc": "mean_auc", "eval_loss": "validation_loss", "seconds": "evaluation_s",
    },
}  # fmt: skip
"""Kind of row -> key of the row -> name of the curve, which is that of ``./run.sh report --csv``."""


def values_of(row: Mapping[str, Any]) -> dict[str, float]:
    """Return what a tracker gets of a row: curve -> value; values that are missing or not finite are left out."""
    numbers = {name: to_number(row.get(key)) for key, name in _NAMES.get(str(row.get("kind")), {}).items()}
    values = {name: number for name, number in numbers.items() if number is not None}
    return {**values, "epoch": float(row["epoch"])} if values and to_number(row.get("epoch")) is not None else values


class Sender:
    """Sends each row of a run to a tracker once; a file keeps which it has, because a resumed run repeats rows.

    Args:
        run_folder: The run folder.
        name: The tracker's name.
        tracker: Gets the rows.
    """

    def __init__(self, run_folder: Path, name: str, tracker: Tracker) -> None:
        self._path, self._tracker = run_folder / FOLDER / f"{name}.json", tracker
        try:
            self._steps = {str(kind): int(step) for kind, step in read_object(self._path).items()}
        except (UserError, TypeError, ValueError):
            self._steps = {}

    def send(self, rows: Sequence[Mapping[str, Any]]) -> None:
        """Send the rows of later steps than the tracker has."""
        new = [row for row in rows if self._is_new(row)]
        for row in new:
            self._tracker.log(int(row["step"]) + 1, to_number(row.get("time")) or 0.0, values_of(row))
        if new:
            write_json(self._path, self._steps)

    def close(self, *, is_success: bool | None) -> None:
        """End the run; None: it has not ended, and may be resumed."""
        self._tracker.close(is_success=is_success)

    def _is_new(self, row: Mapping[str, Any]) -> bool:
        kind, step = str(row.get("kind")), to_number(row.get("step"))
        if step is None or step <= self._steps.get(kind, -1) or not values_of(row):
            return False
        self._steps[kind] = int(step)
        return True


def follow(run_folder: Path, sender: Sender, goes_on: Callable[[], bool]) -> None:
    """Send rows as they are written.

    Args:
        run_folder: The run folder.
        sender: Sends them to a tracker.
        goes_on: Waits for a moment, and returns whether more rows may come. After it has returned False, the rows
            written so far are sent.
    """
    follower = MetricsFollower(run_folder / METRICS_FILE)
    is_going_on = True
    while is_going_on:
        is_going_on = goes_on()
        while rows := follower.update():
            sender.send(rows)
