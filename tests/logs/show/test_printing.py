"""Pages on paper, printed by a browser: how many sheets they take, and what stays together."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from logs.__main__ import main
from logs.show.chart import Captioned, LineChart, Series
from logs.show.page import charts, document, section
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


def test_a_heading_is_on_the_sheet_of_what_follows_it(tmp_path: Path) -> None:
    def part(number: int) -> str:
        found = [
            Captioned(f"Chart {number}.{each}", LineChart("y", "x", [Series("a", 0, [(0, 1), (1, 2)])]))
            for each in range(1 + number % 3)
        ]
        return f"{'<p>Words.</p>' * (number % 5)}{section(f'Part {number}:', charts(found))}"

    page = tmp_path / "page.html"
    page.write_text(document("Many parts", "".join(map(part, range(24)))), encoding="utf-8")
    printed = sheets(page)
    assert len(printed) > 2
    for number in range(24):
        (sheet,) = (text for text in printed if f"Part {number}:" in text)
        assert re.search(rf"Chart {number}\.0\b", sheet), number
