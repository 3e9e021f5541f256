"""The table of a scaling study: a CSV with a row for every cell and repeat."""

import csv
import io
from collections.abc import Iterable, Sequence
from dataclasses import fields, replace
from pathlib import Path
from statistics import median

from configs.scaling_study import ScalingStudy
from logs.disk import explain_disk_errors, write_text
from logs.study.cells import ScalingRow
from logs.study.scaling_figures import grouped


def write_scaling(study: ScalingStudy, rows: Sequence[ScalingRow], folder: Path) -> None:
    """Write NAME.csv into ``folder``.

    Raises:
        UserError: The folder cannot be written.
    """
    with explain_disk_errors(folder):
        folder.mkdir(parents=True, exist_ok=True)
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow([field.name for field in fields(ScalingRow)])
    writer.writerows(row.values() for row in with_efficiency(rows))
    write_text(folder / f"{study.name}.csv", text.getvalue())


def with_efficiency(rows: Iterable[ScalingRow]) -> list[ScalingRow]:
    """Return the rows with the efficiency of the measured rows filled in.

    Efficiency is the rate per rank over a base rate. The base is the best rate per rank over all kinds of
    communication, at the fewest ranks at which the same framework, network, data and batch were measured. The rate of
    one kind of communication is the median of its repeats. A batch that was measured only on more ranks than the
    network's other batches were, as for strong scaling, has no base and no efficiency.
    """
    known = list(rows)
    measured = [row for row in known if row.basis == "measured" and row.images_per_s is not None]
    fewest = {key: min(row.ranks for row in group) for key, group in grouped(measured, *_ALIKE[:3]).items()}
    bases = {
        key: _base(group)
        for key, group in grouped(measured, *_ALIKE).items()
        if min(row.ranks for row in group) == fewest[key[:3]]
    }
    return [
        replace(row, efficiency=row.images_per_s / row.ranks / base)
        if row.basis == "measured"
        and row.images_per_s is not None
        and (base := bases.get((row.framework, row.network, row.data, row.batch)))
        else row
        for row in known
    ]


_ALIKE = ("framework", "network", "data", "batch")


def _base(rows: Sequence[ScalingRow]) -> float:
    """Return the rate per rank that has efficiency 1."""
    fewest = min(row.ranks for row in rows)
    groups = grouped([row for row in rows if row.ranks == fewest], "communication").values()
    return max(median(row.images_per_s or 0.0 for row in group) for group in groups) / fewest
