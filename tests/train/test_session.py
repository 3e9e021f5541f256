"""What a rank writes of a run: the summary's columns, and the log before the seed."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from pathlib import Path
from typing import cast

import pytest

from configs.load import load_both
from configs.plan import plan_run
from tests.engines import ALONE
from train.evaluate import Score, top1_score
from train.loop import Result
from train.measure.timing import Clock
from train.session import _summary, opened_log


class _Measured:
    """A clock whose measurement is over."""

    steps, stepping_s = 50, 16.0

    def fractions(self) -> tuple[float, float]:
        return 0.25, 0.125


def test_every_number_of_a_summary_is_in_its_column() -> None:
    recipe, cluster = load_both("digits", "laptop", ["run.seed=7"])
    plan, clock = plan_run(recipe, cluster.world_size), cast(Clock, _Measured())
    result = Result(True, top1_score(30, 40), epochs=9, steps=171, run_s=20.5)
    told = {key: value for key, value in asdict(_summary(recipe, plan, result, clock, 1.5, 0xAB)).items() if value}
    assert told == {
        "recipe": "digits", "status": "success", "top1": 0.75, "target": 0.97, "epochs": 9, "steps": 171,
        "world_size": 2, "global_batch_size": 64, "init_s": 1.5, "run_s": 20.5, "images_per_s": 200.0,
        "input_wait_fraction": 0.25, "comm_exposed_fraction": 0.125, "weights_checksum": "00000000000000ab", "seed": 7,
    }  # fmt: skip
    score = Score("mean ROC-AUC", 0.8, {"mean_auc": 0.8}, "")
    missed = _summary(recipe, plan, replace(result, success=False, score=score, failure="why"), clock, 1.5, 0xAB)
    assert (missed.status, missed.failure, missed.mean_auc, missed.top1) == ("aborted", "why", 0.8, None)


@pytest.mark.parametrize("is_cold", [True, False])
def test_the_log_begins_with_who_submits_and_a_cleared_cache_only_if_it_is(tmp_path: Path, is_cold: bool) -> None:
    recipe, cluster = load_both("digits", "laptop", ["run.seed=7"])
    with opened_log(tmp_path, recipe, cluster, replace(ALONE, rank=1), is_cold=is_cold):
        assert list(tmp_path.iterdir()) == [], "rank 0 alone writes"
    with opened_log(tmp_path, recipe, cluster, ALONE, is_cold=is_cold):
        pass
    lines = (tmp_path / "result_0.txt").read_text(encoding="utf-8").splitlines()
    keys = [(row["key"], row["value"]) for row in (json.loads(line.partition(" ")[2]) for line in lines)]
    submission = [key for key, _ in keys if key.startswith("submission_")]
    assert len(submission) == 7
    cleared = [("cache_clear", True)] if is_cold else []
    assert keys[len(submission) :] == [*cleared, ("init_start", None), ("seed", 7)]
