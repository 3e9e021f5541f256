"""A scaling study as one self-contained HTML page: expectations, figures and the table of its cells."""

import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from html import escape
from pathlib import Path
from statistics import median
from typing import Any

from configs.study import Expectation, ScalingStudy
from launch.study.comparisons import (
    MARGIN,
    Comparison,
    Range,
    compare,
    disturbing_cores,
    simulator_errors,
    spread_of_one_run,
    verdict,
)
from launch.study.figures import cell_figures, course_figures
from launch.study.rows import ScalingRow, grouped, with_efficiency
from logs.disk import write_text
from logs.environment import ENVIRONMENT_FILE
from logs.show.chart import LineChart
from logs.show.page import badge, charts, document, scrolled, section

_AXES = {
    "framework": "Framework",
    "network": "Network",
    "communication": "Communication",
    "data": "Data",
    "batch": "Batch",
    "ranks": "Ranks",
}
"""Columns that name a cell, with their headings."""

_VALUES: tuple[tuple[str, Callable[[ScalingRow], float | None], int], ...] = (
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

_MOST_CHARTS = 6
"""More charts of single runs are folded: the study's page is about the comparison of cells."""

_MOST_IN_PICTURE = 3
_NO_VALUE = "\u2013"
_IS_GOOD = {"holds": True, "does not hold": False}
_PREDICTED = "<mark>predicted</mark>"


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
    sections = dict(cell_figures(complete, study.global_batch))
    parts = [
        f"<h1>{escape(study.title)}</h1>",
        *(f'<p class="lead">{text}</p>' for text in (escape(study.purpose.strip()), _lead(study, complete, runs))),
        _expectations(study, complete),
        *(section(title, charts(figures)) for title, figures in sections.items() if figures),
    ]
    for title, figures in course_figures(complete, runs):
        words = f"{len(figures)} charts of the first run of each cell"
        folded = f'<details class="more"><summary>{words}</summary>{charts(figures)}</details>'
        parts += [section(title, folded if len(figures) > _MOST_CHARTS else charts(figures))] if figures else []
    parts.append(section("Cells", _cells(complete)))
    parts += [f"<p>{escape(paragraph)}</p>" for paragraph in study.notes.split("\n\n") if paragraph.strip()]
    write_text(folder / f"{study.name}.html", document(study.title, "".join(parts)))
    figures = sections.get("Throughput", [])[:_MOST_IN_PICTURE]
    if kept := [replace(each.chart, heading=each.caption) for each in figures if isinstance(each.chart, LineChart)]:
        from logs.show.drawing import save_charts  # noqa: PLC0415 (matplotlib takes a second to import)

        save_charts(folder / f"{study.name}.svg", kept)


def _lead(study: ScalingStudy, rows: Sequence[ScalingRow], runs: Path) -> str:
    """Return the paragraph on what was run, and on what was not run or only predicted."""
    measured = [row for row in rows if row.basis == "measured"]
    succeeded, failed = (sum(row.status == status for row in measured) for status in ("success", "failed"))
    text = f"<strong>{succeeded} runs</strong>, {study.repeats} for each cell, made by "
    text += f"<code>./run.sh sweep {study.name}</code>"
    machines = [_machine(runs / row.folder / ENVIRONMENT_FILE) for row in measured if row.folder]
    text += "".join(f" on {escape(machine)}" for machine in dict.fromkeys(filter(None, machines)))
    text += f"; {failed} failed" if failed else ""
    for (note,), skipped in grouped([row for row in rows if row.status == "skipped"], "note").items():
        text += f"; {len(skipped)} {'cell was' if len(skipped) == 1 else 'cells were'} not run: {escape(note)}"
    text += ". Points are medians of the repeats; the table also has the lowest and the highest value."
    if len(measured) < len(rows):
        text += " Hollow points on dotted lines were <strong>predicted by the simulator</strong>: no measured value "
        text += "went into them."
    if errors := simulator_errors(rows):
        text += f" In cells with both, the predicted images/s are {_range(errors)} times the measured images/s."
    if cores := disturbing_cores(measured):
        text += f" <mark>Other programs kept {_range(cores)} cores of the machine busy</mark> during the runs: repeat "
        text += "the study on an idle machine."
    return text


def _machine(file: Path) -> str:
    """Return the machine of a run as ``AMD EPYC, 2 cores``; empty for a run that recorded none."""
    try:
        found: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return ""
    cores, gpus = found.get("usable_cores"), found.get("gpus") or []
    names = [str(gpu["name"]) for gpu in gpus if isinstance(gpu, dict) and gpu.get("name")]
    kinds = [f"{names.count(name)} {name}" for name in dict.fromkeys(names)]
    return ", ".join([*filter(None, [str(found.get("cpu") or ""), f"{cores} cores" if cores else ""]), *kinds])


def _range(values: Sequence[float]) -> str:
    """Return median, lowest and highest value as text."""
    return f"{median(values):.2f} ({min(values):.2f} to {max(values):.2f})"


def _expectations(study: ScalingStudy, rows: Sequence[ScalingRow]) -> str:
    """Return the section with the study's expectations, and the numbers by which each is judged."""
    if not study.expects:
        return ""
    judged = [(each, compare(each, rows)) for each in study.expects]
    held = sum(verdict(comparisons) == "holds" for _, comparisons in judged)
    text = f"<strong>{held} of {len(judged)}</strong> expectations hold wherever they were measured. The numbers are "
    text += "images/s relative to the other value that the expectation names, with the lowest and the highest ratio of "
    text += "single runs: an expectation holds, or does not, only if all of them agree and the difference is "
    text += f"{MARGIN:.0%} or more. A cell that ran once is given the usual spread of the study's other cells "
    text += f"({spread_of_one_run(rows):.0%} if none ran twice)."
    bodies = "".join(_judged(each, comparisons) for each, comparisons in judged)
    heads = _row(("Basis", "Where", "Images/s, relative", "As expected"), 'th scope="col"')
    table = f'<table class="judged"><thead>{heads}</thead>{bodies}</table>'
    return section("Expectations", f"<p>{text}</p>{scrolled('Expectations', table)}")


def _judged(expectation: Expectation, comparisons: Sequence[Comparison]) -> str:
    """Return the part of the table about one expectation: a line with the verdict, and a line for each comparison."""
    words = verdict(comparisons)
    head = f"{escape(expectation.sentence)} {badge(words, _IS_GOOD.get(words))}"
    lines = [f'<tr><th scope="rowgroup" colspan="4">{head}</th></tr>']
    for each in comparisons:
        basis = _PREDICTED if each.basis == "predicted" else badge(each.basis, None)
        speeds = ", ".join(f"{escape(network)} {_ratio(speed)}" for network, speed in each.speeds.items())
        outcome = {"holds": "yes", "does not hold": "no"}.get(each.outcome, each.outcome)
        repeats = f"; about {each.repeats} repeats would tell" if each.repeats else ""
        lines.append(_row((basis, escape(each.where), speeds, outcome + repeats)))
    return f"<tbody>{''.join(lines)}</tbody>"


def _ratio(speed: Range) -> str:
    return f"{speed.median:.2f}" + (f" ({speed.low:.2f} to {speed.high:.2f})" if speed.low < speed.high else "")


def _cells(rows: Sequence[ScalingRow]) -> str:
    """Return the table of the cells: a line for each cell and basis, without columns that have no value."""
    axes = {axis: head for axis, head in _AXES.items() if axis != "framework" or any(row.framework for row in rows)}
    columns = [each for each in _VALUES if any(each[1](row) is not None for row in rows)]
    heading = _row([*axes.values(), "Basis", *(head for head, _, _ in columns)], 'th scope="col"')
    body = ""
    for (*values, basis), group in grouped([row for row in rows if row.status == "success"], *axes, "basis").items():
        mark = f"{badge(basis, None)}<small>{len(group)} run{'s' if len(group) > 1 else ''}</small>"
        numbers = [_spread([value(row) for row in group], digits) for _, value, digits in columns]
        body += _row([*map(escape, map(str, values)), _PREDICTED if basis == "predicted" else mark, *numbers])
    return scrolled("Cells", f"<table><thead>{heading}</thead><tbody>{body}</tbody></table>")


def _row(cells: Iterable[str], tag: str = "td") -> str:
    return f"<tr>{''.join(f'<{tag}>{cell}</{tag[:2]}>' for cell in cells)}</tr>"


def _spread(values: Sequence[float | None], digits: int) -> str:
    """Return the median, and below it the lowest and the highest value."""
    known = sorted(value for value in values if value is not None)
    if not known:
        return _NO_VALUE
    text = f"{median(known):,.{digits}f}"
    return text if len(known) == 1 else f"{text}<small>{known[0]:,.{digits}f} to {known[-1]:,.{digits}f}</small>"
