"""Sends the rows of a growing ``metrics.jsonl`` to a tracker, each once, also over attempts at a run."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from configs.errors import UserError
from logs.disk import read_as, write_json
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


class Sender:
    """Sends each row of a run to a tracker once; a file keeps which it has, because a resumed run repeats rows.

    Values that are missing or not finite are left out.

    Args:
        run_folder: The run folder.
        name: The tracker's name.
        tracker: Gets the rows.
    """

    def __init__(self, run_folder: Path, name: str, tracker: Tracker) -> None:
        self._path, self.close, self._log = run_folder / FOLDER / f"{name}.json", tracker.close, tracker.log
        self._steps: dict[str, int] = {}
        with suppress(UserError):
            self._steps = read_as(dict[str, int], self._path)

    def send(self, rows: Sequence[Mapping[str, Any]]) -> None:
        """Send the rows of later steps than the tracker has."""
        before = dict(self._steps)
        for row in rows:
            kind, step = str(row.get("kind")), to_number(row.get("step"))
            numbers = {name: to_number(row.get(key)) for key, name in _NAMES.get(kind, {}).items()}
            values = {name: number for name, number in numbers.items() if number is not None}
            if values and step is not None and step > self._steps.get(kind, -1):
                self._steps[kind] = int(step)
                if (epoch := to_number(row.get("epoch"))) is not None:
                    values["epoch"] = epoch
                self._log(int(step) + 1, to_number(row.get("time")) or 0.0, values)
        if self._steps != before:
            write_json(self._path, self._steps)


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
        sender.send(follower.update())
