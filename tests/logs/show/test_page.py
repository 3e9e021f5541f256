"""The parts of the page: rows, notes, settings, legends and links, from runs whose content is known."""

from dataclasses import replace
from pathlib import Path
from typing import Any
from xml.etree.ElementTree import Element

import pytest

from logs.classes import ClassResults
from logs.judge.compliance import Verdict
from logs.judge.evidence import Problem
from logs.read.record import Evaluation, RunRecord
from logs.show.figures import course
from logs.show.page import render
from logs.show.reported_run import ReportedRun
from logs.usage import Startup
from tests.logs.show.pages import notes, read_page, section, table, words

pytestmark = pytest.mark.usefixtures("undrawn")


def _made(name: str = "a", *, settings: dict[str, Any] | None = None, verdicts: Any = (), **record: Any) -> ReportedRun:
    run = ReportedRun(name, Path(name), None, RunRecord(Path(name), **record), settings=settings or {})
    run.__dict__["verdicts"] = list(verdicts)  # The official checker need not look for them.
    return run


def _page(*runs: ReportedRun) -> Element:
    return read_page(render(runs))


def _outcomes(*runs: ReportedRun) -> list[dict[str, str]]:
    """Return the cells of each run: heading -> words."""
    (results,) = [each for each in _page(*runs).iter("table") if each.get("class") == "outcomes"]
    return [{cell.get("data-head", "Run"): words(cell) for cell in row} for row in results.findall("./tbody/tr")]


@pytest.mark.parametrize(("count", "kind"), [(1, None), (2, "p"), (8, "p"), (9, "details")])
def test_a_legend_names_several_lines_and_is_folded_if_they_are_many(count: int, kind: str | None) -> None:
    top1 = (Evaluation(1, 10.0, 0.5, None), Evaluation(2, 20.0, 0.6, None))
    runs = [_made(f"run {number}", began_s=1.0, evaluations=top1) for number in range(count)]
    figure = _page(*runs).find(".//figure")
    assert figure is not None
    legends = [each for each in figure if each.get("class") == "key"]
    assert [each.tag for each in legends] == ([kind] if kind else [])
    for legend in legends:
        assert [words(each) for each in legend.iter("span")] == [run.name for run in runs]


def test_a_run_with_several_labels_is_judged_by_roc_auc_and_has_no_top1() -> None:
    points = (Evaluation(1, 10.0, 0.5, None), Evaluation(2, 20.0, 0.6, None))
    run = _made(settings={"recipe.loss.kind": "sigmoid"}, began_s=1.0, evaluations=points)
    assert _outcomes(run)[0]["Accuracy"] == "0.6000 Mean ROC-AUC"
    assert {figure.chart.title for figure in course([run])} == {"Mean ROC-AUC"}


@pytest.mark.medium
def test_a_row_has_each_number_under_its_heading_and_dashes_for_what_the_log_lacks() -> None:
    passes, fails = (
        Verdict(ruleset, passed=passed, messages=()) for ruleset, passed in (("4.0.0", True), ("<5>", False))
    )
    whole = _made(
        "a<b", settings={"recipe.name": "r&d", "cluster.name": "c"}, verdicts=[passes, fails], status="success",
        division="open", target=0.7, began_s=1.0, init_s=2.5, attempts=3, time_to_train_s=80.0, train_samples=1000,
        global_batch_size=12345, evaluations=(Evaluation(8, 70.0, 0.76543, None),),
    )  # fmt: skip
    whole.summary["images_per_s"] = 123.4
    empty = replace(_made("b"), problem=Problem("damaged files", "w"))
    other = _made("c", status="aborted", elapsed_s=5.0, benchmark="bert", began_s=1.0, time_to_train_s=5.0,
                  evaluations=(Evaluation(8, 70.0, 2.68, None),), target=2.69)  # fmt: skip
    dash = "\u2013"
    assert _outcomes(whole, empty, other) == [
        {"Run": "a<b r&d on c", "Outcome": "success resumed, 3 attempts", "Time to train": "80.00 s",
         "Initialisation": "2.50 s", "Epochs": "8", "Accuracy": "0.7654 target 0.7", "Batch": "12 345",
         "Images/s": "100 123 without evaluations", "Log check": "passes 4.0.0 fails <5>"},
        {"Run": "b", "Outcome": "damaged files", "Time to train": dash, "Initialisation": dash, "Epochs": dash,
         "Accuracy": dash, "Batch": dash, "Images/s": dash, "Log check": dash},
        {"Run": "c", "Outcome": "aborted benchmark bert", "Time to train": f"{dash} ran 5.00 s",
         "Initialisation": dash, "Epochs": dash, "Accuracy": "2.6800 quality of bert target 2.69", "Batch": dash,
         "Images/s": dash, "Log check": dash},
    ]  # fmt: skip

    whole.settings["recipe.mlperf.submits"] = False
    assert not [note for each in notes(_page(whole, other)).values() for note in each if "MLPerf's check" in note]
    badges = [each for each in _page(whole, other).iter("span") if "badge" in each.get("class", "")]
    assert [(words(each), each.get("class")) for each in badges] == [
        ("success", "badge good"), ("aborted", "badge bad"),
    ], "nobody asked for the log"  # fmt: skip


_SCORE: dict[str, Any] = {
    "benchmark": "resnet", "train_samples": 1_281_167, "began_s": 1.0, "time_to_train_s": 60.0, "status": "success",
}  # fmt: skip
"""What the log of a run on ImageNet records."""
_MLPERF = {"recipe.name": "r", "recipe.mlperf.submits": True, "recipe.mlperf.division": "closed",
           "recipe.mlperf.ruleset": "4.0.0"}  # fmt: skip
_PRESCRIBED = (
    "Result not verified by MLCommons Association. The MLPerf name and logo are registered and unregistered trademarks "
    "of MLCommons Association in the United States and other countries. All rights reserved. Unauthorized use strictly "
    "prohibited. See www.mlcommons.org for more information."
)
"""As MLPerf's Results Messaging Guidelines of July 2025 prescribe it, word for word."""
_RETIRED = (
    "ResNet-50 left MLPerf® Training after v4.0: by the rules of 9 December 2025 it is deprecated, "
    "so nobody can submit a run of it for review."
)


def _footnotes(*runs: ReportedRun) -> list[str]:
    return [words(each) for each in section(_page(*runs), "Results").findall("./p")]


@pytest.mark.medium
def test_a_score_that_mlcommons_did_not_review_is_called_unverified_with_the_footnote_that_it_prescribes() -> None:
    ours, others = _made(settings=_MLPERF, **_SCORE), _made("b", **_SCORE)
    note = f"Unverified MLPerf® v4.0 Training Closed ResNet-50 v1.5. {_PRESCRIBED}"
    assert _footnotes(ours) == [note, _RETIRED]
    assert _outcomes(ours)[0]["Time to train"] == "60.00 s unverified"
    assert "60.00 s (unverified) to train." in words(_page(ours))
    assert "nverified" not in words(_page(others)), "who submitted it may have had it verified"
    assert (
        "MLCommons Association. Unverified results have not been through an MLPerf® review and may use"
        in (_footnotes(ours, others)[0])
    )
    settings = {**_MLPERF, "recipe.mlperf.ruleset": "0.6.0", "recipe.mlperf.division": "open"}
    earlier = _made("c", settings=settings, **_SCORE)
    assert _footnotes(ours, earlier, replace(ours, name="d")) == [
        note, note.replace("v4.0 Training Closed", "v0.6 Training Open"), _RETIRED,
    ], "runs of one kind share a footnote"  # fmt: skip
    toy = _made(settings=_MLPERF, **{**_SCORE, "train_samples": 1_500})
    assert _outcomes(toy)[0]["Time to train"] == "60.00 s"
    assert _footnotes(toy)[0].startswith("No score of MLPerf® v4.0 Training Closed ResNet-50 v1.5")
    toy.settings["recipe.mlperf.submits"] = False
    assert _footnotes(toy) == [], "whoever trains on photographs of their own has nothing to do with MLPerf"


@pytest.mark.parametrize(("count", "are_printed"), [(6, True), (7, False)])
def test_a_run_has_its_notes_and_those_of_many_successes_are_not_printed(count: int, are_printed: bool) -> None:
    ended: dict[str, Any] = {"status": "success", "began_s": 1.0, "time_to_train_s": 9.0, "division": "open"}
    page = _page(*(_made(f"r{number}", unreadable=number, **ended) for number in range(count)))
    found = notes(page)
    assert list(found) == [f"r{number}" for number in range(count)]
    assert all(f"{n} records of the log could not be read." in found[f"r{n}"] for n in range(1, count))
    folded = [each for each in section(page, "Results").iter("details") if "more" in each.get("class", "")]
    assert len(folded) == (0 if are_printed else count)


@pytest.mark.medium
def test_settings_that_differ_stand_apart_from_those_that_all_runs_share() -> None:
    runs = [_made(name, settings={"lr": lr, "same": 1}) for name, lr in (("a", 1), ("b", 2), ("c", 1))]
    runs.append(_made("d", settings={"lr": 1, "same": 1, "own": "<u>"}))
    page = _page(*runs)
    dash = "\u2013"
    assert table(section(page, "What differs")) == [
        ["Setting", "a", "b", "c", "d"], ["lr", "1", "2", "1", "1"], ["own", dash, dash, dash, "<u>"],
    ]  # fmt: skip
    assert table(section(page, "Configuration"))[1:] == [["same", "1"]]
    assert "2 settings" in words(section(_page(runs[0], runs[2]), "Configuration"))
    assert "share no setting" in words(section(_page(_made("e")), "Configuration"))


def test_a_note_cannot_control_the_terminal_or_the_page() -> None:
    text = render([replace(_made("<r>"), summary={"failure": "<b>\x1b[2J"})])
    assert "\x1b" not in text
    assert notes(read_page(text))["<r>"][0] == "The run ended early: <b> [2J."


OWN: dict[str, Any] = {
    "recipe.name": "digits", "recipe.mlperf.division": "open", "recipe.model.name": "resnet20",
    "recipe.model.num_classes": 10, "recipe.model.image_size": 8, "recipe.data.name": "digits",
    "recipe.data.train_samples": 1198, "recipe.data.eval_samples": 599, "recipe.run.seed": 7, "cluster.num_nodes": 3,
    "cluster.ranks_per_node": 2, "cluster.engine.name": "torch", "cluster.engine.precision": "bfloat16",
}  # fmt: skip


def _facts(*runs: ReportedRun) -> dict[str, str]:
    return {words(each[0]): words(each[1]) for each in _page(*runs).findall(".//dl/div")}


@pytest.mark.medium
def test_the_head_tells_what_a_run_or_another_submitters_log_is() -> None:
    surroundings = {
        "command": "./run.sh train digits --set a=<b>", "git": {"commit": "0123456789abcdef", "dirty": True},
        "cpu": "A CPU", "usable_cores": 2.0, "gpus": [{"name": "A100"}] * 2, "packages": {"torch": "2.13.0+cpu"},
    }  # fmt: skip
    bare = _made(settings=OWN, began_s=1.79e9)
    assert _facts(bare) == {
        "Recipe": "digits, open division", "Network": "resnet20",
        "Data": "digits", "Machine": "6 ranks on 3 nodes", "Engine": "PyTorch, bfloat16",
        "Began": "21 September 2026, 14:13:20 UTC",
    }  # fmt: skip
    whole = replace(bare, startup=Startup(parameters=272474), environment=surroundings)
    assert _facts(whole) == {
        **_facts(bare), "Network": "resnet20, 272,474 parameters", "Commit": "0123456789ab with changes",
        "Machine": "6 ranks on 3 nodes; A CPU, 2 cores, 2 A100", "Engine": "PyTorch 2.13.0+cpu, bfloat16",
        "Command": "./run.sh train digits --set a=<b>",
    }  # fmt: skip
    log = _made("log", submitter="Org", platform="box", benchmark="resnet", division="closed", ruleset="0.7.0",
                train_samples=1281167)  # fmt: skip
    assert _facts(log) == {
        "Submitter": "Org", "Platform": "box", "Benchmark": "resnet, closed division", "Rules": "0.7.0",
    }  # fmt: skip


def test_of_several_runs_the_head_has_what_they_share_and_a_table_what_differs() -> None:
    git = {"commit": "0123456789abcdef"}
    one, other = (
        replace(_made(name, settings=OWN | {"recipe.run.seed": seed}), environment={"git": git, "command": command})
        for name, seed, command in (("one", 7, "./run.sh train a"), ("two", 8, "./run.sh train b"))
    )
    facts = _facts(one, other)
    assert (facts["Commit"], facts["Network"]) == ("0123456789ab", "resnet20")
    assert not {"Command", "Seed"} & facts.keys()
    assert table(section(_page(one, other), "What differs"))[1:] == [
        ["Command", "./run.sh train a", "./run.sh train b"], ["recipe.run.seed", "7", "8"],
    ]  # fmt: skip


def test_a_value_that_was_measured_once_is_no_chart() -> None:
    once = [_made(name, began_s=1.0, evaluations=(Evaluation(4, 41.0, 0.5, 1.5),)) for name in ("a", "b")]
    assert words(section(_page(*once), "Charts")) == "Charts The logs contain nothing to draw."
    twice = _made("c", began_s=1.0, evaluations=(Evaluation(4, 41.0, 0.5, None), Evaluation(8, 81.0, 0.6, None)))
    assert "Accuracy by epoch" in words(section(_page(once[0], twice), "Charts"))


def test_a_confusion_matrix_has_a_row_for_each_class_and_the_share_that_was_recognised() -> None:
    names, counts = ("cat", "<dog>", "emu"), ((3, 1, 0), (0, 4, 0), (0, 0, 0))
    run = replace(_made("run"), classes=ClassResults(6, names, (4, 4, 0), (3, 5, 0), (3, 4, 0), counts))
    classes = section(_page(run), "Classes")
    assert words(classes).startswith("Classes Confusion matrix after epoch 6 ")
    assert table(classes)[1:] == [
        ["cat", "3", "1", "", "75.0%"], ["<dog>", "", "4", "", "100.0%"], ["emu", "", "", "", ""],
    ]  # fmt: skip
    coloured = [each for each in classes.iter("td") if each.get("class")]
    assert [(each.get("title"), each.get("class")) for each in coloured] == [
        ("3 of 4 images of cat taken for cat", "right"), ("1 of 4 images of cat taken for <dog>", "wrong"),
        ("4 of 4 images of <dog> taken for <dog>", "right"),
    ]  # fmt: skip
    right, wrong, all_right = (float(each.get("style", "").removeprefix("--share:")) for each in coloured)
    assert wrong < right < all_right, "a colour is as strong as the share of the row"
    assert "Classes" not in [words(each) for each in _page(*[replace(run, name=str(n)) for n in range(5)]).iter("h2")]


def test_of_many_classes_the_ten_that_are_recognised_least_are_shown() -> None:
    images, correct = [10] * 60, [10 - (number % 12) // 2 for number in range(60)]
    images[59], correct[59] = 0, 0
    found = ClassResults(6, tuple(f"c{number}" for number in range(60)), tuple(images), tuple(images), tuple(correct))
    rows = table(section(_page(replace(_made("run"), classes=found)), "Classes"))[1:]
    # Numbers 10 and 11 of each dozen have 5 of 10 right; number 59 is the last of them, and has no image.
    worst = [f"c{number}" for number in (10, 11, 22, 23, 34, 35, 46, 47, 58)]
    assert rows == [*([name, "10", "5", "50.0%"] for name in worst), ["c8", "10", "6", "60.0%"]]
