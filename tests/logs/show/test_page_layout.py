"""How much a page shows at once: the shapes of tables, and what is folded, shortened or said once for all runs."""

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from configs.load import ROOT
from logs.judge.compliance import Verdict
from logs.judge.evidence import Flaw
from logs.read.record import RunRecord
from logs.show.chart import Captioned, LineChart, Series
from logs.show.page import _charts, _configuration, _files, _legend, _notes, _row, document, scrolled, section
from logs.show.reported_run import ReportedRun


def _made(name: str = "a", *, settings: dict[str, Any] | None = None, **record: Any) -> ReportedRun:
    return ReportedRun(name, Path(name), None, RunRecord(Path(name), **record), settings=settings or {})


def test_a_page_holds_its_colours_its_layout_and_its_script() -> None:
    page = document("a <b>", "<p>body</p>")
    for name in ("colours.css", "page.css", "cursor.js"):
        assert (ROOT / "logs/show" / name).read_text(encoding="utf-8") in page
    assert page.startswith("<!doctype html>\n")
    assert "<title>a &lt;b&gt;</title>" in page
    assert "<main><p>body</p></main>" in page
    for needed in ('<meta charset="utf-8">', 'content="width=device-width,initial-scale=1"', 'content="light dark"'):
        assert needed in page


def test_a_section_is_named_by_its_heading_and_a_table_for_those_who_hear_it() -> None:
    assert section("Time of ranks", "x") == (
        '<section aria-labelledby="time-of-ranks"><h2 id="time-of-ranks">Time of ranks</h2>x</section>'
    )
    assert scrolled("a<b", "t") == '<div class="scroll" role="region" aria-label="a&lt;b" tabindex="0">t</div>'


@pytest.mark.parametrize(("count", "is_folded"), [(2, False), (8, False), (9, True)])
def test_a_legend_of_more_than_eight_names_is_folded(count: int, is_folded: bool) -> None:
    lines = [Series(f"line {number}", number, [(1, 1)]) for number in range(count)]
    legend = _legend(Captioned("c", LineChart("t", "x", lines)))
    assert legend.startswith(f'<details class="key"><summary>{count} lines</summary>') == is_folded
    assert legend.startswith('<p class="key">') != is_folded
    assert re.findall("</svg>(.*?)</span>", legend) == [each.name for each in lines]


def test_a_sample_of_a_line_has_its_colour_and_its_dashes() -> None:
    legend = _legend(Captioned("c", LineChart("t", "x", [Series("plain", 0, []), Series("dashed", 7, [])])))
    assert re.findall(r"stroke:var\((.*?)\)", legend) == ["--c0", "--c1"]
    assert re.findall(r"stroke-dasharray:(.*?)\"", legend) == ["none", "3 1.5"]


def _heads(table: str, scope: str) -> list[str]:
    return re.findall(f'<th scope="{scope}">(.*?)</th>', table)


def _cells(table: str) -> list[list[str]]:
    return [re.findall("<td>(.*?)</td>", row) for row in re.findall("<tr>(.*?)</tr>", table)[1:]]


@pytest.mark.parametrize(
    ("runs", "settings", "is_turned"), [(6, 2, False), (7, 2, True), (7, 6, True), (7, 7, False), (8, 7, True)]
)
def test_a_table_has_a_row_a_run_if_the_runs_are_more_than_six_and_than_the_settings(
    runs: int, settings: int, is_turned: bool
) -> None:
    made = [
        _made(f"r{run}", settings={f"s{key}": 100 * min(run, 1) + key for key in range(settings)})
        for run in range(runs)
    ]
    table = _configuration(made)
    names, keys = [run.name for run in made], [f"s{key}" for key in range(settings)]
    rows = [[str(value) if run else f"<mark>{value}</mark>" for value in made[run].settings.values()]
            for run in range(runs)]  # fmt: skip
    if is_turned:
        assert (_heads(table, "col"), _heads(table, "row"), _cells(table)) == (["Run", *keys], names, rows)
    else:
        turned = [list(column) for column in zip(*rows, strict=True)]
        assert (_heads(table, "col"), _heads(table, "row"), _cells(table)) == (["Setting", *names], keys, turned)


def test_a_setting_that_some_runs_lack_is_shown_for_all_and_one_that_all_share_once() -> None:
    runs = [_made("a", settings={"own": None, "same": 1}), _made("b", settings={"same": 1})]
    own, same = re.findall("<table.*?</table>", _configuration(runs))
    assert (_heads(own, "col"), _cells(own)) == (["Setting", "a", "b"], [["\u2013", "\u2013"]])
    assert (_heads(same, "col"), _cells(same)) == (["Setting", "a"], [["1"]])
    assert "<mark>" not in own + same
    only_own = _configuration([_made("a", settings={"own": 1}), _made("b")])
    assert "1 setting that only some of the runs have" in only_own
    assert only_own.count("<details") == 1, "no table of the settings that all share"


def test_files_are_linked_up_to_forty_without_folders_and_a_log_keeps_its_suffix(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    (folder / "a folder").mkdir(parents=True)
    for number in range(41):
        (folder / f"file-{number:02d}").touch()
    run = replace(_made("run"), path=folder)
    labels = re.findall('">([^<]*)</a>', _files([run], folder / "page.html"))
    assert labels == [f"run/file-{number:02d}" for number in range(40)]
    log = tmp_path / "made.log"
    log.touch()
    links = _files([replace(_made("short"), path=log)], tmp_path / "pages" / "page.html")
    assert links == '<ul class="files"><li><a href="../made.log">short.log</a></li></ul>'


def _noted(count: int) -> list[tuple[str, str, list[str]]]:
    runs = [
        _made(f"r{number}", status="success" if number else "aborted", began_s=1.0, init_s=1.0, time_to_train_s=9.0,
              init_starts=(2, 0.5), unreadable=number, division="open", benchmark="bert")
        for number in range(count)
    ]  # fmt: skip
    blocks = re.findall("<details(.*?)><summary>(.*?): notes</summary><ul>(.*?)</ul>", _notes(runs))
    return [(opened, name, re.findall("<li>(.*?)</li>", items)) for opened, name, items in blocks]


@pytest.mark.parametrize(("count", "of_a_success"), [(3, ""), (6, ""), (7, ' class="more"')])
def test_notes_of_all_runs_stand_first_and_those_of_many_successes_are_not_printed(
    count: int, of_a_success: str
) -> None:
    first, *others = _noted(count)
    assert first[:2] == (" open", "all runs")
    assert [note.split(":")[0] for note in first[2]] == [
        "This log is of MLPerf&#x27;s benchmark bert",
        "The log is of the open division, which MLPerf does not compare with its reference convergence.",
        "2 ranks logged init_start, the last rank 0.500 s after the first.",
    ]
    assert others == [
        (of_a_success, f"r{number}", [f"{number} records of the log could not be read."]) for number in range(1, count)
    ]


def test_notes_of_one_run_have_its_name_and_those_of_a_failure_are_never_folded() -> None:
    assert [name for _, name, _ in _noted(1)] == ["r0"]
    runs = [replace(_made(f"r{number}", began_s=1.0), problems=(f"p{number}",)) for number in range(7)]
    assert re.findall("<details([^>]*)><summary>(r.*?):", _notes(runs)) == [(" open", f"r{each}") for each in range(7)]
    assert _notes([_made("quiet", division="closed")]) == ""


def test_a_note_cannot_control_the_terminal_or_the_page() -> None:
    notes = _notes([replace(_made("<r>"), problems=("<b>\x1b[2J",))])
    assert "<summary>&lt;r&gt;: notes</summary>" in notes
    assert "&lt;b&gt;" in notes
    assert "\x1b" not in notes


def test_a_row_has_its_verdicts_in_their_order_its_flaw_and_dashes_for_what_the_log_lacks() -> None:
    run = replace(_made("a<b", settings={"recipe.name": "r&d", "cluster.name": "c"}), flaw=Flaw("damaged files", "w"))
    run.__dict__["verdicts"] = [Verdict("4.0.0", passed=True, messages=()), Verdict("<5>", passed=False, messages=())]
    html = _row(run, 3)
    assert '<span class="run">a&lt;b</span><small>r&amp;d on c</small>' in html
    assert 'style="stroke:var(--c3)"' in html
    assert (
        '<span class="badge good">passes</span> 4.0.0<br><span class="badge bad">fails</span> &lt;5&gt;</div></td>'
    ) in html
    assert '<span class="badge bad">damaged files</span>' in html
    cells = re.findall('data-head="([^"]*)"><div>\u2013</div>', html)
    assert cells == ["Time to train", "Initialisation", "Epochs", "Accuracy", "Batch", "Images/s"]


def test_a_page_without_anything_to_draw_says_so() -> None:
    assert _charts([_made()]) == "<p>The logs contain nothing to draw.</p>"


def test_an_accuracy_has_four_decimals_and_a_quality_only_of_a_log_that_has_one() -> None:
    bert = _row(_made(benchmark="bert", target=0.7), 0)
    assert "quality of" not in bert
    assert "<small>target 0.7</small>" in bert
