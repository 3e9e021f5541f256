"""What runs are called: outcomes, means only over runs that are alike, and logs of other benchmarks."""

import os
import re
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from logs.folder import REHEARSAL_FILE
from logs.read.lines import parse_text
from logs.read.parse import parse_events
from logs.show.bars import step_shares
from logs.show.chart import Bar, BarChart, Captioned, LineChart, Series, Stretch
from logs.show.figures import figures
from logs.show.page import _configuration, _convergence, _legend, _number, _row, badge, render
from logs.show.reported_run import ReportedRun, gather_run
from logs.show.wording import heading, in_seconds, lead, notes_of, place_of, state_of
from tests.logs import samples


def _run(
    name: str = "a", *, settings: dict[str, object] | None = None, drop: str = "", **events: object
) -> ReportedRun:
    told = [each for each in samples.run_events(**events) if not drop or drop not in each[1]]  # type: ignore[arg-type]
    record = parse_events(parse_text(samples.mllog(told)), Path(name))
    return ReportedRun(name, Path(name), None, record, settings=dict(settings or {}))


def test_a_mean_is_of_runs_that_are_alike_only() -> None:
    alike = [_run(str(seed), seed=seed) for seed in range(5)]
    assert "olympic mean 82.00 s" in lead(alike)
    words = lead([*alike, _run("other", batch=4096, org="Someone")])
    assert "No mean: the runs differ in submitter, global batch." in words
    assert "6 of 6 runs reached their target, the fastest after <strong>82.00 s</strong>" in words
    assert "olympic" not in words
    assert "median" not in words


@pytest.mark.parametrize(
    ("word", "other"),
    [
        ("benchmark", lambda run: replace(run, record=replace(run.record, benchmark="resnet2"))),
        ("submitter", lambda run: replace(run, record=replace(run.record, submitter="B"))),
        ("platform", lambda run: replace(run, record=replace(run.record, platform="B"))),
        ("recipe", lambda run: replace(run, settings={"recipe.name": "b"})),
        ("global batch", lambda run: replace(run, record=replace(run.record, global_batch_size=8))),
        ("target", lambda run: replace(run, summary={"target": 0.5})),
        ("training images", lambda run: replace(run, record=replace(run.record, train_samples=8))),
    ],
)
def test_what_runs_without_a_mean_differ_in_is_named(word: str, other: Callable[[ReportedRun], ReportedRun]) -> None:
    assert f"No mean: the runs differ in {word}.</p>" in lead([_run(), _run("b"), other(_run("c"))])


@pytest.mark.parametrize(
    ("run", "note"),
    [
        (_run(epochs=0), "No images/s: the log does not have an epoch that has ended"),
        (replace(_run(), record=replace(_run().record, init_starts=(2, 0.25))), "2 ranks logged init_start, the last "
         "rank 0.250 s after the first."),
        (replace(_run(), record=replace(_run().record, unreadable=3)), "3 records of the log could not be read."),
        (_run(drop="train_samples"), "The log does not say how many images it trains on; images/s count ImageNet's "
         "1,281,167."),
    ],
)  # fmt: skip
def test_what_a_log_lacks_is_a_note_and_a_whole_log_has_none_of_these(run: ReportedRun, note: str) -> None:
    assert any(each.startswith(note) for each in notes_of(run))
    assert not any(each.startswith(note[2:]) or each.startswith(note) for each in notes_of(_run()))


@pytest.mark.parametrize(
    ("run", "words"),
    [
        (_run(), "success"),
        (_run(status="aborted"), "aborted"),
        (_run(drop="run_stop"), "no end in the log"),
        (_run(settings={"cluster.rehearsal.shrink": 256}), "rehearsal: success"),
        (_run(drop="run_st"), "no run"),
    ],
)
def test_an_outcome_is_called_what_it_is(run: ReportedRun, words: str) -> None:
    assert state_of(run)[0] == words
    assert (lead([run]) == '<p class="lead"><strong>82.00 s</strong> to train.</p>') == (words == "success")


def test_only_success_has_a_time_to_train(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("logs.show.drawing.to_svg", lambda chart: "<svg/>")
    page = render([_run(status="aborted")], Path("page.html"))
    assert "ran 82.00 s" in page
    assert ">82.00 s<" not in page


def test_a_resumed_run_says_how_often_it_was_started() -> None:
    first = samples.run_events(epochs=4, status="aborted")
    again = samples.run_events(epochs=8, begin_s=samples.BEGIN_S + 500)
    text = samples.mllog([*first, (samples.BEGIN_S + 499, "resumed_from_step", 40, {}), *again])
    run = replace(_run(), record=parse_events(parse_text(text), Path("a")))
    assert run.record.attempts == 2
    assert run.record.init_starts[0] == 1
    assert "2 attempts" in lead([run])
    assert "The run was stopped and resumed: 2 attempts." in notes_of(run)
    assert not any("logged init_start" in note for note in notes_of(run))


def test_a_rehearsal_tells_its_times_beside_the_predicted_ones_a_sentence_each(tmp_path: Path) -> None:
    (tmp_path / REHEARSAL_FILE).write_text("a step took 2 ms, 1 ms predicted\nthe start took 3 s\n", encoding="utf-8")
    notes = notes_of(replace(_run(), path=tmp_path))
    assert notes[:2] == ["A step took 2 ms, 1 ms predicted.", "The start took 3 s."]


def test_a_wait_for_checkpoints_is_told_if_it_is_one() -> None:
    told = [notes_of(replace(_run(), summary={"checkpoint_s": value})) for value in (0.26, 0.001, None, "x")]
    assert ["Training waited 0.26 s for checkpoints." in notes for notes in told] == [True, False, False, False]


def test_the_rank_that_was_ready_last_is_named_if_there_are_several() -> None:
    last = {"rank": 1, "host": "b", "ready_s": 11.0, "median_s": 8.0, "phase": "data set", "phase_s": 6.0}
    whole = {**last, "phase_median_s": 2.0}
    words = "Rank 1 on b was ready last, 3.00 s after the median rank; most of that in data set: 6.00 s, where"
    for ranks, found, is_told in ((2, whole, True), (1, whole, False), (2, last, False), (2, {}, False)):
        notes = notes_of(replace(_run(), summary={"world_size": ranks}, last_start=found))
        assert any(note.startswith(words) for note in notes) == is_told


def test_times_that_cannot_be_are_told() -> None:
    run = _run(drop="run_start")
    assert "The times of the log cannot be: run_start is missing, or is before 1970." in notes_of(run)
    assert state_of(run)[0] == "impossible times"


def test_a_rank_that_was_ready_at_once_is_told_as_it_is() -> None:
    last = {
        "rank": 1,
        "host": "b",
        "ready_s": 2.0,
        "median_s": 0.0,
        "phase": "data",
        "phase_s": 1.5,
        "phase_median_s": 0,
    }
    (note,) = (each for each in notes_of(replace(_run(), summary={"world_size": 2}, last_start=last)) if "last" in each)
    assert "2.00 s after the median rank" in note
    assert note.endswith("1.50 s, where the median rank took 0.00 s.")


@pytest.mark.parametrize(("name", "age_s", "words"), [
    ("result_0.txt", 1, "running"), ("metrics.jsonl", 1, "running"), ("result_0.txt", 3600, "no end in the log"),
])  # fmt: skip
def test_a_run_without_an_end_runs_as_long_as_it_writes(tmp_path: Path, name: str, age_s: float, words: str) -> None:
    (tmp_path / name).touch()
    os.utime(tmp_path / name, (time.time() - age_s,) * 2)
    run = replace(_run(drop="run_stop"), path=tmp_path, log=tmp_path / "result_0.txt")
    assert state_of(run)[0] == words


def test_headings_name_recipe_cluster_and_date() -> None:
    own = _run(settings={"recipe.name": "digits", "cluster.name": "laptop"})
    assert heading([own]) == "digits on laptop, 21 September 2026"
    assert heading([own, own]) == "2 runs side by side: digits on laptop, 21 September 2026"
    assert heading([_run(org="Fujitsu")]) == "Fujitsu, made up, 21 September 2026"
    assert place_of(_run(org="Fujitsu")) == "Fujitsu, made up"


def test_an_open_log_is_not_compared_with_the_closed_reference() -> None:
    assert any("open division" in note for note in notes_of(_run(division="open")))
    assert any(note.startswith("Reference convergence: ") for note in notes_of(_run(division="closed")))
    other = _run(division="closed")
    other = replace(other, record=replace(other.record, benchmark="gpt3"))
    assert not any(note.startswith("Reference convergence: ") for note in notes_of(other))


@pytest.mark.parametrize(
    ("batch", "epochs", "words"),
    [
        (3264, 36, "<small>reference: normal</small>"),
        (3264, 32, "<small>reference: too fast</small>"),
        (86016, 88, ""),
    ],
)
def test_a_row_has_the_outcome_of_a_comparison_that_has_a_reference(batch: int, epochs: int, words: str) -> None:
    assert _convergence(_run(division="closed", batch=batch, epochs=epochs)) == words
    assert _convergence(_run(division="open", batch=batch, epochs=epochs)) == ""


def test_the_quality_of_another_benchmark_is_no_accuracy_and_its_target_is_on_no_chart(tmp_path: Path) -> None:
    images = gather_run(samples.run_folder(tmp_path / "run", best=0.98))
    loss = replace(_run("loss", best=2.68).record, benchmark="gpt3", target=2.69)
    language = ReportedRun("loss", Path("loss"), None, loss, summary={"target": 2.69})
    assert state_of(language) == ("success", True), "less may be better"
    assert "2.6800<small>quality of gpt3</small><small>target 2.69</small>" in _row(language, 1)
    chart = next(each.chart for each in figures([images, language]) if each.caption == "Accuracy by epoch")
    assert isinstance(chart, LineChart)
    assert [band.name for band in chart.bands] == ["target 0.97"]


def test_a_closed_log_of_others_has_the_target_of_the_rules() -> None:
    assert _run(division="closed").target == 0.759
    assert _run(division="closed", samples=1198).target is None
    assert _run(division="open").target is None
    assert any("ImageNet has 1,281,167" in note for note in notes_of(_run(samples=160_000)))


def test_the_mean_of_five_leaves_out_the_fastest_and_the_slowest() -> None:
    runs = [_run(str(seed), seed=seed, epoch_s=length) for seed, length in enumerate((1, 2, 3, 5, 9))]
    failed = _run("late", seed=9, status="aborted")
    assert lead([*runs, failed]) == (
        '<p class="lead"><strong>26.00 s</strong> to train: median of 5 runs that reached the target, out of 6; '
        "fastest 10.00 s, slowest 74.00 s; olympic mean 28.67 s.</p>"
    )
    assert "olympic" not in lead(runs[:4])
    assert lead([failed]) == '<p class="lead">No run has reached its target: aborted.</p>'


@pytest.mark.parametrize(
    ("seconds", "words"), [(None, "\u2013"), (0.0, "0.00 s"), (599.99, "599.99 s"), (600, "10.00 min"), (90, "90.00 s")]
)
def test_durations_are_in_minutes_from_ten_minutes_on(seconds: float | None, words: str) -> None:
    assert in_seconds(seconds) == words


@pytest.mark.parametrize(
    ("number", "words"),
    [(None, "\u2013"), (0.123456, "0.1235"), (99.94, "99.94"), (100, "100"), (12345.6, "12\u202f346"), (1e6, "1 M"),
     (999999.4, "999\u202f999"), (2.345e7, "23.4 M")],
)  # fmt: skip
def test_numbers_of_a_page_have_few_digits(number: float | None, words: str) -> None:
    assert _number(number) == words


def test_badges_are_green_red_or_grey() -> None:
    kinds = [badge("a<b", good) for good in (True, False, None)]
    assert kinds == [f'<span class="badge {kind}">a&lt;b</span>' for kind in ("good", "bad", "plain")]


def test_a_legend_shows_dots_of_predictions_only_and_one_line_needs_none() -> None:
    measured, predicted = Series("one", 0, [(1, 1)]), Series("two", 1, [(1, 1)], "predicted")
    legend = _legend(Captioned("c", LineChart("t", "x", [measured, predicted])))
    first, second = legend.split("<span>")[1:]
    assert ("<circle" in first, "<circle" in second) == (False, True)
    assert (">one</span>" in first, ">two</span>" in second) == (True, True)
    assert _legend(Captioned("c", LineChart("t", "x", [measured]))) == ""
    bars = BarChart("t", "s", [Bar("row", [Stretch(0, 1, 0, "")])], names=["one", "two"])
    assert re.findall(r"var\(--c(\d)\)", _legend(Captioned("c", bars))) == ["0", "1"]


def test_a_day_is_that_of_utc(monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setenv("TZ", "Etc/GMT-14")
        time.tzset()
        assert heading([_run()]) == "Anyone, made up, 21 September 2026"
    time.tzset()


def test_the_reference_is_marked_unless_the_division_is_open() -> None:
    bands = {
        name: [band.name for band in next(iter(figures([run]))).chart.bands if band.axis == "x"]  # type: ignore[union-attr]
        for name, run in {"none": _run(drop="division"), "closed": _run(division="closed"), "open": _run()}.items()
    }
    assert bands == {"none": ["reference at batch 3264"], "closed": ["reference at batch 3264"], "open": []}


def test_names_of_runs_and_settings_are_escaped_in_both_shapes_of_the_table() -> None:
    runs = [_run(f"<b>{number}", settings={"a<i": number, "b": f"<u>{number}"}) for number in range(8)]
    for shown in (runs[:2], runs):
        table = _configuration(shown)
        assert not re.search("<b>|a<i|<u>", table)
        assert "&lt;b&gt;1" in table


def test_the_heading_tells_days_in_the_order_of_time() -> None:
    runs = [_run(str(days), begin_s=samples.BEGIN_S + 86_400 * days) for days in (2, 0, 1)]
    assert heading(runs).endswith("made up, 21 September 2026 to 23 September 2026")


@pytest.mark.parametrize(
    ("waiting", "exposed", "ends"),
    [(0.25, 0.5, [25.0, 75.0, 100.0]), (0.75, 0.5, [0.0, 50.0, 125.0]), (0.25, None, None), (None, 0.5, None)],
)
def test_shares_of_a_step_are_never_negative_and_none_is_made_up(
    waiting: float | None, exposed: float | None, ends: list[float] | None
) -> None:
    summary = {"input_wait_fraction": waiting, "comm_exposed_fraction": exposed}
    chart = step_shares([replace(_run(), summary=summary)]).chart
    assert isinstance(chart, BarChart)
    assert [[stretch.end for stretch in bar.stretches] for bar in chart.bars] == ([ends] if ends else [])


def test_a_run_that_missed_its_target_does_not_keep_the_others_from_a_median() -> None:
    words = lead([_run("a"), _run("b", seed=2), _run("c", batch=8, status="aborted")])
    assert "median of 2 runs that reached the target, out of 3;" in words


@pytest.mark.parametrize(("stall_s", "is_told"), [(0.01, True), (0.009, False), (None, False)])
def test_a_wait_for_checkpoints_is_told_from_a_hundredth_second_on(stall_s: float | None, is_told: bool) -> None:
    notes = notes_of(replace(_run(), summary={"checkpoint_s": stall_s}))
    assert ("Training waited 0.01 s for checkpoints." in notes) == is_told
