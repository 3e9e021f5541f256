"""A scaling study as one self-contained page: its table, and figures in the forms of the founding documents."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from html import escape
from pathlib import Path
from statistics import median

from configs.scaling_study import Expectation, ScalingStudy
from logs.disk import write_text
from logs.show.page import badge, charts, document, scrolled, section
from logs.study.cells import Row
from logs.study.expectations import MARGIN, Comparison, compare, verdict
from logs.study.findings import findings
from logs.study.scaling_figures import cell_figures, course_figures, grouped
from logs.study.scaling_table import with_efficiency

__all__ = ["write_scaling_page"]

_HEADS = (
    "Network", "Communication", "Data", "Batch", "Ranks", "Basis", "Images/s", "Efficiency", "First epoch, s",
    "Later epochs, s", "Wall, s", "CPU, s", "Cores busy", "Memory, MB", "Top-1 or AUC",
)  # fmt: skip
_NOTHING = "\u2013"
_GOOD = {"holds": True, "does not hold": False}


def write_scaling_page(study: ScalingStudy, rows: Sequence[Row], runs: Path, folder: Path) -> None:
    """Write NAME.html into ``folder``.

    Args:
        study: What was asked.
        rows: What was found.
        runs: Folder of the runs' folders, for their courses.
        folder: Where the page goes.

    Raises:
        UserError: The folder cannot be written, or a run's folder is damaged.
    """
    complete = with_efficiency(rows)
    sections = [
        section(title, charts(figures))
        for title, figures in (*cell_figures(complete), *course_figures(complete, runs))
        if figures
    ]
    said = "".join(f"<li>{escape(sentence)}</li>" for sentence in findings(complete))
    body = f"<h1>{escape(study.title)}</h1>{_lead(study, complete)}"
    body += section("What it shows", _expected(study, complete)) if study.expects else ""
    body += (section("What the numbers say", f"<ul>{said}</ul>") if said else "") + "".join(sections)
    body += section("Cells", _table(complete))
    body += "".join(f"<p>{escape(part)}</p>" for part in study.notes.split("\n\n") if part.strip())
    write_text(folder / f"{study.name}.html", document(study.title, body))


def _lead(study: ScalingStudy, rows: Sequence[Row]) -> str:
    """Say what was run, and how to tell what was not."""
    measured = sum(row.basis == "measured" and row.status == "success" for row in rows)
    failed = sum(row.status == "failed" for row in rows)
    told = f"<strong>{measured} runs</strong>, {study.repeats} of each cell, made by ./run.sh sweep {study.name}"
    told += f"; {failed} failed" if failed else ""
    for (note,), skipped in grouped([row for row in rows if row.status == "skipped"], "note").items():
        told += f"; {len(skipped)} {'cell was' if len(skipped) == 1 else 'cells were'} not run: {escape(note)}"
    told += ". Points are medians of the repeats; the table has lowest and highest."
    if any(row.basis == "predicted" for row in rows):
        told += " Hollow points on dotted lines were <strong>predicted by the simulator</strong>, and nothing "
        told += "measured is in them."
    return f'<p class="lead">{escape(study.purpose.strip())}</p><p class="lead">{told}</p>'


def _expected(study: ScalingStudy, rows: Sequence[Row]) -> str:
    """Judge what the study was made to show, with the numbers."""
    found = [(each, compare(each, rows)) for each in study.expects]
    held = sum(verdict(comparisons) == "holds" for _, comparisons in found)
    told = (
        f"<strong>{held} of {len(found)}</strong> expectations hold wherever they were measured. Numbers are images/s "
    )
    told += "over those of what another thing stands in place of: 0.50 is half as fast. "
    told += f"Less than {MARGIN:.0%} between them is no difference."
    heads = "".join(f'<th scope="col">{head}</th>' for head in ("Where", "Images/s, relative", "As expected", "Basis"))
    bodies = "".join(_judged(each, comparisons) for each, comparisons in found)
    return f"<p>{told}</p>{scrolled('Expectations', f'<table><thead><tr>{heads}</tr></thead>{bodies}</table>')}"


def _judged(expectation: Expectation, comparisons: Sequence[Comparison]) -> str:
    words = verdict(comparisons)
    head = f"{escape(expectation.words)} {badge(words, _GOOD.get(words))}"
    lines = [f'<tr><th scope="rowgroup" colspan="4">{head}</th></tr>']
    for each in comparisons:
        basis = "<mark>predicted</mark>" if each.basis == "predicted" else badge(each.basis, None)
        speeds = ", ".join(f"{escape(network)} {speed:.2f}" for network, speed in each.speeds.items())
        cells = (escape(each.where), speeds, "yes" if each.holds else "no", basis)
        lines.append(f"<tr>{''.join(f'<td>{cell}</td>' for cell in cells)}</tr>")
    return f"<tbody>{''.join(lines)}</tbody>"


def _table(rows: Sequence[Row]) -> str:
    heads = "".join(f'<th scope="col">{head}</th>' for head in _HEADS)
    lines = "".join(f"<tr>{''.join(f'<td>{cell}</td>' for cell in cells)}</tr>" for cells in _cells(rows))
    return scrolled("Cells", f"<table><thead><tr>{heads}</tr></thead><tbody>{lines}</tbody></table>")


def _cells(rows: Sequence[Row]) -> Iterator[list[str]]:
    """Give the table's lines: one a cell and basis."""
    kept = [row for row in rows if row.status == "success"]
    for key, group in grouped(kept, "network", "communication", "data", "batch", "ranks", "basis").items():
        *axes, basis = key
        mark = f"{badge(basis, None)}<small>{len(group)} of them</small>"
        if basis == "predicted":
            mark = "<mark>predicted</mark>"
        memory = [row.peak_memory_bytes / 1e6 for row in group if row.peak_memory_bytes is not None]
        yield [
            *(escape(str(value)) for value in axes),
            mark,
            *(
                _spread([getattr(row, name) for row in group], digits)
                for name, digits in (
                    ("images_per_s", 1), ("efficiency", 3), ("first_epoch_s", 2), ("later_epoch_s", 2), ("wall_s", 1),
                    ("cpu_s", 1), ("busy_cores", 2),
                )
            ),
            _spread(memory, 0),
            _spread([row.quality for row in group], 4),
        ]  # fmt: skip


def _spread(values: Sequence[float | None], digits: int) -> str:
    """Write the median, and below it lowest and highest."""
    known = sorted(value for value in values if value is not None)
    if not known:
        return _NOTHING
    text = f"{median(known):,.{digits}f}"
    return text if len(known) == 1 else f"{text}<small>{known[0]:,.{digits}f} to {known[-1]:,.{digits}f}</small>"
