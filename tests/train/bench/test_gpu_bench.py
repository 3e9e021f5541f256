"""``bench gpu --tiny`` on a CPU, in an environment that may have no MXNet."""

import io
import json
import os
import runpy
import subprocess
import sys
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from configs.load import ROOT, load_both
from tests.train.bench.answering import Answering, Started
from train.bench.bench_gpu import GpuBench
from train.bench.launching import Jobs

pytest.importorskip("torch")
pytest.importorskip("nvidia.dali")


def _here(started: Started) -> Any:
    """Run a program of one rank in this process, which has imported PyTorch already; start another program."""
    if not started.name:
        return Jobs().run(started.words).check()
    argv = ["rank", *started.words[-2:]]
    with mock.patch.object(sys, "argv", argv), redirect_stdout(io.StringIO()) as told:
        runpy.run_module("train.bench.rank", run_name="__main__")
    return 0, told.getvalue()


@pytest.mark.slow
@pytest.mark.ranks
def test_sums_give_rows_where_pythonpath_leads_to_the_program(tmp_path: Path) -> None:
    words = f"gpu --tiny --only nccl --seconds 0.01 --folder {tmp_path} --output {tmp_path}/o"
    command = [sys.executable, "-m", "train.bench", *words.split()]
    done = subprocess.run(command, cwd="/", env={**os.environ, "PYTHONPATH": str(ROOT)}, check=False)
    lines = [json.loads(line) for line in (tmp_path / "rows.jsonl").read_text(encoding="utf-8").splitlines()[1:]]
    assert [line for line in lines if "note" in line] == []
    rows = [line for line in lines if "figure" in line]
    assert {line["part"] for line in rows} == {"nccl"}
    assert done.returncode == 0


@pytest.mark.slow
@pytest.mark.ranks
def test_a_network_learns_the_classes_of_jpegs_and_the_official_checker_accepts_the_log(tmp_path: Path) -> None:
    report = GpuBench(only=["verdict"], folder=tmp_path, tiny=True).measure(Jobs())
    (top1,) = [row for row in report.rows if row.figure == "top1"]
    assert top1.median >= 0.5, "chance is 0.1"
    assert top1.verdict == "as expected"


@pytest.mark.slow
def test_what_needs_no_compiler_is_measured_and_what_was_measured_is_left_out_of_the_next_call(tmp_path: Path) -> None:
    parts = ["machine", "kernels", "decoding", "jpegs", "profile"]
    bench = GpuBench(only=parts, seconds=0.01, folder=tmp_path, tiny=True)
    report = bench.measure(Answering(answer=_here))
    found = {(row.alternative, row.figure): row for row in report.rows}
    rates = {name: row.median for (name, figure), row in found.items() if figure == "images_per_s"}
    assert {"whole", "region", "batch 8 of JPEGs, eager", "batch 8 of JPEGs, graph"} <= rates.keys()
    step, waited = (found["batch 8 of JPEGs, eager", figure].median for figure in ("step_ms", "input_wait_ms"))
    assert 0 < waited < step
    (note,) = [note for note in report.notes if note.startswith("decoding: ")]
    assert "hardware decoder" in note
    kernels = [row for row in report.rows if row.figure.endswith("_error") and row.verdict]
    assert {row.verdict for row in kernels} == {"as expected"}
    spent_ms = [(row.alternative, row.median) for row in report.rows if row.figure == "kernel_ms"]
    groups = [median for name, median in spent_ms if ": all: " in name]
    assert sum(groups) == pytest.approx(spent_ms[0][1]), "every kernel is in one group"
    longest = [median for _, median in spent_ms[1 + len(groups) :]]
    assert len(longest) == 20
    assert longest == sorted(longest, reverse=True)
    assert spent_ms[0][1] > sum(longest) > 0.5 * spent_ms[0][1]
    assert bench.measure(Answering(answer=_here)).rows == []


@pytest.mark.medium
def test_a_case_that_ends_the_process_is_noted_and_the_others_are_measured_in_another_process(tmp_path: Path) -> None:
    def measure(ends: str | None) -> tuple[list[list[str]], dict[str, float], list[str]]:
        def answer(started: Started) -> tuple[int, str]:
            cases = list(started.task["cases"])
            for task in started.task["cases"].values():
                load_both(task["recipe"], "laptop", task["overrides"])  # which refuses what cannot be measured
            bad = next((number for number, title in enumerate(cases) if ends and ends in title), None)
            samples = [{"step_ms": 2.0}, {"step_ms": 4.0}]
            lines = [json.dumps({"alternative": title, "samples": samples}) for title in cases[:bad]]
            return (0, "\n".join(lines)) if bad is None else (7, "\n".join([*lines, "out of memory"]))

        jobs = Answering(answer=answer)
        report = GpuBench(only=["levers"], seconds=1.0, minutes=1.0, folder=tmp_path, tiny=True).measure(jobs)
        notes = [note for note in report.notes if note.startswith("levers: ")]
        asked = [list(started.task["cases"]) for started in jobs.started]
        return asked, {row.alternative: row.median for row in report.rows}, notes

    asked, medians, notes = measure("input_channels=4")
    whole, rest = asked
    failed = next(title for title in whole if "input_channels=4" in title)
    assert rest == whole[whole.index(failed) + 1 :] != []
    assert medians == dict.fromkeys((title for title in whole if title != failed), 3.0)
    (note,) = notes
    assert failed in note
    assert "out of memory" in note
    lines = [json.loads(line) for line in (tmp_path / "rows.jsonl").read_text(encoding="utf-8").splitlines()]
    assert {line["alternative"] for line in lines if "figure" in line} == medians.keys()
    # A machine may be taken away between two rows, and within a line.
    kept = [json.dumps(line) for line in lines if line.get("alternative") != rest[-1] and "ended" not in line]
    (tmp_path / "rows.jsonl").write_text("\n".join([*kept, kept[-1][:9]]), encoding="utf-8")
    asked, medians, notes = measure(None)
    assert (asked, medians, notes) == ([[failed, rest[-1]]], {failed: 3.0, rest[-1]: 3.0}, [])
    assert f"| {rest[0]} |" in (tmp_path / "table.md").read_text(encoding="utf-8"), "of the first call"
    assert measure(None) == ([], {}, [])
