"""The machines of a study, each kind once, by what the runs recorded."""

import json
from pathlib import Path
from typing import Literal

from logs.study.cells import ScalingRow
from logs.study.measured_on import machines


def _row(folder: str, basis: Literal["measured", "predicted"] = "measured") -> ScalingRow:
    return ScalingRow("", "n", "c", "d", 8, 2, 0, basis, folder=folder)


def test_each_kind_of_machine_is_named_once_with_its_cores_and_gpus(tmp_path: Path) -> None:
    for name, record in {
        "a": {"cpu": "EPYC", "usable_cores": 2, "cores": 4, "gpus": None},
        "b": {"cpu": "EPYC", "usable_cores": 2, "cores": 8},
        "c": {"cpu": "Xeon", "usable_cores": 8, "gpus": [{"name": "V100"}, {"name": "A100"}, {"name": "V100"}, {}]},
        "d": {},
    }.items():
        (tmp_path / name).mkdir()
        (tmp_path / name / "environment.json").write_text(json.dumps(record), encoding="utf-8")
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "environment.json").write_text("{", encoding="utf-8")
    rows = [_row(name) for name in ("a", "b", "c", "d", "broken", "none", "")]
    assert machines(rows, tmp_path) == ["EPYC, 2 cores", "Xeon, 8 cores, 2 V100, 1 A100"]
    assert machines([_row("a", "predicted")], tmp_path) == []
