"""Writes the report as one HTML page, which opens from disk and loads no other file.

``report.html`` is the page and ``parts.html`` has what other pages share. All text is escaped by jinja2.
"""

from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

from jinja2 import Environment, FileSystemLoader, Template
from markupsafe import Markup

from configs.arguments import printable
from logs.judge.unverified import TERM
from logs.show import wording
from logs.show.chart import Captioned, Chart, LineChart, Series, colour_of, in_short
from logs.show.figures import figures
from logs.show.reported_run import ReportedRun
from logs.show.wording import NOTHING

_FOLDER = Path(__file__).parent
_MOST_FILES = 40
_MOST_COLUMNS = 6
"""Most runs that get a column each in a table of settings. Where there are more runs than this, and more than settings,
the table has a row for each run. The notes on a success are not printed then."""
_MOST_CLASS_TABLES = 4
"""Of more runs, the page shows no classes: it is about the comparison of runs."""
_HEADS = ("Run", "Outcome", "Time to train", "Initialisation", "Epochs", "Accuracy", "Batch", "Images/s", "Log check")


class _Settings(NamedTuple):
    """A table of settings and other facts: ``rows`` are (name, cells), and a cell is (value, whether it is unusual)."""

    settings: int
    heads: Sequence[str]
    rows: Sequence[tuple[str, Sequence[tuple[Any, bool]]]]


def render(runs: Sequence[ReportedRun], destination: Path) -> str:
    """Return the page of one or several runs, to be written into the file ``destination``."""
    keys = list(dict.fromkeys(key for run in runs for key in run.settings))
    known = {key: [str(run.settings[key]) for run in runs if key in run.settings] for key in keys}
    shared, facts = wording.common_and_differing(runs)
    differing = [key for key in keys if len(set(known[key])) > 1]
    partial = [key for key in keys if len(known[key]) < len(runs) and key not in differing]
    same = [key for key in keys if len(known[key]) == len(runs) and key not in differing]
    drawn = [(figure, _numbers(figure)) for figure in figures(runs)]
    return render_template(
        _FOLDER / "report.html",
        title=", ".join(run.name for run in runs[:3]) + (" …" if len(runs) > 3 else ""),  # noqa: PLR2004
        heading=wording.heading(runs),
        lead=wording.lead(runs),
        heads=_HEADS,
        runs=runs,
        lines=[Series("", number, ()) for number in range(len(runs))],
        notes=list(_notes(runs)),
        footnotes=wording.footnotes(runs),
        unverified=TERM,
        wording=wording,
        identity=shared,
        figures=[figure for figure, numbers in drawn if not numbers],
        numbers=[(figure.caption, numbers) for figure, numbers in drawn if numbers],
        classes=[run for run in runs if run.classes is not None] if len(runs) <= _MOST_CLASS_TABLES else [],
        differing=_settings(runs, differing, facts),
        partial=_settings(runs, partial),
        same=_settings(runs[:1], same),
        files=list(_files(runs, destination)),
    )


def _notes(runs: Sequence[ReportedRun]) -> Iterator[tuple[str, list[str], Markup]]:
    """Yield (name, notes, HTML attributes of the block): first the notes that hold for every run, then each run's."""
    found = {run.name: [printable(note) for note in wording.notes_of(run)] for run in runs}
    shared = [note for note in found[runs[0].name] if all(note in notes for notes in found.values())]
    yield "all runs" if len(runs) > 1 else runs[0].name, shared, Markup(" open")
    folded = Markup(' class="more"') if len(runs) > _MOST_COLUMNS else Markup()
    for run in runs:
        own = [note for note in found[run.name] if note not in shared]
        yield run.name, own, folded if wording.state_of(run)[1] else Markup(" open")


def _numbers(figure: Captioned) -> list[str]:
    """Return the values of a figure in which no run has two, in words; empty if there is a line or a bar to draw."""
    if not isinstance(figure.chart, LineChart):
        return []
    values = figure.chart.single_values
    at = "epoch {}" if figure.chart.x_name.startswith("epochs") else "{} s"
    whose = [f" ({each.name})" if len(figure.chart.series) > 1 else "" for each, _, _ in values]
    return [f"{in_short(y)} at {at.format(in_short(x))}{name}" for (_, x, y), name in zip(values, whose, strict=True)]


def _settings(
    runs: Sequence[ReportedRun], keys: Sequence[str], facts: Mapping[str, Sequence[str | None]] | None = None
) -> _Settings:
    """Return a table of settings: a row a setting and a column a run, or the other way round if the runs are many.

    Args:
        runs: The runs.
        keys: The settings.
        facts: Further rows, before the settings: name -> the value of each run.
    """
    lines = [*map(list, (facts or {}).values()), *([run.settings.get(key) for run in runs] for key in keys)]
    heads, names = [*(facts or ()), *keys], [run.name for run in runs]
    usual = [max(line, key=line.count) for line in lines]
    cells = [
        [(NOTHING if value is None else value, value != common) for value in line]
        for line, common in zip(lines, usual, strict=True)
    ]
    if len(runs) > max(len(heads), _MOST_COLUMNS):
        rows = [list(column) for column in zip(*cells, strict=True)]
        return _Settings(len(keys), ("Run", *heads), list(zip(names, rows, strict=True)) if rows else [])
    return _Settings(len(keys), ("Setting", *names), list(zip(heads, cells, strict=True)))


def _files(runs: Sequence[ReportedRun], destination: Path) -> Iterator[str]:
    """Yield the name of each file of the runs but the page itself; a link would be dead where the page is mailed."""
    for run in runs:
        files = sorted(run.path.iterdir()) if run.path.is_dir() else [run.path]
        listed = [path for path in files if path.is_file() and path.resolve() != destination.resolve()]
        for path in listed[:_MOST_FILES]:
            yield f"{run.name}{path.suffix}" if run.path == path else f"{run.name}/{path.name}"


def render_template(file: Path, **values: Any) -> str:
    """Return a page from a template, which may import ``parts.html``.

    Args:
        file: The template.
        values: What the template names, besides ``css``.
    """
    css = "".join((_FOLDER / name).read_text(encoding="utf-8") for name in ("colours.css", "page.css"))
    return _compiled(file).render(css=Markup(css), **values) + "\n"


@cache  # compiling the page of a run takes 50 ms, and a study has several pages
def _compiled(file: Path) -> Template:
    return _ENVIRONMENT.from_string(file.read_text(encoding="utf-8"))


def _svg(chart: Chart) -> Markup:
    from logs.show.drawing import to_svg  # noqa: PLC0415 (matplotlib takes a second to import)

    return Markup(to_svg(chart))


def _number(value: float | None) -> str:
    if value is None:
        return NOTHING
    if value >= 1e6:  # noqa: PLR2004
        return f"{value / 1e6:.3g} M"
    return f"{value:,.0f}".replace(",", "\u202f") if value >= 100 else f"{value:.4g}"  # noqa: PLR2004


_ENVIRONMENT = Environment(
    autoescape=True, loader=FileSystemLoader(_FOLDER), trim_blocks=True, lstrip_blocks=True, auto_reload=False
)
_ENVIRONMENT.filters |= {
    "accuracy": lambda value: NOTHING if value is None else f"{value:.4f}",
    "colour": colour_of,
    "median": median,
    "fixed": lambda value, digits: f"{value:,.{digits}f}",
    "count": lambda settings: "1 setting" if settings == 1 else f"{settings} settings",
    "number": _number,
    "percent": lambda share: f"{share:.1%}",
    "seconds": wording.in_seconds,
    "svg": _svg,
}
