"""The folder of a run: its name, the summary in it, and its tidy end after a kill."""

from __future__ import annotations

import json
from dataclasses import dataclass, fields
from datetime import datetime
from pathlib import Path
from typing import Any, Literal

from configs.errors import UserError
from configs.load import load_run
from logs.disk import explain_disk_errors, write_json
from logs.environment import environment
from logs.mlperf import RESULT_FILES, close_log

__all__ = [
    "CONFIG_FILE",
    "STARTUP_FILE",
    "SUMMARY_FILE",
    "Summary",
    "close_aborted",
    "create",
    "default_name",
    "environment",
    "read_summary",
    "write_json",
    "write_summary",
]

CONFIG_FILE = "config.yaml"
SUMMARY_FILE = "summary.json"
STARTUP_FILE = "startup.json"


@dataclass(frozen=True)
class Summary:
    """A run in one object; what it never came to measure is None.

    Attributes:
        top1: Share (0 to 1) of validation images right at the last evaluation; none: see ``mean_auc``.
        mean_auc: Mean area under the ROC curve over the classes, where images have several labels.
        init_s: From ``init_start`` to ``init_stop``; ``run_s`` likewise, and is what MLPerf scores.
        images_per_s: Over all ranks, training only.
        input_wait_fraction: Share of the steps' time spent waiting for images.
        comm_exposed_fraction: Share of the communication that no computation hid.
        failure: Why an aborted run ended.
        slowest_rank: The one that computes longest; None of a single rank, or where no step was measured.
        rank_excess: How much longer it computes than the median rank, as a share.
        rcp: An ImageNet run that reached its target against the official reference, see `logs.judge.rcp.Standing`.
        resumed_from_step: Where its last attempt went on; ``run_s`` and rates are that attempt's. None: in one go.
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
    weights_checksum: str | None = None
    seed: int | None = None
    failure: str | None = None
    failed_rank: int | None = None
    failed_step: int | None = None
    slowest_rank: int | None = None
    rank_excess: float | None = None
    rcp: dict[str, Any] | None = None
    resumed_from_step: int | None = None


def create(path: Path) -> Path:
    """Make the folder of a run, and those above it.

    Raises:
        UserError: It exists and is not an empty folder, or cannot be made.
    """
    if path.exists() and not (path.is_dir() and not any(path.iterdir())):
        raise UserError(f"{path}: exists already, and a run needs a new or empty folder; give another, or remove it")
    with explain_disk_errors(path):
        try:
            path.mkdir(parents=True, exist_ok=True)
        except (FileExistsError, NotADirectoryError):
            raise UserError(f"{path}: a file stands where one of its folders should be; give another") from None
    return path


def default_name(recipe_name: str, now: datetime, runs: Path) -> str:
    """Name a run after its recipe and start, ``digits-20261121-044500``, with ``-2`` and so on if ``runs`` has it."""
    name = f"{recipe_name}-{now:%Y%m%d-%H%M%S}"
    taken, number = name, 1
    while (runs / taken).exists():
        number += 1
        taken = f"{name}-{number}"
    return taken


def write_summary(run_folder: Path, summary: Summary) -> None:
    """Write ``summary.json`` at once."""
    write_json(run_folder / SUMMARY_FILE, {field.name: getattr(summary, field.name) for field in fields(summary)})


def read_summary(run_folder: Path) -> Summary:
    """Read ``summary.json``; keys of other versions are passed over.

    Raises:
        UserError: It is not there, or is no summary.
    """
    path = run_folder / SUMMARY_FILE
    known = {field.name for field in fields(Summary)}
    try:
        tree = json.loads(path.read_text(encoding="utf-8"))
        return Summary(**{key: value for key, value in tree.items() if key in known})
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror}); give the folder of a run that has ended") from None
    except (ValueError, TypeError, AttributeError) as error:
        raise UserError(f"{path}: is not a run's summary ({error}); run again to get one") from None


def close_aborted(
    run_folder: Path, reason: str, *, failed_rank: int | None = None, failed_step: int | None = None
) -> None:
    """Finish the folder of a run whose ranks were killed, and are gone: ``run_stop`` aborted, and a summary.

    What rank 0 wrote itself is kept, and a missing log stays missing.

    Args:
        run_folder: An existing run folder, whatever is in it.
        reason: Why it ended, one line.
        failed_rank: Who died first, if known.
        failed_step: Its 0-based step, if known.

    Raises:
        UserError: The disk is full.
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
    )
