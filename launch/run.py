"""One run from the config to its end: folder, data set, ranks, and their restarts.

Data sets are packed and ranks are started as commands, because they need libraries that launch does not import.
"""

import shutil
import signal
import sys
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

from configs.arguments import counted
from configs.compilers import require_compiler
from configs.errors import REFUSED_STATUS, UserError
from configs.interrupts import run_child
from configs.load import ROOT, resolve_path
from configs.plan import plan_run, schedule_remarks
from configs.programs import Program, command_of
from configs.rank_variables import rank_environment
from configs.reading import exists, is_file
from configs.registry import BUILT_IN_SOURCES, ENGINES, packing_words, require_reader
from configs.schema import Cluster, Recipe
from launch.failure_cause import Ending
from launch.finish import close_refused, finish_run, tell_trouble
from launch.notify import notify
from launch.restart import may_restart
from launch.resume import prepare_attempt, prepared
from launch.start.commands import require_startable, run_under
from launch.start.forks import forked
from launch.start.launcher_signals import forwarded_signals
from launch.start.local import Outcome
from launch.start.monitor import monitored
from launch.start.tracking import tracked
from logs.claims import CLAIMS_FOLDER, Claim
from logs.folder import STARTUP_FILE, RunFolder
from logs.track.trackers import FOLDER as TRACKERS_FOLDER
from logs.track.trackers import require_installed
from train.plan.before_run import (
    classless_outputs,
    no_room_for_checkpoint,
    require_fixed_step,
    slow_values,
)
from train.plan.memory import shortage_here

_AT_INTERRUPT = "Ctrl-C: the run saves its state and ends; press Ctrl-C again to end it at once"


def launch_run(recipe: Recipe, cluster: Cluster, run_folder: Path | None, *, must_resume: bool = False) -> int:
    """Run ``recipe`` on ``cluster``.

    Args:
        recipe: What is trained.
        cluster: Where it is trained.
        run_folder: The folder to write to; an unfinished run of the same recipe in it is resumed. If None, a new folder
            below the cluster's folder of runs.
        must_resume: Whether to refuse a folder without a run that can be resumed.

    Returns:
        The exit status; see `launch.__main__.main`.

    Raises:
        UserError: Nothing was started: the batch cannot be divided, the ranks surely need more memory than there is,
            the disk has no room for a checkpoint, the folder is taken, or data cannot be packed.
    """
    require_startable(cluster)
    require_installed(cluster.trackers)
    folder = RunFolder(run_folder) if run_folder else RunFolder.new(recipe, cluster)
    _check_and_pack(recipe, cluster, folder)
    # From here on a signal must not end this process alone: the run would go on, or the claim and the log stay open.
    with forwarded_signals(_AT_INTERRUPT), prepared(folder, recipe, cluster, must_resume=must_resume) as claim:
        folder.write_settings(recipe, cluster)
        with _rank_command(folder) as command:
            outcomes = [_run_ranks(folder, command)]
            try:
                return _conclude(folder, outcomes, claim, command)
            except (UserError, OSError, ImportError) as error:  # For example a full disk.
                return tell_trouble(folder, outcomes[-1], error)


def _rank_command(folder: RunFolder) -> AbstractContextManager[Sequence[str]]:
    """Return what yields the command of a rank, while the process that forks the ranks of a rehearsal runs."""
    command, cluster = command_of(Program.RANK, str(folder.path.absolute())), folder.cluster
    if cluster.rehearsal is None or not cluster.rehearsal.forked:
        return nullcontext(command)
    return forked(folder.path, command, rank_environment(cluster))


def _conclude(folder: RunFolder, outcomes: list[Outcome], claim: Claim, command: Sequence[str]) -> int:
    """Start the ranks again as often as they may be, then close the run; return the exit status.

    Args:
        folder: The run folder.
        outcomes: How the ranks ended; each restart adds another end.
        claim: The claim on the folder.
        command: The command of a rank.

    Raises:
        UserError: A file cannot be read or written.
    """
    is_emptied = exists(folder.path) and not exists(claim.path)
    while not is_emptied and not claim.is_lost() and may_restart(folder, outcomes[-1]):
        prepare_attempt(folder)
        outcomes.append(_run_ranks(folder, command))
    outcome = outcomes[-1]
    if claim.is_lost():
        sys.stderr.write(f"error: {folder.shown}: was taken over by another run; this run stops\n")
        return 1
    if is_emptied:  # Nothing there could be resumed, or judged.
        sys.stderr.write(f"error: {folder.shown}: was emptied or unmounted during the run; start it again\n")
        return 1
    ending, name = Ending.read(folder, outcome), folder.recipe.name
    # At the first step, the ranks leave a ledger of their start.
    has_trained = folder.has_summary or is_file(folder / STARTUP_FILE)
    is_begun = folder.checkpoints.resume_point() or folder.attempts.read()
    if signal.SIGINT in (outcome.stopped_by, outcome.interrupted_by) and not is_begun and not has_trained:
        notify(folder, "stop", f"{name}: stopped by Ctrl-C before training began")
        _remove_unbegun(folder)
        sys.stderr.write(f"{name}: stopped by Ctrl-C before training began: nothing was saved, nothing is left\n")
        return 128 + signal.SIGINT
    if ending.has_refused and not folder.has_summary:
        if is_begun or not all(report["status"] == REFUSED_STATUS for report in ending.reports):
            return close_refused(folder, outcome)
        # Every rank has printed why.
        _remove_unbegun(folder)
        return REFUSED_STATUS
    return finish_run(folder, outcome)


def _run_ranks(folder: RunFolder, command: Sequence[str]) -> Outcome:
    """Record where the run takes place, start the ranks, and wait for their end."""
    recipe, cluster = folder.settings
    variables = rank_environment(cluster)
    folder.record_environment(variables)
    sys.stderr.write(f"{recipe.name} on {cluster.name}: {counted(cluster.world_size, 'rank')}, {folder.shown}\n")
    gpus = cluster.ranks_per_node if cluster.device == "gpu" and cluster.sample_gpus else 0
    with monitored(folder.path, gpus=gpus), tracked(folder, cluster.trackers):
        return run_under(cluster, command, variables)


def open_run(recipe: Recipe, cluster: Cluster, run_folder: Path) -> None:
    """Make a run folder with the run's config, and pack the data set if the program can make it by itself.

    Raises:
        UserError: The batch cannot be divided, the disk has no room for a checkpoint, the folder exists, or data cannot
            be packed.
    """
    folder = RunFolder(run_folder)
    _check_and_pack(recipe, cluster, folder)
    folder.make()
    folder.write_settings(recipe, cluster)


def check_run(recipe: Recipe, cluster: Cluster, folder: Path) -> None:
    """Raise UserError if this machine refuses the run: its batch, its packages, its memory, its disk.

    Warn of a batch that is larger than the data set, of outputs without a class, of settings that make steps longer, of
    a schedule whose epochs are not those of the images, and of keys that ask for something after the run's end.
    """
    plan = plan_run(recipe, cluster.world_size)
    require_fixed_step(recipe, cluster)
    if ENGINES[cluster.engine.name].computes and cluster.container.runtime == "none":  # an image has its own packages
        require_reader(recipe.data.source)
        require_compiler(cluster)
    if problem := shortage_here(recipe, cluster) or no_room_for_checkpoint(recipe, cluster, folder):
        raise UserError(problem)
    warnings = plan.stepless_epochs, classless_outputs(recipe, cluster)
    for problem in filter(None, [*warnings, *slow_values(cluster), *schedule_remarks(recipe, plan)]):
        sys.stderr.write(f"warning: {problem}\n")


def _check_and_pack(recipe: Recipe, cluster: Cluster, folder: RunFolder) -> None:
    """Check the run, and pack a data set that the program can make and that is missing."""
    check_run(recipe, cluster, folder.path)
    data, destination = recipe.data, resolve_path(cluster.paths.data) / recipe.data.name
    if data.source in BUILT_IN_SOURCES and not is_file(destination / "manifest.json"):
        pack_data_set(packing_words(data, recipe.model.num_classes, destination))


def pack_data_set(arguments: Sequence[str]) -> None:
    """Pack a data set.

    Args:
        arguments: The arguments of ``./run.sh prepare``, with the source and the destination first.

    Raises:
        UserError: The data set cannot be packed.
    """
    if run_child(command_of(Program.PREPARE_VERB, "prepare", *arguments, "--no-recipe"), cwd=ROOT):
        raise UserError(f"{arguments[1]}: the data set could not be packed, for the reason given above")


def _remove_unbegun(folder: RunFolder) -> None:
    """Delete the files of a run that has not begun, so that the same command can be given again."""
    for path in folder.path.iterdir():
        if path.is_file():
            path.unlink()
    for name in (CLAIMS_FOLDER, TRACKERS_FOLDER):
        shutil.rmtree(folder / name, ignore_errors=True)
    if not any(folder.path.iterdir()):
        folder.path.rmdir()
