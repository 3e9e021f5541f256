"""A job of real ranks returns their output, and a failed one shows the last lines of it."""

from __future__ import annotations

import sys

import pytest

from configs.programs import Program, command_of
from train.bench.launching import run, run_ranks
from train.bench.measure import MeasurementFailed


@pytest.mark.ranks
def test_every_rank_runs_the_program_with_the_clusters_variables() -> None:
    output = run_ranks(
        [sys.executable, "-m", "sysconfig"], overrides=["cluster.ranks_per_node=3"], environment={"ONE": "1"}
    )
    assert output.count("Python version:") == 3


@pytest.mark.ranks
def test_the_error_of_a_failed_job_has_the_command_and_the_last_lines() -> None:
    with pytest.raises(MeasurementFailed, match=r"(?s)no.such.module.*No module named"):
        run_ranks([sys.executable, "-m", "no.such.module"])


def test_a_program_that_refuses_is_a_failed_measurement() -> None:
    with pytest.raises(MeasurementFailed, match="COMMAND is missing"):
        run(command_of(Program.RANKS_LAUNCHER, "--cluster", "laptop"))
