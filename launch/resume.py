"""Prepare a run folder for an attempt at a run: a new folder, or one in which an earlier attempt was stopped."""

import shlex
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from configs.errors import UserError
from configs.plan import plan_run
from configs.reading import Unreadable, entries, is_file, is_folder, patiently
from configs.resume_check import fixed_settings, require_unchanged
from configs.schema import Cluster, Recipe
from launch.start.launcher_signals import STOP_FILE
from logs.attempts import ATTEMPTS_FILE
from logs.checkpoints import NotFiniteCheckpoint, step_of, tell_passed_over
from logs.claims import CLAIMS_FOLDER, Claim
from logs.disk import explain_disk_errors
from logs.energy import ENERGY_PREFIX
from logs.folder import CONFIG_FILE, SUMMARY_FILE, UNFINISHED_MARK, VERDICT_FILE, RunFolder
from logs.metrics import METRICS_FILE, evaluated_epochs
from logs.mlperf import RESULT_FILES
from logs.nodes import NODES_FILE
from logs.read.parse import logged_epochs

_KEPT = (CONFIG_FILE, UNFINISHED_MARK, CLAIMS_FOLDER, ATTEMPTS_FILE, NODES_FILE, "hosts")
"""Files that an attempt leaves to the next one, besides the job's own files."""

_KEPT_PREFIXES = ("job.", "attempt-", ENERGY_PREFIX)


@contextmanager
def prepared(folder: RunFolder, recipe: Recipe, cluster: Cluster, *, must_resume: bool) -> Iterator[Claim]:
    """Make a new run folder, or prepare one that holds an unfinished attempt at the same run.

    While the block runs, the folder is claimed: no other launcher can use it, on this node or another.

    Args:
        folder: The run folder.
        recipe: The recipe of the run.
        cluster: The cluster of the run.
        must_resume: Whether to refuse a folder without a checkpoint from which the run can be resumed.

    Yields:
        The claim.

    Raises:
        UserError: The folder holds something else, a run that has ended, a run of another recipe, or a run that goes on
            now; or ``must_resume`` and there is nothing to resume.
    """
    is_begun = folder.is_begun
    if must_resume and not is_begun:
        raise UserError(f"{folder}: no {CONFIG_FILE} in it; --resume needs the folder of a run")
    if not is_begun:
        folder.make()
    claim = folder.claims.take()
    try:
        # Rank 0 notices the loss of the folder too, and ends the run.
        with folder.claims.held(lambda message: sys.stderr.write(f"error: {message}\n")):
            if is_begun:
                recorded = fixed_settings(*folder.settings)
                changes = require_unchanged(recorded, fixed_settings(recipe, cluster), str(folder))
                require_unfinished(folder, is_longer=recipe.run.epochs > recorded["run"]["epochs"])
                for change in changes:
                    sys.stderr.write(f"warning: {folder}: the run continues with {change}\n")
                prepare_attempt(folder, must_resume=must_resume)
            yield claim
    finally:
        with suppress(Unreadable):  # The next launcher finds that the owner is gone.
            if not claim.is_lost():  # Else another process has taken the folder over.
                claim.release()


def prepare_attempt(folder: RunFolder, *, must_resume: bool = False) -> None:
    """Prepare a run folder that has a config for the next attempt.

    A checkpoint that is damaged or not finite is reported, and the one before it is used. If an attempt left no whole
    checkpoint, its files are moved into ``attempt-1``, ``attempt-2`` and so on, and the run begins at step 0. Nothing
    is moved if a checkpoint cannot be read, because it may be whole.

    Args:
        folder: The run folder.
        must_resume: Whether a whole checkpoint is required.

    Raises:
        UserError: ``must_resume``, and there is no whole checkpoint; checkpoints are not finite, and no other is whole;
            what the attempts before have logged is gone, with which the end of the run is judged; the folder is gone
            or cannot be written; or something in it cannot be read.
    """
    with explain_disk_errors(folder.path):
        for path in patiently(folder.path, lambda: [*folder.path.iterdir()]):
            if not (is_file(path) or is_folder(path)):  # Opening a pipe would wait; a link may lead anywhere.
                raise UserError(f"{path}: is neither a file nor a folder; move it away")
        (folder / STOP_FILE).unlink(missing_ok=True)
        checkpoint, damaged = folder.checkpoints.newest_valid()
        if checkpoint is None and (odd := [each for each in damaged if isinstance(each, NotFiniteCheckpoint)]):
            raise UserError(f"{odd[0]}, nor is any checkpoint before it; begin a new run with another --run-dir")
        tell_passed_over(checkpoint, damaged)
        if checkpoint is None and must_resume:
            again = shlex.join([str(folder / CONFIG_FILE), "--run-dir", str(folder)])
            raise UserError(f"{folder}: no complete checkpoint in it; start the run again: ./run.sh train {again}")
        if checkpoint is not None and (gone := _incomplete(folder, step_of(checkpoint))):
            raise UserError(
                f"{folder}: {' and '.join(gone)} missing or incomplete, without which the end of the run could not be "
                f"judged; put back what is missing, or begin a new run with --from {shlex.quote(str(folder))}"
            )
        if any(not _is_kept(path) for path in entries(folder.path)):
            # An attempt that was killed has not closed its log.
            folder.close_aborted("the attempt ended without closing its log")
        if checkpoint is None:
            _set_aside(folder)
        else:
            sys.stderr.write(f"resumes from {checkpoint}\n")
            past = [each for each in entries(folder.path) if each.match("failure_*.json") or each.match("responds_*")]
            for path in [folder / SUMMARY_FILE, folder / VERDICT_FILE, *past]:
                with explain_disk_errors(path):
                    path.unlink(missing_ok=True)
        folder.checkpoints.resume_from(checkpoint)


def _incomplete(folder: RunFolder, step: int) -> list[str]:
    """Return which of metrics and logs are missing, or lack an evaluation before a step that another of them has."""
    recipe, cluster = folder.settings
    plan, epochs = plan_run(recipe, cluster.world_size), dict[str, set[int]]()
    for name in (METRICS_FILE, *RESULT_FILES.values()):
        found = evaluated_epochs(folder / name) if name == METRICS_FILE else logged_epochs(folder / name)
        epochs[name] = {epoch for epoch in found if plan.steps_after(epoch) <= step}
    whole = set[int]().union(*epochs.values())
    return [name for name, found in epochs.items() if found != whole or not is_file(folder / name)]


def require_unfinished(folder: RunFolder, *, is_longer: bool = False) -> None:
    """Raise if the run in the folder has ended. The summary of an attempt that was stopped has no number of steps.

    A run whose trained network was not saved can be resumed: the end of it is trained again.

    Args:
        folder: The run folder.
        is_longer: Whether the run gets more epochs, so that a run that ended short of its target can go on.

    Raises:
        UserError: The run has ended, or the summary cannot be read.
    """
    if not folder.has_summary:
        return
    try:
        summary = folder.summary()
    except Unreadable:
        raise
    except UserError as error:
        sys.stderr.write(f"warning: {error}; it is passed over, because the checkpoints say how far the run is\n")
        return
    if summary.steps is not None and summary.is_saved is not False and not (is_longer and summary.status == "aborted"):
        command = f"--from {shlex.quote(str(folder))}"
        raise UserError(
            f"{folder}: the run in it has ended, {summary.status} after step {summary.steps}; give another folder "
            f"with --run-dir, or leave the option out; a new run with {command} begins with its weights"
        )


def _set_aside(folder: RunFolder) -> None:
    """Move the files of an attempt into a folder of their own, out of the way of the next attempt."""
    found = entries(folder.path)
    if left := [path for path in found if not _is_kept(path)]:
        numbers = (path.name.removeprefix("attempt-") for path in found)
        past = folder / f"attempt-{1 + max((int(each) for each in numbers if each.isdecimal()), default=0)}"
        past.mkdir()
        for path in left:
            path.rename(past / path.name)


def _is_kept(path: Path) -> bool:
    return path.name in _KEPT or path.name.startswith(_KEPT_PREFIXES)
