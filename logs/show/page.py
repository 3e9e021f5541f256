"""Writes the report as one HTML page, which opens from disk and loads no other file.

A small script in the page shows values at the pointer; without scripts the page is complete.
"""

import os
from collections.abc import Sequence
from html import escape
from pathlib import Path
from typing import Any
from urllib.parse import quote

from configs.arguments import printable
from logs.show.chart import BarChart, Captioned, Series, Stretch
from logs.show.figures import figures
from logs.show.reported_run import ReportedRun
from logs.show.wording import NOTHING, heading, in_seconds, is_compared, lead, notes_of, place_of, state_of

_CSS_FILES = ("colours.css", "page.css")
_MAX_LINKS = 40
_MOST_COLUMNS = 6
"""Most runs that get a column each in a table of settings. Where there are more runs than this, and more than settings,
the table has a row for each run. The notes on a success are not printed then."""
_MAX_NAMES = 8
"""Most names of a legend; a longer one is folded."""
_HEADS = ("Run", "Outcome", "Time to train", "Initialisation", "Epochs", "Accuracy", "Batch", "Images/s", "Log check")


def render(runs: Sequence[ReportedRun], destination: Path) -> str:
    """Return the page of one or several runs; links are relative to ``destination``, the file of the page."""
    names = ", ".join(run.name for run in runs[:3]) + (" …" if len(runs) > 3 else "")  # noqa: PLR2004
    sections = [
        section("Results", _results(runs)),
        section("Charts", _charts(runs)),
        section("Configuration", _configuration(runs)),
        section("Files", _files(runs, destination)),
    ]
    head = f"<h1>{escape(heading(runs))}</h1>{lead(runs)}"
    return document(names, f"<header>{head}</header>{''.join(sections)}")


def document(title: str, body: str) -> str:
    """Return a page with ``body`` (HTML), which opens from disk and loads no other file."""
    script = (Path(__file__).parent / "cursor.js").read_text(encoding="utf-8")
    css = "".join((Path(__file__).parent / name).read_text(encoding="utf-8") for name in _CSS_FILES)
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width,initial-scale=1">'
        '<meta name="color-scheme" content="light dark">'
        f"<title>{escape(title)}</title><style>{css}</style></head>"
        f"<body><main>{body}</main><script>{script}</script></body></html>\n"
    )


def _results(runs: Sequence[ReportedRun]) -> str:
    rows = [_row(run, number) for number, run in enumerate(runs)]
    cells = "".join(f'<th scope="col" role="columnheader">{head}</th>' for head in _HEADS)
    head = f'<thead role="rowgroup"><tr role="row">{cells}</tr></thead>'
    # A narrow screen shows rows as cards, and the browser then no longer treats the table as one; the roles remain.
    table = f'<table class="outcomes" role="table">{head}<tbody role="rowgroup">{"".join(rows)}</tbody></table>'
    return scrolled("Outcome of each run", table) + _notes(runs)


def _row(run: ReportedRun, number: int) -> str:
    record = run.record
    name = f'{_swatch(Series("", number, ()))}<span class="run">{escape(run.name)}</span>'
    name += f"<small>{escape(place_of(run))}</small>"
    accuracy = NOTHING if record.final_accuracy is None else f"{record.final_accuracy:.4f}"
    target = f"<small>target {run.target:g}</small>" if run.target is not None else ""
    if not record.is_of_images and record.final_accuracy is not None:
        target = f"<small>quality of {escape(str(record.benchmark))}</small>{target}"
    verdicts = "<br>".join(
        f"{badge('passes' if each.passed else 'fails', each.passed)} {escape(each.ruleset)}" for each in run.verdicts
    )
    cells = (
        _outcome(run),
        _time_to_train(run),
        in_seconds(record.init_s),
        _number(record.epochs if record.is_of_images else None) + _convergence(run),
        accuracy + target,
        _number(record.global_batch_size),
        _rate(run),
        verdicts or NOTHING,
    )
    row = "".join(
        f'<td role="cell" data-head="{head}"><div>{cell}</div></td>'
        for head, cell in zip(_HEADS[1:], cells, strict=True)
    )
    return f'<tr role="row"><th scope="row" role="rowheader">{name}</th>{row}</tr>'


def _outcome(run: ReportedRun) -> str:
    words, good = state_of(run)
    attempts = f"<small>resumed, {run.record.attempts} attempts</small>" if run.record.attempts > 1 else ""
    other = "" if run.record.is_of_images else f"<small>benchmark {escape(str(run.record.benchmark))}</small>"
    return badge(words, good) + attempts + other


def _time_to_train(run: ReportedRun) -> str:
    """Return the time to train of a run that reached its target, and of any other run how long it ran."""
    record = run.record
    if state_of(run)[1]:
        return in_seconds(record.time_to_train_s)
    return NOTHING + (f"<small>ran {in_seconds(record.elapsed_s)}</small>" if record.elapsed_s else "")


def _convergence(run: ReportedRun) -> str:
    has_reference = is_compared(run) and run.comparison.outcome != "no reference"
    return f"<small>reference: {run.comparison.outcome}</small>" if has_reference else ""


def _rate(run: ReportedRun) -> str:
    """Return the images/s of the whole run, and below them those without evaluations, which a summary has."""
    steady = run.summary.get("images_per_s")
    below = f"<small>{_number(steady)} without evaluations</small>" if isinstance(steady, int | float) else ""
    return _number(run.record.images_per_s) + below


def _notes(runs: Sequence[ReportedRun]) -> str:
    """Return the notes below the table of results: first those that hold for every run, then those of each run."""
    found = {run.name: notes_of(run) for run in runs}
    shared = [note for note in found[runs[0].name] if all(note in notes for notes in found.values())]
    parts = [_noted("all runs" if len(runs) > 1 else runs[0].name, shared, " open")]
    folded = ' class="more"' if len(runs) > _MOST_COLUMNS else ""
    parts += [
        _noted(
            run.name, [note for note in found[run.name] if note not in shared], folded if state_of(run)[1] else " open"
        )
        for run in runs
    ]
    return "".join(parts)


def _noted(name: str, notes: Sequence[str], opened: str) -> str:
    items = "".join(f"<li>{escape(printable(note))}</li>" for note in notes)
    return f"<details{opened}><summary>{escape(name)}: notes</summary><ul>{items}</ul></details>" if notes else ""


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
    known = {key: [str(run.settings[key]) for run in runs if key in run.settings] for key in keys}
    differing = [key for key in keys if len(set(known[key])) > 1]
    partial = [key for key in keys if len(known[key]) < len(runs) and key not in differing]
    same = [key for key in keys if len(known[key]) == len(runs) and key not in differing]
    parts = []
    if differing:
        words = "1 setting differs" if len(differing) == 1 else f"{len(differing)} settings differ"
        parts.append(f"<p>{words}.</p>{_settings(runs, differing, marked=True)}")
    elif len(runs) > 1:
        parts.append("<p>No setting differs.</p>")
    if partial:
        words = f"{_count(len(partial))} that only some of the runs have"
        parts.append(_folded(words, _settings(runs, partial, marked=False)))
    if same:
        words = _count(len(same)) + (" that all runs share" if len(runs) > 1 else "")
        parts.append(_folded(words, _settings(runs[:1], same, marked=False)))
    return "".join(parts)


def _folded(words: str, table: str) -> str:
    return f'<details class="more"><summary>{words}</summary>{table}</details>'


def _settings(runs: Sequence[ReportedRun], keys: Sequence[str], *, marked: bool) -> str:
    """Return a table of settings: a row a setting and a column a run, or the other way round if the runs are many."""
    lines = [[_value(run.settings.get(key)) for run in runs] for key in keys]
    if marked:
        usual = [max(line, key=line.count) for line in lines]
        lines = [
            [cell if cell == common else f"<mark>{cell}</mark>" for cell in line]
            for line, common in zip(lines, usual, strict=True)
        ]
    corner, names, titles = "Setting", list(keys), [run.name for run in runs]
    if len(runs) > max(len(keys), _MOST_COLUMNS):
        corner, names, titles, lines = "Run", titles, names, [list(column) for column in zip(*lines, strict=True)]
    heads = "".join(f'<th scope="col">{escape(title)}</th>' for title in (corner, *titles))
    rows = "".join(
        f'<tr><th scope="row">{escape(name)}</th>{"".join(f"<td>{cell}</td>" for cell in line)}</tr>'
        for name, line in zip(names, lines, strict=True)
    )
    return scrolled("Settings", f'<table class="settings"><thead><tr>{heads}</tr></thead><tbody>{rows}</tbody></table>')


def _files(runs: Sequence[ReportedRun], destination: Path) -> str:
    links = []
    for run in runs:
        files = sorted(run.path.iterdir()) if run.path.is_dir() else [run.path]
        linked = [path for path in files if path.is_file() and path.resolve() != destination.resolve()]
        for path in linked[:_MAX_LINKS]:
            href = quote(os.path.relpath(path.resolve(), destination.resolve().parent).replace(os.sep, "/"))
            label = f"{run.name}{path.suffix}" if run.path == path else f"{run.name}/{path.name}"
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
    return NOTHING if value is None else escape(str(value))


def _number(value: float | None) -> str:
    if value is None:
        return NOTHING
    if value >= 1e6:  # noqa: PLR2004
        return f"{value / 1e6:.3g} M"
    return f"{value:,.0f}".replace(",", "\u202f") if value >= 100 else f"{value:.4g}"  # noqa: PLR2004
