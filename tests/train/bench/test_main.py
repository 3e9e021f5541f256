"""``./run.sh bench``: its help, its rows in a table and a file, and what it refuses."""

import argparse
import importlib
import json
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from configs.errors import UserError
from configs.load import ROOT
from tests.train.bench import quick as quick_bench
from train.bench.__main__ import _RESULTS, _text, main
from train.bench.bench_options import BENCHES, BenchEntry
from train.bench.measure import Report, make_report, summarize

_WORK_S = 0.1


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Add a bench that takes no time."""
    entry = BenchEntry("how the harness works", quick_bench.__name__, quick_bench.add_options)
    monkeypatch.setitem(BENCHES, "quick", entry)


@pytest.mark.usefixtures("quick")
def test_a_bench_prints_a_table_and_writes_its_rows(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "new" / "below" / "rows.json"
    assert main(["bench", "quick", "--rounds", "3", "--output", str(file)]) == 0
    printed = capsys.readouterr().out
    tree = json.loads(file.read_text(encoding="utf-8"))
    assert tree["bench"] == "quick"
    assert {"mxnet", "numpy", "python", "commit"} <= set(tree["versions"])
    assert tree["machine"]["usable_cores"] >= 1
    (row,) = tree["rows"]
    other = row.pop("other_cores")
    assert other >= 0
    assert tree["use"]["other_cores"] + tree["use"]["stolen_cores"] == pytest.approx(other, abs=1e-3)
    figures = {"n": 3, "warmup": 0, "median": 2.0, "low": 2.0, "high": 2.0}
    no_answer = {"interval_low": None, "interval_high": None, "verdict": ""}
    assert row == {"alternative": "nothing", "figure": "step_ms", **figures, **no_answer}
    assert "too few" in printed
    assert "nothing was measured" in printed
    assert str(file) in printed
    assert main(["bench", "quick", "--json", "--output", str(file)]) == 0
    assert json.loads(capsys.readouterr().out)["rows"][0]["n"] == 2


def test_a_row_of_the_table_has_the_median_its_interval_the_ends_and_the_number() -> None:
    rows = [
        *summarize("ours", [{"step_ms": float(each)} for each in range(1, 21)]),
        replace(summarize("theirs", [{"step_ms": 1.0}])[0], verdict="faster"),
    ]
    text = [" ".join(line.split()) for line in _text(make_report(rows, ["a note"])).splitlines()]
    assert text[0] == "alternative figure median 90% interval low high n verdict"
    assert text[1] == "ours step_ms 10.5 6 to 15 1 20 20"
    assert text[2] == "theirs step_ms 1 too few 1 1 1 faster"
    assert text[3:] == ["- a note"]


@pytest.mark.usefixtures("quick")
def test_rows_go_to_a_file_with_the_name_of_the_bench_where_no_other_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert _RESULTS == ROOT / "runs" / "bench"
    monkeypatch.setattr("train.bench.__main__._RESULTS", tmp_path / "runs" / "bench")
    assert main(["bench", "quick"]) == 0
    (file,) = tmp_path.glob("runs/bench/quick-*-*.json")
    assert json.loads(file.read_text(encoding="utf-8"))["bench"] == "quick"


def test_a_bench_whose_engine_is_missing_does_not_begin(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refuse(engine: str) -> None:
        raise UserError(f"{engine} is missing")

    monkeypatch.setattr("configs.registry.require_engine", refuse)
    monkeypatch.setitem(
        BENCHES, "quick", BenchEntry("nothing", quick_bench.__name__, quick_bench.add_options, needs="torch")
    )
    assert main(["bench", "quick"]) == 2
    assert capsys.readouterr().err == "error: torch is missing\n"


@pytest.mark.usefixtures("quick")
def test_ctrl_c_ends_with_the_status_of_a_signal(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(quick_bench, "measure", interrupted)
    assert main(["bench", "quick"]) == 130


@pytest.mark.usefixtures("quick")
def test_the_use_of_the_machine_is_that_during_the_bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def work(options: argparse.Namespace) -> Report:
        end_s = time.process_time() + _WORK_S
        while time.process_time() < end_s:
            pass
        return quick_measure(options)

    quick_measure = quick_bench.measure
    monkeypatch.setattr(quick_bench, "measure", work)
    file, begin_s = tmp_path / "rows.json", time.monotonic()
    assert main(["bench", "quick", "--output", str(file)]) == 0
    elapsed_s = time.monotonic() - begin_s
    used = json.loads(file.read_text(encoding="utf-8"))["use"]["own_cores"]
    assert 0.8 * _WORK_S < used * elapsed_s < 20 * _WORK_S


@pytest.mark.usefixtures("quick")
def test_a_measurement_that_failed_is_status_one(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "quick", "--fail"]) == 1
    assert capsys.readouterr().err == "error: no rank was started\n"


_HELP = """
import contextlib, io, json, sys, traceback
sys.path.insert(0, sys.argv[1])
from train.bench.__main__ import main

told = []
for words in json.loads(sys.argv[2]):
    failure, text = "", io.StringIO()
    try:
        with contextlib.redirect_stdout(text):
            main([*words, "--help"])
    except SystemExit as end:
        failure = str(end.code or "")
    except BaseException:
        failure = traceback.format_exc()
    told.append([failure, text.getvalue()])
print(json.dumps(told))
"""
HELPED: list[list[str]] = [[], *([name] for name in BENCHES)]


@pytest.fixture(scope="module")
def helps() -> dict[str, tuple[str, str]]:
    """Return why the help failed, and the help, by the words before `--help`, all from one start of Python."""
    # With -S, Python does not see site-packages, so nothing that is installed can be imported.
    command = [sys.executable, "-I", "-S", "-c", _HELP, str(ROOT), json.dumps(HELPED)]
    told = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    return dict(zip(map(" ".join, HELPED), json.loads(told), strict=True))


@pytest.mark.parametrize("words", HELPED)
def test_help_needs_nothing_but_the_standard_library(helps: dict[str, tuple[str, str]], words: list[str]) -> None:
    failure, text = helps[" ".join(words)]
    assert failure == ""
    assert text.startswith("usage: ./run.sh bench")
    assert words or all(name in text for name in BENCHES)


@pytest.mark.parametrize("name", BENCHES)
def test_every_bench_has_a_module_that_measures(name: str) -> None:
    assert callable(importlib.import_module(BENCHES[name].module).measure)


def test_a_bench_that_does_not_exist_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "epcoh"]) == 2
    assert capsys.readouterr().err == "error: epcoh: no such bench; did you mean 'epoch'?\n"


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (
            ["epoch", "--rouns", "1"],
            "'--rouns' is not expected here; did you mean '--rounds'?; see ./run.sh bench epoch ",
        ),
        # Other benches have --steps and --ranks.
        (["step", "--starts", "2"], "'--starts' is not expected here; choose one of --cases, --cluster"),
        ([], "NAME"),
        (["peers", "--cluster", "laptop"], "others do: allreduce, input, overlap, startup, step"),
        (["overlap", "--cluster", "abci-v100", "--links", "5"], "allowed: none on abci-v100"),
        (["overlap", "--compute", "real", "--set", "cluster.ranks_per_node=1"], "allowed: two ranks or more"),
        (["overlap", "--ranks", "1"], "allowed: two ranks or more"),
        (["overlap", "--compute", "real", "--ranks", "2"], "allowed: with --compute timed"),
        (["overlap", "--compute", "timed", "--cluster", "abci-v100"], "--described names the machine"),
        (["overlap", "--described", "abci-v10"], "did you mean 'abci-v100'"),
        (["step", "--cluster", "laptpo"], "did you mean 'laptop'"),
    ],
)
def test_a_wrong_argument_is_one_line(words: list[str], expected: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", *words]) == 2
    error = capsys.readouterr().err
    assert expected in error
    assert error.count("\n") == 1
