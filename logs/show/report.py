"""``./run.sh report``: the page of one or several runs, or their figures as JSON."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from configs.errors import UserError
from logs.disk import write_text
from logs.show.page import render
from logs.show.reported_run import ReportedRun, gather_run, summarise

__all__ = ["figures_of", "write_report"]


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
    text = render(_gather_all(paths), destination)
    try:
        if destination.is_dir():
            raise IsADirectoryError
        destination.parent.mkdir(parents=True, exist_ok=True)
        write_text(destination, text)
    except (FileExistsError, NotADirectoryError, IsADirectoryError):
        raise UserError(
            f"--out: got {destination}, which cannot be a file; give a file name, for example report.html"
        ) from None
    return destination


def _gather_all(paths: Sequence[Path]) -> list[ReportedRun]:
    files = [file for path in paths for file in _expand(path)]
    return [gather_run(file, name) for file, name in zip(files, _names(files), strict=True)]


def _expand(path: Path) -> list[Path]:
    """Return a run folder as it is; of a folder with other submitters' logs, return the logs."""
    if path.is_dir() and not (path / "config.yaml").is_file():
        return sorted(path.glob("result_*.txt")) or [path]
    return [path]


def _names(paths: Sequence[Path]) -> list[str]:
    """Return names that tell the files apart, with as few parent folders as possible."""
    parts = [(*path.resolve().parent.parts[1:], path.stem if path.is_file() else path.name) for path in paths]
    for depth in range(1, 6):
        names = ["/".join(part[-depth:]) for part in parts]
        if len(set(names)) == len(names) and not all(name.startswith("result_") for name in names):
            return names
    return [f"{name} ({number})" for number, name in enumerate(names, start=1)]
