"""The report as one self-contained HTML page: opens from disk, loads nothing, runs no script."""

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
from logs.show.subject import Subject

__all__ = ["badge", "charts", "document", "render", "scrolled", "section"]

_CSS_FILES = ("colours.css", "page.css")
_MANY_LINKS = 40
_MANY_NAMES = 8
_HEADS = ("Run", "Outcome", "Time to train", "Initialisation", "Epochs", "Accuracy", "Batch", "Images/s", "Log check")
_NOTHING = "\u2013"


def render(subjects: Sequence[Subject], destination: Path) -> str:
    """Give the page of one or several runs; links are relative to ``destination``."""
    names = ", ".join(subject.name for subject in subjects[:3]) + (" …" if len(subjects) > 3 else "")  # noqa: PLR2004
    sections = [
        section("Verdicts", _verdicts(subjects)),
        section("Course", _course(subjects)),
        section("Configuration", _configuration(subjects)),
        section("Files", _files(subjects, destination)),
    ]
    head = f"<h1>{escape(_title(subjects))}</h1>{_lead(subjects)}"
    return document(names, f"<header>{head}</header>{''.join(sections)}")


def document(title: str, body: str) -> str:
    """Put ``body`` into a page that opens from disk and loads nothing."""
    css = "".join((Path(__file__).parent / name).read_text(encoding="utf-8") for name in _CSS_FILES)
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width,initial-scale=1">'
        '<meta name="color-scheme" content="light dark">'
        f"<title>{escape(title)}</title><style>{css}</style></head>"
        f"<body><main>{body}</main></body></html>\n"
    )


def _title(subjects: Sequence[Subject]) -> str:
    if len(subjects) == 1:
        return subjects[0].name
    return f"{len(subjects)} runs side by side"


def _lead(subjects: Sequence[Subject]) -> str:
    """Say the one thing that matters: how long it took, and how sure that is."""
    times = sorted(
        s.record.time_to_train_s for s in subjects if s.record.time_to_train_s and s.record.status == "success"
    )
    if not times:
        return '<p class="lead">No run has reached its target.</p>'
    told = f"<strong>{_seconds(median(times))}</strong> to train"
    if len(subjects) > 1:
        spread = f"{_seconds(times[0])} to {_seconds(times[-1])}"
        told += f", median of {len(times)} runs that reached the target out of {len(subjects)}; spread {spread}"
        if len(times) >= 5:  # noqa: PLR2004 (a submission)
            told += f"; olympic mean {_seconds(mean(times[1:-1]))}"
    return f'<p class="lead">{told}.</p>'


def _verdicts(subjects: Sequence[Subject]) -> str:
    rows = [_row(subject, number) for number, subject in enumerate(subjects)]
    cells = "".join(f'<th scope="col" role="columnheader">{head}</th>' for head in _HEADS)
    head = f'<thead role="rowgroup"><tr role="row">{cells}</tr></thead>'
    # The roles stay where a narrow screen turns rows into cards, which unmakes the table's own.
    table = f'<table class="outcomes" role="table">{head}<tbody role="rowgroup">{"".join(rows)}</tbody></table>'
    return scrolled("Outcome of each run", table) + "".join(
        _notes(subject, alone=len(subjects) == 1) for subject in subjects
    )


def _row(subject: Subject, number: int) -> str:
    record = subject.record
    who = " · ".join(text for text in (record.submitter, record.platform) if text)
    name = (
        f'{_swatch(Series("", number, ()))}<span class="run">{escape(subject.name)}</span><small>{escape(who)}</small>'
    )
    accuracy = _NOTHING if record.final_accuracy is None else f"{record.final_accuracy:.4f}"
    goal = f"<small>target {subject.target:g}</small>" if subject.target is not None else ""
    verdicts = "<br>".join(
        f"{badge('passes' if each.passed else 'fails', each.passed)} {escape(each.ruleset)}"
        for each in subject.verdicts
    )
    status = subject.summary.get("status") or record.status or ("running" if record.began_s else "unknown")
    place = subject.standing
    convergence = "" if place.outcome == "no reference" else f"<small>reference: {place.outcome}</small>"
    cells = (
        badge(str(status), {"success": True, "aborted": False}.get(str(status))),
        _seconds(record.time_to_train_s),
        _seconds(record.init_s),
        _number(record.epochs) + convergence,
        accuracy + goal,
        _number(record.global_batch_size),
        _number(record.images_per_s),
        verdicts or _NOTHING,
    )
    row = "".join(
        f'<td role="cell" data-head="{head}"><div>{cell}</div></td>'
        for head, cell in zip(_HEADS[1:], cells, strict=True)
    )
    return f'<tr role="row"><th scope="row" role="rowheader">{name}</th>{row}</tr>'


def _notes(subject: Subject, *, alone: bool) -> str:
    """Say under the table what its cells have no room for."""
    record = subject.record
    notes = [f"Reference convergence: {subject.standing.words}."]
    if failure := subject.summary.get("failure"):
        notes.insert(0, f"Ended early: {failure}.")
    ranks, spread = record.init_starts
    if ranks > 1:
        notes.append(f"{ranks} ranks logged init_start, the last {spread:.3f} s after the first.")
    if record.unreadable:
        notes.append(f"{record.unreadable} records of the log could not be read.")
    notes += [f"{problem}." for problem in subject.problems]
    for verdict in subject.verdicts:
        notes += [f"{verdict.ruleset}: {explain(message)}." for message in verdict.messages]
    items = "".join(f"<li>{escape(note)}</li>" for note in notes)
    opened = " open" if alone else ""
    return f"<details{opened}><summary>{escape(subject.name)}: notes</summary><ul>{items}</ul></details>"


def _course(subjects: Sequence[Subject]) -> str:
    return charts(list(figures(subjects))) or "<p>The logs tell no course of the runs.</p>"


def charts(figures: Sequence[Captioned]) -> str:
    """Return the charts, each with its caption and legend; nothing if there is none."""
    from logs.show.drawing import to_svg  # noqa: PLC0415 (matplotlib takes a second to import)

    drawn = (
        f"<figure>{to_svg(each.chart)}{_legend(each)}<figcaption>{escape(each.caption)}</figcaption></figure>"
        for each in figures
    )
    return f'<div class="charts">{"".join(drawn)}</div>' if figures else ""


def _legend(figure: Captioned) -> str:
    """Return the names of a chart's lines or colours, beside a sample of each."""
    chart = figure.chart
    if isinstance(chart, BarChart):
        colours = [Stretch(0, 0, number, "").colour for number in range(len(chart.names))]
        dots = [f'<i class="dot" style="background:var({colour})"></i>' for colour in colours]
        samples = list(zip(dots, chart.names, strict=True))
    else:
        samples = [(_swatch(series), series.name) for series in chart.series]
    items = " ".join(f"<span>{sample}{escape(name)}</span>" for sample, name in samples)
    if len(samples) <= _MANY_NAMES:
        return f'<p class="key">{items}</p>' if len(samples) > 1 else ""
    return f'<details class="key"><summary>{len(samples)} lines</summary>{items}</details>'


def _swatch(series: Series) -> str:
    """Return a sample of a series' line, with a hollow dot where nothing was measured."""
    dashes = " ".join(f"{length:g}" for length in series.dashes) or "none"
    line = f'<path style="stroke-dasharray:{dashes}" d="M1 4H23"/>'
    dot = '<circle cx="12" cy="4" r="2.4"/>' if series.style == "predicted" else ""
    stroke = f'style="stroke:var({series.colour})"'
    return f'<svg class="swatch" viewBox="0 0 24 8" aria-hidden="true" {stroke}>{line}{dot}</svg>'


def _configuration(subjects: Sequence[Subject]) -> str:
    """List the settings; those that differ between runs first, and marked."""
    keys = list(dict.fromkeys(key for subject in subjects for key in subject.settings))
    if not keys:
        return "<p>The logs name no settings.</p>"
    differing = [key for key in keys if len({str(subject.settings.get(key)) for subject in subjects}) > 1]
    same = [key for key in keys if key not in differing]
    parts = []
    if differing:
        parts.append(
            f"<p>{_count(len(differing))} not the same in all runs.</p>{_settings(subjects, differing, marked=True)}"
        )
    elif len(subjects) > 1:
        parts.append("<p>All settings are the same in all runs.</p>")
    if same:
        words = _count(len(same)) + (" that all runs share" if len(subjects) > 1 else "")
        table = _settings(subjects[:1], same, marked=False)
        parts.append(f"<details><summary>{words}</summary>{table}</details>")
    return "".join(parts)


def _settings(subjects: Sequence[Subject], keys: Sequence[str], *, marked: bool) -> str:
    heads = "".join(f'<th scope="col">{escape(subject.name)}</th>' for subject in subjects)
    rows = []
    for key in keys:
        values = [subject.settings.get(key) for subject in subjects]
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


def _files(subjects: Sequence[Subject], destination: Path) -> str:
    links = []
    for subject in subjects:
        files = sorted(subject.path.iterdir()) if subject.path.is_dir() else [subject.path]
        for path in [each for each in files if each.is_file() and each.resolve() != destination.resolve()][
            :_MANY_LINKS
        ]:
            href = quote(os.path.relpath(path.resolve(), destination.resolve().parent).replace(os.sep, "/"))
            label = path.name if subject.path == path else f"{subject.name}/{path.name}"
            links.append(f'<li><a href="{href}">{escape(label)}</a></li>')
    return f'<ul class="files">{"".join(links)}</ul>'


def section(title: str, body: str) -> str:
    """Give a part of a page, with its heading."""
    identity = title.lower().replace(" ", "-")
    return f'<section aria-labelledby="{identity}"><h2 id="{identity}">{title}</h2>{body}</section>'


def scrolled(name: str, table: str) -> str:
    """Let a wide table scroll by itself."""
    return f'<div class="scroll" role="region" aria-label="{escape(name)}" tabindex="0">{table}</div>'


def badge(words: str, good: bool | None) -> str:
    """Give a word or two in a frame, green or red where ``good`` is known."""
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
