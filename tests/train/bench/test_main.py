"""``./run.sh bench``: its help, its rows in a table and a file, and what it refuses."""

import json
import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from configs.arguments import option
from configs.errors import UserError
from configs.registry import has_engine, installed_engine
from tests.programs import Said, python
from train.bench.__main__ import BENCHES, main, read_command
from train.bench.launching import Jobs
from train.bench.measure import Bench, Report, effort, interleave, summarize
from train.bench.samples import MeasurementFailed


@dataclass(frozen=True)
class QuickBench(Bench):
    """Takes no time."""

    question = "how the command line works"

    rounds: int = effort("rounds", quick=1, usual=20, thorough=30)
    end: str = option("how it ends", "well", choices=("well", "badly", "empty", "interrupted"))

    def measure(self, jobs: Jobs) -> Report:
        if self.end == "badly":
            raise MeasurementFailed("no rank was started")
        if self.end == "interrupted":
            raise KeyboardInterrupt
        values = iter(range(1, self.rounds + 1))
        rows = interleave({"ours": lambda: {"step_ms": float(next(values))}}, n=self.rounds)
        theirs = [replace(row, verdict="slow") for row in summarize("theirs", [{"step_ms": 1.0}])]
        return Report([] if self.end == "empty" else [*rows, *theirs], ["a note"])


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(BENCHES, "quick", QuickBench)


def test_a_bench_prints_a_table_and_writes_its_rows_where_it_is_told_or_under_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "new" / "below" / "rows.json"
    assert main(["bench", "quick", "--output", str(file)]) == 0
    text = [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]
    assert text == [
        "alternative figure median 90% interval low high n verdict",
        "ours step_ms 10.5 6 to 15 1 20 20",
        "theirs step_ms 1 too few 1 1 1 slow",
        "- a note",
        *(line for line in text if line.startswith("- this machine was busy")),
        str(file),
    ]
    tree = json.loads(file.read_text(encoding="utf-8"))
    assert tree["bench"] == "quick"
    assert {installed_engine(), "numpy", "python", "commit"} <= set(tree["versions"])
    assert tree["machine"]["usable_cores"] >= 1
    row, _ = tree["rows"]
    figures = {"n": 20, "median": 10.5, "low": 1.0, "high": 20.0}
    answer = {"interval_low": 6.0, "interval_high": 15.0, "verdict": ""}
    assert row == {"alternative": "ours", "figure": "step_ms", **figures, **answer}
    monkeypatch.setattr("train.bench.__main__.RESULTS", tmp_path)
    assert main(["bench", "quick", "--rounds", "3", "--json"]) == 0
    (file,) = tmp_path.glob("quick-*-*.json")
    assert json.loads(capsys.readouterr().out) == json.loads(file.read_text(encoding="utf-8"))


@pytest.mark.parametrize(("load", "notes"), [(0.15, 1), (0.91, 2)])
def test_a_busy_machine_is_a_note(load: float, notes: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda _: {0, 1})
    monkeypatch.setattr("os.getloadavg", lambda: (load, 0.0, 0.0))
    assert main(["bench", "quick", "--output", str(tmp_path / "rows.json")]) == 0
    told = json.loads((tmp_path / "rows.json").read_text(encoding="utf-8"))["notes"]
    assert len(told) == notes
    assert "0.9 of 2 cores" in told[-1] or notes == 1


@pytest.mark.parametrize(
    ("end", "status", "error"),
    [
        ("badly", 1, "error: no rank was started\n"),
        ("empty", 1, "error: nothing was measured\n"),
        ("interrupted", 130, "stopped by Ctrl-C\n"),
        ("other", 2, "error: argument --end: invalid choice: 'other' (choose from well, badly, empty, "
                   "interrupted); see ./run.sh bench quick --help\n"),
    ],
)  # fmt: skip
def test_the_exit_status_says_how_a_bench_ended(end: str, status: int, error: str, tmp_path: Path, said: Said) -> None:
    told = said(main, "bench", "quick", "--end", end, "--output", tmp_path / "rows.json", status=status).err
    assert told == error or re.sub(r"'(\w+)'(?=[,)])", r"\1", told) == error  # newer Pythons quote no choice
    assert (tmp_path / "rows.json").exists() is (end == "empty"), "its notes say why there are no rows"


def test_an_output_that_cannot_be_written_is_refused_before_anything_is_measured(tmp_path: Path, said: Said) -> None:
    (file := tmp_path / "file").touch()
    for output in (tmp_path, file / "rows.json"):
        assert str(output) in said(main, "bench", "quick", "--end", "badly", "--output", output, status=2).err


def test_a_bench_whose_engine_is_missing_does_not_begin(monkeypatch: pytest.MonkeyPatch, said: Said) -> None:
    monkeypatch.setattr("configs.registry.has_engine", lambda _: False)
    monkeypatch.setattr(QuickBench, "needs", "torch")
    assert said(main, "bench", "quick", status=2).err.startswith("error: engine.name: got 'torch'")


@pytest.mark.parametrize("name", sorted(BENCHES))
def test_every_bench_has_a_help(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match=r"^0$"):
        main([name, "--help"])
    assert capsys.readouterr().out.startswith("usage: ./run.sh bench")


REFUSED = [
    ("alreduce", "invalid choice: 'alreduce'"),
    ("allreduce --rouns 1", "'--rouns' is not expected here; did you mean '--rounds'?"),
    ("", "NAME"),
    ("peers --cluster laptop", "'--cluster' is not expected here"),
    ("step --cluster laptpo", "did you mean 'laptop'"),
    ("peers --model alexnett", "--model alexnett: no such network; did you mean 'alexnet'?"),
    ("peers --model alexnet --image-size 32", "model.image_size: got 32, allowed: "),
    ("peers --batch 0", "--batch: got '0', allowed: "),
    ("allreduce --rounds 0", "--rounds: got '0', allowed: "),
    ("race mnist", "invalid choice: 'mnist'"),
    ("step --cases resnet50:64:16:2", "--cases resnet50:64:16:2: allowed: "),
    ("step --advise --cluster abci-v100", "--advise: got --cluster abci-v100, allowed: "),
    ("allreduce --sizes 3", "--sizes: got '3', allowed: "),
    ("allreduce --cluster dgx-a100 --set cluster.num_nodes=2 --ranks 5", "--ranks 5: allowed: multiples of "),
]
REFUSED_ON_MXNET = [
    ("overlap --cluster abci-v10", "did you mean 'abci-v100'"),
    ("step --set batch.global_sice=64", "did you mean 'global_size'?"),
    ("step --cases resnet20:32:32 --set run.epochs=1", "schedule.warmup_epochs: got 2.0, allowed: fewer steps than"),
    ("overlap --ranks 4 1", "--ranks 1: allowed: two ranks or more"),
]
needs_mxnet = pytest.mark.skipif(not has_engine("mxnet"), reason="these benches measure MXNet")


@pytest.mark.parametrize(
    ("words", "expected"), [*REFUSED, *(pytest.param(*row, marks=needs_mxnet) for row in REFUSED_ON_MXNET)]
)
def test_a_wrong_argument_is_one_line_before_anything_is_started(
    words: str, expected: str, monkeypatch: pytest.MonkeyPatch, said: Said
) -> None:
    monkeypatch.setattr(Jobs, "run", lambda *_, **_others: pytest.fail("started"))
    error = said(main, "bench", *words.split(), status=2).err
    assert error.startswith("error: ")
    assert expected in error
    assert error.count("\n") == 1


@pytest.mark.parametrize("name", sorted(BENCHES))
def test_every_bench_has_a_quick_and_a_thorough_effort(name: str) -> None:
    number = {"race": "seeds", "gpu": "seconds"}.get(name, "rounds")

    def asked(*words: str) -> Any:
        return getattr(read_command([name, *words])[0], number)

    quick, usual, thorough = asked("--quick"), asked(), asked("--thorough")
    assert quick < (usual or 6) < thorough
    assert number != "rounds" or (usual or 6) >= 6, "separate starts are six at least"
    assert asked(f"--{number}", "9") == 9
    with pytest.raises(UserError, match="not allowed with"):
        asked("--quick", f"--{number}", "9")


@pytest.mark.medium
def test_a_python_without_the_packages_is_told_all_of_them_in_one_line() -> None:
    told = python("-S", "-m", "train.bench", "gpu", "--tiny")
    needed = "Pillow, PyYAML, annotated-types, mlperf-logging, numpy, psutil, pydantic, pydantic-core, tqdm"
    assert (told.returncode, told.stdout, told.stderr.count("\n")) == (2, "", 1)
    assert f"lacks {needed}, typing-inspection; ./run.sh setup" in told.stderr
