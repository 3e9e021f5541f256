"""Alternatives are measured in turn, rows have a spread, and ratios are computed round by round."""

from __future__ import annotations

import importlib
import json
import subprocess
import sys
from pathlib import Path

import pytest

from configs.load import ROOT
from tests.train.bench import quick as quick_bench
from train.bench.__main__ import main
from train.bench.bench_options import BENCHES, BenchEntry
from train.bench.measure import BenchRow, MeasurementFailed, interleave
from train.bench.samples import read_samples


def test_samples_are_found_behind_the_name_that_a_launcher_gives_a_rank() -> None:
    line = '{"alternative": "step", "samples": [{"step_ms": 2.0}]}'
    for output in (line, f"[1,0]<stdout>:{line}", f"a warning\n[1,0]<stdout>: {line}\n[1,1]<stdout>:more"):
        assert read_samples(output) == {"step": [{"step_ms": 2.0}]}
    with pytest.raises(MeasurementFailed, match="without a measurement:\nkilled"):
        read_samples("killed\n")


def test_alternatives_take_turns_and_warm_up_rounds_do_not_count() -> None:
    order: list[str] = []

    def measure(name: str, values: list[float]) -> dict[str, float]:
        order.append(name)
        return {"step_ms": values[order.count(name) - 1]}

    rows = interleave(
        {"ours": lambda: measure("ours", [99, 1, 2, 9]), "theirs": lambda: measure("theirs", [99, 2, 8, 3])},
        n=3,
        warmup=1,
        reference="theirs",
    )
    assert order == ["ours", "theirs"] * 4
    assert rows == [
        BenchRow("ours", "step_ms", 3, 1, median=2, low=1, high=9),
        BenchRow("theirs", "step_ms", 3, 1, median=3, low=2, high=8),
        # The ratios of the rounds are 1/2, 2/8 and 9/3; their median is not the ratio of the medians.
        BenchRow("ours", "step_ms / theirs", 3, 1, median=0.5, low=0.25, high=3),
    ]


def test_figures_that_the_reference_lacks_or_has_as_zero_get_no_ratio() -> None:
    alternatives = {"ours": lambda: {"a_s": 1.0, "b_s": 2.0, "c_s": 3.0}, "theirs": lambda: {"a_s": 4.0, "b_s": 0.0}}
    rows = interleave(alternatives, n=2, reference="theirs")
    assert [row.figure for row in rows if "/" in row.figure] == ["a_s / theirs"]


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Add a bench that takes no time."""
    entry = BenchEntry("how the harness works", quick_bench.__name__, quick_bench.add_options)
    monkeypatch.setitem(BENCHES, "quick", entry)


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
    assert capsys.readouterr().err == "error: no rank was started\n"


@pytest.mark.parametrize("words", [[], *([name] for name in BENCHES)])
def test_help_needs_nothing_but_the_standard_library(words: list[str]) -> None:
    imports = f"import sys; sys.path.insert(0, {str(ROOT)!r}); from train.bench.__main__ import main"
    lines = f"{imports}; main({[*words, '--help']})"
    # With -S, Python does not see site-packages, so nothing that is installed can be imported.
    done = subprocess.run([sys.executable, "-I", "-S", "-c", lines], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert words or all(name in done.stdout for name in BENCHES)


@pytest.mark.parametrize("name", BENCHES)
def test_every_bench_has_a_module_that_measures(name: str) -> None:
    assert callable(importlib.import_module(BENCHES[name].module).measure)


def test_a_bench_that_does_not_exist_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "epcoh"]) == 2
    assert capsys.readouterr().err == "error: epcoh: no such bench; did you mean 'epoch'?\n"


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["epoch", "--rouns", "1"], "--rounds"),
        ([], "NAME"),
        (["peers", "--cluster", "laptop"], "others do: allreduce, input, overlap, startup, step"),
        (["overlap", "--cluster", "abci-v100", "--links", "5"], "allowed: none on abci-v100"),
        (["overlap", "--set", "cluster.ranks_per_node=1"], "allowed: two ranks or more"),
        (["step", "--cluster", "laptpo"], "did you mean 'laptop'"),
    ],
)
def test_a_wrong_argument_is_one_line(words: list[str], expected: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", *words]) == 2
    error = capsys.readouterr().err
    assert expected in error
    assert error.count("\n") == 1
