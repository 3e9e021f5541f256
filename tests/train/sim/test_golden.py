"""Forecasts of every kind, as they stood when they were last looked at: a change of the simulator is seen in all.

``python -m tests.train.sim.test_golden`` writes the files anew, for review. What the numbers should be is the matter of
the other tests of this folder; these find a term that is lost by accident.
"""

import io
import json
import shlex
from collections.abc import Iterator
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

import pytest

from configs.load import ROOT
from train.sim.__main__ import main
from train.sim.fit.calibrate import PUBLISHED_RATES

FOLDER = Path(__file__).with_name("golden")
FORECASTS = sorted(path for path in FOLDER.glob("*/*.txt") if path.parent.name != "texts")
"""Answers with floats of six digits; the first line of each file is the command."""
TEXTS = sorted(FOLDER.glob("texts/*"))
"""Answers as they are printed, below their commands."""
POINTS = ("scaling_points", "published_rates", "further_rates", "unseen_rates", "pytorch_rates")
"""Points files of the simulator, whose rows are all predicted."""
_PREDICTED = ("predicted_img_per_s", "low", "high", "interval_from", "predicted_time_to_train_s", "predicted_init_s")


def _text(*words: str) -> str:
    told = io.StringIO()
    with redirect_stdout(told):
        assert main(["simulate", *words]) == 0
    return told.getvalue()


def _answer(*words: str) -> Any:
    return json.loads(_text(*words, "--json"), parse_float=lambda text: float(f"{float(text):.6g}"))


def _lines(answer: Any) -> Iterator[str]:
    """Yield a line for each row of a table, or for each key of one forecast."""
    if isinstance(answer, list):
        yield " ".join(answer[0])
        yield from (" ".join(map(str, row.values())) for row in answer)
        return
    for key, value in answer.items():
        inner = value.items() if isinstance(value, dict) else [("", value)]
        yield from (f"{key} {name}{': ' if name else ''}{each}" for name, each in inner)


def _points(name: str) -> list[str]:
    rows = _answer("--points", str(PUBLISHED_RATES.with_name(f"{name}.csv")))
    return [",".join(_PREDICTED), *(",".join(str(row[key]) for key in _PREDICTED) for row in rows)]


@pytest.mark.medium
@pytest.mark.parametrize("path", FORECASTS, ids=lambda path: path.stem)
def test_a_forecast_changes_on_purpose_only(path: Path) -> None:
    command, *expected = path.read_text(encoding="utf-8").splitlines()
    assert list(_lines(_answer(*shlex.split(command)))) == expected


@pytest.mark.parametrize("path", TEXTS, ids=lambda path: path.stem)
def test_a_text_changes_on_purpose_only(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    command, _, expected = path.read_text(encoding="utf-8").partition("\n")
    assert _text(*shlex.split(command)) == expected


@pytest.mark.parametrize("name", POINTS)
def test_the_prediction_of_a_measured_point_changes_on_purpose_only(name: str) -> None:
    assert _points(name) == (FOLDER / "points" / f"{name}.csv").read_text(encoding="utf-8").splitlines()


if __name__ == "__main__":
    for each in FORECASTS:
        words = each.read_text(encoding="utf-8").partition("\n")[0]
        each.write_text("\n".join([words, *_lines(_answer(*shlex.split(words))), ""]), encoding="utf-8")
    for each in TEXTS:
        words = each.read_text(encoding="utf-8").partition("\n")[0]
        each.write_text(f"{words}\n{_text(*shlex.split(words))}", encoding="utf-8")
    for each_name in POINTS:
        (FOLDER / "points" / f"{each_name}.csv").write_text("\n".join([*_points(each_name), ""]), encoding="utf-8")
