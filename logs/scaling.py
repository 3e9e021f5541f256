"""What a scaling study found: a CSV of every cell and repeat, and a page of figures."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path

from configs.scaling import ScalingStudy
from logs.cells import Row
from logs.disk import explain_disk_errors, write_text

__all__ = ["write_scaling"]


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
    writer.writerows(row.values() for row in rows)
    write_text(folder / f"{study.name}.csv", text.getvalue())
