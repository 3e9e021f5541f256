"""Accelerators and CPUs: what a description finds, the machine of a cluster file, and the rates of a rank on a CPU."""

from dataclasses import replace
from pathlib import Path

import pytest

from configs.errors import ConfigError, UserError
from configs.load import load_both, load_cluster
from train.sim.collectives import SharedSums
from train.sim.conditions import conditions
from train.sim.forecast import Forecast, forecast
from train.sim.hardware import (
    Machine,
    accelerators,
    find_accelerator,
    find_system,
    load_description,
    machine_of_cluster,
    machine_of_rates,
    rates_of_processor,
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
    ("name", "half", "uses_units"),
    [("P100", True, False), ("V100", True, True), ("V100", False, False), ("A30", False, True)],
)
def test_matrix_units_multiply_16_bits_from_volta_on_and_float32_with_tf32(
    name: str, half: bool, uses_units: bool
) -> None:
    assert Machine(find_accelerator(name), 8, half=half).uses_matrix_units is uses_units


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


def test_a_data_sheet_without_rates_of_links_has_one_card_and_a_slow_link() -> None:
    rates = "float16_flops: 1e14, float32_flops: 2e13, memory_bytes_per_s: 1e12, cache_bytes: 6e6, units: 81"
    cluster = load_cluster("dgx-a100", [f"cluster.node={{accelerator: {{{rates}, link: nvlink}}}}"])
    bare = machine_of_cluster(cluster).accelerator
    assert (bare.nics, bare.nic, bare.link, bare.name, bare.link_kind) == (1, 3e9, 12e9, "dgx-a100", "pcie")


def test_the_sums_of_bfloat16_take_float32s_bytes_from_65_ranks_on_and_pytorch_multiplies_no_tf32() -> None:
    sets = ["cluster.engine.name=torch", "cluster.communication={}", "cluster.launcher=srun", "cluster.num_nodes=64"]
    widths = {}
    for precision in ("bfloat16", "float16", "float32"):
        machine = machine_of_cluster(load_cluster("a100-node", [*sets, f"cluster.engine.precision={precision}"]))
        widths[precision] = [replace(machine, ranks=ranks).bytes_per_sum for ranks in (64, 65)]
    assert widths == {"bfloat16": [2, 4], "float16": [2, 2], "float32": [4, 4]}
    assert machine.peak == machine.accelerator.peak32


RATES = "{flops: 1e10, memory_bytes_per_s: 1e10, link_bytes_per_s: 1e9, cores: 2}"
HOROVOD = ("cluster.engine.name=mxnet", "cluster.communication.kind=horovod")
SEVERAL_NODES = (*HOROVOD, "cluster.launcher=mpirun", "cluster.communication.backend=mpi")


@pytest.mark.parametrize(
    ("cores", "ranks", "threads", "flops", "memory", "sums"),
    [
        (64, 2, 1, 2.45e9 * 32, 12e9, 12e9),  # one core, which cannot use the socket's bandwidth
        (64, 2, 32, 32 * 2.45e9 * 32, 102.4e9, 12e9),  # one thread of a rank sums
        (128, 8, 64, 16 * 2.45e9 * 32, 51.2e9, 12e9),  # two sockets; no rank has more than its share
        (None, 1, 512, 64 * 2.45e9 * 32, 204.8e9, 12e9),
        (64, 64, 1, 2.45e9 * 32, 3.2e9, 3.2e9),  # many ranks share a socket's bandwidth
        (4, 8, 1, 2.45e9 * 32, 12e9, 12e9),  # a rank has a core even where ranks outnumber the cores
        (96, 32, 3, 3 * 2.45e9 * 32, 12.8e9, 12e9),  # a second socket that is partly there has its whole bandwidth
    ],
)
def test_a_rank_has_its_share_of_the_cores_and_of_the_bandwidth(
    cores: int | None, ranks: int, threads: int, flops: float, memory: float, sums: float
) -> None:
    sets = [f"cluster.engine.threads={threads}", f"cluster.ranks_per_node={ranks}", "cluster.node.cpu=EPYC 7763"]
    rates = rates_of_processor(load_cluster("laptop", [*sets, f"cluster.node.cores={cores or 'null'}"]))
    found = (rates["flops"], rates["memory_bytes_per_s"], rates["sum_bytes_per_s"])
    assert found == pytest.approx((flops, memory, sums))
    assert (rates["cores"], rates["link_bytes_per_s"]) == (cores or 64, 1.5e9)


@pytest.mark.parametrize(
    ("text", "words"),
    [(None, "--calibrate-here"), ("flops: 1e10\n", "memory_bytes_per_s"), (RATES.replace("1e9", "0"), "above 0")],
)
def test_a_description_that_is_missing_or_broken_says_how_to_measure_it(
    tmp_path: Path, text: str | None, words: str
) -> None:
    path = tmp_path / "here.yaml"
    if text:
        path.write_text(text)
    with pytest.raises(UserError, match=words):
        load_description(path)


@pytest.mark.parametrize(("share", "words"), [(0.9, ""), (0.89, "other work had 11% of the cores")])
def test_rates_measured_beside_other_work_carry_a_warning(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], share: float, words: str
) -> None:
    path = tmp_path / "here.yaml"
    path.write_text(RATES.replace("}", f", core_share: {share}}}"))
    assert load_description(path)["core_share"] == share
    told = capsys.readouterr().err
    assert words in told if words else not told


def test_more_nodes_have_the_cards_of_the_cluster_file_or_one_as_fast_as_the_link() -> None:
    rates = {"flops": 1e10, "memory_bytes_per_s": 2e10, "link_bytes_per_s": 3e9, "cores": 2.0}
    sets = ["cluster.num_nodes=3", *SEVERAL_NODES]
    bare = machine_of_rates(rates, load_cluster("laptop", sets))
    cpu = bare.accelerator
    assert (bare.ranks, bare.nodes, cpu.nics, cpu.nic, bare.sums) == (6, 3, 1, 3e9, None)
    assert (cpu.name, cpu.memory, cpu.link, cpu.link_kind, cpu.chip) == ("this machine", 2e10, 3e9, "memory", "cpu")
    cards = ["cluster.node.nics=2", "cluster.node.nic_bytes_per_s=5e9", "cluster.node.cpu=EPYC 7763"]
    cpu = machine_of_rates(rates, load_cluster("laptop", [*sets, *cards])).accelerator
    assert (cpu.nics, cpu.nic, cpu.link, cpu.name) == (2, 5e9, 3e9, "EPYC 7763")
    sharing = load_cluster("laptop", ["cluster.communication.kind=shared_memory"])
    shared = machine_of_rates(rates, sharing)
    assert shared.sums == SharedSums(bytes_per_s=2e10, cores=2.0), "a sum is as fast as a copy"
    apart = machine_of_rates(rates | {"sum_bytes_per_s": 8e9}, sharing)
    assert apart.sums == SharedSums(bytes_per_s=8e9, cores=2.0), "of one core, or of an earlier version"
    assert (shared.ranks, shared.bytes_per_number, shared.peak) == (2, 4, 1e10)


@pytest.mark.parametrize(("cores", "takes_core_time"), [(3, True), (4, False)])
def test_threads_beside_compute_are_counted_by_the_ranks_of_a_node(cores: int, takes_core_time: bool) -> None:
    sets = ["cluster.node.cpu=EPYC 7763", f"cluster.node.cores={cores}", "cluster.num_nodes=3", *SEVERAL_NODES]
    constants = conditions(*load_both("digits", "laptop", ["batch.global_size=96", *sets])).calibration.constants
    # Two ranks a node with two threads each: four cores hold them all. An image of digits has 8 x 8 px.
    assert constants.decode_s == pytest.approx(80e-6 + 31e-9 * 8**2 if takes_core_time else 0)
    assert constants.cycle_cpu_s == pytest.approx(1e-4 if takes_core_time else 0)


def _forecast(tmp_path: Path, *overrides: str, rates: str = RATES) -> Forecast:
    path = tmp_path / "here.yaml"
    path.write_text(rates)
    return forecast(conditions(*load_both("digits", "laptop", overrides), description=path, steps=tmp_path / "none"))


def test_ranks_that_share_memory_negotiate_nothing_and_ranks_over_horovod_do(tmp_path: Path) -> None:
    shared, horovod = (
        _forecast(tmp_path, HOROVOD[0], f"cluster.communication.kind={each}") for each in ("shared_memory", "horovod")
    )
    assert shared.scenario.software.algorithm == "shared-memory"
    assert shared.step.overhead_s == 0 < horovod.step.overhead_s
    assert shared.images_per_s > horovod.images_per_s
    assert 1 < shared.startup.total_s < 5, "the digits take about 2 s on two ranks"
    besides_s = shared.run.total_s - 6 * 1198 / shared.images_per_s - shared.run.evaluations_s
    assert besides_s == pytest.approx(0.1, abs=0.3), "six runs of small networks lost 0.0 to 0.3 s"
    # Neither rank has a core for its thread, so no sum is hidden: 4 bytes at 1e10 bytes/s for each byte, and 0.2 ms.
    size_bytes = sum(one.size_bytes for one in shared.step.reductions)
    expected_s = 4 * size_bytes / 1e10 + 2e-4 * len(shared.step.reductions)
    assert shared.step.contention_s + shared.step.exposed_communication_s == pytest.approx(expected_s, rel=0.05)


def test_a_link_of_the_cluster_file_takes_the_place_of_the_measured_one(tmp_path: Path) -> None:
    found = _forecast(tmp_path, *HOROVOD, "cluster.communication.link_bytes_per_s=123e6")
    assert found.scenario.machine.accelerator.link == 123e6


@pytest.mark.parametrize("kind", ["parameter_server", "parameter_server_async"])
def test_servers_take_the_place_of_an_allreduce(tmp_path: Path, kind: str) -> None:
    servers = (f"cluster.communication={{kind: {kind}, servers: 2}}", "cluster.engine.name=mxnet")
    assert _forecast(tmp_path, *servers).scenario.software.algorithm == "ps:2"
