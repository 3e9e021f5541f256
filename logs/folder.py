"""A run's folder: its name, the summary in it, and closing it after the ranks were killed."""

import json
from dataclasses import dataclass, fields
from datetime import datetime
from functools import cache
from pathlib import Path
from typing import Any, Literal

from pydantic import TypeAdapter, ValidationError

from configs.errors import UserError
from configs.load import load_run
from logs.disk import explain_disk_errors, read_object, write_json
from logs.environment import environment
from logs.mlperf import RESULT_FILES, close_log

__all__ = [
    "CONFIG_FILE",
    "REHEARSAL_FILE",
    "STARTUP_FILE",
    "SUMMARY_FILE",
    "Summary",
    "close_aborted",
    "create_run_folder",
    "default_run_name",
    "environment",
    "read_summary",
    "write_json",
    "write_summary",
]

CONFIG_FILE = "config.yaml"
SUMMARY_FILE = "summary.json"
STARTUP_FILE = "startup.json"
REHEARSAL_FILE = "rehearsal.txt"
"""A rehearsal beside its predictions, a sentence a line."""


@dataclass(frozen=True)
class Summary:
    """The outcome of a run. A number that was not measured is None.

    Attributes:
        top1: Top-1 accuracy (0 to 1) at the last evaluation; None where images have several labels.
        mean_auc: Mean area under the ROC curve over the classes, where images have several labels.
        init_s: Seconds from ``init_start`` to ``init_stop``.
        run_s: Seconds from ``run_start`` to ``run_stop``, the time that MLPerf scores.
        images_per_s: Training images a second over all ranks, without evaluations.
        input_wait_fraction: Share of the steps' time in which ranks waited for images.
        comm_exposed_fraction: Share of the communication time that did not overlap with computing.
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
        is_rehearsal: Whether ranks waited instead of computing, so that accuracies are invented.
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
    is_rehearsal: bool = False


def create_run_folder(path: Path) -> Path:
    """Create a run folder and its parent folders; return ``path``.

    Raises:
        UserError: If ``path`` exists and is not an empty folder, or cannot be created.
    """
    if path.exists() and not (path.is_dir() and not any(path.iterdir())):
        raise UserError(
            f"{path}: exists already, and a run needs a new or empty folder; give another folder, or remove this one"
        )
    with explain_disk_errors(path):
        try:
            path.mkdir(parents=True, exist_ok=True)
        except (FileExistsError, NotADirectoryError):
            raise UserError(
                f"{path}: cannot be created, because one of its parent folders is a file; give another folder"
            ) from None
    return path


def default_run_name(recipe_name: str, now: datetime, runs: Path) -> str:
    """Return a name not yet used in ``runs``: recipe and start, ``digits-20261121-044500``, then ``-2`` and so on."""
    name = f"{recipe_name}-{now:%Y%m%d-%H%M%S}"
    taken, number = name, 1
    while (runs / taken).exists():
        number += 1
        taken = f"{name}-{number}"
    return taken


def write_summary(run_folder: Path, summary: Summary) -> None:
    """Write ``summary.json`` atomically."""
    write_json(run_folder / SUMMARY_FILE, {field.name: getattr(summary, field.name) for field in fields(summary)})


def read_summary(run_folder: Path) -> Summary:
    """Return the summary in ``summary.json``; keys that this version does not know are ignored.

    Raises:
        UserError: If the file is missing, or is not a summary.
    """
    path = run_folder / SUMMARY_FILE
    tree = read_object(path)
    try:
        return _adapter().validate_json(json.dumps(tree), strict=True)
    except ValidationError as error:
        first = error.errors()[0]
        words = f"{'.'.join(map(str, first['loc']))}: {first['msg']}"
        raise UserError(f"{path}: is not a run's summary ({words}); repeat the run to get a summary") from None


@cache  # making it takes 3 ms, and studies and reports read hundreds of summaries
def _adapter() -> TypeAdapter[Summary]:
    return TypeAdapter(Summary)


def close_aborted(
    run_folder: Path, reason: str, *, failed_rank: int | None = None, failed_step: int | None = None
) -> None:
    """Complete the folder of a run that was killed: log ``run_stop`` with status aborted, and write a summary.

    The ranks must have ended. A ``run_stop`` or a summary that rank 0 has written is kept; a missing log stays missing.

    Args:
        run_folder: An existing run folder, complete or not.
        reason: Why the run ended, in one line.
        failed_rank: The rank that died first. If None, the rank is unknown.
        failed_step: The 0-based step at which that rank died. If None, the step is unknown.

    Raises:
        UserError: If the disk is full.
    """
    for ruleset, name in RESULT_FILES.items():
        close_log(run_folder / name, ruleset)
    if not (run_folder / SUMMARY_FILE).exists():
        summary = _aborted(run_folder, reason, failed_rank, failed_step)
        write_summary(run_folder, summary)


def _aborted(run_folder: Path, failure: str, failed_rank: int | None, failed_step: int | None) -> Summary:
    try:
        recipe, cluster = load_run(run_folder / CONFIG_FILE)
    except UserError:
        return Summary("unknown", "aborted", failure=failure, failed_rank=failed_rank, failed_step=failed_step)
    return Summary(
        recipe=recipe.name,
        status="aborted",
        target=recipe.run.target_top1,
        world_size=cluster.world_size,
        global_batch_size=recipe.batch.global_size,
        seed=recipe.run.seed,
        failure=failure,
        failed_rank=failed_rank,
        failed_step=failed_step,
        is_rehearsal=cluster.rehearsal is not None,
    )
