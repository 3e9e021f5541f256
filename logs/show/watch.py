"""``watch``: a running job's figures, live in the terminal, from the files that it writes.

Safe over a network file system: files are opened anew at each look and read on from where the last whole line ended,
nothing is locked, mapped or watched by the kernel, and a moment's error only keeps the last figures.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TextIO

from configs.errors import UserError
from configs.load import load_run
from configs.plan import plan_run
from configs.schema import Recipe
from logs.folder import CONFIG_FILE, SUMMARY_FILE, read_summary
from logs.judge.rcp import IMAGENET_SAMPLES, reference_for
from logs.metrics import METRICS_FILE
from logs.read.lines import to_number

__all__ = ["Follower", "describe_progress", "watch"]

_MOST_BYTES = 1 << 24
"""Read at one look; a longer file is caught up with over several."""


@dataclass
class Follower:
    """The rows of a growing ``metrics.jsonl``, of each kind the last, as far as it is written."""

    path: Path
    last: dict[str, dict[str, Any]] = field(default_factory=dict)
    _offset: int = 0

    def look(self) -> None:
        """Read what was added since the last time; a file that became shorter is read from its start."""
        try:
            with self.path.open("rb") as file:
                if file.seek(0, 2) < self._offset:
                    self._offset = 0
                    self.last.clear()
                file.seek(self._offset)
                added = file.read(_MOST_BYTES)
        except OSError:
            # Not there yet, or a stale handle of a network file system: the next look tells.
            return
        whole, newline, _ = added.rpartition(b"\n")
        self._offset += len(whole) + len(newline)
        for line in whole.splitlines():
            try:
                row = json.loads(line)
            except (ValueError, RecursionError):
                continue
            if isinstance(row, dict):
                self.last[str(row.get("kind"))] = row


def watch(
    folder: Path, terminal: TextIO, *, every_s: float, once: bool, sleep: Callable[[float], None] = time.sleep
) -> int:
    """Show a run's progress until it ends; give 0 when it reached its target, 1 when not or still running.

    Args:
        folder: A run folder.
        terminal: Where to write; on a terminal the figures are replaced in place.
        every_s: Seconds between looks.
        once: Look once and leave.
        sleep: How to wait.

    Raises:
        UserError: It is no run folder.
    """
    if not (folder / CONFIG_FILE).is_file():
        raise UserError(f"{folder}: no {CONFIG_FILE} in it; give the folder of a run")
    recipe, cluster = load_run(folder / CONFIG_FILE)
    total_steps = plan_run(recipe, cluster.world_size).total_steps
    follower = Follower(folder / METRICS_FILE)
    shown = 0
    while True:
        ended = (folder / SUMMARY_FILE).is_file()
        follower.look()
        lines = describe_progress(recipe, total_steps, follower.last, time.time())
        if ended:
            summary = read_summary(folder)
            lines.append(f"ended: {summary.status}" + (f", {summary.failure}" if summary.failure else ""))
        back = f"\x1b[{shown}A\x1b[J" if shown and terminal.isatty() else ""
        terminal.write(back + "".join(f"{line}\n" for line in lines))
        terminal.flush()
        shown = len(lines)
        if ended:
            return 0 if summary.status == "success" else 1
        if once:
            return 1
        sleep(every_s)


def describe_progress(recipe: Recipe, total_steps: int, last: dict[str, dict[str, Any]], now: float) -> list[str]:
    """Say in a few lines how far a run is.

    Args:
        recipe: What runs.
        total_steps: Of the whole run.
        last: Kind of row -> the last one of that kind.
        now: Unix seconds.
    """
    interval, evaluation = last.get("interval", {}), last.get("evaluation", {})
    step, rate = to_number(interval.get("step")), to_number(interval.get("images_per_s"))
    if step is None:
        return [f"{recipe.name}: starting, no step reported yet"]
    size, samples = recipe.batch.global_size, recipe.data.train_samples
    epoch = (step + 1) * size / samples
    age = max(now - (to_number(interval.get("time")) or now), 0.0)
    lines = [
        f"{recipe.name}: {_bar((step + 1) / total_steps)} step {step + 1:.0f} of {total_steps}, epoch {epoch:.2f} of "
        f"{recipe.run.epochs} at most; written {age:.0f} s ago",
        f"  {rate or 0:.0f} images/s, loss {_told(interval.get('loss'))}, lr {_told(interval.get('lr'))}, waiting for "
        f"input {_share(interval.get('input_wait_fraction'))}, communication exposed "
        f"{_share(interval.get('comm_exposed_fraction'))}",
        f"  last evaluation: {_evaluation(evaluation, recipe.run.target_top1)}",
    ]
    if rate:
        lines.append(f"  {_left(recipe, epoch, samples / rate)}")
    return lines


def _left(recipe: Recipe, epoch: float, epoch_s: float) -> str:
    """Say how long the target is away, by the reference where there is one, else how long the run can last."""
    reference = reference_for(recipe.batch.global_size) if recipe.data.train_samples == IMAGENET_SAMPLES else None
    if reference is None or epoch > reference.mean:
        return f"at most {_duration((recipe.run.epochs - epoch) * epoch_s)} left of all epochs"
    early, late = (max(end - epoch, 0) * epoch_s for end in (reference.least, reference.mean + 2 * reference.deviation))
    return f"target in {_duration(early)} to {_duration(late)}, if it takes the reference's {reference.mean:.1f} epochs"


def _evaluation(row: dict[str, Any], target: float | None) -> str:
    top1, mean_auc = to_number(row.get("top1")), to_number(row.get("mean_auc"))
    if mean_auc is not None:
        return f"mean ROC-AUC {mean_auc:.4f} after epoch {row.get('epoch')}"
    if top1 is None:
        return "none yet"
    goal = "" if target is None else f", target {target:g}"
    return f"top-1 {top1:.4f} after epoch {row.get('epoch')}{goal}"


def _bar(share: float) -> str:
    full = round(20 * min(max(share, 0.0), 1.0))
    return f"[{'#' * full}{'.' * (20 - full)}]"


def _told(value: Any) -> str:
    number = to_number(value)
    return "not finite" if number is None else f"{number:.4g}"


def _share(value: Any) -> str:
    number = to_number(value)
    return "unknown" if number is None else f"{number:.1%}"


def _duration(seconds: float) -> str:
    minutes, rest = divmod(round(max(seconds, 0.0)), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}h{minutes:02d}m" if hours else f"{minutes}m{rest:02d}s"
