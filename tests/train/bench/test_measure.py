"""Alternatives in turn, rows with their spread, ratios round by round."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from train.bench.__main__ import _BENCHES, main
from train.bench.measure import Row, interleave


def test_alternatives_take_turns_and_warm_up_rounds_do_not_count() -> None:
    order: list[str] = []

    def measure(name: str, values: list[float]) -> dict[str, float]:
        order.append(name)
        return {"step_ms": values[order.count(name) - 1]}

    rows = interleave(
        {"ours": lambda: measure("ours", [99, 1, 2, 9]), "theirs": lambda: measure("theirs", [99, 2, 8, 3])},
        n=3, warmup=1, reference="theirs",
    )  # fmt: skip
    assert order == ["ours", "theirs"] * 4
    assert rows == [
        Row("ours", "step_ms", 3, 1, median=2, low=1, high=9),
        Row("theirs", "step_ms", 3, 1, median=3, low=2, high=8),
        # 1/2, 2/8 and 9/3: paired by round, so not the ratio of the medians.
        Row("ours", "step_ms / theirs", 3, 1, median=0.5, low=0.25, high=3),
    ]


def test_figures_that_the_reference_lacks_or_has_as_zero_get_no_ratio() -> None:
    alternatives = {"ours": lambda: {"a_s": 1.0, "b_s": 2.0, "c_s": 3.0}, "theirs": lambda: {"a_s": 4.0, "b_s": 0.0}}
    rows = interleave(alternatives, n=2, reference="theirs")
    assert [row.figure for row in rows if "/" in row.figure] == ["a_s / theirs"]


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Add a bench that takes no time."""
    monkeypatch.setitem(_BENCHES, "quick", "tests.train.bench.quick")


@pytest.mark.usefixtures("quick")
def test_a_bench_prints_a_table_and_writes_its_rows(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "new" / "rows.json"
    assert main(["bench", "quick", "--rounds", "3", "--output", str(file)]) == 0
    printed = capsys.readouterr().out
    tree = json.loads(file.read_text(encoding="utf-8"))
    assert tree["bench"] == "quick"
    assert {"mxnet", "numpy", "python", "commit"} <= set(tree["versions"])
    assert tree["machine"]["usable_cores"] >= 1
    row = {"alternative": "nothing", "figure": "step_ms", "n": 3, "warmup": 0, "median": 2.0, "low": 2.0, "high": 2.0}
    assert tree["rows"] == [row]
    assert "nothing was measured" in printed
    assert str(file) in printed
    assert main(["bench", "quick", "--json", "--output", str(file)]) == 0
    assert json.loads(capsys.readouterr().out)["rows"][0]["n"] == 2


@pytest.mark.usefixtures("quick")
def test_a_measurement_that_failed_is_status_one(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "quick", "--fail"]) == 1
    assert capsys.readouterr().err == "error: the ranks died of boredom\n"


def test_help_names_every_bench_with_its_question_and_imports_no_framework() -> None:
    program = (
        "import sys; from train.bench.__main__ import main\n"
        "try: main(['--help'])\n"
        "finally: print('mxnet' in sys.modules)"
    )
    said = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout
    assert all(name in said for name in _BENCHES)
    assert said.splitlines()[-1] == "False"


def test_a_bench_that_does_not_exist_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "epcoh"]) == 2
    assert capsys.readouterr().err == "error: epcoh: no such bench; did you mean 'epoch'?\n"


@pytest.mark.parametrize(("words", "said"), [(["epoch", "--rouns", "1"], "--rounds"), ([], "NAME")])
def test_a_wrong_argument_is_one_line(words: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", *words]) == 2
    words_said = capsys.readouterr().err
    assert said in words_said
    assert words_said.count("\n") == 1
