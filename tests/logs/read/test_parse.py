import json
import tracemalloc
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from configs.errors import UserError
from logs.read.lines import parse_text, read_events
from logs.read.parse import parse_events, parse_log
from logs.read.record import RunRecord
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
    assert record.median_epoch_s == pytest.approx(epoch_s, abs=0.002)
    run_s = record.time_to_train_s or 0.0
    assert record.images_per_s == pytest.approx(blocks * every * 1281167 / run_s)
    assert [each.epoch for each in record.evaluations] == list(range(every, blocks * every + 1, every))
    assert [each.seconds for each in record.evaluations] == pytest.approx([eval_s] * blocks, abs=0.002)
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


def test_the_end_of_a_v05_run_ends_its_last_epoch_if_no_evaluation_does() -> None:
    lines = samples.mlp(samples.run_events()).splitlines(keepends=True)
    record = parse("".join(line for line in lines if "eval" not in line))
    assert (record.last_epoch, record.epoch_spans[-1].end_s) == (8, 82)
    record = parse("".join(line for line in lines if "eval" not in line and "run_stop" not in line))
    assert record.last_epoch == 7


@pytest.mark.parametrize(("first", "logged"), [(0, 7), (1, 8)])
def test_v05_numbers_epochs_from_0_or_1_and_a_record_from_1(first: int, logged: int) -> None:
    text = samples.mlp(samples.run_events(), first_epoch=first)
    assert f'"epoch": {logged}}}' in text
    assert parse(text).epochs == 8
    assert [span.first_epoch for span in parse(text).epoch_spans] == list(range(1, 9))
    assert [each.epoch for each in parse(text).evaluations] == [4, 8]
    # Epoch events that were all logged within milliseconds at the end say nothing, and the evaluations decide.
    late = [line for line in text.splitlines() if "train_epoch" not in line]
    head = f":::MLPv0.5.0 resnet {samples.BEGIN_S + 102:.0f}"
    late[-1:-1] = [f"{head}.00{i} (a:1) train_epoch: {i + first}" for i in range(8)]
    assert (parse("\n".join(late)).epochs, parse("\n".join(late)).median_epoch_s) == (8, 10)


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
    rates = [
        (samples.BEGIN_S + 30, "tracked_stats", {"throughput": rate}, {"epoch_num": n})
        for n, rate in ((1, 90.0), (2, 110.0))
    ]
    record = parse(samples.mllog([*events[:-1], *rates, events[-1]]))
    assert record.throughputs == ((1, 90), (2, 110))
    unnumbered: list[samples.LoggedEvent] = [(at, key, value, {}) for at, key, value, _ in rates]
    assert parse(samples.mllog([*events[:-1], *unnumbered, events[-1]])).throughputs == record.throughputs
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


@pytest.mark.medium
@settings(max_examples=100)
@given(data=st.data(), ruleset=st.sampled_from(sorted(FORMATS)))
def test_no_damage_to_a_log_crashes_the_parser(
    tmp_path_factory: pytest.TempPathFactory, data: Any, ruleset: str
) -> None:
    content = bytearray(FORMATS[ruleset](samples.run_events()).encode())
    for _ in range(data.draw(st.integers(1, 5))):
        at = data.draw(st.integers(0, len(content)))
        content[at : at + data.draw(st.integers(0, 200))] = data.draw(st.binary(max_size=8))
    path = tmp_path_factory.mktemp("damaged") / "result_0.txt"
    path.write_bytes(content)
    figures(parse_log(path))


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


def test_a_missing_log_is_a_user_error_and_an_empty_one_is_not(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"none.txt: cannot be read \(No such file or directory\); give a run folder"):
        parse_log(tmp_path / "none.txt")
    (tmp_path / "empty").touch()
    assert list(read_events(tmp_path / "empty")) == []
    assert figures(parse_log(tmp_path / "empty"))["ruleset"] is None


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
