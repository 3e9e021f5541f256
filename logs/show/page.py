"""Writes the report as one HTML page, which opens from disk, loads no other file and runs no script."""

from __future__ import annotations

import os
from collections.abc import Sequence
from html import escape
from pathlib import Path
from statistics import mean, median
from typing import Any
from urllib.parse import quote

from logs.judge.explain import explain
from logs.show.chart import BarChart, Captioned, Series, Stretch
from logs.show.figures import figures
from logs.show.reported_run import ReportedRun

__all__ = ["badge", "charts", "document", "render", "scrolled", "section"]

_CSS_FILES = ("colours.css", "page.css")
_MAX_LINKS = 40
_MAX_NAMES = 8
"""A longer legend is folded."""
_SUBMISSION_RUNS = 5
"""MLPerf scores the mean of five runs without the fastest and the slowest, the olympic mean."""
_HEADS = ("Run", "Outcome", "Time to train", "Initialisation", "Epochs", "Accuracy", "Batch", "Images/s", "Log check")
_NOTHING = "\u2013"


def render(runs: Sequence[ReportedRun], destination: Path) -> str:
    """Return the page of one or several runs; links are relative to ``destination``, the file of the page."""
    names = ", ".join(run.name for run in runs[:3]) + (" …" if len(runs) > 3 else "")  # noqa: PLR2004
    sections = [
        section("Results", _results(runs)),
        section("Charts", _charts(runs)),
        section("Configuration", _configuration(runs)),
        section("Files", _files(runs, destination)),
    ]
    head = f"<h1>{escape(_title(runs))}</h1>{_lead(runs)}"
    return document(names, f"<header>{head}</header>{''.join(sections)}")


def document(title: str, body: str) -> str:
    """Return a page with ``body`` (HTML), which opens from disk and loads no other file."""
    css = "".join((Path(__file__).parent / name).read_text(encoding="utf-8") for name in _CSS_FILES)
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width,initial-scale=1">'
        '<meta name="color-scheme" content="light dark">'
        f"<title>{escape(title)}</title><style>{css}</style></head>"
        f"<body><main>{body}</main></body></html>\n"
    )


def _title(runs: Sequence[ReportedRun]) -> str:
    if len(runs) == 1:
        return runs[0].name
    return f"{len(runs)} runs side by side"


def _lead(runs: Sequence[ReportedRun]) -> str:
    """Return a sentence with the time to train, and with how far the runs differ."""
    records = [run.record for run in runs]
    times = sorted(each.time_to_train_s for each in records if each.time_to_train_s and each.status == "success")
    if not times:
        return '<p class="lead">No run has reached its target.</p>'
    sentence = f"<strong>{_seconds(median(times))}</strong> to train"
    if len(runs) > 1:
        sentence += f": median of {len(times)} runs that reached the target, out of {len(runs)}; "
        sentence += f"fastest {_seconds(times[0])}, slowest {_seconds(times[-1])}"
        if len(times) >= _SUBMISSION_RUNS:
            sentence += f"; olympic mean {_seconds(mean(times[1:-1]))}"
    return f'<p class="lead">{sentence}.</p>'


def _results(runs: Sequence[ReportedRun]) -> str:
    rows = [_row(run, number) for number, run in enumerate(runs)]
    cells = "".join(f'<th scope="col" role="columnheader">{head}</th>' for head in _HEADS)
    head = f'<thead role="rowgroup"><tr role="row">{cells}</tr></thead>'
    # A narrow screen shows rows as cards, and the browser then no longer treats the table as one; the roles remain.
    table = f'<table class="outcomes" role="table">{head}<tbody role="rowgroup">{"".join(rows)}</tbody></table>'
    return scrolled("Outcome of each run", table) + "".join(_notes(run, is_open=len(runs) == 1) for run in runs)


def _row(run: ReportedRun, number: int) -> str:
    record = run.record
    place = " · ".join(text for text in (record.submitter, record.platform) if text)
    name = f'{_swatch(Series("", number, ()))}<span class="run">{escape(run.name)}</span><small>{escape(place)}</small>'
    accuracy = _NOTHING if record.final_accuracy is None else f"{record.final_accuracy:.4f}"
    target = f"<small>target {run.target:g}</small>" if run.target is not None else ""
    verdicts = "<br>".join(
        f"{badge('passes' if each.passed else 'fails', each.passed)} {escape(each.ruleset)}" for each in run.verdicts
    )
    status = run.summary.get("status") or record.status or ("running" if record.began_s else "unknown")
    outcome = run.comparison.outcome
    convergence = "" if outcome == "no reference" else f"<small>reference: {outcome}</small>"
    cells = (
        badge(str(status), {"success": True, "aborted": False}.get(str(status))),
        _seconds(record.time_to_train_s),
        _seconds(record.init_s),
        _number(record.epochs) + convergence,
        accuracy + target,
        _number(record.global_batch_size),
        _number(record.images_per_s),
        verdicts or _NOTHING,
    )
    row = "".join(
        f'<td role="cell" data-head="{head}"><div>{cell}</div></td>'
        for head, cell in zip(_HEADS[1:], cells, strict=True)
    )
    return f'<tr role="row"><th scope="row" role="rowheader">{name}</th>{row}</tr>'


def _notes(run: ReportedRun, *, is_open: bool) -> str:
    """Return the notes on a run below the table of results."""
    record = run.record
    notes = [f"Reference convergence: {run.comparison.words}."]
    if failure := run.summary.get("failure"):
        notes.insert(0, f"The run ended early: {failure}.")
    ranks, spread = record.init_starts
    if ranks > 1:
        notes.append(f"{ranks} ranks logged init_start, the last rank {spread:.3f} s after the first.")
    if record.unreadable:
        notes.append(f"{record.unreadable} records of the log could not be read.")
    notes += [f"{problem}." for problem in run.problems]
    for verdict in run.verdicts:
        notes += [f"{verdict.ruleset}: {explain(message)}." for message in verdict.messages]
    items = "".join(f"<li>{escape(note)}</li>" for note in notes)
    opened = " open" if is_open else ""
    return f"<details{opened}><summary>{escape(run.name)}: notes</summary><ul>{items}</ul></details>"


def _charts(runs: Sequence[ReportedRun]) -> str:
    return charts(list(figures(runs))) or "<p>The logs contain nothing to draw.</p>"


def charts(figures: Sequence[Captioned]) -> str:
    """Return the charts as HTML, each with caption and legend; an empty text without charts."""
    from logs.show.drawing import to_svg  # noqa: PLC0415 (matplotlib takes a second to import)

    drawn = (
        f"<figure>{to_svg(each.chart)}{_legend(each)}<figcaption>{escape(each.caption)}</figcaption></figure>"
        for each in figures
    )
    return f'<div class="charts">{"".join(drawn)}</div>' if figures else ""


def _legend(figure: Captioned) -> str:
    """Return the names of a chart's lines or colours, each with a sample; a chart of one line needs no legend."""
    chart = figure.chart
    if isinstance(chart, BarChart):
        colours = [Stretch(0, 0, number, "").colour for number in range(len(chart.names))]
        dots = [f'<i class="dot" style="background:var({colour})"></i>' for colour in colours]
        samples = list(zip(dots, chart.names, strict=True))
    else:
        samples = [(_swatch(series), series.name) for series in chart.series]
    items = " ".join(f"<span>{sample}{escape(name)}</span>" for sample, name in samples)
    if len(samples) <= _MAX_NAMES:
        return f'<p class="key">{items}</p>' if len(samples) > 1 else ""
    return f'<details class="key"><summary>{len(samples)} lines</summary>{items}</details>'


def _swatch(series: Series) -> str:
    """Return a small sample of a series' line, with a hollow dot for predictions."""
    dashes = " ".join(f"{length:g}" for length in series.dashes) or "none"
    line = f'<path style="stroke-dasharray:{dashes}" d="M1 4H23"/>'
    dot = '<circle cx="12" cy="4" r="2.4"/>' if series.style == "predicted" else ""
    stroke = f'style="stroke:var({series.colour})"'
    return f'<svg class="swatch" viewBox="0 0 24 8" aria-hidden="true" {stroke}>{line}{dot}</svg>'


def _configuration(runs: Sequence[ReportedRun]) -> str:
    """Return the runs' settings: first those that differ between runs, with the unusual values marked."""
    keys = list(dict.fromkeys(key for run in runs for key in run.settings))
    if not keys:
        return "<p>The logs contain no settings.</p>"
    differing = [key for key in keys if len({str(run.settings.get(key)) for run in runs}) > 1]
    same = [key for key in keys if key not in differing]
    parts = []
    if differing:
        parts.append(
            f"<p>{_count(len(differing))} not the same in all runs.</p>{_settings(runs, differing, marked=True)}"
        )
    elif len(runs) > 1:
        parts.append("<p>All settings are the same in all runs.</p>")
    if same:
        words = _count(len(same)) + (" that all runs share" if len(runs) > 1 else "")
        table = _settings(runs[:1], same, marked=False)
        parts.append(f"<details><summary>{words}</summary>{table}</details>")
    return "".join(parts)


def _settings(runs: Sequence[ReportedRun], keys: Sequence[str], *, marked: bool) -> str:
    heads = "".join(f'<th scope="col">{escape(run.name)}</th>' for run in runs)
    rows = []
    for key in keys:
        values = [run.settings.get(key) for run in runs]
        usual = max(map(str, values), key=list(map(str, values)).count)
        cells = "".join(
            f"<td>{_value(value)}</td>"
            if not marked or str(value) == usual
            else f"<td><mark>{_value(value)}</mark></td>"
            for value in values
        )
        rows.append(f'<tr><th scope="row">{escape(key)}</th>{cells}</tr>')
    head = f'<thead><tr><th scope="col">Setting</th>{heads}</tr></thead>'
    return scrolled("Settings", f'<table class="settings">{head}<tbody>{"".join(rows)}</tbody></table>')


def _files(runs: Sequence[ReportedRun], destination: Path) -> str:
    links = []
    for run in runs:
        files = sorted(run.path.iterdir()) if run.path.is_dir() else [run.path]
        linked = [path for path in files if path.is_file() and path.resolve() != destination.resolve()]
        for path in linked[:_MAX_LINKS]:
            href = quote(os.path.relpath(path.resolve(), destination.resolve().parent).replace(os.sep, "/"))
            label = path.name if run.path == path else f"{run.name}/{path.name}"
            links.append(f'<li><a href="{href}">{escape(label)}</a></li>')
    return f'<ul class="files">{"".join(links)}</ul>'


def section(title: str, body: str) -> str:
    """Return a section of a page with the heading ``title``."""
    identity = title.lower().replace(" ", "-")
    return f'<section aria-labelledby="{identity}"><h2 id="{identity}">{title}</h2>{body}</section>'


def scrolled(name: str, table: str) -> str:
    """Return a table that scrolls by itself if it is wider than the page; ``name`` is for screen readers."""
    return f'<div class="scroll" role="region" aria-label="{escape(name)}" tabindex="0">{table}</div>'


def badge(words: str, good: bool | None) -> str:
    """Return a word or two in a frame: green if ``good``, red if not, grey if None."""
    kind = {True: "good", False: "bad", None: "plain"}[good]
    return f'<span class="badge {kind}">{escape(words)}</span>'


def _count(settings: int) -> str:
    return "1 setting" if settings == 1 else f"{settings} settings"


def _value(value: Any) -> str:
    return _NOTHING if value is None else escape(str(value))


def _number(value: float | None) -> str:
    if value is None:
        return _NOTHING
    if value >= 1e6:  # noqa: PLR2004
        return f"{value / 1e6:.3g} M"
    return f"{value:,.0f}".replace(",", "\u202f") if value >= 100 else f"{value:.4g}"  # noqa: PLR2004


def _seconds(value: float | None) -> str:
    if value is None:
        return _NOTHING
    if value < 600:  # noqa: PLR2004
        return f"{value:.2f} s"
    return f"{value / 60:.2f} min"
