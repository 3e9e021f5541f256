"""A run's folder as one object: its files, settings, summary, checkpoints, claims and attempts."""

import sys
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, Literal

from configs.arguments import short_path
from configs.errors import UserError
from configs.load import dump, load_run, parse_yaml, resolve_path
from configs.reading import entries, exists, is_file, is_folder
from configs.resume_check import leaves
from configs.schema import Cluster, Recipe
from logs.attempts import Attempts
from logs.checkpoints import CheckpointFolder
from logs.claims import CLAIMS_FOLDER, Claims
from logs.disk import explain_disk_errors, is_partial, read_as, write_json, write_text
from logs.energy import RunEnergy
from logs.environment import ENVIRONMENT_FILE, write_environment
from logs.mlperf import RESULT_FILES, close_log
from logs.redaction import may_hold_secret

CONFIG_FILE = "config.yaml"
SUMMARY_FILE = "summary.json"
STARTUP_FILE = "startup.json"
VERDICT_FILE = "verdict.json"
DATASET_FILE = "dataset.json"
"""The manifest of the data set, which tells the names of the classes when the set is gone."""

REHEARSAL_FILE = "rehearsal.txt"
"""A rehearsal beside its predictions, a sentence a line."""

UNFINISHED_MARK = "unfinished"
"""A file in the folder of a job's run that was stopped and that the same job is to resume."""


@dataclass(frozen=True)
class Summary:
    """The outcome of a run. A number that was not measured is None.

    Attributes:
        top1: Top-1 accuracy (0 to 1) at the last evaluation; None where images have several labels.
        best: Epoch, step, top-1 (or mean ROC-AUC) and checkpoint of the best evaluation; None if none was kept.
        mean_auc: Mean area under the ROC curve over the classes, where images have several labels.
        init_s: Seconds from ``init_start`` to ``init_stop``.
        run_s: Seconds from ``run_start`` to ``run_stop``, the time that MLPerf scores.
        images_per_s: Training images a second over all ranks, without evaluations.
        input_wait_fraction: Share of the steps' time in which ranks waited for images.
        comm_exposed_fraction: Share of the steps' time in which ranks waited for communication.
        checkpoint_s: Seconds for which training waited for checkpoints, within ``run_s``.
        failure: Why an aborted run ended.
        slowest_rank: The rank that computes longest; None with a single rank, or if no step was measured.
        rank_excess: By what share the slowest rank computes longer than the median rank.
        rcp: How an ImageNet run that reached its target compares with MLPerf's reference, see
            `logs.judge.rcp.ReferenceComparison`.
        resumed_from_step: The step from which the last attempt continued; ``run_s`` and the rates are those of the last
            attempt. None if there was one attempt only.
        changes: What differs from the settings with which the run was begun: ranks, epochs, engine. None if nothing
            does.
        left_out: Host of the job that the run did without -> why: it failed, or the check before the run found it slow.
            None if it did without none.
        is_rehearsal: Whether ranks waited instead of computing, so that accuracies are invented.
        is_cold: Whether no image was in memory as the run began, as far as was looked; None if unknown.
        energy: What the run used from ``run_start`` to ``run_stop``, with the attempts before; None if no counter of
            energy could be read.
        is_saved: Whether the network that was trained to the end is in a checkpoint. If not, the run is aborted,
            although its log may have success: the timed part was over before the network could be saved. None if the
            run did not come to its end.
    """

    recipe: str
    status: Literal["success", "aborted"]
    top1: float | None = None
    mean_auc: float | None = None
    target: float | None = None
    epochs: int | None = None
    steps: int | None = None
    world_size: int | None = None
    global_batch_size: int | None = None
    init_s: float | None = None
    run_s: float | None = None
    images_per_s: float | None = None
    input_wait_fraction: float | None = None
    comm_exposed_fraction: float | None = None
    checkpoint_s: float | None = None
    weights_checksum: str | None = None
    seed: int | None = None
    failure: str | None = None
    failed_rank: int | None = None
    failed_step: int | None = None
    slowest_rank: int | None = None
    rank_excess: float | None = None
    rcp: dict[str, Any] | None = None
    resumed_from_step: int | None = None
    changes: list[str] | None = None
    left_out: dict[str, str] | None = None
    energy: RunEnergy | None = None
    is_rehearsal: bool = False
    is_cold: bool | None = None
    is_saved: bool | None = None
    best: dict[str, Any] | None = None

    @property
    def is_concluded(self) -> bool:
        """Whether the run came to its own end, with or without its target."""
        return self.status == "success" or self.weights_checksum is not None

    @property
    def status_words(self) -> str:
        """The status, and of a rehearsal what it is worth."""
        return self.status + (" (rehearsal: nothing was trained, accuracies are invented)" if self.is_rehearsal else "")

    @property
    def accuracies(self) -> Iterator[str]:
        """Yield what the last evaluation and the best one found, a line each."""
        at = f"after epoch {self.epochs}, step {self.steps}"
        if self.top1 is not None:
            yield f"top-1 {self.top1:.4f}{'' if self.target is None else f' (target {self.target:g})'} {at}"
        if self.mean_auc is not None:
            yield f"mean ROC-AUC {self.mean_auc:.4f} {at}"
        if (best := self.best) is not None:
            value = best.get("top1", best.get("mean_auc"))
            yield f"best {value:.4f} after epoch {best['epoch']}: checkpoints/{best['checkpoint']}"


def read_settings(path: Path) -> dict[str, Any]:
    """Return the settings in a ``config.yaml``, dotted key -> value, without judging them; empty without the file.

    The recipe's card has no settings.
    """
    tree = parse_yaml(path.read_text(encoding="utf-8"), path.name) if path.is_file() else None
    settings = leaves(tree) if isinstance(tree, dict) else []
    return {key: value for key, value in settings if not key.startswith("recipe.card.")}


class RunFolder:
    """The folder of a run.

    Args:
        path: The folder, which need not exist.

    Attributes:
        attempts: The attempts at the run that have ended.
        checkpoints: The checkpoints.
        claims: Who trains in the folder.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.attempts, self.checkpoints, self.claims = Attempts(path), CheckpointFolder(path), Claims(path)
        self._settings: tuple[Recipe, Cluster] | None = None

    def __str__(self) -> str:
        return str(self.path)

    def __truediv__(self, name: str) -> Path:
        return self.path / name

    @property
    def shown(self) -> str:
        """The path for a message, see `configs.arguments.short_path`."""
        return short_path(self.path)

    @classmethod
    def new(cls, recipe: Recipe, cluster: Cluster) -> "RunFolder":
        """Return the folder for a run that begins now, below the cluster's folder of runs; nothing is made."""
        runs, now = resolve_path(cluster.paths.runs), datetime.now().astimezone()
        name = f"{recipe.name}-{now:%Y%m%d-%H%M%S}"
        taken, number = name, 1
        while exists(runs / taken):
            number += 1
            taken = f"{name}-{number}"
        return cls(runs / taken)

    def require_free(self) -> None:
        """Raise UserError if the path exists and is not an empty folder.

        What a launcher leaves that was killed before it wrote the settings is nothing.
        """
        if exists(self.path) and not (
            is_folder(self.path) and all(each.name == CLAIMS_FOLDER or is_partial(each) for each in entries(self.path))
        ):
            raise UserError(
                f"{self}: exists already, and a run needs a new or empty folder; give another folder, or remove this "
                "one"
            )

    def make(self) -> None:
        """Create the folder and its parent folders.

        Raises:
            UserError: If the path exists and is not an empty folder, or cannot be created.
        """
        self.require_free()
        with explain_disk_errors(self.path):
            self.path.mkdir(parents=True, exist_ok=True)

    @property
    def is_begun(self) -> bool:
        """Whether a run has been begun in the folder, so that the folder has the run's settings."""
        return is_file(self / CONFIG_FILE)

    @property
    def settings(self) -> tuple[Recipe, Cluster]:
        """The recipe and the cluster in ``config.yaml``.

        Raises:
            UserError: The file is missing, or cannot be used.
        """
        if self._settings is None:
            self._settings = load_run(self / CONFIG_FILE)
        return self._settings

    @property
    def recipe(self) -> Recipe:
        """What the run trains, see `settings`."""
        return self.settings[0]

    @property
    def cluster(self) -> Cluster:
        """Where the run trains, see `settings`."""
        return self.settings[1]

    def write_settings(self, recipe: Recipe, cluster: Cluster) -> None:
        """Write ``config.yaml``; if the settings may hold a secret, only the owner can read the file."""
        text = dump(recipe, cluster)
        write_text(self / CONFIG_FILE, text, is_private=may_hold_secret(cluster.environment, text))
        self._settings = recipe, cluster

    def record_environment(self, variables: Mapping[str, str]) -> None:
        """Write into ``environment.json`` what this machine is and which variables the ranks get.

        A resumed run may continue with other code, or on another kind of CPU. That changes the results, if only in
        their last bits, so it is reported in one line and recorded.
        """
        if changes := write_environment(self.path, variables):
            sys.stderr.write(
                f"warning: {self.shown}: the run is resumed with {'; '.join(changes)}: the results may differ "
                f"from those of a run without a change; {ENVIRONMENT_FILE} keeps both\n"
            )

    @property
    def has_summary(self) -> bool:
        """Whether an attempt at the run has ended, in whatever way."""
        return is_file(self / SUMMARY_FILE)

    @property
    def has_ended(self) -> bool:
        """Whether the run has ended: there is a summary, and no job is to resume the run."""
        return self.has_summary and not is_file(self / UNFINISHED_MARK)

    def summary(self) -> Summary:
        """Return the summary in ``summary.json``; keys that this version does not know are ignored.

        Raises:
            UserError: If the file is missing, cannot be read, or is not a summary.
        """
        return read_as(Summary, self / SUMMARY_FILE)

    def write_summary(self, summary: Summary) -> None:
        """Write ``summary.json`` atomically."""
        write_json(self / SUMMARY_FILE, asdict(summary))

    def close_aborted(self, reason: str, *, failed_rank: int | None = None, failed_step: int | None = None) -> None:
        """Complete the folder of a run that was killed: log ``run_stop`` with status aborted, and write a summary.

        The ranks must have ended. A ``run_stop`` or a summary that rank 0 has written is kept; a missing log stays
        missing.

        Args:
            reason: Why the run ended, in one line.
            failed_rank: The rank that died first. If None, the rank is unknown.
            failed_step: The 0-based step at which that rank died. If None, the step is unknown.

        Raises:
            UserError: If the disk is full.
        """
        for ruleset, name in RESULT_FILES.items():
            close_log(self / name, ruleset)
        if exists(self / SUMMARY_FILE):
            return
        known: dict[str, Any] = {"recipe": "unknown"}
        with suppress(UserError):
            recipe, cluster = self.settings
            known = {
                "recipe": recipe.name,
                "target": recipe.run.target_top1,
                "world_size": cluster.world_size,
                "global_batch_size": recipe.batch.global_size,
                "seed": recipe.run.seed,
                "is_rehearsal": cluster.rehearsal is not None,
            }
        self.write_summary(
            Summary(status="aborted", failure=reason, failed_rank=failed_rank, failed_step=failed_step, **known)
        )
