"""What a scaling study found: a CSV of every cell and repeat, and a page of figures."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Sequence
from dataclasses import fields, replace
from pathlib import Path

from configs.scaling import ScalingStudy
from logs.cells import Row
from logs.disk import explain_disk_errors, write_text

__all__ = ["with_efficiency", "write_scaling"]


def write_scaling(study: ScalingStudy, rows: Sequence[Row], folder: Path) -> None:
    """Write NAME.csv into ``folder``.

    Raises:
        UserError: The folder cannot be written.
    """
    with explain_disk_errors(folder):
        folder.mkdir(parents=True, exist_ok=True)
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow([field.name for field in fields(Row)])
    writer.writerows(row.values() for row in with_efficiency(rows))
    write_text(folder / f"{study.name}.csv", text.getvalue())


def with_efficiency(rows: Iterable[Row]) -> list[Row]:
    """Fill in the measured rows' efficiency.

    Its base is the best measured rate a rank, over the ways to communicate, at the fewest ranks that the same network,
    data and batch were measured at.
    """
    known = list(rows)
    bases: dict[tuple[str, str, int], tuple[int, float]] = {}
    for row in known:
        if row.basis == "measured" and row.images_per_s is not None:
            key = (row.network, row.data, row.batch)
            best = bases.get(key, (row.ranks, 0.0))
            if row.ranks <= best[0]:
                rate = row.images_per_s / row.ranks
                bases[key] = (row.ranks, max(rate, best[1]) if row.ranks == best[0] else rate)
    return [
        replace(row, efficiency=row.images_per_s / row.ranks / bases[row.network, row.data, row.batch][1])
        if row.basis == "measured" and row.images_per_s is not None
        else row
        for row in known
    ]
