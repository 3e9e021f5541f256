"""The catalogue of accelerators: what is found by which description."""

from __future__ import annotations

import pytest

from train.sim.hardware import accelerators, find_accelerator


@pytest.mark.parametrize("text", ["GH100", "XA100-SXM-80GB", "BV100", "A1000", "H1000 PCIe", "RTX A4000", "", "H10"])
def test_a_name_that_only_contains_a_listed_one_is_not_known(text: str) -> None:
    assert not find_accelerator(text).known


@pytest.mark.parametrize(
    ("text", "name"),
    [("NVIDIA GH200 480GB", "GH200"), ("NVIDIA H200", "H200-SXM"), ("A100-PCIE-40GB", "A100-PCIe-40GB"),
     ("NVIDIA A100 80GB PCIe", "A100-PCIe-80GB"), ("Tesla V100-SXM2-16GB", "V100-SXM2"), ("NVIDIA_L40S", "L40S")],
)  # fmt: skip
def test_a_description_gives_the_product_that_it_names(text: str, name: str) -> None:
    assert find_accelerator(text).name == name


def test_every_product_is_found_by_its_own_name() -> None:
    assert [each.name for each in accelerators() if find_accelerator(each.name).name != each.name] == []
