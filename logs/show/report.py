"""``./run.sh report``: the page of one or several runs, a picture of their curves, or their figures as JSON."""

import csv
import io
import os
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from configs.arguments import printable
from configs.errors import UserError
from logs.disk import explain_disk_errors, write_text
from logs.judge.evidence import is_own
from logs.read.files import logs_in, regular_file
from logs.read.lines import to_number
from logs.show.chart import LineChart
from logs.show.drawing import save_charts
from logs.show.figures import course, samples_of
from logs.show.page import render
from logs.show.reported_run import NoRun, ReportedRun, gather_run, summarise

_OUTPUTS = (".html", ".htm", ".svg", ".png", ".csv")
"""Files of these kinds in a run folder are earlier pages and pictures, which may be replaced."""
_WRITABLE = 0o222


def figures_of(paths: Sequence[Path]) -> list[dict[str, Any]]:
    """Return the figures of each run or log.

    Args:
        paths: Run folders, folders of logs, and logs.

    Raises:
        UserError: If there is no such file or folder, or a folder contains no log.
    """
    return [summarise(run) for run in _gather_all(paths)]


def write_report(paths: Sequence[Path], out: Path | None) -> Path:
    """Write the page; return its path.

    Args:
        paths: Run folders, folders of logs, and logs.
        out: The file to write. If None, ``report.html``: in the folder if ``paths`` is a single folder, otherwise in
            the working folder.

    Raises:
        UserError: If there is no such run or log, or the file cannot be written.
    """
    folder = paths[0] if len(paths) == 1 and paths[0].is_dir() else Path()
    destination = out or folder / "report.html"
    _require_replaceable("--out", destination, paths)
    return _written(destination, render(_gather_all(paths), destination))


def write_picture(paths: Sequence[Path], file: Path) -> Path:
    """Draw top-1 accuracy and training loss by epoch side by side; return the path of the picture.

    Only a log with metrics has a loss.

    Args:
        paths: Run folders, folders of logs, and logs.
        file: SVG if the name ends so, otherwise PNG.

    Raises:
        UserError: If there is no such run or log, no evaluation in it, or the file cannot be written.
    """
    _require_replaceable("--plot", file, paths)
    charts = [
        replace(figure.chart, heading=figure.caption)
        for figure in course(_gather_all(paths))
        if isinstance(figure.chart, LineChart) and figure.chart.x_name.startswith("epochs")
    ]
    if not charts:
        raise UserError(f"{', '.join(map(str, paths))}: no evaluation and no loss to draw; give a run that has trained")
    save_charts(file, charts)
    return file


def write_curves(paths: Sequence[Path], file: Path) -> Path:
    """Write the curves of all runs as CSV, a point a line; return the path of the file.

    Raises:
        UserError: If there is no such run or log, or the file cannot be written.
    """
    _require_replaceable("--csv", file, paths)
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(("run", "curve", "epoch", "seconds", "value"))
    for run in _gather_all(paths):
        for curve, *point in _points(run):
            writer.writerow([run.name, curve, *("" if value is None else value for value in point)])
    return _written(file, text.getvalue())


def _written(file: Path, text: str) -> Path:
    """Write a file, and its folder if there is none; return the file's path."""
    with explain_disk_errors(file):
        file.parent.mkdir(parents=True, exist_ok=True)
        write_text(file, text)
    return file


def write_events(paths: Sequence[Path], folder: Path) -> Path:
    """Write the curves of all runs as TensorBoard's event files, a folder for each run; return the folder.

    A point's step is its epoch in thousandths: TensorBoard wants whole numbers, and most curves have points within an
    epoch.

    Raises:
        UserError: If there is no such run or log, TensorBoard's library is missing, or the folder cannot be written.
    """
    runs = _gather_all(paths)
    try:
        from logs.track.tensorboard import TensorboardRun  # noqa: PLC0415 (an extra that most installations lack)
    except ImportError:
        words = "the package tensorboardX is not installed; run ./run.sh setup --extra tensorboard"
        raise UserError(f"--tensorboard: {words}") from None
    for run in runs:
        place = folder / "".join(letter if letter.isalnum() or letter in "._-" else "-" for letter in run.name)
        try:
            writer = TensorboardRun(place)
        except OSError as error:
            raise UserError(f"--tensorboard: {place} cannot be made ({error.strerror}); give another folder") from None
        for curve, epoch, seconds, value in _points(run):
            step = None if epoch is None else round(1000 * epoch)
            writer.add(curve, value, step, (run.record.began_s or 0.0) + (seconds or 0.0))
        writer.close()
    return folder


def _points(run: ReportedRun) -> Iterator[tuple[str, float | None, float | None, float]]:
    """Yield (curve, epoch, seconds since run_start, value) of each point whose value is a finite number."""
    for curve, samples in samples_of(run).items():
        for epoch, seconds, value in samples:
            if (number := to_number(value)) is not None:
                yield curve, to_number(epoch), to_number(seconds), number


def _require_replaceable(option: str, file: Path, paths: Sequence[Path]) -> None:
    """Raise `UserError` if ``file`` is an input, a folder, write-protected, or a device, pipe or socket."""
    if not os.path.lexists(file):
        return
    found = file.resolve()
    is_in_run = any(found.parent == path.resolve() for path in paths) and found.suffix.lower() not in _OUTPUTS
    if found.is_dir():
        reason = "which is a folder"
    elif is_in_run or any(found == path.resolve() for path in paths):
        reason = "which is a file that the report reads"
    elif found.exists() and not found.is_file():
        reason = "which is not a regular file"
    elif found.exists() and not found.stat().st_mode & _WRITABLE:
        # The mode decides and not os.access, because root may write to any file.
        reason = "which is write-protected"
    else:
        return
    raise UserError(f"{option}: got {file}, {reason}; give another file name")


def _gather_all(paths: Sequence[Path]) -> list[ReportedRun]:
    """Return the runs under ``paths``; what is no run is left out with a note, as the shell's ``runs/*`` may name it.

    Raises:
        UserError: None of the paths leads to a run, or one of them does not exist.
    """
    runs, refused = list[ReportedRun](), list[NoRun]()
    for file in (file for path in paths for file in _expand(regular_file(path))):
        try:
            runs.append(gather_run(file))
        except NoRun as no_run:  # noqa: PERF203 (reading a run takes far longer than the try)
            refused.append(no_run)
    if not runs:
        raise refused[0]
    for reason in refused:
        sys.stderr.write(f"note: {printable(str(reason).partition(';')[0])}; it is left out\n")
    return [replace(run, name=name) for run, name in zip(runs, _names([run.path for run in runs]), strict=True)]


def _expand(path: Path) -> list[Path]:
    """Return a run folder as it is; of a folder with other submitters' logs, return the logs."""
    if path.is_dir() and not is_own(path):
        return logs_in(path) or [path]
    return [path]


def _names(paths: Sequence[Path]) -> list[str]:
    """Return names that tell the files apart, with as few parent folders as possible."""
    parts = [(*path.resolve().parent.parts[1:], path.stem if path.is_file() else path.name) for path in paths]
    for depth in range(1, 6):
        names = ["/".join(part[-depth:]) for part in parts]
        if len(set(names)) == len(names) and not all(name.startswith("result_") for name in names):
            return names
    return [f"{name} ({number})" for number, name in enumerate(names, start=1)]
