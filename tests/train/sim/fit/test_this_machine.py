"""Rates of this machine: measured, read from a file, and made into a machine and its constants."""

from __future__ import annotations

from pathlib import Path

import pytest

from configs.errors import UserError
from configs.load import load_cluster
from train.sim.constants import Constants
from train.sim.fit.this_machine import cpu_constants, load_description, machine_of_description, measure_machine


def test_a_description_that_is_missing_or_broken_says_how_to_measure_it(tmp_path: Path) -> None:
    path = tmp_path / "here.yaml"
    with pytest.raises(UserError, match="--calibrate-here"):
        load_description(path)
    path.write_text("flops: 1e10\n")
    with pytest.raises(UserError, match="memory_bytes_per_s"):
        load_description(path)
    path.write_text("{flops: 1e10, memory_bytes_per_s: 1e10, link_bytes_per_s: 1e9}")
    machine = machine_of_description(load_description(path), load_cluster("laptop"))
    assert (machine.ranks, machine.bytes_per_number, machine.peak) == (2, 4, 1e10)


def test_input_and_negotiation_cost_compute_only_where_cores_do_not_outnumber_ranks() -> None:
    few, many = (cpu_constants(Constants(), {"cores": cores}, 2, 224) for cores in (2.0, 4.0))
    assert few.cycle_cpu_s > 0
    assert few.decode_s == pytest.approx(1.65e-3, rel=0.05)
    assert many.cycle_cpu_s == many.decode_s == 0


@pytest.mark.ranks
def test_this_machine_is_measured_in_rates_above_zero() -> None:
    found = measure_machine(processes=1)
    assert found["flops"] > 1e8
    assert found["memory_bytes_per_s"] > 1e8
    assert found["link_bytes_per_s"] > 1e6
