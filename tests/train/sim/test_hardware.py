"""The catalogue of accelerators: what is found by which description, and the machine of a cluster file."""

from dataclasses import replace

import pytest

from configs.errors import ConfigError
from configs.load import load_cluster
from train.sim.collectives import Topology
from train.sim.hardware import (
    Accelerator,
    Machine,
    accelerators,
    find_accelerator,
    find_system,
    machine_of_cluster,
)

V100 = find_accelerator("V100-SXM2-16GB")


@pytest.mark.parametrize("text", ["GH100", "XA100-SXM-80GB", "BV100", "A1000", "H1000 PCIe", "RTX A4000", "", "H10"])
def test_a_name_that_only_contains_a_listed_one_is_not_known(text: str) -> None:
    with pytest.raises(ConfigError, match=r"an accelerator of train/sim/families\.yaml"):
        find_accelerator(text)


@pytest.mark.parametrize(
    ("text", "name"),
    [("NVIDIA GH200 480GB", "GH200"), ("NVIDIA H200", "H200-SXM"), ("A100-PCIE-40GB", "A100-PCIe-40GB"),
     ("NVIDIA A100 80GB PCIe", "A100-PCIe-80GB"), ("Tesla V100-SXM2-16GB", "V100-SXM2"), ("NVIDIA_L40S", "L40S")],
)  # fmt: skip
def test_a_description_gives_the_product_that_it_names(text: str, name: str) -> None:
    assert find_accelerator(text).name == name


def test_every_product_is_found_by_its_own_name() -> None:
    assert [each.name for each in accelerators() if find_accelerator(each.name).name != each.name] == []


@pytest.mark.parametrize(
    ("half", "tf32", "rates", "peak", "uses_units", "width"),
    [
        (True, True, (8e13, True), 3e14, True, 2),
        (True, False, (None, False), 3e14, False, 2),
        (False, True, (8e13, True), 8e13, True, 4),
        (False, False, (8e13, True), 2e13, False, 4),
        (False, True, (None, True), 2e13, False, 4),
    ],
)
def test_a_run_computes_at_the_peak_of_its_number_type(
    half: bool, tf32: bool, rates: tuple[float | None, bool], peak: float, uses_units: bool, width: int
) -> None:
    product = replace(find_accelerator("V100"), peak=3e14, peak32=2e13, tf32=rates[0], matrix_units=rates[1])
    machine = Machine(replace(product, node=8), 20, half=half, tf32=tf32)
    assert (machine.peak, machine.uses_matrix_units, machine.bytes_per_number) == (peak, uses_units, width)
    assert machine.nodes == 3
    assert replace(machine, ranks=8).nodes == 1


def test_a_cluster_file_takes_the_place_of_the_catalogue_where_it_has_a_rate() -> None:
    plain = machine_of_cluster(load_cluster("dgx-a100", ["cluster.node={gpu: A100-SXM4-40GB}"]))
    assert plain == Machine(find_accelerator("A100-SXM4-40GB"), 16)
    sets = ["cluster.node.gpu_link_bytes_per_s=1e10", "cluster.node.nics=3", "cluster.node.nic_bytes_per_s=2e9"]
    sets += ["cluster.fabric.nodes_per_rack=5", "cluster.fabric.uplink_share=0.25", "cluster.engine.precision=float32"]
    told = machine_of_cluster(load_cluster("dgx-a100", [*sets, "cluster.environment={NVIDIA_TF32_OVERRIDE: 0}"]))
    assert (told.accelerator.link, told.accelerator.nics, told.accelerator.nic) == (1e10, 3, 2e9)
    assert (told.nodes_per_rack, told.uplink_share, told.half, told.tf32) == (5, 0.25, False, False)
    assert machine_of_cluster(load_cluster("dgx-a100", ["cluster.environment={NVIDIA_TF32_OVERRIDE: 1}"])).tf32
    assert told.rack_ordered
    assert machine_of_cluster(load_cluster("abci-v100")).rack_ordered is find_system("abci-v100").rack_ordered is False


@pytest.mark.parametrize(
    ("node", "words"),
    [
        ("{gpu: A1000-SXM-80GB}", "node.gpu: got 'A1000-SXM-80GB', .*; did you mean 'A100-SXM-80GB'"),
        ("{}", "node.gpu: got None, .*; for example V100-SXM2-16GB, or .* node.accelerator of the cluster file"),
    ],
)
def test_an_accelerator_that_nobody_describes_is_refused_with_a_name_that_is_known(node: str, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        machine_of_cluster(load_cluster("dgx-a100", [f"cluster.node={node}"]))


def test_every_number_of_a_data_sheet_is_taken_over() -> None:
    rates = "float16_flops: 1e14, float32_flops: 2e13, tf32_flops: 3e13, memory_bytes_per_s: 1e12"
    sheet = f"{{{rates}, cache_bytes: 6e6, units: 81, link: nvlink}}"
    sets = ["cluster.node.gpu=X1", f"cluster.node.accelerator={sheet}", "cluster.node.gpu_link_bytes_per_s=5e10"]
    sets += ["cluster.node.nics=3", "cluster.node.nic_bytes_per_s=7e9"]
    found = machine_of_cluster(load_cluster("dgx-a100", sets)).accelerator
    assert found == Accelerator(
        "X1", "described: X1", 1e14, 2e13, 1e12, 6e6, 81, 8, 5e10, "nvlink", 3, 7e9, tf32=3e13, matrix_units=True
    )
    # Without rates of links: one card, and the kind of link counts beside its rate only.
    bare = machine_of_cluster(load_cluster("dgx-a100", [f"cluster.node={{accelerator: {sheet}}}"])).accelerator
    assert (bare.nics, bare.nic, bare.link, bare.name, bare.link_kind) == (1, 3e9, 12e9, "dgx-a100", "pcie")


def test_a_machine_is_seen_by_its_collectives_as_it_is() -> None:
    product = replace(V100, node=8, nics=3, nic=10e9, link_kind="pcie")
    machine = Machine(product, 20, nodes_per_rack=2, uplink_share=0.25, rack_ordered=False)
    assert machine.topology(0.5) == Topology(
        20, 8, V100.link, 15e9, link_kind="pcie", nodes_per_rack=2, uplink_share=0.25, rack_ordered=False
    )
    assert replace(machine, accelerator=replace(product, nics=0)).topology(1.0).node_bytes_per_s == 10e9


def test_the_sums_of_bfloat16_take_float32s_bytes_from_65_ranks_on_and_pytorch_multiplies_no_tf32() -> None:
    sets = ["cluster.engine.name=torch", "cluster.communication={}", "cluster.launcher=srun", "cluster.num_nodes=64"]
    widths = {}
    for precision in ("bfloat16", "float16", "float32"):
        machine = machine_of_cluster(load_cluster("a100-node", [*sets, f"cluster.engine.precision={precision}"]))
        widths[precision] = [replace(machine, ranks=ranks).bytes_per_sum for ranks in (64, 65)]
    assert widths == {"bfloat16": [2, 4], "float16": [2, 2], "float32": [4, 4]}
    assert machine.peak == machine.accelerator.peak32
