"""The table of a scaling study: a row for every cell and repeat, measured or predicted."""

import statistics
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import astuple, dataclass, fields, replace
from pathlib import Path
from typing import Any, Literal

from configs.arguments import counted
from configs.study import AXES, ScalingCell
from configs.table import csv_text
from logs.disk import write_text
from logs.folder import RunFolder
from logs.metrics import METRICS_FILE, read_metrics
from logs.mlperf import RESULT_FILES
from logs.read.parse import parse_log
from logs.usage import read_samples, read_usage


@dataclass(frozen=True)
class ScalingRow(ScalingCell):
    """A row of a scaling study's CSV, which begins with the values of its cell. A value that was not measured is None.

    Attributes:
        repeat: Number of the repeat, from 0.
        basis: Whether the row was measured or predicted. A prediction has only a rate, an efficiency and the time of a
            later epoch.
        status: ``failed`` if the run ended early, which leaves the other values None; ``skipped`` if this machine
            cannot run the cell.
        images_per_s: Rate over all ranks, without warm-up steps and evaluations.
        efficiency: Rate per rank over the rate per rank at the fewest ranks. The base of a prediction is a predicted
            rate, never a measured one.
        first_epoch_s: Wall time of the first epoch, without its evaluation; None if the run was cut before its end.
        later_epoch_s: Median wall time of the other whole epochs, without their evaluations.
        init_s: Time between the events ``init_start`` and ``init_stop`` of the log.
        wall_s: Wall time of the training with its evaluations.
        cpu_s: CPU time over the same period, summed over the ranks and over the child processes that they waited for.
        slowest_cpu_s: CPU time of the rank that used most.
        busy_cores: Cores that the run kept busy, as a mean over the samples of the whole run, with start-up and server
            processes.
        server_busy_cores: The part of ``busy_cores`` that parameter servers kept busy.
        other_busy_cores: Cores that everything else on the machine kept busy, as a mean over the same samples.
        peak_memory_bytes: Peak memory, summed over the ranks.
        busy_gpus: Mean utilisation of the GPUs that the run used, 0 to 1.
        input_wait_fraction: Share of the steps' time spent waiting for images, 0 to 1.
        comm_exposed_fraction: Share of the steps' time spent waiting for communication, 0 to 1.
        loss: Mean training loss of the last interval.
        top1: Share of validation images classified correctly at the last evaluation, 0 to 1; None for a run of less
            than one epoch, as is ``mean_auc``.
        mean_auc: Mean area under the ROC curve over the classes, for images with several labels.
        folder: Name of the run's folder.
        note: Why the cell was skipped.
    """

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
    server_busy_cores: float | None = None
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
        """The accuracy that the run is judged by, 0 to 1: top-1, or the mean AUC if there is no top-1."""
        return self.mean_auc if self.top1 is None else self.top1


def measured(cell: ScalingCell, repeat: int, folder: Path, warmup_steps: int) -> ScalingRow:
    """Return the row of a run that succeeded.

    Args:
        cell: What the run measured.
        repeat: Number of the repeat, from 0.
        folder: The run's folder.
        warmup_steps: Steps at the run's start that its rate leaves out.

    Raises:
        UserError: The folder is damaged.
    """
    summary = RunFolder(folder).summary()
    metrics = read_metrics(folder / METRICS_FILE)
    record = parse_log(folder / RESULT_FILES["0.6.0"])
    # run.max_steps may cut the last epoch, whose time is then that of a few steps.
    # One batch of tolerance: the last step of an epoch may be incomplete or left out.
    images = (record.global_batch_size or 0) * ((summary.steps or 0) + 1)
    whole = images // record.train_samples if record.train_samples else 0
    spans = [span for span in record.epoch_spans if span.first_epoch + span.epochs - 1 <= whole]
    epochs_s = [(span.end_s - span.begin_s) / span.epochs for span in spans]
    losses = [row["loss"] for row in metrics if row["kind"] == "interval"]
    return ScalingRow(
        **vars(cell),
        repeat=repeat,
        basis="measured",
        images_per_s=_steady_rate(metrics, warmup_steps) or summary.images_per_s,
        first_epoch_s=epochs_s[0] if epochs_s else None,
        later_epoch_s=statistics.median(epochs_s[1:]) if epochs_s[1:] else None,
        init_s=summary.init_s,
        **_usage(folder),
        input_wait_fraction=summary.input_wait_fraction,
        comm_exposed_fraction=summary.comm_exposed_fraction,
        loss=losses[-1] if losses else None,
        top1=summary.top1 if whole else None,
        mean_auc=summary.mean_auc if whole else None,
        folder=folder.name,
    )


def _usage(folder: Path) -> dict[str, Any]:
    """Return the columns about CPU, memory and GPU use."""
    usage, samples = read_usage(folder), read_samples(folder)
    cpu_s = [own + children for own, children in zip(usage["cpu_s"], usage["children_cpu_s"], strict=True)]
    others = _mean(sample.machine_busy_cores - sample.busy_cores for sample in samples)
    return {
        "wall_s": max(usage["wall_s"]),
        "cpu_s": sum(cpu_s),
        "slowest_cpu_s": max(cpu_s),
        "busy_cores": _mean(sample.busy_cores for sample in samples),
        "server_busy_cores": _mean(sample.server_busy_cores for sample in samples),
        "other_busy_cores": None if others is None else max(0.0, others),
        "peak_memory_bytes": int(sum(usage["peak_memory_bytes"])),
        "busy_gpus": _mean(sample.gpu_share for sample in samples),
    }


def _mean(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return statistics.fmean(known) if known else None


def _steady_rate(metrics: Iterable[dict[str, Any]], warmup_steps: int) -> float | None:
    """Return the images/s over the logged intervals that begin after the warm-up, or None if no interval does."""
    rows: Sequence[dict[str, Any]] = [row for row in metrics if row["kind"] == "interval"]
    ends = [0, *(int(row["step"]) + 1 for row in rows)]
    kept = [
        (end - begin, float(row["images_per_s"]))
        for begin, end, row in zip(ends, ends[1:], rows, strict=False)
        if begin >= warmup_steps
    ]
    # Intervals have steps in common, not seconds, so their rates combine as a harmonic mean weighted by the steps.
    return sum(steps for steps, _ in kept) / sum(steps / rate for steps, rate in kept) if kept else None


def grouped(rows: Iterable[ScalingRow], *names: str) -> dict[tuple[Any, ...], list[ScalingRow]]:
    """Return groups of rows that agree in the named columns, in the order of the rows."""
    groups: dict[tuple[Any, ...], list[ScalingRow]] = {}
    for row in rows:
        groups.setdefault(tuple(getattr(row, name) for name in names), []).append(row)
    return groups


def places(rows: Iterable[ScalingRow], *names: str) -> Iterator[tuple[str, list[ScalingRow]]]:
    """Yield groups of rows that agree in the named columns, each with their values in words, without empty ones."""
    forms: dict[str, Callable[[Any], str]] = {"batch": "batch {} a rank".format, "ranks": lambda n: counted(n, "rank")}
    for values, group in grouped(rows, *names).items():
        words = [forms.get(name, str)(value) for name, value in zip(names, values, strict=True)]
        yield ", ".join(filter(None, words)), group


def differences(rows: Iterable[ScalingRow]) -> Iterator[tuple[str, str, list[float]]]:
    """Yield the rate of each cell over that of the cell that has the first value of one column and is like it else.

    A prediction is compared with the measurement of the same cell alone.

    Yields:
        What both cells have in common, what they differ by, and the ratio of their medians. If a cell ran more than
        once, the ratio stands between the lowest and the highest one of single runs.
    """
    known = sorted((row for row in rows if row.images_per_s), key=lambda row: row.basis)  # measured ones first
    for column in ("framework", "communication", "data", "batch", "basis"):
        alike = [row for row in known if column == "basis" or row.basis == "measured"]
        for words, group in places(alike, *(axis for axis in AXES if axis != column)):
            (base, before), *others = (
                (value, [row.images_per_s or 0.0 for row in cell]) for (value,), cell in grouped(group, column).items()
            )
            for value, rates in others:
                ratio = statistics.median(rates) / statistics.median(before)
                ends = min(rates) / max(before), max(rates) / min(before)
                is_spread = len(rates) + len(before) > 2  # noqa: PLR2004 (each ran once)
                yield words, f"{column} {value} over {base}", [ends[0], ratio, ends[1]] if is_spread else [ratio]


def best_rate(rows: Iterable[ScalingRow], ranks: int) -> float:
    """Return the median images/s of the fastest kind of communication on so many ranks; 0 if no row has them.

    A row without a rate counts as 0.
    """
    ways = grouped([row for row in rows if row.ranks == ranks], "communication")
    return max((statistics.median(row.images_per_s or 0.0 for row in way) for way in ways.values()), default=0.0)


def with_efficiency(rows: Sequence[ScalingRow]) -> list[ScalingRow]:
    """Return the rows with the efficiency of the measured rows filled in.

    Efficiency is the rate per rank over a base rate. The base is the best rate per rank over all kinds of
    communication, at the fewest ranks at which the same framework, network, data and batch were measured. The rate of
    one kind of communication is the median of its repeats. A batch that was measured only on more ranks than the
    network's other batches were, as for strong scaling, has no base and no efficiency.
    """
    found = {id(row): row for row in rows}
    measured = [row for row in rows if row.basis == "measured" and row.images_per_s is not None]
    for network in grouped(measured, "framework", "network", "data").values():
        fewest = min(row.ranks for row in network)
        for batch in grouped(network, "batch").values():
            if base := best_rate(batch, fewest) / fewest:
                for row in batch:
                    found[id(row)] = replace(row, efficiency=(row.images_per_s or 0.0) / row.ranks / base)
    return list(found.values())


def write_table(rows: Sequence[ScalingRow], file: Path) -> None:
    """Write the rows, with their efficiency, as CSV.

    Raises:
        UserError: The file cannot be written.
    """
    values = map(astuple, with_efficiency(rows))
    cells = [[f"{each:.6g}" if isinstance(each, float) else each for each in row] for row in values]
    write_text(file, csv_text(cells, [field.name for field in fields(ScalingRow)]))
