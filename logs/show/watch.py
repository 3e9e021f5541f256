"""``./run.sh watch``: a running job's progress in the terminal, read from the files that the job writes.

The files may be on a network file system. Each update opens a file anew and reads from the end of the last complete
line. No file is locked, mapped or watched by the kernel. If a read fails, the previous figures stay.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, TextIO

from configs.arguments import Style, duration, painted, printable
from configs.errors import UserError
from configs.plan import plan_run
from configs.reading import Unreadable
from configs.schema import Recipe
from logs.energy import energy_of, read_attempts
from logs.folder import CONFIG_FILE, RunFolder
from logs.judge.evidence import problem_of
from logs.metrics import METRICS_FILE, MetricsFollower
from logs.read.lines import to_number
from logs.slow_ranks import SLOW_RANKS, slow_words
from logs.track.follow import Sender
from logs.track.trackers import open_tracker, require_installed

Line = tuple[str, Style]
"""A line of the terminal and its style."""


def watch(
    folder: Path,
    terminal: TextIO,
    *,
    every_s: float,
    once: bool,
    trackers: Sequence[str] = (),
    sleep: Callable[[float], None] = time.sleep,
) -> int:
    """Show a run's progress until the run ends.

    Args:
        folder: A run folder.
        terminal: The output. On a terminal, each update clears the screen.
        every_s: Seconds between updates.
        once: Print the progress once and return.
        trackers: Live trackers that get the run's numbers, too.
        sleep: Function that waits.

    Returns:
        0 if the run reached its target, 1 if not or if the run is still running.

    Raises:
        UserError: If ``folder`` is not a run folder or is deleted, or a tracker's package is not installed.
    """
    run = RunFolder(folder)
    if not run.is_begun:
        raise UserError(f"{folder}: contains no {CONFIG_FILE}; give a run folder")
    require_installed(trackers)
    senders = [Sender(folder, name, open_tracker(name, folder)) for name in dict.fromkeys(trackers)]
    total_steps = plan_run(run.recipe, run.cluster.world_size).total_steps
    follower = MetricsFollower(run / METRICS_FILE)
    is_success: bool | None = None
    times_missed = 0
    try:
        while True:
            ended = False
            with suppress(OSError):  # A network file system may fail for a moment, so a folder must be missing twice.
                ended, times_missed = run.has_summary, 0 if run.is_begun else times_missed + 1
            if times_missed > 1:
                raise UserError(f"{folder}: was deleted while it was watched; what is above was its last state")
            rows = follower.update()
            for sender in senders:
                sender.send(rows)
            is_going_on = not ended and _has_owner(run)
            lines = describe_progress(run.recipe, total_steps, follower.last, time.time() if is_going_on else None)
            if not (ended or is_going_on):
                lines.append(("  no process trains in it now: start it again, or wait for its scheduler", "bad"))
            with suppress(OSError, ValueError):  # of a network file system
                attempts = enumerate(run.attempts.read(), start=1)
                lines += [(f"  attempt {number} {each.description}", "bad") for number, each in attempts]
            if ended:
                words, is_success = _outcome(run)
                lines.append((words, "good" if is_success else "bad"))
            with suppress(OSError, ValueError):
                lines += _energy(run, follower.last.get("interval", {}), has_ended_well=bool(is_success))
            _show(terminal, lines, clears=not once)
            if ended or once:
                return 0 if is_success else 1
            sleep(every_s)
    finally:
        for sender in senders:
            sender.close(is_success)


def _has_owner(run: RunFolder) -> bool:
    """Return whether a process trains in the folder, as far as can be read; also where nobody has claimed it yet."""
    with suppress(OSError, Unreadable):
        return run.claims.newest() is None or run.claims.holder() is not None
    return True


def _outcome(run: RunFolder) -> tuple[str, bool]:
    """Return how a run ended, in words, and whether it reached its target and its files bear that out."""
    summary = run.summary()
    words, is_success = f"ended: {summary.status_words}", summary.status == "success"
    if is_success and (problem := problem_of(run.path)):
        return f"{words}, but {problem.kind}: {problem.words}", False
    return words + (f", {summary.failure}" if summary.failure else ""), is_success


def _energy(run: RunFolder, interval: Mapping[str, Any], *, has_ended_well: bool) -> list[Line]:
    """Return a line on the energy of a run until now; none if no counter of energy can be read."""
    step, target = to_number(interval.get("step")), run.recipe.run.target_top1
    images = None if step is None else (step + 1) * run.recipe.batch.global_size
    energy = energy_of(read_attempts(run.path), images=images, has_reached_target=has_ended_well and target is not None)
    return [] if energy is None else [(f"  energy: {energy.words}", "plain")]


def _show(terminal: TextIO, lines: Sequence[Line], *, clears: bool) -> None:
    """Write lines; if ``clears``, in place of what a terminal shows."""
    clear = "\x1b[H\x1b[J" if clears and terminal.isatty() else ""
    terminal.write(clear + "".join(f"{painted(printable(text), style, terminal)}\n" for text, style in lines))
    terminal.flush()


def describe_progress(
    recipe: Recipe, total_steps: int, last: dict[str, dict[str, Any]], now: float | None
) -> list[Line]:
    """Return a few lines on the progress of a run.

    Args:
        recipe: The run's recipe.
        total_steps: Number of steps of the whole run.
        last: Kind of row -> last row of this kind in the metrics.
        now: Unix seconds. If None, the run has ended: the lines name no time left and no age of the metrics.
    """
    interval, evaluation = last.get("interval", {}), last.get("evaluation", {})
    step, rate = to_number(interval.get("step")), to_number(interval.get("images_per_s"))
    if step is None:
        return [(f"{recipe.name}: starting, no step reported yet", "strong")]
    samples = recipe.data.train_samples
    # An epoch of whole steps may have a few images more or fewer than the data set.
    epoch = min((step + 1) * recipe.batch.global_size / samples, recipe.run.epochs)
    full = round(20 * min(max((step + 1) / total_steps, 0.0), 1.0))
    age = "" if now is None else f"; last metrics {max(now - (to_number(interval.get('time')) or now), 0.0):.0f} s ago"
    loss, lr = (_shown(interval.get(key), ".4g", "not finite") for key in ("loss", "lr"))
    waiting, exposed = (
        _shown(interval.get(key), ".1%", "unknown") for key in ("input_wait_fraction", "comm_exposed_fraction")
    )
    lines: list[Line] = [
        (
            f"{recipe.name}: [{'#' * full}{'.' * (20 - full)}] step {step + 1:.0f} of {total_steps}, epoch "
            f"{epoch:.2f} of at most {recipe.run.epochs}{age}",
            "strong",
        ),
        (
            f"  {rate or 0:.0f} images/s, loss {loss}, learning rate {lr}, waiting for input {waiting}, exposed "
            f"communication {exposed}",
            "plain",
        ),
        _evaluation(evaluation, recipe.run.target_top1),
    ]
    if slow := slow_words([last.get(SLOW_RANKS, {})], is_over=now is None):
        lines.append((f"  {slow}", "bad"))
    if rate and now is not None:
        left = duration((recipe.run.epochs - epoch) * samples / rate)
        lines.append((f"  at most {left} left until the last epoch ends", "faint"))
    return lines


def _evaluation(row: dict[str, Any], target: float | None) -> Line:
    """Return the line of the last evaluation; it is a good one if it reached the target."""
    top1, mean_auc = to_number(row.get("top1")), to_number(row.get("mean_auc"))
    if mean_auc is not None:
        return f"  last evaluation: mean ROC-AUC {mean_auc:.4f} after epoch {row.get('epoch')}", "plain"
    if top1 is None:
        return "  last evaluation: none yet", "plain"
    goal = "" if target is None else f", target {target:g}"
    loss = f", validation loss {_shown(row['eval_loss'], '.4g', 'not finite')}" if "eval_loss" in row else ""
    words = f"  last evaluation: top-1 {top1:.4f}{loss} after epoch {row.get('epoch')}{goal}"
    return words, "good" if target is not None and top1 >= target else "plain"


def _shown(value: Any, form: str, otherwise: str) -> str:
    number = to_number(value)
    return otherwise if number is None else format(number, form)
