"""The single values of a log, who ran what on how many images, and what a record computes from them."""

import json
from pathlib import Path
from typing import Any

import pytest

from logs.read.lines import parse_text
from logs.read.parse import parse_events
from logs.read.record import EpochSpan, Evaluation, RunRecord


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


@pytest.mark.parametrize("key", ["seed", "run_set_random_seed"])
def test_seeds_are_told_once_each_in_their_order(key: str) -> None:
    assert _record((key, 5), (key, 3), (key, 5), (key, "x"), (key, None), (key, 1.5)).seeds == (5, 3, "x")


@pytest.mark.parametrize(
    ("key", "is_setting"),
    [
        ("opt_name", True), ("lars_epsilon", True), ("sgd_opt_momentum", True), ("model_bn_span", True),
        ("gradient_accumulation_steps", True), ("label_smoothing", True), ("eval_target", True),
        ("weights_initialization", False), ("cache_clear", False), ("submission_org", False), ("my_opt_name", False),
    ],
)  # fmt: skip
def test_hyperparameters_are_known_by_the_begin_of_their_name(key: str, is_setting: bool) -> None:
    assert _record((key, 0.5)).settings == ({key: 0.5} if is_setting else {})


@pytest.mark.parametrize("value", [None, {"a": 1}, [0] * 201, "x" * 201])
def test_a_value_that_is_no_short_one_is_no_setting_and_no_point(value: object) -> None:
    record = _record(("opt_name", value), ("submission_org", value))
    assert (record.settings, record.submitter) == ({}, None)
    assert _record(("opt_name", [0] * 200)).settings == {"opt_name": [0] * 200}


def test_the_round_is_that_of_the_first_time_and_the_dialect_that_of_the_first_record() -> None:
    rows = [f':::MLLOG {{"time_ms": {at}, "key": "a"}}' for at in (5, 1.6e12, 1.7e12)]
    assert parse_events(parse_text(" ".join(rows)), Path("log")).ruleset == "1.0.0"
    old = [":::MLL 1560000000.0 a: {}", ":::MLPv0.5.0 resnet 1540000000.0 (a.py:1) a"]
    for lines, ruleset in ((old, "0.6.0"), (old[::-1], "0.5.0"), ([rows[2], *old], "0.6.0"), ([], None)):
        assert parse_events(parse_text("\n".join(lines)), Path("log")).ruleset == ruleset
    assert parse_events([None, None], Path("log")) == RunRecord(Path("log"), unreadable=2)


def test_events_at_the_time_of_an_end_or_a_begin_belong_to_the_run() -> None:
    at_once = _record(("run_start", None), ("init_start", None), ("run_stop", None), ("eval_accuracy", 0.5))
    assert (at_once.began_s, at_once.time_to_train_s, at_once.init_starts) == (1.7e9, 0.0, (1, 0.0))
    assert [each.accuracy for each in at_once.evaluations] == [0.5]


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


def test_the_last_accuracy_that_is_a_number_counts_and_the_most_epochs() -> None:
    record = RunRecord(Path("log"), evaluations=(*EVALUATIONS, Evaluation(2, 70.0, None, None)), last_epoch=99)
    assert (record.final_accuracy, record.epochs) == (0.5, 8)
    assert RunRecord(Path("log"), last_epoch=7).epochs == 7
    spans = (EpochSpan(1, 0.0, 10.0, 2), EpochSpan(3, 20.0, 21.0), EpochSpan(4, 30.0, 39.0))
    assert RunRecord(Path("log"), epoch_spans=spans).median_epoch_s == 5.0
    assert RunRecord(Path("log")).median_epoch_s is None
    assert (RunRecord(Path("log"), benchmark="bert").images_per_epoch, RunRecord(Path("log")).images_per_epoch) == (
        None,
        None,
    )


@pytest.mark.parametrize(
    ("samples", "is_imagenet"), [(None, True), (1281167, True), (1281024, True), (1260000, False), (60_000, False)]
)
def test_imagenet_is_told_by_the_number_of_its_images(samples: int | None, is_imagenet: bool) -> None:
    assert RunRecord(Path("log"), benchmark="resnet", train_samples=samples).is_of_imagenet is is_imagenet
    assert not RunRecord(Path("log"), benchmark="bert", train_samples=samples).is_of_imagenet
