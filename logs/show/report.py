"""``./run.sh report``: the page of one or several runs, a picture of their curves, or their figures as JSON."""

import json
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from configs.arguments import printable
from configs.errors import UserError
from configs.reading import file_of
from configs.table import csv_text
from logs.disk import require_replaceable, write_text
from logs.judge.evidence import is_own, members
from logs.read.files import logs_in
from logs.read.lines import to_number
from logs.show.drawing import save_charts
from logs.show.figures import course
from logs.show.page import render
from logs.show.reported_run import NoRun, ReportedRun, gather_run, summarise

_OUTPUTS = (".html", ".htm", ".svg", ".png", ".csv")
"""Files of these kinds in a run folder are earlier pages and pictures, which may be replaced."""


def report(
    *,
    paths: Sequence[Path],
    out: Path | None,
    json: bool,
    plot: Path | None,
    csv: Path | None,
) -> str:
    """Write the page or what is asked for in its place, and return what the verb prints: the path, or the figures.

    Args:
        paths: Run folders, folders of logs, and logs.
        out: The page. If None, ``report.html``: in the folder if ``paths`` is a single folder, otherwise in the working
            folder.
        json: Return the figures of each run or log instead.
        plot: Draw accuracy and losses by epoch side by side into this file instead: SVG if the name ends so, else PNG.
        csv: Write the curves into this file instead, a point a line.

    Raises:
        UserError: If there is no such run or log, or nothing in it to draw, or the file cannot be written.
    """
    folder = paths[0] if len(paths) == 1 and paths[0].is_dir() else Path()
    option, file = "--out", out or folder / "report.html"
    if plot or csv:
        option, file = ("--plot", plot) if plot else ("--csv", csv or file)
    if not json:
        found = file_of(file)
        is_in_run = any(found.parent == file_of(path) for path in paths) and found.suffix.lower() not in _OUTPUTS
        require_replaceable(option, file, [*paths, file] if is_in_run else paths)
    runs = _gather_all(paths)
    if json or plot or csv:  # which have no place for it, as the page has
        for run in runs:
            if run.problem:
                sys.stderr.write(f"note: {printable(f'{run.path}: {run.problem.kind}: {run.problem.words}')}\n")
    if json:
        return _as_json(runs)
    if plot:
        return _draw(runs, plot)
    text = csv_text(_points(runs), ("run", "curve", "epoch", "seconds", "value")) if csv else render(runs)
    write_text(file, text, makes_folder=True)
    return str(file)


def _as_json(runs: Sequence[ReportedRun]) -> str:
    return json.dumps([summarise(run) for run in runs], indent=2, allow_nan=False)


def _draw(runs: Sequence[ReportedRun], file: Path) -> str:
    """Draw top-1 accuracy and the losses by epoch side by side; only a log with metrics has a loss."""
    charts = [figure for figure in course(runs) if figure.chart.x_name == "epochs"]
    if not charts:
        names = ", ".join(str(run.path) for run in runs)
        raise UserError(f"{names}: no two evaluations and no two losses, which a line takes; give a run of more steps")
    save_charts(file, charts)
    return str(file)


def _points(runs: Sequence[ReportedRun]) -> Iterator[tuple[str, str, float | None, float | None, float]]:
    """Yield (run, curve, epoch, seconds since run_start, value) of each point whose value is a finite number."""
    for name, curve, points in ((run.name, *each) for run in runs for each in run.curves.items()):
        for epoch, seconds, value in points:
            if (number := to_number(value)) is not None:
                yield name, curve, to_number(epoch), to_number(seconds), number


def _gather_all(paths: Sequence[Path]) -> list[ReportedRun]:
    """Return the runs under ``paths``, each once; what is none is left out with a note, as ``runs/*`` may name it.

    A run folder is one run, also in a folder of such; a folder with other submitters' logs has a run in each log.

    Raises:
        UserError: None of the paths leads to a run, or one of them does not exist.
    """
    runs, refused = list[ReportedRun](), list[NoRun]()
    given = dict[Path, Path]()
    for each in (each for path in paths for each in members(path)):
        given.setdefault(file_of(each), each)
    for path in given.values():
        are_others = path.is_dir() and not is_own(path)
        for file in (logs_in(path) if are_others else []) or [path]:
            try:
                runs.append(gather_run(file))
            except NoRun as no_run:  # noqa: PERF203 (reading a run takes far longer than the try)
                refused.append(no_run)
    if not runs:
        raise refused[0]
    for reason in refused:
        sys.stderr.write(f"note: {printable(str(reason).partition(';')[0])}; it is left out\n")
    return [replace(run, name=name) for run, name in zip(runs, _names([run.path for run in runs]), strict=True)]


def _names(paths: Sequence[Path]) -> list[str]:
    """Return names that tell the files apart, with as few parent folders as possible."""
    parts = [(*file_of(path).parent.parts[1:], path.stem if path.is_file() else path.name) for path in paths]
    for depth in range(1, 6):
        names = [printable("/".join(part[-depth:])) for part in parts]
        if len(set(names)) == len(names) and not all(name.startswith("result_") for name in names):
            return names
    return [f"{name} ({number})" for number, name in enumerate(names, start=1)]
