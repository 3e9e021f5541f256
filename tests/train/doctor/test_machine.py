"""The facts that a rank of the doctor collects about its machine and its data set."""

from __future__ import annotations

import json
from pathlib import Path

from configs.load import load_both
from train.doctor.machine import inspect_dataset, inspect_machine


def test_a_folder_that_is_not_there_has_the_free_bytes_of_its_nearest_parent(tmp_path: Path) -> None:
    runs = tmp_path / "not" / "there"
    _, cluster = load_both("digits", None, [f"cluster.paths.runs={runs}", "cluster.paths.stage=null"])
    facts = inspect_machine(cluster)
    assert facts["runs"]["folder"] == str(runs)
    assert facts["runs"]["free_bytes"] > 0
    assert facts["runs"]["is_writable"]
    assert facts["stage"] is None
    assert not runs.exists(), "the doctor changes nothing"
    json.dumps(facts)


def test_a_missing_data_set_is_a_problem_and_a_synthetic_one_has_no_folder(tmp_path: Path) -> None:
    recipe, cluster = load_both("digits", None, [f"cluster.paths.data={tmp_path}"])
    facts = inspect_dataset(recipe, cluster)
    assert (facts["exists"], facts["folder"]) == (False, str(tmp_path / "digits"))
    assert "digits" in facts["problem"]
    synthetic, _ = load_both("digits", None, ["data.source=synthetic"])
    assert inspect_dataset(synthetic, cluster) == {"folder": None}
