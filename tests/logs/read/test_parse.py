"""The logs of all rounds, and habits of other people's logs at their edges: what a record has and computes."""

import json
import tracemalloc
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from logs.read.lines import parse_text, ruleset_at
from logs.read.parse import parse_events, parse_log
from logs.read.record import Evaluation, Pause, RunRecord
from logs.show.reported_run import ReportedRun, summarise
from tests.logs import samples

FORMATS = {"0.5.0": samples.mlp, "0.6.0": samples.mll, "4.0.0": samples.mllog}


def parse(text: str) -> RunRecord:
    lines = text.splitlines(keepends=True)
    return parse_events((event for line in lines for event in parse_text(line)), Path("made.txt"))


def figures(record: RunRecord) -> dict[str, Any]:
    found = summarise(ReportedRun("made", record.source, record.source, record))
    json.dumps(found, allow_nan=False)
    return found


@pytest.mark.medium
@settings(max_examples=40)
@given(
    ruleset=st.sampled_from(sorted(FORMATS)), blocks=st.integers(1, 6), every=st.integers(1, 4),
    seconds=st.tuples(st.floats(0.1, 5000), st.floats(0.01, 100), st.floats(0, 1000)), batch=st.integers(512, 90_000),
)  # fmt: skip
def test_the_log_of_every_round_has_the_times_and_epochs_of_the_run(
    ruleset: str, blocks: int, every: int, seconds: tuple[float, float, float], batch: int
) -> None:
    epoch_s, eval_s, init_s = seconds
    events = samples.run_events(
        epochs=blocks * every, every=every, epoch_s=epoch_s, eval_s=eval_s, init_s=init_s, batch=batch
    )  # fmt: skip
    record = parse(FORMATS[ruleset](events))
    assert record.time_to_train_s == pytest.approx(blocks * (every * epoch_s + eval_s), abs=0.002)
    is_first_round = ruleset == "0.5.0"  # which does not say to which epoch the begin of an evaluation belongs
    assert record.median_epoch_s == pytest.approx(epoch_s + is_first_round * eval_s / every, abs=0.002)
    run_s = record.time_to_train_s or 0.0
    assert record.images_per_s == pytest.approx(blocks * every * 1281167 / run_s)
    assert [each.epoch for each in record.evaluations] == list(range(every, blocks * every + 1, every))
    known = None if is_first_round else pytest.approx(eval_s, abs=0.002)
    assert [each.seconds for each in record.evaluations] == [known] * blocks
    assert record.final_accuracy == pytest.approx(0.76)
    found = figures(record)
    assert (found["epochs"], found["evaluations"]) == (blocks * every, blocks)
    assert (found["ruleset"], found["benchmark"], found["status"]) == (ruleset, "resnet", "success")
    assert (found["global_batch_size"], found["seeds"]) == (batch, [17])
    said = None if ruleset == "0.5.0" else "Anyone"
    assert found["submitter"] == said
    assert found["init_s"] == (None if said is None else pytest.approx(init_s, abs=0.002))


def test_blocks_without_epochs_and_submitters_with_time_0_are_read() -> None:
    # As in the TPU submissions of v0.6 (blocks from 4, a stop after the next start) and v1.0 (blocks from 0).
    events = [each for each in samples.run_events(epochs=12) if not each[1].startswith(("epoch", "eval_st"))]
    events = [(0.0 if key.startswith("submission") else at, key, value, meta) for at, key, value, meta in events]
    record = parse(samples.mllog(events).replace('"first_epoch_num": 1,', '"first_epoch_num": 0,'))
    assert (record.submitter, record.epochs, record.evaluations[0].epoch) == ("Anyone", 12, 4)
    assert record.ruleset == "4.0.0"
    assert record.median_epoch_s == pytest.approx(41 / 4)
    # If the log marks the evaluation, only the rest of the block counts.
    with_marks = [each for each in samples.run_events(epochs=12) if not each[1].startswith("epoch")]
    assert parse(samples.mllog(with_marks)).median_epoch_s == pytest.approx(10)


@pytest.mark.parametrize(("first", "logged"), [(0, 7), (1, 8)])
def test_v05_numbers_epochs_from_0_or_1_and_a_record_from_1(first: int, logged: int) -> None:
    text = samples.mlp(samples.run_events(), first_epoch=first)
    assert f'"epoch": {logged}}}' in text
    assert parse(text).epochs == 8
    assert [span.first_epoch for span in parse(text).epoch_spans] == [1, 5]
    assert [each.epoch for each in parse(text).evaluations] == [4, 8]
    # Epoch events that were all logged within milliseconds at the end say nothing, and the evaluations decide.
    late = [line for line in text.splitlines() if "train_epoch" not in line]
    head = f":::MLPv0.5.0 resnet {samples.BEGIN_S + 102:.0f}"
    late[-1:-1] = [f"{head}.00{i} (a:1) train_epoch: {i + first}" for i in range(8)]
    assert (parse("\n".join(late)).epochs, parse("\n".join(late)).median_epoch_s) == (8, 10.25)


@pytest.mark.medium
@settings(max_examples=30)
@given(data=st.data(), ranks=st.integers(2, 4))
def test_interleaved_ranks_and_text_before_the_token_change_nothing(data: Any, ranks: int) -> None:
    events = samples.run_events()
    plain, lines = samples.mllog(events), []
    for rank in range(ranks):
        shifted = [(at + 0.001 * rank, key, value, metadata) for at, key, value, metadata in events]
        lines.append(samples.mllog(shifted).splitlines())
    merged = []
    for group in zip(*lines, strict=True):
        merged += [f"[1,{index}]<stdout>: {line}" for index, line in data.draw(st.permutations(list(enumerate(group))))]
    found, expected = figures(parse("\n".join(merged))), figures(parse(plain))
    for key in ("epochs", "evaluations", "final_accuracy", "global_batch_size", "seeds", "status"):
        assert found[key] == expected[key]
    for key in ("time_to_train_s", "init_s", "median_epoch_s"):
        assert found[key] == pytest.approx(expected[key], abs=0.01)


def test_two_records_on_a_line_are_two_and_a_broken_one_hides_no_other() -> None:
    text = samples.mllog(samples.run_events())
    assert figures(parse(text.replace("\n", ""))) == figures(parse(text))
    whole, broken = text.splitlines(), ':::MLLOG {"namespace": "", "time_ms": 17'
    record = parse("\n".join([*whole[:9], broken + whole[9], *whole[10:]]))
    assert record.unreadable == 1
    assert figures(record) == figures(parse(text)) | {"unreadable_records": 1}


def test_a_run_without_run_stop_has_evaluations_but_no_time_to_train() -> None:
    text = samples.mllog(samples.run_events(epochs=12))
    cut = text[: text.rindex('"key": "eval_start"')]
    record = parse(cut)
    assert (record.time_to_train_s, record.status, record.epochs) == (None, None, 8)
    assert record.elapsed_s == pytest.approx(122)
    assert record.unreadable == 1


def test_a_rate_is_that_of_the_whole_run_and_not_what_the_log_says_of_itself() -> None:
    events = [each for each in samples.run_events() if not each[1].startswith(("epoch", "block"))]
    stated: samples.LoggedEvent = (samples.BEGIN_S + 30, "tracked_stats", {"throughput": 90.0}, {"epoch_num": 1})
    record = parse(samples.mllog([*events[:-1], stated, events[-1]]))
    assert record.images_per_s == pytest.approx(8 * 1281167 / 82)


def test_a_run_started_again_in_the_same_file_is_the_one_that_counts() -> None:
    first = samples.mll(samples.run_events(epoch_s=99, begin_s=samples.BEGIN_S - 9000))
    died = first[: first.index("epoch_stop")].rpartition("\n")[0]
    assert parse(died + "\n" + samples.mll(samples.run_events())).time_to_train_s == 82
    # Events after run_stop, of another run or a slow rank, change nothing.
    assert (
        parse(samples.mll(samples.run_events()) + samples.mll(samples.run_events(begin_s=samples.BEGIN_S + 9e3))).epochs
        == 8
    )


PIECES = st.sampled_from([
    ":::MLLOG ", ":::MLL ", ":::MLPv0.5.0 resnet ",
    '{"key": "eval_accuracy", ', '"time_ms": 1e999', "1e400 ", "eval_accuracy: ",
    '"metadata": {"epoch_num": "x"}}', "[" * 1500, "(a:1) ", "train_epoch: NaN", "\n", "\x00", "}", "9" * 5000,
    "1790000000.5 ",     "run_start", "{}", ': {"value": null}', "block_start",
    '"key": "tracked_stats", "value": 3}', "-inf ", "init_start",
])  # fmt: skip


@pytest.mark.medium
@settings(max_examples=60)
@given(st.lists(PIECES | st.text(samples.CHARACTERS, max_size=20), max_size=25))
def test_no_text_crashes_the_parser(pieces: list[str]) -> None:
    figures(parse("".join(pieces)))


@pytest.mark.slow
def test_memory_does_not_grow_with_the_log(tmp_path: Path) -> None:
    path = tmp_path / "large.txt"
    line = samples.mllog([(samples.BEGIN_S, "weights_initialization", None, {"tensor": "stage1_conv1_weight"})])
    with path.open("w") as file:
        file.write(samples.mllog(samples.run_events()))
        file.writelines([line * 500] * 40)
        file.write("x" * 5_000_000)
    parse_log(path)
    tracemalloc.start()
    record = parse_log(path)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert record.epochs == 8
    assert peak < 4_500_000 < path.stat().st_size / 2


@pytest.mark.parametrize(
    ("value", "metadata", "status"),
    [
        (None, {"status": "success"}, "success"),
        ({"success": False}, {}, "aborted"),
        ({"status": "SUCCESS"}, {}, "success"),
        ({"other": 1}, {"status": "success"}, "success"),
    ],
)
def test_the_status_is_in_the_metadata_or_else_in_the_value_or_else_in_the_accuracy(
    value: object, metadata: dict[str, Any], status: str
) -> None:
    *events, (at, key, _, _) = samples.run_events(best=0.5)
    assert parse(samples.mllog([*events, (at, "eval_target", 0.759, {}), (at, key, value, metadata)])).status == status


def test_a_benchmark_is_that_of_submission_benchmark_or_else_of_the_first_line_that_names_one() -> None:
    first = ":::MLL 1590000000.0 eval_offset: {}\n"
    lines = [f":::MLPv0.5.0 {name} 1540000000.0 (a.py:1) run_start\n" for name in ("resnet", "ssd")]
    told = ':::MLL 1590000000.0 submission_benchmark: {"value": "gnmt"}\n'
    for order, benchmark in (
        ([first], None), ([first, *lines], "resnet"), (lines[::-1], "ssd"), ([told, *lines], "gnmt"),
        ([*lines, told], "gnmt"),
    ):  # fmt: skip
        assert parse("".join(order)).benchmark == benchmark


PUBLISHED = {
    "0.7.0": "2020-07-29", "1.0.0": "2021-06-30", "1.1.0": "2021-12-01", "2.0.0": "2022-06-29", "2.1.0": "2022-11-09",
    "3.0.0": "2023-06-27", "3.1.0": "2023-11-08", "4.0.0": "2024-06-12",
}  # fmt: skip
BEGIN_S = 1.7e9
Told = tuple[float, str, Any, dict[str, Any]]


def _record(*events: Told) -> RunRecord:
    """Parse events (seconds since a beginning, key, value, metadata) in the dialect of v0.7 and later."""
    return parse(samples.mllog([(BEGIN_S + at, *event) for at, *event in events]))


def _record_v05(*lines: str) -> RunRecord:
    return parse("".join(f":::MLPv0.5.0 resnet {1.54e9 + at:.1f} (a.py:1) {line}\n" for at, line in enumerate(lines)))


@pytest.mark.parametrize("ruleset", PUBLISHED)
def test_a_round_ends_with_the_day_of_its_publication(ruleset: str) -> None:
    midnight = datetime.fromisoformat(PUBLISHED[ruleset]).replace(tzinfo=timezone.utc)
    rulesets = list(PUBLISHED)
    following = rulesets[min(rulesets.index(ruleset) + 1, len(rulesets) - 1)]
    last_second = midnight + timedelta(days=1, seconds=-1)
    assert ruleset_at(last_second.timestamp()) == ruleset
    assert ruleset_at((last_second + timedelta(seconds=1)).timestamp()) == following


def test_an_epoch_ends_when_the_last_rank_says_so_in_whatever_order() -> None:
    run = [(0, "run_start", None, {}), (1, "epoch_start", None, {"epoch_num": 1})]
    stops = [(at, "epoch_stop", None, {"epoch_num": 1}) for at in (11, 13, 12)]
    record = _record(*run, *stops, (14, "run_stop", None, {"status": "success"}))
    assert [(span.begin_s, span.end_s) for span in record.epoch_spans] == [(1, 13)]


def _run(*marks: Told, status: str = "success", benchmark: str = "resnet", images: int | None = 1000) -> RunRecord:
    """Parse a run of 100 s with evaluations of 2 s after 4 and 8 epochs, and the given marks of epochs or blocks."""
    head: list[Told] = [(0, "submission_benchmark", benchmark, {}), (0, "run_start", None, {})]
    head += [(0, "train_samples", images, {})] if images else []
    for epoch, at in ((4, 48), (8, 98)):
        head.append((at, "eval_start", None, {"epoch_num": epoch}))
        head.append((at + 2, "eval_accuracy", 0.1 * epoch, {"epoch_num": epoch}))
        head.append((at + 2, "eval_stop", None, {"epoch_num": epoch}))
    return _record(*head, *marks, (100, "run_stop", None, {"status": status}))


def _marks(key: str, seconds: float, pause: float = 0.0, **metadata: int) -> list[Told]:
    """Return eight marks of ``seconds``, ``pause`` seconds apart, all with ``metadata`` or numbered from 1."""
    told: list[Told] = []
    for n in range(8):
        begin, own = n * (seconds + pause), metadata or {"epoch_num": n + 1}
        told += [(begin, f"{key}_start", None, own), (begin + seconds, f"{key}_stop", None, own)]
    return told


def test_marks_ahead_of_the_accelerator_do_not_make_a_run_faster() -> None:
    # As on 527 nodes in v1.1: the host marks an epoch when it has queued the epoch, in a seventh of the time.
    honest, ahead = _run(*_marks("epoch", 12)), _run(*_marks("epoch", 1.7, 0.5))
    assert (honest.median_epoch_s, honest.images_per_s) == (12, 80)
    assert (ahead.median_epoch_s, ahead.images_per_s) == (12, 80)
    assert [(span.first_epoch, span.epochs, span.begin_s, span.end_s) for span in ahead.epoch_spans] == [
        (1, 4, 0, 48), (5, 4, 50, 98),
    ]  # fmt: skip


@pytest.mark.parametrize("counted", [1, 2])
def test_blocks_of_fewer_epochs_that_repeat_their_number_do_not_make_a_run_slower(counted: int) -> None:
    # As in v1.0 on 1024 chips: block_start of one epoch for each of four epochs, all with the number of the first.
    blocks = [
        (at, "block_start", None, {"first_epoch_num": first, "epoch_count": counted})
        for first, begin in ((1, 0), (5, 50))
        for at in range(begin, begin + 48, 12)
    ]
    ends = [(at, "block_stop", None, {"first_epoch_num": first}) for first, at in ((1, 50), (5, 100))]
    record = _run(*blocks, *ends)
    assert (record.epochs, record.median_epoch_s, record.images_per_s) == (8, 12, 80)


@pytest.mark.parametrize(("accuracy", "status"), [(0.749, "success"), (0.7489, "aborted")])
def test_v05_succeeds_at_its_target(accuracy: float, status: str) -> None:
    record = _record_v05(
        "run_start", "eval_target: 0.749", "train_epoch: 0", "eval_start",
        f'eval_accuracy: {{"epoch": 0, "value": {accuracy}}}', "run_stop",
    )  # fmt: skip
    assert (record.status, record.epochs) == (status, 1)


def test_a_run_that_was_stopped_and_resumed_is_one_run() -> None:
    first: list[Told] = [
        (0, "run_start", None, {}),
        *((10 * epoch, "eval_accuracy", epoch / 10, {"epoch_num": epoch}) for epoch in (2, 4)),
        (50, "run_stop", None, {"status": "aborted"}),
    ]
    again: list[Told] = [
        (80, "resumed_from_step", 40, {}),
        (81, "init_start", None, {}),  # of an attempt that did not get as far as run_start
        (100, "resumed_from_step", 40, {}),
        (101, "init_start", None, {}),
        (105, "run_start", None, {}),
        (140, "eval_accuracy", 0.76, {"epoch_num": 4}),
        (150, "run_stop", None, {"status": "success"}),
    ]
    record = _record(*first, *again)
    # 50 s before the pause and 45 s after it, in which epoch 4 was evaluated again.
    assert (record.status, record.time_to_train_s, record.final_accuracy, record.epochs) == ("success", 95, 0.76, 4)
    assert [(each.epoch, each.accuracy, each.at_s) for each in record.evaluations] == [(2, 0.2, 20), (4, 0.76, 85)]
    assert record.pauses == (Pause(BEGIN_S + 50, BEGIN_S + 105),)
    assert [record.since_start(BEGIN_S + at) for at in (20, 50, 70, 105, 140)] == [20, 50, 50, 50, 85]
    later = (170, "run_stop", None, {"status": "success"})
    twice = _record(*first, *again[:-1], (145, "resumed_from_step", 50, {}), (165, "run_start", None, {}), later)
    assert (twice.time_to_train_s, len(twice.pauses), twice.since_start(BEGIN_S + 170)) == (90, 2, 90)
    assert _record(*first, *again[3:]).status == "aborted", "a second run in the same file"
    # The clock of the second attempt is two hours behind that of the first.
    behind = _record(*first, *((at - 7200, key, value, more) for at, key, value, more in again))
    assert (behind.status, behind.time_to_train_s, behind.final_accuracy) == ("success", 95, 0.76)
    assert [(each.epoch, each.at_s) for each in behind.evaluations] == [(2, 20), (4, 85)]
    assert [behind.since_start(BEGIN_S + at) for at in (20, 50, 105 - 7200, 140 - 7200)] == [20, 50, 50, 85]


@pytest.mark.parametrize("head", [":::MLLOG ", ":::MLL 1.6e9 note: ", ":::MLPv0.5.0 resnet 1.6e9 (a.py:1) note: "])
def test_a_record_that_quotes_another_is_one_record(head: str) -> None:
    quoted = json.dumps(f"as in {head}{{}}")
    value = quoted if "v0.5" in head else f'{{"key": "note", "value": {quoted}}}'
    found = list(parse_text(f"{head}{value} and {head}{value}"))
    assert [event and event.value for event in found] == [json.loads(quoted)] * 2


def test_each_resumption_is_an_attempt() -> None:
    starts: list[Told] = [(0, "init_start", None, {}), (5, "init_start", None, {})]
    resumed: list[Told] = [(100 + at, key, value, more) for at, key, value, more in starts]
    record = _record(
        *starts, (9, "run_start", None, {}), (99, "resumed_from_step", 7, {}), *resumed, (106, "run_start", None, {}),
        (200, "resumed_from_step", 9, {}), (300, "init_start", None, {}), (302, "init_start", None, {}),
    )  # fmt: skip
    assert record.attempts == 3


@pytest.mark.parametrize(("first", "epochs"), [(3, 4), (4, 4)])
def test_without_marks_of_epochs_the_offset_of_the_first_round_tells_where_epochs_begin(
    first: int, epochs: int
) -> None:
    record = _record_v05("run_start", "eval_offset: 3", f'eval_accuracy: {{"epoch": {first}, "value": 0.5}}')
    assert record.epochs == epochs


def _evaluated(*told: tuple[str, float, Any, float | None]) -> list[tuple[Any, ...]]:
    """Return (epoch, seconds, accuracy, duration) of the evaluations of events (kind, seconds, value, epoch)."""
    events: list[Told] = [
        (at, f"eval_{kind}", value, {} if epoch is None else {"epoch_num": epoch}) for kind, at, value, epoch in told
    ]
    record = _record((0, "run_start", None, {}), *events)
    return [(each.epoch, each.at_s, each.accuracy, each.seconds) for each in record.evaluations]


@pytest.mark.parametrize(
    "told",
    [
        [("start", 10, None, 4), ("stop", 13, None, 4), ("accuracy", 12, 0.5, 4)],
        [("accuracy", 12, 0.5, 4), ("stop", 13, None, 4), ("start", 10, None, 4)],
        [("start", 10, None, 4), ("start", 11, None, 4), ("accuracy", 12, 0.5, 4), ("accuracy", 12.5, 0.9, 4),
         ("stop", 13, None, 4), ("stop", 14, None, 4)],
    ],
)  # fmt: skip
def test_an_evaluation_is_the_same_whatever_the_order_of_its_events(told: list[Any]) -> None:
    assert _evaluated(*told) == [(4, 12, 0.5, 3)]


def test_what_did_not_finish_or_was_a_warm_up_is_left_out_and_the_others_come_in_order_of_time() -> None:
    assert _evaluated(
        ("stop", 1, None, None), ("accuracy", 30, 0.7, 8), ("accuracy", 20, {"accuracy": "0.6"}, 4),
        ("start", 40, None, 12), ("accuracy", -1, 0.1, 1), ("accuracy", 0, "none", 2), ("accuracy", 35, 0.8, None),
        ("accuracy", 35, 0.9, 9),
    ) == [
        (2, 0, None, None), (4, 20, 0.6, None), (8, 30, 0.7, None), (None, 35, 0.8, None), (9, 35, 0.9, None),
    ]  # fmt: skip
    assert [each.accuracy for each in parse(':::MLLOG {"key": "eval_accuracy", "value": 0.4}').evaluations] == [0.4]


def test_epochs_need_not_cover_the_time_of_the_evaluations() -> None:
    marks: list[Told] = []
    for epoch in range(4):
        begin = 25 * epoch
        marks += [(begin + 1, "epoch_start", None, {"epoch_num": epoch + 1})]
        marks += [(begin + 15, "epoch_stop", None, {"epoch_num": epoch + 1})]
        marks += [(begin + 15, "eval_start", None, {"epoch_num": epoch + 1})]
        marks += [(begin + 25, "eval_accuracy", 0.1, {"epoch_num": epoch + 1})]
        marks += [(begin + 25, "eval_stop", None, {"epoch_num": epoch + 1})]
    record = _record((0, "run_start", None, {}), *marks, (100, "run_stop", None, {"status": "success"}))
    assert [(span.begin_s, span.end_s) for span in record.epoch_spans] == [(1, 15), (26, 40), (51, 65), (76, 90)]


def _points(*points: tuple[str, Any]) -> RunRecord:
    return _record(*((0, key, value, {}) for key, value in points))


def test_of_several_names_of_a_number_that_of_the_later_rounds_counts_and_of_several_values_the_last() -> None:
    sizes = ("global_batch_size", 64), ("input_batch_size", 512)
    counts = ("num_train_examples", 1), ("preproc_num_train_examples", 2), ("train_samples", "3")
    assert _points(*sizes).global_batch_size == 64
    assert _points(("global_batch_size", 0), sizes[1]).global_batch_size == 512
    assert [_points(*counts[: n + 1]).train_samples for n in range(3)] == [1, 2, 3]
    assert _points(("train_samples", 5), ("train_samples", 6)).train_samples == 6
    assert _points(("train_samples", "many"), counts[0]).train_samples == 1


EVALUATIONS = (Evaluation(4, 30.0, 0.5, 1.0), Evaluation(8, 60.0, None, 1.0))
FULL: dict[str, Any] = {"train_samples": 100, "evaluations": EVALUATIONS, "time_to_train_s": 80.0, "elapsed_s": 90.0}


@pytest.mark.parametrize(
    ("changes", "rate"),
    [
        ({}, 8 * 100 / 80),
        ({"time_to_train_s": None}, 8 * 100 / 60),
        ({"time_to_train_s": None, "evaluations": (), "last_epoch": 6}, 6 * 100 / 90),
        ({"train_samples": None, "benchmark": "resnet"}, 8 * 1_281_167 / 80),
    ],
)
def test_a_rate_is_images_of_all_epochs_by_the_time_of_the_run(changes: dict[str, Any], rate: float) -> None:
    record = RunRecord(Path("log"), **FULL | changes)
    assert record.images_per_s == pytest.approx(rate)
    assert record.no_rate_because == ""


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"train_samples": None}, "train_samples"), ({"evaluations": ()}, "an epoch that has ended"),
        ({"time_to_train_s": 0.0}, "the times of begin and end"), ({"benchmark": "bert"}, "of the benchmark bert"),
    ],
)  # fmt: skip
def test_without_a_rate_the_words_say_why(changes: dict[str, Any], words: str) -> None:
    record = RunRecord(Path("log"), **FULL | changes)
    assert record.images_per_s is None
    assert words in record.no_rate_because
    assert (record.images_per_epoch is None) == (changes.get("train_samples", 1) is None or record.benchmark == "bert")
