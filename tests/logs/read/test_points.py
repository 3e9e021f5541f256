"""The single values of a log, who ran what on how many images, and what a record computes from them."""

import json
from pathlib import Path
from typing import Any

import pytest

from logs.read.lines import parse_text
from logs.read.parse import parse_events
from logs.read.record import Evaluation, RunRecord


def _record(*points: tuple[str, Any], time_ms: float = 1.7e12) -> RunRecord:
    rows = ({"time_ms": time_ms, "key": key, "value": value, "metadata": {}} for key, value in points)
    return parse_events(parse_text("".join(f":::MLLOG {json.dumps(row)}\n" for row in rows)), Path("made.txt"))


@pytest.mark.parametrize(
    ("name", "key", "value"),
    [
        ("submitter", "submission_org", "Org"), ("benchmark", "submission_benchmark", "resnet"),
        ("division", "submission_division", "open"), ("platform", "submission_platform", "box"),
        ("global_batch_size", "global_batch_size", 7), ("global_batch_size", "input_batch_size", 512),
        ("train_samples", "train_samples", 9), ("train_samples", "preproc_num_train_examples", 9),
        ("train_samples", "num_train_examples", 9), ("eval_samples", "eval_samples", 9),
        ("eval_samples", "preproc_num_eval_examples", 9), ("eval_samples", "num_eval_examples", 9),
        ("target", "eval_target", 0.75),
    ],
)  # fmt: skip
def test_each_key_has_its_place_in_the_record(name: str, key: str, value: object) -> None:
    found = _record((key, value))
    assert getattr(found, name) == value
    assert found == RunRecord(
        Path("made.txt"), ruleset="4.0.0", settings={key: value} if key == "eval_target" else {}, **{name: value},  # type: ignore[arg-type]
    )  # fmt: skip


def test_of_several_names_of_a_number_that_of_the_later_rounds_counts_and_of_several_values_the_last() -> None:
    sizes = ("global_batch_size", 64), ("input_batch_size", 512)
    counts = ("num_train_examples", 1), ("preproc_num_train_examples", 2), ("train_samples", "3")
    assert _record(*sizes).global_batch_size == 64
    assert _record(("global_batch_size", 0), sizes[1]).global_batch_size == 512
    assert [_record(*counts[: n + 1]).train_samples for n in range(3)] == [1, 2, 3]
    assert _record(("eval_samples", 5), ("eval_samples", 6)).eval_samples == 6
    assert _record(("train_samples", "many"), counts[0]).train_samples == 1


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
        ({"train_samples": None}, "the log does not have train_samples"),
        ({"evaluations": ()}, "the log does not have an epoch that has ended"),
        ({"time_to_train_s": 0.0}, "the log does not have the times of run_start and of an end"),
        ({"train_samples": None, "evaluations": ()}, "the log does not have train_samples and an epoch that has ended"),
        ({"benchmark": "bert"}, "the log is of the benchmark bert, which trains on no images"),
    ],
)
def test_without_a_rate_the_words_say_why(changes: dict[str, Any], words: str) -> None:
    record = RunRecord(Path("log"), **FULL | changes)
    assert (record.images_per_s, record.no_rate_because) == (None, words)
    assert (record.images_per_epoch is None) == (changes.get("train_samples", 1) is None or record.benchmark == "bert")
