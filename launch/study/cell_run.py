"""A run of a study, in a folder of its own: an ordinary run that counts from the moment when its summary is there."""

import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from configs.errors import REFUSED_STATUS, UserError
from configs.load import with_resolved_paths
from configs.schema import Cluster, Recipe
from logs.disk import explain_disk_errors
from logs.folder import RunFolder, Summary

RunStarter = Callable[[Recipe, Cluster, Path], int | None]
"""Runs a recipe on a cluster in a folder. Returns the exit status, 128 + n if signal n stopped the run, or None if the
run waits in a scheduler's queue."""


@dataclass(frozen=True)
class CellRun:
    """One run of a study.

    Attributes:
        recipe: What the run trains.
        cluster: Where it runs.
        folder: The folder of the run.
        starter: What runs it.
    """

    recipe: Recipe
    cluster: Cluster
    folder: Path
    starter: RunStarter

    @property
    def ticket(self) -> Path:
        """The mark of a run in a scheduler's queue. The mark lies beside the folder, which the job must find empty."""
        return self.folder.with_name(f"{self.folder.name}.submitted")

    @property
    def has_summary(self) -> bool:
        """Whether a run in the folder has ended, in whatever way."""
        return RunFolder(self.folder).has_summary

    def summary(self) -> Summary | None:
        """Return the summary of the run in the folder, or None if no run has ended there.

        Raises:
            UserError: The folder holds a run with other settings.
        """
        holds_this_run = require_same_settings(self.folder, self.recipe, self.cluster)
        return RunFolder(self.folder).summary() if holds_this_run and self.has_summary else None

    def start(self) -> int | None:
        """Run the recipe; return the exit status, or None if the run waits in a scheduler's queue.

        Raises:
            UserError: The run was refused before it began.
        """
        if self.ticket.exists():
            # A job that ended without success is submitted again only on request: after the ticket was removed.
            return 1 if self.has_summary else None
        if owner := RunFolder(self.folder).claims.holder():
            raise UserError(f"{self.folder}: a run is active in it: {owner}; wait for its end")
        if self.folder.exists():
            shutil.rmtree(self.folder)  # The rest of an earlier attempt at the same run, which did not come to its end.
        status = self.starter(self.recipe, self.cluster, self.folder)
        if status is None:
            with explain_disk_errors(self.ticket):
                self.ticket.parent.mkdir(parents=True, exist_ok=True)
                self.ticket.touch()
        if status == REFUSED_STATUS:
            raise UserError(
                f"{self.folder.name}: the run was refused (see above); correct the study, finished runs are kept"
            )
        return status

    def state(self) -> str:
        """Return in a few words what is to be done about a run without a result."""
        if not self.ticket.exists():
            return "to run"
        failed = f"failed; remove {self.ticket.name} to try again"
        return failed if self.has_summary else "waits in the scheduler's queue"


def require_same_settings(folder: Path, recipe: Recipe, cluster: Cluster) -> bool:
    """Return whether ``folder`` holds a run, and raise if that run has other settings.

    Raises:
        UserError: The folder holds a run of another recipe, or on another cluster.
    """
    run = RunFolder(folder)
    if not run.is_begun:
        return False
    ran, place = run.settings
    # A job's config has absolute paths where the study has relative ones.
    if (ran, with_resolved_paths(place)) != (recipe, with_resolved_paths(cluster)):
        raise UserError(
            f"{folder}: holds a run whose settings differ from the study's; remove the folder, or give another --runs"
        )
    return True
