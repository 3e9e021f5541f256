"""Each part of a reported run, from its own file and with its own rule for what is missing or damaged."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from configs.errors import UserError
from logs.judge.evidence import LONGEST_S
from logs.read.record import RunRecord
from logs.show.reported_run import ReportedRun, _flat, _main_log, _missing, _or, _rows, gather_run
from tests.logs import samples


def _run(path: Path, **record: Any) -> ReportedRun:
    return ReportedRun("a", path, None, RunRecord(path, **record))


def test_each_part_is_read_from_its_file(tmp_path: Path) -> None:
    folder = samples.run_folder(tmp_path / "run")
    started = json.loads((folder / "startup.json").read_text())
    (folder / "startup.json").write_text(json.dumps(started | {"last": {"rank": 1}}))
    row = {"time": 5.0, "busy_cores": 1.5, "machine_busy_cores": 2.0, "memory_bytes": 7}
    (folder / "utilisation.jsonl").write_text(json.dumps(row) + "\n")
    attempt = {"time": "t", "outcome": "failed", "cause": "c", "host": None, "from_step": 0, "kept_step": 0}
    (folder / "attempts.jsonl").write_text(json.dumps(attempt | {"goes_on": True}) + "\n")
    run = gather_run(folder, "named")
    assert (run.name, run.path, run.log) == ("named", folder, folder / "result_0.txt")
    assert [row["kind"] for row in run.intervals] == ["interval"] * 8, "and no evaluations"
    assert [phase["phase"] for phase in run.startup][:2] == ["interpreter", "communicator"]
    assert run.last_start == {"rank": 1}
    assert [row["rank"] for row in run.ranks] == [0, 1]
    assert [(each.time, each.busy_cores) for each in run.samples] == [(5.0, 1.5)]
    assert run.summary["recipe"] == "digits"
    assert [each.cause for each in run.restarts] == ["c"]
    (folder / "startup.json").write_text(json.dumps(started | {"last": [1]}))
    assert gather_run(folder).last_start == {}
    log = gather_run(folder / "result_0.mll.txt")
    assert (log.name, log.path, log.log) == ("result_0.mll", log.log, folder / "result_0.mll.txt")
    assert gather_run(folder / "result_0.txt", "x").name == "x"


def test_what_is_no_run_is_told_with_what_to_give(tmp_path: Path) -> None:
    for path, words in (
        (tmp_path / "none", "no such file or folder; give run folders or logs"),
        (tmp_path, "contains neither result_*.txt nor config.yaml; give a run folder or a log"),
    ):
        with pytest.raises(UserError) as caught:
            gather_run(path)
        assert str(caught.value) == f"{path}: {words}"


def test_the_log_is_that_of_the_newer_ruleset_or_else_the_first(tmp_path: Path) -> None:
    assert _main_log(tmp_path) is None
    (tmp_path / "result_0a.txt").mkdir()
    found = []
    for name in ("result_9.txt", "result_3.txt", "result_0.mll.txt", "result_0.txt"):
        (tmp_path / name).touch()
        log = _main_log(tmp_path)
        assert log is not None
        found.append(log.name)
    assert found == ["result_9.txt", "result_3.txt", "result_0.mll.txt", "result_0.txt"]


def test_the_files_that_an_ended_run_lacks_are_all_named_and_a_link_to_nothing_is_a_file(tmp_path: Path) -> None:
    names = ["summary.json", "metrics.jsonl", "startup.json", "environment.json", "result_0.txt", "result_0.mll.txt"]
    assert _missing(tmp_path) == [f"missing in the run folder: {', '.join(names)}"]
    for name in names[1:]:
        (tmp_path / name).touch()
    assert _missing(tmp_path) == ["missing in the run folder: summary.json"]
    (tmp_path / "summary.json").symlink_to(tmp_path / "gone")
    assert _missing(tmp_path) == []


@pytest.mark.parametrize("error", [OSError, ValueError, UserError, FileNotFoundError, json.JSONDecodeError("", "", 0)])
def test_a_file_that_cannot_be_read_leaves_its_part_empty(error: Any) -> None:
    def read(_: Path) -> list[int]:
        raise error

    assert _or(read, Path("a"), [7]) == [7]
    empty: list[str] = []
    assert _or(lambda path: [str(path)], Path("a"), empty) == ["a"]


def test_settings_are_dotted_keys_without_the_card_and_an_empty_group_is_a_value() -> None:
    tree = {"recipe": {"card": {"time": "1 h"}, "cardinal": 1, "a": {}}, "b": {"card": 2, "c": {"d": None}}}
    assert _flat(tree) == [("recipe.cardinal", 1), ("recipe.a", {}), ("b.card", 2), ("b.c.d", None)]


def test_rows_without_their_names_or_with_odd_times_are_left_out() -> None:
    good = {"name": "n", "s": 1.0, "more": "x"}
    odd: list[Any] = [
        {"s": 1.0}, {"name": "n"}, {**good, "s": "1"}, {**good, "s": LONGEST_S}, {**good, "s": -LONGEST_S},
        {**good, "s": float("nan")}, {**good, "s": None}, [1], 5, None,
    ]  # fmt: skip
    assert _rows([good, *odd, {**good, "s": 0}], {"name"}, {"s"}) == [good, {**good, "s": 0}]
    for table in (None, {"name": "n"}, "text", 5):
        assert _rows(table, {"name"}, {"s"}) == []


@pytest.mark.parametrize(
    ("record", "summary", "in_folder", "target"),
    [
        ({"target": 0.7}, {}, False, 0.7), ({"target": 0.7}, {"target": 1}, False, 1.0),
        ({"target": 0.7}, {"target": "0.8"}, True, 0.7), ({}, {"target": 0.5}, True, 0.5),
        ({"benchmark": "resnet", "division": "closed"}, {}, False, 0.759),
        ({"benchmark": "resnet", "division": "closed"}, {}, True, None),
        ({"benchmark": "resnet", "division": "closed", "target": 0.7}, {}, False, 0.7),
        ({"benchmark": "resnet", "division": "open"}, {}, False, None),
        ({"benchmark": "bert", "division": "closed"}, {}, False, None), ({}, {}, False, None),
        ({"benchmark": "resnet"}, {}, False, None),
    ],
)  # fmt: skip
def test_the_target_is_the_summary_s_or_the_log_s_or_that_of_the_rules(
    tmp_path: Path, record: dict[str, Any], summary: dict[str, Any], in_folder: bool, target: float | None
) -> None:
    run = replace(_run(tmp_path if in_folder else tmp_path / "log", **record), summary=summary)
    assert run.target == target


def test_a_rehearsal_is_known_by_its_summary_or_its_settings(tmp_path: Path) -> None:
    run = _run(tmp_path)
    told = [{"is_rehearsal": True}, {"is_rehearsal": False}, {}]
    assert [replace(run, summary=summary).is_rehearsal for summary in told] == [True, False, False]
    assert replace(run, settings={"cluster.rehearsal.shrink": None}).is_rehearsal
    assert run.predictions == []


def test_a_log_s_settings_have_its_batch_and_seeds_and_a_config_that_is_no_tree_none(tmp_path: Path) -> None:
    log = tmp_path / "a.txt"
    log.write_text(samples.mllog([*samples.run_events(seed=3), *samples.run_events(seed=5)[8:10]]))
    settings = gather_run(log).settings
    assert list(settings)[:2] == ["global_batch_size", "seed"]
    assert settings["opt_name"] == "lars"
    log.write_text("")
    assert gather_run(log).settings == {"global_batch_size": None, "seed": None}
    (tmp_path / "result_0.txt").write_text(samples.mllog(samples.run_events(seed=3)))
    (tmp_path / "config.yaml").write_text("- 1\n")
    assert gather_run(tmp_path).settings["seed"] == "3"
