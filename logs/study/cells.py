"""One cell of a scaling study, measured or predicted, as one row of its table."""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Literal

from configs.scaling_study import ScalingCell
from logs.folder import read_summary
from logs.metrics import METRICS_FILE, read_metrics
from logs.mlperf import RESULT_FILES
from logs.read.parse import parse_log
from logs.usage import read_samples, read_usage

__all__ = ["PREDICTION_FILE", "Row", "measured", "predicted", "steady_rate"]

PREDICTION_FILE = "prediction.json"


@dataclass(frozen=True)
class Row:
    """A row of a study's CSV; what nobody measured is None.

    Attributes:
        basis: A prediction has no other figures than a rate and the time of an epoch.
        status: failed: the run ended early, and its other figures are left out; skipped: it cannot be run here.
        images_per_s: Over all ranks, warm-up steps and evaluations left out.
        efficiency: Rate a rank over that of the fewest ranks; a prediction's is over its own, never a measured one.
        first_epoch_s: The first epoch's wall time, evaluation left out; ``later_epoch_s`` the others' median.
        wall_s: Of the training with its evaluations.
        cpu_s: The same time as CPU seconds, the ranks' sum, with the children that they waited for.
        slowest_cpu_s: Of the rank that used most.
        busy_cores: Mean over the samples of the whole run, start-up and server processes counted.
        other_busy_cores: Mean over the same samples, of everything else on the machine.
        peak_memory_bytes: The ranks' sum.
        busy_gpus: Mean utilisation, 0 to 1.
        loss: Mean training loss of the last interval.
        note: Why it was skipped.
    """

    network: str
    communication: str
    data: str
    batch: int
    ranks: int
    repeat: int
    basis: Literal["measured", "predicted"]
    status: Literal["success", "failed", "skipped"] = "success"
    images_per_s: float | None = None
    efficiency: float | None = None
    first_epoch_s: float | None = None
    later_epoch_s: float | None = None
    init_s: float | None = None
    wall_s: float | None = None
    cpu_s: float | None = None
    slowest_cpu_s: float | None = None
    busy_cores: float | None = None
    other_busy_cores: float | None = None
    peak_memory_bytes: int | None = None
    busy_gpus: float | None = None
    input_wait_fraction: float | None = None
    comm_exposed_fraction: float | None = None
    loss: float | None = None
    top1: float | None = None
    mean_auc: float | None = None
    folder: str = ""
    note: str = ""

    @property
    def quality(self) -> float | None:
        """What the run was judged by, 0 to 1."""
        return self.mean_auc if self.top1 is None else self.top1

    def values(self) -> list[Any]:
        """Give the row as the CSV writes it."""
        return [_written(getattr(self, field.name)) for field in fields(self)]


def _written(value: Any) -> Any:
    return "" if value is None else f"{value:.6g}" if isinstance(value, float) else value


def measured(cell: ScalingCell, repeat: int, folder: Path, warmup_steps: int) -> Row:
    """Read what a run that has ended came to.

    Raises:
        UserError: Its folder is damaged.
    """
    summary = read_summary(folder)
    if summary.status != "success":
        return Row(*cell.axes, repeat, "measured", "failed", folder=folder.name)
    metrics = read_metrics(folder / METRICS_FILE)
    spans = [span.end_s - span.begin_s for span in parse_log(folder / RESULT_FILES["0.6.0"]).epoch_spans]
    usage, samples = read_usage(folder), read_samples(folder)
    cpu = [own + child for own, child in zip(usage["cpu_s"], usage["children_cpu_s"], strict=True)]
    shares = [each.gpu_share for each in samples if each.gpu_share is not None]
    losses = [row["loss"] for row in metrics if row["kind"] == "interval"]
    return Row(
        *cell.axes, repeat, "measured",
        images_per_s=steady_rate(metrics, warmup_steps) or summary.images_per_s,
        first_epoch_s=spans[0] if spans else None,
        later_epoch_s=statistics.median(spans[1:]) if spans[1:] else None,
        init_s=summary.init_s,
        wall_s=max(usage["wall_s"]),
        cpu_s=sum(cpu),
        slowest_cpu_s=max(cpu),
        busy_cores=statistics.fmean(each.busy_cores for each in samples) if samples else None,
        other_busy_cores=max(0.0, statistics.fmean(each.machine_busy_cores - each.busy_cores for each in samples))
        if samples else None,
        peak_memory_bytes=int(sum(usage["peak_memory_bytes"])),
        busy_gpus=statistics.fmean(shares) if shares else None,
        input_wait_fraction=summary.input_wait_fraction,
        comm_exposed_fraction=summary.comm_exposed_fraction,
        loss=losses[-1] if losses else None,
        top1=summary.top1,
        mean_auc=summary.mean_auc,
        folder=folder.name,
    )  # fmt: skip


def predicted(cells: Iterable[ScalingCell], folder: Path, train_samples: int) -> list[Row]:
    """Read what the simulator said of cells that differ in their ranks alone."""
    told = json.loads((folder / PREDICTION_FILE).read_text(encoding="utf-8"))
    by_ranks = {int(each["ranks"]): each for each in told}
    return [
        Row(
            *cell.axes, 0, "predicted", images_per_s=by_ranks[cell.ranks]["images_per_s"],
            efficiency=by_ranks[cell.ranks]["efficiency"],
            later_epoch_s=train_samples / by_ranks[cell.ranks]["images_per_s"], folder=folder.name,
        )
        for cell in cells
    ]  # fmt: skip


def steady_rate(metrics: Iterable[dict[str, Any]], warmup_steps: int) -> float | None:
    """Give images/s over the intervals that begin after the warm-up; none: no interval does."""
    rows: Sequence[dict[str, Any]] = [row for row in metrics if row["kind"] == "interval"]
    ends = [0, *(int(row["step"]) + 1 for row in rows)]
    kept = [
        (end - begin, float(row["images_per_s"]))
        for begin, end, row in zip(ends, ends[1:], rows, strict=False)
        if begin >= warmup_steps
    ]
    # Steps, not seconds, are what intervals have in common: their rates combine as harmonic mean.
    return sum(steps for steps, _ in kept) / sum(steps / rate for steps, rate in kept) if kept else None
