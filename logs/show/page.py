"""Writes the report as one HTML page, which opens from disk and loads no other file.

``report.html`` is the page and ``parts.html`` has what other pages share. All text is escaped by jinja2.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import median
from typing import Any

from jinja2 import Environment, FileSystemLoader
from markupsafe import Markup

from configs.arguments import printable
from logs.judge.unverified import TERM
from logs.show import wording
from logs.show.chart import Chart, Series, colour_of
from logs.show.figures import figures
from logs.show.reported_run import ReportedRun
from logs.show.wording import NOTHING

_FOLDER = Path(__file__).parent
_MOST_NOTED = 6
"""Where there are more runs, the notes on a success are not printed."""
_MOST_CLASS_TABLES = 4
"""Of more runs, the page shows no classes: it is about the comparison of runs."""
_HEADS = ("Run", "Outcome", "Time to train", "Initialisation", "Epochs", "Accuracy", "Batch", "Images/s", "Log check")


def render(runs: Sequence[ReportedRun]) -> str:
    """Return the page of one or several runs."""
    keys = list(dict.fromkeys(key for run in runs for key in run.settings))
    values = {key: [run.settings.get(key) for run in runs] for key in keys}
    same = {key: found[:1] for key, found in values.items() if len(set(map(str, found))) == 1}
    shared, facts = wording.common_and_differing(runs)
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
        figures=list(figures(runs)),
        classes=[run for run in runs if run.classes is not None] if len(runs) <= _MOST_CLASS_TABLES else [],
        names=[run.name for run in runs],
        differing=facts | {key: found for key, found in values.items() if key not in same},
        same=same,
    )


def _notes(runs: Sequence[ReportedRun]) -> Iterator[tuple[str, list[str], Markup]]:
    """Yield (name, notes, HTML attributes of the block) of each run."""
    folded = Markup(' class="more"') if len(runs) > _MOST_NOTED else Markup()
    for run in runs:
        notes = [printable(note) for note in wording.notes_of(run)]
        yield run.name, notes, folded if wording.state_of(run)[1] else Markup(" open")


def render_template(file: Path, **values: Any) -> str:
    """Return a page from a template, which may import ``parts.html``.

    Args:
        file: The template; an absolute path.
        values: What the template names, besides ``css``.
    """
    css = "".join((_FOLDER / name).read_text(encoding="utf-8") for name in ("colours.css", "page.css"))
    return _ENVIRONMENT.get_template(str(file)).render(css=Markup(css), **values) + "\n"


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
    autoescape=True, loader=FileSystemLoader([_FOLDER, "/"]), trim_blocks=True, lstrip_blocks=True, auto_reload=False
)
_ENVIRONMENT.filters |= {
    "accuracy": lambda value: NOTHING if value is None else f"{value:.4f}",
    "colour": colour_of,
    "median": median,
    "fixed": lambda value, digits: f"{value:,.{digits}f}",
    "number": _number,
    "percent": lambda share: f"{share:.1%}",
    "seconds": wording.in_seconds,
    "svg": _svg,
}
