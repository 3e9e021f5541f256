"""Pages on paper, printed by a browser: how many sheets they take, and what stays together."""

import shutil
import subprocess
from pathlib import Path

import pytest

from logs.__main__ import main
from logs.show.chart import Captioned, LineChart, Series
from logs.show.page import render_template
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


PARTS = """{% from "parts.html" import charts, document, section with context %}
{% call document("Many parts", css) %}
{% for above_cm, figure in figures %}
<div style="break-before: page; height: {{ above_cm }}cm"></div>
{% call section("Part %s:" % loop.index0) %}{{ charts([figure]) }}{% endcall %}
{% endfor %}
{% endcall %}"""
"""Sections that begin further and further down on their sheets."""


def _rendered(folder: Path, **values: object) -> str:
    (folder / "template.html").write_text(PARTS, encoding="utf-8")
    return render_template(folder / "template.html", **values)


def test_a_heading_a_chart_and_its_legend_are_on_one_sheet(tmp_path: Path) -> None:
    def part(number: int) -> tuple[float, Captioned]:
        chart = LineChart("y", "x", [Series(f"{name} of {number}.", 0, [(0, 1), (1, 2)]) for name in ("First", "Last")])
        return 18 + 0.3 * number, Captioned(f"Chart {number}.", chart)

    page = tmp_path / "page.html"
    page.write_text(_rendered(tmp_path, figures=list(map(part, range(24)))), encoding="utf-8")
    printed = sheets(page)
    for number in range(24):
        (sheet,) = (text for text in printed if f"Part {number}:" in text)
        assert f"Chart {number}." in sheet
        assert f"Last of {number}." in sheet
