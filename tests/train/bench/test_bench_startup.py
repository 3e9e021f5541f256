"""Both alternatives start real jobs, and the phases of their ledgers lie within the whole time."""

import argparse
from pathlib import Path

import pytest

from configs.load import ROOT, load_both
from train.bench.bench_startup import _bounds, _judged, _ours, _place, _textbook, critical_path
from train.bench.launching import pack_dataset
from train.bench.measure import summarize


def test_the_critical_path_counts_another_thread_only_while_the_main_thread_waits_for_it() -> None:
    rows = [
        ("interpreter", "MainThread", 0.0, 1.0),
        ("communicator: import", "communicator", 1.0, 2.0),
        ("pipeline", "MainThread", 1.0, 3.0),
        ("communicator: init", "communicator", 2.0, 5.0),
        ("wait for communicator", "MainThread", 3.5, 5.5),
        ("loader", "other", 5.0, 9.0),
        ("warm-up", "MainThread", 6.0, 7.0),
    ]
    phases = [{"phase": name, "thread": thread, "begin_s": begin, "end_s": end} for name, thread, begin, end in rows]
    assert critical_path(phases, 8.0) == {
        "interpreter": 1.0,
        "communicator: import": 0.0,
        "pipeline": 2.0,
        "communicator: init": 1.5,
        "loader": 0.5,
        "warm-up": 1.0,
        "between phases": 2.0,
    }


def test_the_longest_parts_are_named_and_the_goal_has_a_verdict() -> None:
    starts = [{"command_to_first_step_s": 3.0, "critical path: import_s": 2.5, "critical path: pipeline_s": 0.5}] * 5
    rows = [_judged(row) for row in summarize("ours", starts)]
    assert [row.verdict for row in rows] == ["over 2 s", "", ""]
    assert _bounds(rows).endswith("critical path: import 2.50 s, pipeline 0.50 s")
    parts = [{"critical path: import_s": seconds, "critical path: pipeline_s": 2.0} for seconds in (1.0, 1.0, 9.0)]
    assert _bounds(summarize("ours", parts)).endswith("pipeline 2.00 s, import 1.00 s"), "one slow start is no rule"


@pytest.mark.slow
@pytest.mark.ranks
def test_both_orders_start_a_rank_and_their_phases_lie_within_its_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = (ROOT / "configs" / "recipes" / "imagenet-smoke.yaml").read_text(encoding="utf-8")
    recipe = tmp_path / "small.yaml"
    text = text.replace("name: resnet50", "name: resnet8").replace("image_size: 224", "image_size: 32")
    recipe.write_text(text, encoding="utf-8")
    monkeypatch.setattr("train.bench.bench_startup._RECIPE", str(recipe))
    small = argparse.Namespace(image_size=32, batch_size=1, ranks=1, cluster="laptop", overrides=[])
    _, cluster = load_both(str(recipe), "laptop", _place(small))
    ours = _ours(small, cluster, _place(small), tmp_path / "run")
    textbook = _textbook(small, 1, "dali", pack_dataset(*load_both(str(recipe), "laptop")), tmp_path / "ledger.json")
    for figures in (ours, textbook):
        assert 0 < figures["rank_to_run_start_s"] < figures["command_to_run_start_s"]
        phases = [value for name, value in figures.items() if "_to_" not in name and not name.startswith("critical")]
        assert max(phases) < figures["rank_to_run_start_s"]
    assert {"import of MXNet_s", "warm-up_s"} <= ours.keys()
    path = [value for name, value in ours.items() if name.startswith("critical path: ")]
    assert sum(path) == pytest.approx(ours["command_to_first_step_s"], abs=1e-3)
    assert min(path) > -0.02, "the ledger's clock and the log's differ by their precision only"
    assert {"imports_s", "warm-up_s"} <= textbook.keys()
