"""A scaling study as one self-contained HTML page: figures, differences and the table of its cells."""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from statistics import median
from typing import Any

from configs.study import AXES, ScalingStudy
from launch.study.figures import cell_figures, course_figures
from launch.study.rows import ScalingRow, differences, grouped, with_efficiency
from logs.disk import found_object, write_text
from logs.environment import ENVIRONMENT_FILE, machine_in_words
from logs.show.page import render_template

_Value = tuple[str, Callable[[ScalingRow], float | None], int]
_VALUES: tuple[_Value, ...] = (
    ("Images/s", lambda row: row.images_per_s, 1),
    ("Efficiency", lambda row: row.efficiency, 3),
    ("First epoch, s", lambda row: row.first_epoch_s, 2),
    ("Later epochs, s", lambda row: row.later_epoch_s, 2),
    ("Wall, s", lambda row: row.wall_s, 1),
    ("CPU, s", lambda row: row.cpu_s, 1),
    ("Cores of ranks", lambda row: row.busy_cores and row.busy_cores - (row.server_busy_cores or 0), 2),
    ("Cores of servers", lambda row: row.server_busy_cores or None, 2),
    ("Memory, MB", lambda row: None if row.peak_memory_bytes is None else row.peak_memory_bytes / 1e6, 0),
    ("Top-1 or AUC", lambda row: row.quality, 4),
)
"""Heading, value and digits after the point of the columns with numbers."""

_MOST_IN_PICTURE = 3

_NOISE_CORES = 0.1
"""Cores that the services of an idle machine keep busy at most."""


def write_page(study: ScalingStudy, rows: Sequence[ScalingRow], runs: Path, folder: Path) -> None:
    """Write NAME.html into ``folder``, and NAME.svg with the first charts of images/s over ranks.

    Args:
        study: The study.
        rows: Its measured and predicted rows.
        runs: Folder of the runs' folders, from which the figures over time are drawn.
        folder: Where the page goes.

    Raises:
        UserError: The folder cannot be written, or a run's folder is damaged.
    """
    complete = with_efficiency(rows)
    measured = [row for row in complete if row.basis == "measured"]
    folders = [runs / row.folder for row in measured if row.folder]
    machines = [machine_in_words(found_object(folder / ENVIRONMENT_FILE)) for folder in folders]
    by_cell = dict(cell_figures(complete, study.global_batch))
    axes = AXES if any(row.framework for row in rows) else AXES[1:]
    columns = [each for each in _VALUES if any(each[1](row) is not None for row in complete)]
    page = render_template(
        Path(__file__).with_name("page.html"),
        study=study,
        succeeded=sum(row.status == "success" for row in measured),
        failed=sum(row.status == "failed" for row in measured),
        skipped=Counter(row.note for row in measured if row.status == "skipped"),
        machines=list(dict.fromkeys(filter(None, machines))),
        has_predictions=len(measured) < len(complete),
        disturbing_cores=_disturbing_cores(measured),
        differences=list(differences(complete)),
        sections=by_cell,
        courses=dict(course_figures(complete, runs)),
        heads=[*map(str.capitalize, axes), "Basis", *(head for head, _, _ in columns)],
        cells=list(_cells(complete, axes, columns)),
    )
    write_text(folder / f"{study.name}.html", page)
    if figures := by_cell.get("Throughput", [])[:_MOST_IN_PICTURE]:
        from logs.show.drawing import save_charts  # noqa: PLC0415 (matplotlib takes a second to import)

        save_charts(folder / f"{study.name}.svg", figures)


def _disturbing_cores(rows: Sequence[ScalingRow]) -> list[float]:
    """Return the cores that other programs kept busy during each run; empty if the machine was as good as idle."""
    shares = [row.other_busy_cores for row in rows if row.other_busy_cores is not None]
    return shares if shares and median(shares) > _NOISE_CORES else []


def _cells(
    rows: Sequence[ScalingRow], axes: Sequence[str], columns: Sequence[_Value]
) -> Iterator[tuple[list[Any], str, int, list[tuple[list[float], int]]]]:
    """Yield the axes, the basis, the number of runs, and for each column the known values and their digits."""
    for (*values, basis), group in grouped([row for row in rows if row.status == "success"], *axes, "basis").items():
        found = [([known for known in map(value, group) if known is not None], digits) for _, value, digits in columns]
        yield values, basis, len(group), found
