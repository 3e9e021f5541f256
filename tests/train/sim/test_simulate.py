"""The answers of ``./run.sh simulate`` that take minutes, with fits that end at once, and what is asked of a search."""

import csv
import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from configs.load import load_cluster
from train.sim import simulate
from train.sim.__main__ import main
from train.sim.conditions import DESCRIPTION
from train.sim.constants import CONSTANTS, load_calibration
from train.sim.fit.heldout import HeldOutPrediction
from train.sim.fit.points import read_points
from train.sim.fit.worth import ConstantWorth
from train.sim.forecast import Scenario
from train.sim.grid import Limits, optimize

EXCERPT = Path(__file__).with_name("points.csv")
POINTS = read_points(EXCERPT)
HIDDEN = [
    HeldOutPrediction(POINTS[0], "row", "part 1", 0.125, None, -0.25),
    HeldOutPrediction(POINTS[1], "larger", "above", -0.0625, 0.5, None),
]


def _answer(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    assert main(["simulate", *words]) == 0
    return capsys.readouterr().out


def _check_rows(path: Path) -> None:
    """Require the rows of `HIDDEN`."""
    rows = list(csv.reader(path.read_text(encoding="utf-8").splitlines()))
    titles = ["hidden", "round", "system", "accelerator", "n_acc", "batch_per_acc", "log_error", "affine", "time"]
    assert rows[0] == titles
    for row, one, errors in zip(rows[1:], HIDDEN, (["0.1250", "", "-0.2500"], ["-0.0625", "0.5000", ""]), strict=True):
        point = one.point
        place = [one.kind, point.round, point.system, point.accelerator.name, str(point.ranks), str(point.batch)]
        assert row == [*place, *errors]


def test_a_calibration_writes_the_constants_and_beside_them_the_held_out_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    calibration = replace(load_calibration(), coverage=0.5)
    written: list[Any] = []

    def calibrate(points: Any, _: Any, report: Any) -> Any:
        assert points == POINTS
        report("fitting")
        return calibration, HIDDEN

    monkeypatch.setattr(simulate, "calibrate", calibrate)
    monkeypatch.setattr(simulate, "uncertainty", lambda points, _, constants: (len(points), constants))
    monkeypatch.setattr(simulate, "errors_by_product", lambda points, _, constants: {"A100": [len(points), constants]})
    monkeypatch.setattr(simulate, "write_calibration", lambda *given: written.extend(given))
    out = tmp_path / "constants.yaml"
    assert main(["simulate", "--calibrate", str(EXCERPT), "--out", str(out)]) == 0
    told = capsys.readouterr()
    constants = calibration.constants
    assert written == [out, calibration, HIDDEN, {"A100": [len(POINTS), constants]}, (len(POINTS), constants)]
    _check_rows(tmp_path / "constants.heldout.csv")
    assert told.err == "fitting\n"
    assert told.out.endswith(f"\nwrote {out} and, row by row, {tmp_path / 'constants.heldout.csv'}\n")
    assert told.out.startswith("hidden ")


def test_without_a_file_the_shipped_constants_are_written(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []
    monkeypatch.setattr(simulate, "_calibrate", lambda *given: asked.append(given) or "")  # type: ignore[func-returns-value]
    monkeypatch.setattr(simulate, "_calibrate_here", lambda *given: asked.append(given) or "")  # type: ignore[func-returns-value]
    assert main(["simulate", "--calibrate", "a.csv"]) == main(["simulate", "--calibrate-here"]) == 0
    assert asked == [([Path("a.csv")], CONSTANTS), (DESCRIPTION,)]


def test_held_out_rows_are_written_where_a_file_is_named_and_a_disk_that_refuses_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(simulate, "hold_out", lambda *_: HIDDEN)
    words = ["--validate", str(EXCERPT), "--held-out", "all"]
    _answer(capsys, *words, "--out", str(tmp_path / "rows.csv"))
    _check_rows(tmp_path / "rows.csv")
    assert main(["simulate", *words, "--out", str(tmp_path)]) == 2
    expected = f"error: {tmp_path}: cannot be written: Is a directory; choose another --out\n"
    assert capsys.readouterr().err == expected


def test_the_worth_of_constants_is_a_table(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    row = ConstantWorth("tail", (0.5, 0.3), (0.6, 0.15), 0.75, 0.2)

    def worth(points: Any, _: Any, report: Any) -> Any:
        assert points == POINTS
        report("without tail")
        return [row], 0.1

    monkeypatch.setattr(simulate, "worth_of_constants", worth)
    text = _answer(capsys, "--validate", str(EXCERPT), "--worth")
    assert text.splitlines()[1].split()[:2] == ["tail", "0.5"]
    assert text.endswith("with all of them the median is 10.5 %\n")


def test_a_search_keeps_to_the_cluster_its_memory_the_deadline_and_the_budget_and_shows_ten(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked: list[Limits] = []

    def search(scenario: Scenario, calibration: Any, limits: Limits) -> Any:
        asked.append(limits)
        return optimize(scenario, calibration, replace(limits, memory_bytes=None))

    monkeypatch.setattr(simulate, "optimize", search)
    words = ["imagenet-b256", "--cluster", "dgx-a100", "--optimize", "--deadline", "1e6", "--budget", "2e6"]
    rows = json.loads(_answer(capsys, *words, "--json", "--price", "2"))
    assert asked == [Limits(16, asked[0].memory_bytes, 1e6, 2e6)]
    assert asked[0].memory_bytes == load_cluster("dgx-a100").node.gpu_memory_bytes
    assert len(rows) == 10
    assert [row["cost"] for row in rows] == pytest.approx([2 * row["accelerator_hours"] for row in rows])
    head, *lines = _answer(capsys, *words).splitlines()
    assert head.split()[:6] == ["ranks", "per", "rank", "batch", "size", "global"]
    assert [line.split()[0] for line in lines] == [str(row["ranks"]) for row in rows]


def test_allreduces_are_compared_by_fourths_of_the_ranks_and_eighths_of_the_bytes(
    capsys: pytest.CaptureFixture[str],
) -> None:
    rows = json.loads(_answer(capsys, "abci-b86016", "--cluster", "abci-v100", "--collectives", "--json"))
    assert sorted({row["ranks"] for row in rows}) == [2, 8, 32, 128, 512, 2048]
    assert sorted({row["bytes"] for row in rows}) == [1 << power for power in (10, 13, 16, 19, 22, 25, 28)]


@pytest.mark.parametrize(
    ("words", "function"), [(["--sweep", "ranks=8,16"], "plot_sweep"), (["--collectives"], "plot_collectives")]
)
def test_a_figure_is_drawn_of_the_rows_that_are_told(
    words: list[str], function: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    drawn: list[Any] = []
    monkeypatch.setattr(f"logs.show.plot.{function}", lambda *given: drawn.append(given))
    command = ["imagenet-b256", "--cluster", "dgx-a100", *words, "--json"]
    rows = json.loads(_answer(capsys, *command, "--plot", "a.png"))
    ((path, given),) = drawn
    assert path == Path("a.png")
    assert json.loads(json.dumps(given)) == rows
    _answer(capsys, *command)
    assert len(drawn) == 1


def test_a_validation_is_drawn_measured_beside_predicted_with_what_is_known(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    drawn: list[Any] = []
    monkeypatch.setattr("logs.show.plot.plot_validation", lambda *given: drawn.append(given))
    interval = SimpleNamespace(basis="seen", rate=0.1, time=0.1)

    class Predictor:
        def forecast(self, point: Any, _: Any) -> Any:
            return SimpleNamespace(
                point=point, images_per_s=2 * point.measured_images_per_s, interval=interval, low=1.0, high=2.0,
                time_to_train_s=9.0,
            )  # fmt: skip

    monkeypatch.setattr(simulate, "PointPredictor", Predictor)
    monkeypatch.setattr(simulate, "errors_by_product", lambda *_: {})
    monkeypatch.setattr(simulate, "validation_text", lambda pairs, _: f"{len(pairs)} pairs")
    measured = [point for point in POINTS if point.measured_images_per_s]
    assert _answer(capsys, "--validate", str(EXCERPT), "--plot", "a.png") == f"{len(measured)} pairs\n"
    rates = [(point.measured_images_per_s, 2 * (point.measured_images_per_s or 0), "seen") for point in measured]
    assert drawn == [(Path("a.png"), rates)]
