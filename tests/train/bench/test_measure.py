"""Alternatives are measured in turn, rows have a spread, and ratios are computed round by round."""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from configs.errors import UserError
from configs.load import ROOT
from tests.train.bench import quick as quick_bench
from train.bench.__main__ import _RESULTS, _parse, _text, main
from train.bench.bench_options import BENCHES, BenchEntry
from train.bench.machine_use import MachineUse, MachineUseMeter, _processor_times, _read_times, _Times
from train.bench.measure import (
    CANNOT_TELL,
    CONFIDENCE,
    BenchRow,
    MeasurementFailed,
    interleave,
    make_report,
    median_interval,
    ratio_rows,
    summarize,
    verdict_of,
)
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
    assert order == ["ours", "theirs", "theirs", "ours"] * 2
    assert rows == [
        BenchRow("ours", "step_ms", 3, 1, median=2, low=1, high=9),
        BenchRow("theirs", "step_ms", 3, 1, median=3, low=2, high=8),
        # The ratios of the rounds are 1/2, 2/8 and 9/3; their median is not the ratio of the medians.
        BenchRow("ours", "step_ms / theirs", 3, 1, median=0.5, low=0.25, high=3, verdict=CANNOT_TELL),
    ]


def test_the_interval_of_a_median_holds_it_in_nine_of_ten_cases_whatever_the_distribution() -> None:
    assert median_interval([3.0, 1, 4, 2]) is None, (
        "the median is outside the range of four values in one of eight cases"
    )
    assert median_interval([5.0, 1, 4, 2, 3]) == (1, 5)
    assert median_interval(range(1, 21)) == (6, 15), "as in tables of order statistics"
    values = np.random.default_rng(0).exponential(size=(2000, 11))
    intervals = [interval for interval in map(median_interval, values.tolist()) if interval]
    held = np.mean([low <= np.log(2) <= high for low, high in intervals])
    assert CONFIDENCE <= held < 0.96


@pytest.mark.parametrize(
    ("figure", "factors", "verdict"),
    [
        ("step_ms", [0.7, 0.8, 0.9, 0.8, 0.8], "faster"),
        ("start_s", [1.2, 1.1, 1.3, 1.1, 1.1], "slower"),
        ("images_per_s", [1.2, 1.1, 1.3, 1.1, 1.1], "faster"),
        ("images_per_core_s", [0.9, 0.8, 0.9, 0.8, 0.9], "slower"),
        ("wait_fraction", [0.9, 0.8, 0.9, 0.8, 0.9], "lower"),
        ("step_ms", [0.7, 0.8, 1.1, 0.8, 0.8], CANNOT_TELL),
        ("step_ms", [0.7, 0.8, 1.0, 0.8, 0.8], CANNOT_TELL),
        ("step_ms", [0.7, 0.7, 0.7, 0.7], CANNOT_TELL),
    ],
)
def test_a_ratio_whose_interval_holds_one_or_has_too_few_rounds_cannot_tell(
    figure: str, factors: list[float], verdict: str
) -> None:
    measured = {"ours": [{figure: 2 * factor} for factor in factors], "theirs": [{figure: 2.0}] * len(factors)}
    (row,) = ratio_rows(measured, "theirs")
    assert row.verdict == verdict


def test_an_interval_wider_than_the_question_cannot_tell() -> None:
    assert verdict_of((0.82, 0.9), 0.8, below="less", above="more", widest=0.1) == "more"
    assert verdict_of((0.82, 0.95), 0.8, below="less", above="more", widest=0.1) == CANNOT_TELL
    assert verdict_of((0.7, 0.79), 0.8, below="less", above="more", widest=0.1) == "less"


def test_processor_time_is_that_of_the_usable_cores_without_interrupts() -> None:
    stat = "cpu 9 9 9 9 9 9 9 9 0 0\ncpu0 100 20 3 999 7 50 60 40 0 0\ncpu1 1 1 1 1 1 1 1 1 0 0\nintr 5\n"
    tick_s = 1 / os.sysconf("SC_CLK_TCK")
    assert list(_processor_times(stat, {0})) == pytest.approx([123 * tick_s, 40 * tick_s])


def test_other_work_is_what_the_processors_did_without_the_bench(monkeypatch: pytest.MonkeyPatch) -> None:
    times = iter([_Times(100.0, 5.0, 10.0, 1000.0), _Times(112.0, 6.0, 13.0, 1010.0)])
    monkeypatch.setattr("train.bench.machine_use._read_times", lambda: next(times))
    use = MachineUseMeter().read()
    assert [use.own_cores, use.other_cores, use.stolen_cores] == pytest.approx([0.3, 0.9, 0.1])


def test_waiting_is_no_work_of_the_bench() -> None:
    before = _read_times()
    time.sleep(0.2)
    after = _read_times()
    assert after.now_s - before.now_s >= 0.2
    assert after.own_s - before.own_s < 0.2


def test_the_load_is_that_of_the_minute_before_the_bench(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.getloadavg", lambda: (0.5, 7.0, 9.0))
    meter = MachineUseMeter()
    monkeypatch.setattr("os.getloadavg", lambda: (4.0, 7.0, 9.0))
    assert meter.read().load_before == 0.5


def test_a_bench_that_is_bound_to_a_core_has_one_core() -> None:
    usable = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(usable)})
    try:
        assert MachineUseMeter().read().cores == 1
    finally:
        os.sched_setaffinity(0, usable)


def test_work_of_this_process_and_of_those_that_it_started_is_its_own() -> None:
    meter = MachineUseMeter()
    work = "import time\nwhile time.process_time() < 0.1: pass"
    begin = time.monotonic()
    subprocess.run([sys.executable, "-S", "-c", work], check=True)
    use = meter.read()
    assert use.own_cores * (time.monotonic() - begin) > 0.09


def test_a_busy_machine_is_a_note_and_a_field_of_every_row() -> None:
    use = MachineUse(cores=2, own_cores=1.24, other_cores=0.66, stolen_cores=0.0, load_before=2.0)
    assert use.note is not None
    assert use.note == (
        "this machine was busy: other work took 0.7 of 2 cores, the hypervisor 0.0, the bench itself 1.2; "
        "load before it 2.0"
    )
    assert MachineUse(2, own_cores=1.0, other_cores=0.0, stolen_cores=0.1, load_before=0.0).note is not None
    report = make_report(summarize("ours", [{"step_ms": 1.0}]), ["a"]).with_use(use)
    assert report.notes == ("a", use.note)
    assert [row.other_cores for row in report.rows] == [0.66]
    stolen = report.with_use(replace(use, stolen_cores=0.25))
    assert [row.other_cores for row in stolen.rows] == [0.91]
    assert replace(report, notes=()).with_use(replace(use, other_cores=0.05)).notes == ()


@pytest.mark.parametrize("name", BENCHES)
def test_every_bench_has_a_quick_and_a_thorough_effort(name: str) -> None:
    flag = {"gpu": "seconds", "race": "seeds"}.get(name, "rounds")
    quick, usual, thorough = (getattr(_parse([name, *words]), flag) for words in (["--quick"], [], ["--thorough"]))
    assert quick < (usual or 6) < thorough
    assert flag != "rounds" or (usual or 6) >= 6, "separate starts are six at least"
    with pytest.raises(UserError, match="not allowed with"):
        _parse([name, "--quick", f"--{flag}", "9"])


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


@pytest.mark.parametrize("is_dirty", [True, False])
def test_a_report_names_the_packages_and_the_commit(is_dirty: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    machine = dict.fromkeys(("platform", "cpu", "cores", "usable_cores", "memory_bytes", "gpus"), 7)
    packages = {"Pillow": "9", "numpy": "1.2", "pytest": "8"}
    found = {**machine, "python": "3.11.2 (main)", "packages": packages, "git": {"commit": "abc", "dirty": is_dirty}}
    monkeypatch.setattr("train.bench.measure.environment", lambda: found)
    report = make_report([])
    commit = "abc, changed since" if is_dirty else "abc"
    assert report.versions == {"python": "3.11.2", "Pillow": "9", "numpy": "1.2", "commit": commit}
    assert report.machine == machine
    monkeypatch.setattr("train.bench.measure.environment", lambda: {**found, "git": None})
    assert "commit" not in make_report([]).versions


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
