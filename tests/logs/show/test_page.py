"""The parts of the page: rows, notes, settings, legends and links, from runs whose content is known."""

import re
from dataclasses import replace
from html import unescape
from pathlib import Path
from typing import Any

import pytest

from logs.classes import ClassResults
from logs.judge.compliance import Verdict
from logs.judge.evidence import Problem
from logs.read.record import Evaluation, RunRecord
from logs.show.chart import Captioned, Chart, LineChart, Series
from logs.show.page import render, render_template
from logs.show.reported_run import ReportedRun
from tests.logs import samples

pytestmark = pytest.mark.usefixtures("undrawn")


def _made(name: str = "a", *, settings: dict[str, Any] | None = None, **record: Any) -> ReportedRun:
    return ReportedRun(name, Path(name), None, RunRecord(Path(name), **record), settings=settings or {})


def _page(*runs: ReportedRun) -> str:
    return render(runs, Path("page.html"))


def _text(html: str) -> str:
    return " ".join(unescape(re.sub(r"<[^>]+>", " ", html)).split())


def _section(page: str, title: str) -> str:
    return str(re.findall(f">{title}</h2>(.*?)</section>", page, re.DOTALL)[0])


def _row(run: ReportedRun) -> dict[str, str]:
    """Return the cells of a page's only run: heading -> words."""
    cells = re.findall(r'data-head="([^"]*)"><div>(.*?)</div>', _page(run), re.DOTALL)
    return {head: _text(cell) for head, cell in cells}


def _rendered(folder: Path, text: str, **values: Any) -> str:
    """Return what a template makes of the parts that it imports."""
    parts = '{% from "parts.html" import badge, charts, document, scrolled, section with context %}'
    (folder / "template.html").write_text(parts + text, encoding="utf-8")
    return render_template(folder / "template.html", **values)


def _legend(folder: Path, chart: Chart) -> str:
    text = _rendered(folder, "{{ charts(figures) }}", figures=[Captioned("c", chart)])
    return text.partition("</svg>")[2].partition("<figcaption>")[0]


@pytest.mark.parametrize(("count", "kind"), [(1, ""), (2, "p"), (8, "p"), (9, "details")])
def test_a_legend_names_several_lines_and_is_folded_if_they_are_many(tmp_path: Path, count: int, kind: str) -> None:
    legend = _legend(
        tmp_path, LineChart("t", "x", [Series(f"line {number}", number, [(1, 1)]) for number in range(count)])
    )
    assert re.findall(r'<(\w+) class="key">', legend) == ([kind] if kind else [])
    assert re.findall("</svg>(.*?)</span>", legend) == ([f"line {n}" for n in range(count)] if kind else [])


def test_a_row_has_each_number_under_its_heading() -> None:
    run = _made(
        "a", status="success", division="open", target=0.7, began_s=1.0, init_s=2.5, attempts=3, time_to_train_s=80.0,
        train_samples=1000, global_batch_size=12345, evaluations=(Evaluation(8, 70.0, 0.76543, None),),
    )  # fmt: skip
    run.summary["images_per_s"] = 123.4
    assert _row(run) == {
        "Outcome": "success resumed, 3 attempts", "Time to train": "80.00 s", "Initialisation": "2.50 s", "Epochs": "8",
        "Accuracy": "0.7654 target 0.7", "Batch": "12 345", "Images/s": "100 123 without evaluations",
        "Log check": "\u2013",
    }  # fmt: skip


def test_a_row_has_verdicts_in_their_order_its_problem_and_dashes_for_what_the_log_lacks() -> None:
    run = replace(
        _made("a<b", settings={"recipe.name": "r&d", "cluster.name": "c"}), problem=Problem("damaged files", "w")
    )
    run.__dict__["verdicts"] = [Verdict("4.0.0", passed=True, messages=()), Verdict("<5>", passed=False, messages=())]
    page = _page(run)
    assert "&lt;b" in page and "<b" not in page.partition("<main>")[2].replace("<br", "")
    row = _row(run)
    assert row.pop("Log check") == "passes 4.0.0 fails <5>"
    assert row.pop("Outcome") == "damaged files"
    assert set(row.values()) == {"\u2013"}
    assert 'badge bad">fails' in page
    run.settings["recipe.mlperf.submits"] = False
    assert 'badge plain">fails' in _page(run), "nobody asked for the log"


_SCORE: dict[str, Any] = {
    "benchmark": "resnet", "train_samples": 1_281_167, "began_s": 1.0, "time_to_train_s": 60.0, "status": "success",
}  # fmt: skip
"""What the log of a run on ImageNet records."""
_TRADEMARK = (
    "The MLPerf name and logo are registered and unregistered trademarks of MLCommons Association in the United States "
    "and other countries. All rights reserved. Unauthorized use strictly prohibited. See www.mlcommons.org for more "
    "information."
)
"""As MLPerf's Results Messaging Guidelines of July 2025 prescribe it, word for word."""
_RETIRED = (
    "ResNet-50 left MLPerf® Training after v4.0: by the rules of 9 December 2025 it is deprecated, "
    "so nobody can submit a run of it for review."
)


def test_a_score_that_mlcommons_did_not_review_is_called_unverified_with_the_footnote_that_it_prescribes() -> None:
    mlperf = {"recipe.name": "r", "recipe.mlperf.submits": True, "recipe.mlperf.division": "closed",
              "recipe.mlperf.ruleset": "4.0.0"}  # fmt: skip
    ours = _made(settings=mlperf, **_SCORE)
    results = _text(_section(_page(ours), "Results"))
    assert results.endswith(
        "Unverified MLPerf® v4.0 Training Closed ResNet-50 v1.5. Result not verified by MLCommons Association. "
        f"{_TRADEMARK} {_RETIRED}"
    )
    assert _row(ours)["Time to train"] == "60.00 s unverified"
    assert "60.00 s (unverified) to train." in _text(_page(ours))

    others = _made("b", **_SCORE)
    assert "nverified" not in _page(others), "who submitted it may have had it verified"
    between = _text(_page(ours, others)).partition("not verified by MLCommons Association. ")[2]
    assert between.startswith("Unverified results have not been through an MLPerf® review and may use measurement ")
    earlier = _made(
        "c", settings={**mlperf, "recipe.mlperf.ruleset": "0.6.0", "recipe.mlperf.division": "open"}, **_SCORE
    )
    page = _text(_page(ours, earlier, replace(ours, name="d")))
    assert "Unverified MLPerf® v0.6 Training Open ResNet-50 v1.5. Result" in page
    assert page.count("Unverified MLPerf") == 2, "runs of one kind share a footnote"


@pytest.mark.parametrize(
    ("settings", "record", "shown"),
    [
        ({"recipe.data.source": "synthetic"}, {}, "60.00 s"),
        ({"cluster.rehearsal.shrink": 1.0}, {}, "\u2013"),
        ({"recipe.data.source": "digits"}, {"train_samples": 1_500}, "60.00 s"),
    ],
)
def test_a_run_on_other_images_than_imagenets_has_no_score_that_could_be_verified(
    settings: dict[str, Any], record: dict[str, Any], shown: str
) -> None:
    run = _made(settings={"recipe.name": "r", "recipe.mlperf.submits": True, **settings}, **{**_SCORE, **record})
    assert _row(run)["Time to train"] == shown
    results = _text(_section(_page(run), "Results"))
    assert results.endswith(
        "No score of MLPerf® v4.0 Training Open ResNet-50 v1.5, which trains on ImageNet. Result not verified by "
        f"MLCommons Association. {_TRADEMARK} {_RETIRED}"
    )
    run.settings["recipe.mlperf.submits"] = False
    assert "MLCommons" not in _page(run), "whoever trains on photographs of their own has nothing to do with MLPerf"


def test_a_run_without_success_has_no_time_to_train_and_another_benchmark_no_epochs() -> None:
    once = _row(_made("b", status="aborted", elapsed_s=5.0, benchmark="bert", began_s=1.0, time_to_train_s=5.0,
                      evaluations=(Evaluation(8, 70.0, 2.68, None),), target=2.69))  # fmt: skip
    assert once["Outcome"] == "aborted benchmark bert"
    assert once["Time to train"] == "\u2013 ran 5.00 s"
    assert (once["Epochs"], once["Accuracy"]) == ("\u2013", "2.6800 quality of bert target 2.69")


def _configuration(*runs: ReportedRun) -> str:
    return _section(_page(*runs), "Configuration")


def _heads(table: str, scope: str) -> list[str]:
    return re.findall(f'<th scope="{scope}">(.*?)</th>', table)


def test_settings_that_differ_come_first_with_the_unusual_value_marked() -> None:
    runs = [_made(name, settings={"lr": lr, "same": 1}) for name, lr in (("a", 1), ("b", 2), ("c", 1))]
    runs.append(_made("d", settings={"lr": 1, "same": 1, "own": "<u>"}))
    html = _section(_page(*runs), "What differs") + _configuration(*runs)
    assert html.strip().startswith("<p>1 setting differs.</p>")
    assert re.findall("<mark>(.*?)</mark>", html)[0] == "2"
    assert _heads(html, "row") == ["lr", "own", "same"]
    assert "<u>" not in html
    assert re.findall("<summary>(.*?)</summary>", html) == [
        "1 setting that only some of the runs have", "1 setting that all runs share",
    ]  # fmt: skip
    assert "<summary>2 settings </summary>" in _configuration(runs[0])
    assert "No setting differs" in _configuration(runs[0], runs[2])
    assert "No setting differs" not in _configuration(runs[0])
    assert _text(_configuration(_made("e"))) == "The logs contain no settings."
    both = [_made("a", settings={"x": 1, "y": 1}), _made("b", settings={"x": 2, "y": 2})]
    assert "<p>2 settings differ.</p>" in _section(_page(*both), "What differs")


def _noted(*runs: ReportedRun) -> list[tuple[str, str, list[str]]]:
    blocks = re.findall(r"<details(.*?)><summary>(.*?): notes</summary>\s*<ul>(.*?)</ul>", _page(*runs), re.DOTALL)
    return [(opened, name, [unescape(each) for each in re.findall("<li>(.*?)</li>", items)])
            for opened, name, items in blocks]  # fmt: skip


@pytest.mark.parametrize(("count", "of_a_success"), [(6, ""), (7, ' class="more"')])
def test_notes_of_all_runs_stand_first_and_those_of_many_successes_are_not_printed(
    count: int, of_a_success: str
) -> None:
    runs = [
        _made(f"r{number}", status="success" if number else "aborted", began_s=1.0, init_s=1.0, time_to_train_s=9.0,
              init_starts=(2, 0.5), unreadable=number, division="open", benchmark="bert")
        for number in range(count)
    ]  # fmt: skip
    first, *others = _noted(*runs)
    assert first[:2] == (" open", "all runs")
    assert [note[:24] for note in first[2]] == [
        "This log is of MLPerf's ", "The log is of the open d", "2 ranks logged init_star",
    ]  # fmt: skip
    assert others == [
        (of_a_success, f"r{number}", [f"{number} records of the log could not be read."]) for number in range(1, count)
    ]
    assert _noted(runs[0])[0][1] == "r0"
    failed = [replace(_made(f"r{n}", began_s=1.0), summary={"failure": f"broke {n}"}) for n in range(7)]
    assert [opened for opened, name, _ in _noted(*failed) if name != "all runs"] == [" open"] * 7


def test_a_note_cannot_control_the_terminal_or_the_page() -> None:
    page = _page(replace(_made("<r>"), summary={"failure": "<b>\x1b[2J"}))
    assert "<summary>&lt;r&gt;: notes</summary>" in page
    assert "&lt;b&gt;" in page
    assert "\x1b" not in page


def test_files_are_linked_up_to_forty_without_folders_and_a_log_keeps_its_suffix(tmp_path: Path) -> None:
    folder = tmp_path / "run #1"
    (folder / "a folder").mkdir(parents=True)
    (folder / "a <b>&.txt").touch()
    for number in range(41):
        (folder / f"file-{number:02d}").touch()
    run = replace(_made("run"), path=folder)
    links = re.findall('<a href="([^"]*)">([^<]*)</a>', render([run], folder / "file-00"))
    assert len(links) == 40
    assert links[:2] == [("a%20%3Cb%3E%26.txt", "run/a &lt;b&gt;&amp;.txt"), ("file-01", "run/file-01")]
    log = tmp_path / "made.log"
    log.touch()
    page = render([replace(_made("short"), path=log)], tmp_path / "pages" / "page.html")
    assert '<a href="../made.log">short.log</a>' in page


def test_a_page_without_anything_to_draw_says_so() -> None:
    assert "The logs contain nothing to draw." in _page(_made())


def test_only_runs_that_reached_the_target_count_for_the_time_to_train(tmp_path: Path) -> None:
    from logs.show.report import write_report

    # 8 epochs and two evaluations of 1 s.
    runs = [samples.run_folder(tmp_path / f"run{n}", n, epoch_s=seconds, best=0.98)
            for n, seconds in enumerate((10.0, 20.0, 100.0))]  # fmt: skip
    runs.append(samples.run_folder(tmp_path / "quick", 9, epoch_s=1.0, status="aborted", best=0.5))
    page = write_report(runs, tmp_path / "page.html").read_text(encoding="utf-8")
    text = _text(page)
    assert "162.00 s to train: median of 3 runs that reached the target, out of 4;" in text
    assert "fastest 82.00 s, slowest 13.37 min" in text
    assert "olympic" not in text, "a submission has five runs"
    assert re.findall(r'<span class="badge (\w+)">(?:success|aborted)</span>', page) == ["good"] * 3 + ["bad"]


OWN: dict[str, Any] = {
    "recipe.name": "digits", "recipe.mlperf.division": "open", "recipe.model.name": "resnet20",
    "recipe.model.num_classes": 10, "recipe.model.image_size": 8, "recipe.data.name": "digits",
    "recipe.data.train_samples": 1198, "recipe.data.eval_samples": 599, "recipe.run.seed": 7, "cluster.num_nodes": 3,
    "cluster.ranks_per_node": 2, "cluster.engine.name": "torch", "cluster.engine.precision": "bfloat16",
}  # fmt: skip


def _facts(*runs: ReportedRun) -> dict[str, str]:
    head = _page(*runs).partition("<header>")[2].partition("</header>")[0]
    return {
        _text(name): _text(value) for name, value in re.findall(r"<dt>(.*?)</dt>\s*<dd>(.*?)</dd>", head, re.DOTALL)
    }


def test_the_head_tells_what_a_run_is() -> None:
    surroundings = {
        "command": "./run.sh train digits --set a=<b>", "git": {"commit": "0123456789abcdef", "dirty": True},
        "cpu": "A CPU", "usable_cores": 2.0, "gpus": [{"name": "A100"}] * 2, "packages": {"torch": "2.13.0+cpu"},
    }  # fmt: skip
    run = replace(
        _made(settings=OWN, began_s=1.79e9, seeds=(7,)), parameters=272474, environment=surroundings
    )  # fmt: skip
    assert _facts(run) == {
        "Recipe": "digits, open division", "Network": "resnet20, 272,474 parameters",
        "Data": "digits: 1,198 training and 599 evaluation images of 8 px, 10 classes",
        "Commit": "0123456789ab with changes", "Machine": "6 ranks on 3 nodes; A CPU, 2 cores, 2 A100",
        "Engine": "PyTorch 2.13.0+cpu, bfloat16", "Seed": "7", "Began": "21 September 2026, 14:13:20 UTC",
        "Command": "./run.sh train digits --set a=<b>",
    }  # fmt: skip
    bare = _facts(replace(run, environment={}, parameters=None))
    assert (bare["Network"], bare["Machine"], bare["Engine"]) == ("resnet20", "6 ranks on 3 nodes", "PyTorch, bfloat16")
    assert not {"Commit", "Command"} & bare.keys()


def test_of_several_runs_the_head_has_what_they_share_and_a_table_what_differs() -> None:
    git = {"commit": "0123456789abcdef"}
    one = replace(_made("one", settings=OWN), environment={"git": git, "command": "./run.sh train a"})
    other = replace(
        _made("two", settings=OWN | {"recipe.run.seed": 8}), environment={"git": git, "command": "./run.sh train b"}
    )
    facts = _facts(one, other)
    assert (facts["Commit"], facts["Network"]) == ("0123456789ab", "resnet20")
    assert not {"Command", "Seed"} & facts.keys()
    differing = _section(_page(one, other), "What differs")
    rows = re.findall(r'<th scope="row">(.*?)</th>(.*?)</tr>', differing, re.DOTALL)
    assert [(name, _text(cells)) for name, cells in rows] == [
        ("Command", "./run.sh train a ./run.sh train b"), ("recipe.run.seed", "7 8"),
    ]  # fmt: skip


def test_another_submitters_log_is_identified_by_what_it_tells() -> None:
    log = _made(
        "log", submitter="Org", platform="box", benchmark="resnet", division="closed", ruleset="0.7.0",
        train_samples=1281167, eval_samples=50000, seeds=(3, 4),
    )  # fmt: skip
    assert _facts(log) == {
        "Submitter": "Org", "Platform": "box", "Benchmark": "resnet, closed division", "Rules": "0.7.0",
        "Data": "1,281,167 training and 50,000 evaluation samples",
    }  # fmt: skip


def test_values_that_were_measured_once_are_told_instead_of_drawn() -> None:
    once = [
        _made(name, began_s=1.0, evaluations=(Evaluation(4, 41.0, top1, 1.5),))
        for name, top1 in (("a", 0.5), ("b", 0.25))
    ]
    charts = _section(_page(*once), "Charts")
    assert [_text(each) for each in re.findall("<li>(.*?)</li>", charts)] == [
        "Accuracy by epoch, measured once: 0.5 at epoch 4 (a); 0.25 at epoch 4 (b)",
        "Evaluation time, s, measured once: 1.5 at epoch 4 (a); 1.5 at epoch 4 (b)",
    ]
    assert "<figure" not in charts
    twice = _made("c", began_s=1.0, evaluations=(Evaluation(4, 41.0, 0.5, None), Evaluation(8, 81.0, 0.6, None)))
    assert "Accuracy by epoch, measured once" not in _section(_page(once[0], twice), "Charts")


def _classes(names: tuple[str, ...], table: list[list[int]] | None, **counts: Any) -> ReportedRun:
    if table is not None:
        columns = [sum(row[index] for row in table) for index in range(len(table))]
        right = [row[index] for index, row in enumerate(table)]
        counts = {"images": [sum(row) for row in table], "predicted": columns, "correct": right, "confusion": table}
    return replace(_made("run"), classes=ClassResults(6, names, **counts))


def test_a_confusion_matrix_has_a_row_for_each_class_and_the_share_that_was_recognised() -> None:
    run = _classes(("cat", "<dog>", "emu"), [[3, 1, 0], [0, 4, 0], [0, 0, 0]])
    html = _section(_page(run), "Classes")
    assert "Confusion matrix after epoch 6" in _text(html)
    assert (
        "Of 2 classes, “cat” is recognised least (75.0% of its images) and “<dog>” most (100.0%); the median class is "
        "at 87.5%. 1 class has no evaluation image."
    ) in _text(html)
    rows = re.findall("<tr>(.*?)</tr>", html.partition("<tbody>")[2], re.DOTALL)
    assert [_text(row) for row in rows] == ["cat 3 1 75.0%", "<dog> 4 100.0%", "emu"]
    kinds = re.findall('title="([^"]*)" class="(right|wrong)" style="--strength:([0-9.]+)"', html)
    assert [(unescape(words), kind) for words, kind, _ in kinds] == [
        ("3 of 4 images of cat taken for cat", "right"), ("1 of 4 images of cat taken for <dog>", "wrong"),
        ("4 of 4 images of <dog> taken for <dog>", "right"),
    ]  # fmt: skip
    right, wrong, all_right = (float(strength) for *_, strength in kinds)
    assert right < all_right == wrong, "the strongest colour of each kind is the largest share of its kind"
    assert ">Classes</h2>" not in _page(*[replace(run, name=str(number)) for number in range(5)])


def test_of_many_classes_the_ten_that_are_recognised_least_are_shown() -> None:
    images, correct = [10] * 60, [10 - (number % 12) // 2 for number in range(60)]
    images[59], correct[59] = 0, 0
    run = _classes(tuple(f"c{number}" for number in range(60)), None, images=images, predicted=images, correct=correct)
    html = _section(_page(run), "Classes")
    rows = [_text(row).split() for row in re.findall("<tr>(.*?)</tr>", html.partition("<tbody>")[2], re.DOTALL)]
    # Numbers 10 and 11 of each dozen have 5 of 10 right; number 59 is the last of them, and has no image.
    worst = [f"c{number}" for number in (10, 11, 22, 23, 34, 35, 46, 47, 58)]
    assert rows == [*([name, "10", "5", "50.0%"] for name in worst), ["c8", "10", "6", "60.0%"]]


def test_the_checkers_complaints_are_cut_short_and_one_line_where_the_recipe_does_not_submit() -> None:
    verdict = Verdict("4.0.0", passed=False, messages=tuple(f"CLOSED: complaint {n}" for n in range(5)))
    for submits, notes in ((True, 4), (False, 1)):
        run = _made("run", settings={"recipe.mlperf.submits": submits})
        run.__dict__["verdicts"] = [verdict]
        ((_, _, found),) = _noted(run)
        about = [note for note in found if note.startswith("4.0.0: ")]
        assert len(about) == notes
        assert "./run.sh check run explains" in about[-1]
    run = _made("run")
    run.__dict__["verdicts"] = [replace(verdict, messages=verdict.messages[:3])]
    ((_, _, found),) = _noted(run)
    assert "explains" not in " ".join(found)
