"""A scaling study as one self-contained HTML page: expectations, findings, figures and the table of its cells."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from html import escape
from pathlib import Path
from statistics import median

from configs.scaling_study import Expectation, ScalingStudy
from logs.disk import write_text
from logs.show.chart import LineChart
from logs.show.page import badge, charts, document, scrolled, section
from logs.study.cells import ScalingRow
from logs.study.expectations import MARGIN, ONE_DISTURBED_RUN, ONE_RUN, Comparison, compare, verdict
from logs.study.findings import findings, is_disturbed
from logs.study.measured_on import machines
from logs.study.scaling_figures import cell_figures, course_figures, grouped
from logs.study.scaling_table import with_efficiency

_AXES = {
    "framework": "Framework",
    "network": "Network",
    "communication": "Communication",
    "data": "Data",
    "batch": "Batch",
    "ranks": "Ranks",
}
"""Columns that name a cell, with their headings."""

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

_MOST_CHARTS = 6
"""More charts of single runs are folded: the study's page is about the comparison of cells."""

_MOST_IN_PICTURE = 3
_NO_VALUE = "\u2013"
_IS_GOOD = {"holds": True, "does not hold": False}


def write_scaling_page(study: ScalingStudy, rows: Sequence[ScalingRow], runs: Path, folder: Path) -> None:
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
    sentences = "".join(f"<li>{escape(sentence)}</li>" for sentence in findings(complete, study.global_batch))
    parts = [f"<h1>{escape(study.title)}</h1>", _lead(study, complete, runs)]
    if study.expects:
        parts.append(section("Expectations", _expectations(study, complete)))
    if sentences:
        parts.append(section("Findings", f"<ul>{sentences}</ul>"))
    for title, figures in cell_figures(complete, study.global_batch):
        if figures:
            parts.append(section(title, charts(figures)))
    for title, figures in course_figures(complete, runs):
        if figures:
            words = f"{len(figures)} charts of the first run of each cell"
            folded = f'<details class="more"><summary>{words}</summary>{charts(figures)}</details>'
            parts.append(section(title, folded if len(figures) > _MOST_CHARTS else charts(figures)))
    parts.append(section("Cells", _table(complete)))
    parts += [f"<p>{escape(paragraph)}</p>" for paragraph in study.notes.split("\n\n") if paragraph.strip()]
    write_text(folder / f"{study.name}.html", document(study.title, "".join(parts)))
    figures = dict(cell_figures(complete, study.global_batch)).get("Throughput", [])
    kept = [replace(each.chart, heading=each.caption) for each in figures if isinstance(each.chart, LineChart)]
    if kept:
        from logs.show.drawing import save_charts  # noqa: PLC0415 (matplotlib takes a second to import)

        save_charts(folder / f"{study.name}.svg", kept[:_MOST_IN_PICTURE])


def _lead(study: ScalingStudy, rows: Sequence[ScalingRow], runs: Path) -> str:
    """Return the paragraphs on what was run, and on what was not run or only predicted."""
    measured = sum(row.basis == "measured" and row.status == "success" for row in rows)
    failed = sum(row.status == "failed" for row in rows)
    text = f"<strong>{measured} runs</strong>, {study.repeats} for each cell, made by "
    text += f"<code>./run.sh sweep {study.name}</code>"
    text += "".join(f" on {escape(machine)}" for machine in machines(rows, runs))
    text += f"; {failed} failed" if failed else ""
    for (note,), skipped in grouped([row for row in rows if row.status == "skipped"], "note").items():
        text += f"; {len(skipped)} {'cell was' if len(skipped) == 1 else 'cells were'} not run: {escape(note)}"
    text += ". Points are medians of the repeats; the table also has the lowest and the highest value."
    if any(row.basis == "predicted" for row in rows):
        text += " Hollow points on dotted lines were <strong>predicted by the simulator</strong>: no measured value "
        text += "went into them."
    if is_disturbed(rows):
        text += " <mark>Other programs used the machine during the runs</mark>, so its speeds are not those of an idle "
        text += "machine (see the findings)."
    return f'<p class="lead">{escape(study.purpose.strip())}</p><p class="lead">{text}</p>'


def _expectations(study: ScalingStudy, rows: Sequence[ScalingRow]) -> str:
    """Return the table of the study's expectations, with the numbers by which each is judged."""
    judged = [(each, compare(each, rows)) for each in study.expects]
    held = sum(verdict(comparisons) == "holds" for _, comparisons in judged)
    text = f"<strong>{held} of {len(judged)}</strong> expectations hold wherever they were measured. The numbers are "
    text += "images/s relative to the other value that the expectation names: 0.50 is half as fast. "
    text += (
        "The lowest and the highest ratio of single runs stand in brackets: an expectation holds, or does not, only "
    )
    text += f"if all of them agree and the difference is {MARGIN:.0%} or more. A cell that ran once is given the usual "
    alone = ONE_DISTURBED_RUN if is_disturbed(rows) else ONE_RUN
    text += f"spread of the study's other cells ({alone:.0%} if none ran twice)."
    heads = "".join(f'<th scope="col">{head}</th>' for head in ("Basis", "Where", "Images/s, relative", "As expected"))
    bodies = "".join(_judged(each, comparisons) for each, comparisons in judged)
    table = f'<table class="judged"><thead><tr>{heads}</tr></thead>{bodies}</table>'
    return f"<p>{text}</p>{scrolled('Expectations', table)}"


def _judged(expectation: Expectation, comparisons: Sequence[Comparison]) -> str:
    """Return the part of the table about one expectation: a line with the verdict, and a line for each comparison."""
    words = verdict(comparisons)
    head = f"{escape(expectation.sentence)} {badge(words, _IS_GOOD.get(words))}"
    lines = [f'<tr><th scope="rowgroup" colspan="4">{head}</th></tr>']
    for each in comparisons:
        basis = "<mark>predicted</mark>" if each.basis == "predicted" else badge(each.basis, None)
        is_measured = each.basis == "measured"
        speeds = ", ".join(
            f"{escape(network)} {speed.median:.2f}" + (f" ({speed.low:.2f} to {speed.high:.2f})" if is_measured else "")
            for network, speed in each.speeds.items()
        )
        cells = (basis, escape(each.where), speeds, each.in_words)
        lines.append(f"<tr>{''.join(f'<td>{cell}</td>' for cell in cells)}</tr>")
    return f"<tbody>{''.join(lines)}</tbody>"


def _table(rows: Sequence[ScalingRow]) -> str:
    values = _known_values(rows)
    names = [*(_AXES[axis] for axis in _shown_axes(rows)), "Basis", *(head for head, _, _ in values)]
    heads = "".join(f'<th scope="col">{name}</th>' for name in names)
    lines = "".join(f"<tr>{''.join(f'<td>{cell}</td>' for cell in cells)}</tr>" for cells in _lines(rows, values))
    return scrolled("Cells", f"<table><thead><tr>{heads}</tr></thead><tbody>{lines}</tbody></table>")


def _shown_axes(rows: Sequence[ScalingRow]) -> list[str]:
    """Return the columns that name a cell, without that of the frameworks if the study compares none."""
    return [axis for axis in _AXES if axis != "framework" or any(row.framework for row in rows)]


def _known_values(rows: Sequence[ScalingRow]) -> list[_Value]:
    """Return the columns in which at least one row has a number."""
    return [each for each in _VALUES if any(each[1](row) is not None for row in rows)]


def _lines(rows: Sequence[ScalingRow], columns: Sequence[_Value]) -> Iterator[list[str]]:
    """Yield the lines of the table: one for each cell and basis."""
    successful = [row for row in rows if row.status == "success"]
    for key, group in grouped(successful, *_shown_axes(rows), "basis").items():
        *axes, basis = key
        mark = f"{badge(basis, None)}<small>{len(group)} run{'s' if len(group) > 1 else ''}</small>"
        if basis == "predicted":
            mark = "<mark>predicted</mark>"
        values = [_spread([value(row) for row in group], digits) for _, value, digits in columns]
        yield [*(escape(str(axis)) for axis in axes), mark, *values]


def _spread(values: Sequence[float | None], digits: int) -> str:
    """Return the median, and below it the lowest and the highest value."""
    known = sorted(value for value in values if value is not None)
    if not known:
        return _NO_VALUE
    text = f"{median(known):,.{digits}f}"
    return text if len(known) == 1 else f"{text}<small>{known[0]:,.{digits}f} to {known[-1]:,.{digits}f}</small>"
