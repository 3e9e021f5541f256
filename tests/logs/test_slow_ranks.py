"""What ``watch`` and the page say of slow ranks, from the rows of a run's metrics."""

import json
from pathlib import Path
from typing import Any

import pytest

from configs.load import load_recipe
from logs.show.reported_run import gather_run
from logs.show.watch import describe_progress
from logs.show.wording import notes_of
from logs.slow_ranks import name_ranks
from tests.logs import samples

INTERVAL = {"kind": "interval", "step": 199, "images_per_s": 1000.0, "time": 100.0}


def _row(step: int, *ranks: int, **more: Any) -> dict[str, Any]:
    slow = {"since_step": 79, "ratio": 1.5, "cost_s": 0.01, **more} if ranks else {}
    return {"kind": "slow_ranks", "step": step, "ranks": list(ranks), "hosts": ["a"] * len(ranks), "time": 9.0, **slow}


def _watched(row: dict[str, Any], now: float | None = 101.0) -> list[str]:
    last = {"interval": INTERVAL, "slow_ranks": row}
    return [text for text, _ in describe_progress(load_recipe("digits"), 1000, last, now) if "slow" in text]


def test_watch_names_ranks_that_are_slow_now() -> None:
    words = "slow since about step 79: 1.50 times the median rank's own time in a step, which makes a step 10 ms longer"
    assert _watched(_row(120, 2)) == [f"  rank 2 on a is {words}"]
    assert _watched(_row(120, 2, 3)) == [f"  rank 2 on a, rank 3 on a are {words}"]
    assert ": over 10 times the median" in _watched(_row(120, 2, ratio=19000.0))[0]
    assert _watched(_row(120, 2), None)[0].startswith("  rank 2 on a was slow from about step 79 to 120: ")
    assert _watched(_row(140)) == []


@pytest.mark.parametrize("damage", [{"ratio": None}, {"ranks": None}, {"since_step": "x"}, {"cost_s": []}])
def test_a_damaged_row_is_passed_over(damage: dict[str, Any]) -> None:
    assert _watched(_row(120, 2) | damage) == []


def test_the_page_has_a_note_on_each_stretch_and_on_no_more_than_five(tmp_path: Path) -> None:
    folder = samples.run_folder(tmp_path / "run")
    healthy = [_row(39), _row(200)]
    slow = [_row(119, 2, cost_s=0.01), _row(139, 2, cost_s=0.02), _row(159, 2, cost_s=0.03)]
    later = [_row(300 + step, 1, since_step=250 + step) for step in range(6)]
    with (folder / "metrics.jsonl").open("a", encoding="utf-8") as file:
        file.writelines(json.dumps(row) + "\n" for row in (healthy[0], *slow, healthy[1], *later))
    notes = [note for note in notes_of(gather_run(folder)) if "slow" in note]
    assert notes[0] == (
        "Rank 2 on a was slow from about step 79 to 159: 1.50 times the median rank's own time in a step, which makes "
        "a step 20 ms longer."
    )
    assert notes[1].startswith("Rank 1 on a was slow from about step 250 to 300: ")
    assert len(notes) == 5


def test_the_first_three_of_many_ranks_are_named() -> None:
    names = "rank 1 on a, rank 5 on b, rank 9 on c"
    assert name_ranks([1, 5, 9], ["a", "b", "c"]) == names
    assert name_ranks([1, 5, 9, 11], ["a", "b", "c", "d"]) == f"{names} and 1 other rank"
    assert name_ranks([1, 5, 9, 11, 12], ["a", "b", "c", "d", "e"]) == f"{names} and 2 other ranks"
