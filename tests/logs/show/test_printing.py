"""Pages on paper, printed by a browser: how many sheets they take, and what stays together."""

import shutil
import subprocess
from pathlib import Path

import pytest

from logs.__main__ import main
from tests.logs import samples

pytestmark = [
    pytest.mark.ranks,
    pytest.mark.skipif(not (shutil.which("chromium") and shutil.which("pdftotext")), reason="needs a browser"),
]


def sheets(page: Path) -> list[str]:
    """Return the words on each sheet of a printed page."""
    paper = page.with_suffix(".pdf")
    command = [
        "chromium", "--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={page.parent / 'profile'}",
        "--no-pdf-header-footer", f"--print-to-pdf={paper}", page.as_uri(),
    ]  # fmt: skip
    subprocess.run(command, capture_output=True, timeout=120, check=True)
    text = subprocess.run(["pdftotext", paper, "-"], capture_output=True, text=True, check=True).stdout
    return text.removesuffix("\f").split("\f")


@pytest.mark.parametrize(("runs", "most"), [(1, 2), (3, 2), (20, 3)])
def test_runs_print_on_few_sheets(tmp_path: Path, runs: int, most: int) -> None:
    folders = [samples.run_folder(tmp_path / f"run{number}", number, best=0.98) for number in range(runs)]
    page = tmp_path / "page.html"
    assert main(["report", *map(str, folders), "--out", str(page)]) == 0
    printed = sheets(page)
    assert len(printed) <= most
    assert "Accuracy by epoch" in "".join(printed)


"""Sections that begin further and further down on their sheets."""
