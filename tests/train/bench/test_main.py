"""``./run.sh bench``: the machine is watched while the bench measures, and the file says the same as the table."""

from __future__ import annotations

import json
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from train.bench import __main__ as bench_main
from train.bench.measure import BenchRow, MeasurementFailed, Report, make_report

_WORK_S = 0.1


def _working(_: object) -> Report:
    begin = time.process_time()
    while time.process_time() < begin + _WORK_S:
        pass
    return make_report([BenchRow("ours", "ms", n=1, warmup=0, median=2.5, low=2.5, high=2.5)], ["a note"])


def _failing(_: object) -> Report:
    raise MeasurementFailed("the ranks ended without a measurement")


def _bench(monkeypatch: pytest.MonkeyPatch, measure: object, output: Path) -> int:
    bench = SimpleNamespace(measure=measure)
    monkeypatch.setattr(bench_main, "importlib", SimpleNamespace(import_module=lambda _: bench))
    return bench_main.main(["bench", "startup", "--output", str(output)])


def test_the_use_of_the_machine_is_that_during_the_bench(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    output = tmp_path / "new" / "startup.json"
    begin = time.monotonic()
    assert _bench(monkeypatch, _working, output) == 0
    elapsed_s = time.monotonic() - begin
    tree = json.loads(output.read_text(encoding="utf-8"))
    assert tree["bench"] == "startup"
    assert tree["use"]["own_cores"] >= 0.8 * _WORK_S / elapsed_s
    assert tree["use"]["own_cores"] * elapsed_s < 20 * _WORK_S
    assert tree["rows"][0]["median"] == 2.5
    told = capsys.readouterr().out
    assert "- a note" in told
    assert told.endswith(f"{output}\n")


def test_a_measurement_that_failed_is_one_line_and_no_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    output = tmp_path / "startup.json"
    assert _bench(monkeypatch, _failing, output) == 1
    assert capsys.readouterr().err == "error: the ranks ended without a measurement\n"
    assert not output.exists()
