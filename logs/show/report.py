"""``report``: the page of one or several runs, or their figures as JSON."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from configs.errors import UserError
from logs.disk import write_text
from logs.show.page import render
from logs.show.subject import Subject, gather, summarise

__all__ = ["figures_of", "write_report"]


def figures_of(paths: Sequence[Path]) -> list[dict[str, Any]]:
    """Give the figures of each log; of a folder, those of all its logs.

    Raises:
        UserError: There is no such file, or no log in a folder.
    """
    return [summarise(subject) for subject in _gather_all(paths)]


def write_report(paths: Sequence[Path], out: Path | None) -> Path:
    """Write the page; give where it lies.

    Args:
        paths: Run folders, folders of logs, and logs.
        out: The file; none: ``report.html`` in the folder of a single run, else here.

    Raises:
        UserError: There is no such run or log, or the disk is full.
    """
    alone = paths[0] if len(paths) == 1 and paths[0].is_dir() else Path()
    destination = out or alone / "report.html"
    text = render(_gather_all(paths), destination)
    try:
        if destination.is_dir():
            raise IsADirectoryError
        destination.parent.mkdir(parents=True, exist_ok=True)
        write_text(destination, text)
    except (FileExistsError, NotADirectoryError, IsADirectoryError):
        raise UserError(f"--out: got {destination}, which cannot be a file; give one, as report.html") from None
    return destination


def _gather_all(paths: Sequence[Path]) -> list[Subject]:
    files = [file for path in paths for file in _expand(path)]
    return [gather(file, name) for file, name in zip(files, _names(files), strict=True)]


def _expand(path: Path) -> list[Path]:
    """Take a run folder as it is, and a folder of other people's result files file by file."""
    if path.is_dir() and not (path / "config.yaml").is_file():
        return sorted(path.glob("result_*.txt")) or [path]
    return [path]


def _names(paths: Sequence[Path]) -> list[str]:
    """Name files as briefly as tells them apart: by as many folders above them as it takes."""
    parts = [(*path.resolve().parent.parts[1:], path.stem if path.is_file() else path.name) for path in paths]
    for depth in range(1, 6):
        names = ["/".join(part[-depth:]) for part in parts]
        if len(set(names)) == len(names) and not all(name.startswith("result_") for name in names):
            return names
    return [f"{name} ({number})" for number, name in enumerate(names, start=1)]
