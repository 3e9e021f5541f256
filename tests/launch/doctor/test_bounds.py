"""The doctor's checks at their bounds, and what they leave alone: a node of CPUs, one rank, one host."""

from typing import Any

import pytest

from configs.load import load_cluster
from launch.doctor.check_result import CheckResult, ProbeReport
from launch.doctor.diagnosis import _allreduce, _bandwidth, _clocks, judge
from launch.doctor.machine_checks import (
    _cores,
    _data,
    _disk,
    _drivers,
    _instruction_sets,
    _libraries,
    _memory,
    _shared_memory,
)
from launch.doctor.step_checks import check_step
from tests.launch.doctor.test_diagnosis import CLUSTER, PLAN, _machine, _sound
from tests.launch.doctor.test_step_checks import CLUSTER as V100
from tests.launch.doctor.test_step_checks import FORECAST, SECONDS, _rows
from tests.launch.doctor.test_step_checks import PLAN as STEP_PLAN

LAPTOP = load_cluster("laptop", ["cluster.ranks_per_node=3", "cluster.engine.threads=2", "cluster.node.cores=null"])


def _report(cluster: Any = CLUSTER, ranks: Any = (), plan: Any = PLAN) -> ProbeReport:
    return ProbeReport(cluster, ranks, plan, is_packed_on_demand=False)


def test_a_node_of_cpus_needs_no_gpu_in_driver_and_libraries() -> None:
    machine = {"machine": _machine()}
    machine["machine"]["environment"]["gpus"] = []
    assert _drivers(_report(LAPTOP), machine) is None
    title = {"mxnet": "MXNet", "torch": "PyTorch"}[LAPTOP.engine.name]
    libraries = {title: {"has": {"gpus": 0, "CUDA": False, "gloo": True, "mpi": True, "nccl": False}}}
    assert _libraries(_report(LAPTOP), {"libraries": libraries}).level == "OK"


def test_the_instructions_of_the_cpu_do_not_matter_to_gpus() -> None:
    sets = ["cluster.engine.name=mxnet", "cluster.engine.precision=bfloat16"]
    cluster = load_cluster("laptop", sets)
    machine = {"machine": {**_machine(), "environment": {"cpu_flags": ["avx2"]}}}
    assert _instruction_sets(_report(cluster), machine) is not None
    assert _instruction_sets(_report(cluster.model_copy(update={"device": "gpu"})), machine) is None


@pytest.mark.parametrize(
    ("node_cores", "granted", "line"),
    [
        (None, 6, "OK    cores: 6 granted for 6 operator threads"),
        (None, 5, "WARN  cores: 5 granted for 6 operator threads; ask the scheduler for whole nodes, or set "
         "cluster.node.cores and engine.threads to what is granted"),
        (6, 6, "OK    cores: 6 granted for 6 operator threads"),
        (7, 6, "WARN  cores: 6 granted, node.cores: 7; ask the scheduler for whole nodes, or set cluster.node.cores "
         "and engine.threads to what is granted"),
    ],
)  # fmt: skip
def test_the_cores_of_all_ranks_of_a_host_are_counted_once(node_cores: int | None, granted: int, line: str) -> None:
    cluster = LAPTOP.model_copy(update={"node": LAPTOP.node.model_copy(update={"cores": node_cores})})
    ranks = [
        {"host": "a", "cores": list(range(granted - 1))},
        {"host": "a", "cores": list(range(1, granted))},
        {"host": "b", "cores": list(range(64))},
    ]
    assert str(_cores(_report(cluster, ranks), {"host": "a"})) == line


@pytest.mark.parametrize(
    ("device", "free", "line"),
    [
        ("gpu", 20.6e9, "OK    memory: 20.6 GB free, about 20.6 GB needed"),
        ("gpu", 20.6e9 - 1, "FAIL  memory: 20.6 GB free, 20.6 GB needed for 2 ranks; end other programs, lower the "
         "batch, or start fewer ranks a node"),
        ("cpu", 14.6e9, "OK    memory: 14.6 GB free, about 14.6 GB needed"),
        ("cpu", 14.6e9 - 1, "FAIL  memory: 14.6 GB free, 14.6 GB needed for 2 ranks; end other programs, lower the "
         "batch, or start fewer ranks a node"),
    ],
)  # fmt: skip
def test_a_host_holds_the_pinned_images_of_gpus_or_all_of_a_cpu_s_plan(device: str, free: float, line: str) -> None:
    plan = {"memory": {"total_bytes": 7e9, "certain_bytes": 7e9, "pinned_bytes_per_node": 20e9}}
    cluster = CLUSTER.model_copy(update={"device": device})
    found = _memory(_report(cluster, plan=plan), {"machine": {**_machine(), "memory_available_bytes": free}})
    assert str(found) == line


def test_a_plan_as_large_as_the_gpu_fits() -> None:
    plan = {"memory": {"total_bytes": 81251 << 20, "certain_bytes": 0, "pinned_bytes_per_node": 0}}
    assert _memory(_report(plan=plan), {"machine": _machine()}).level == "OK"


@pytest.mark.parametrize(
    ("plan", "free", "level"),
    [
        (PLAN, 4_066_843_840, "OK"),  # 1 GB, and 120 bytes for each of 25,557,032 parameters
        (PLAN, 4_066_843_839, "WARN"),
        (PLAN, 406_684_384, "WARN"),
        (PLAN, 406_684_383, "FAIL"),
        (None, 1_000_000_000, "OK"),
        (None, 999_999_999, "WARN"),
    ],
)
def test_a_disk_holds_ten_checkpoints_and_what_a_run_writes(plan: Any, free: int, level: str) -> None:
    runs = {"folder": "/runs", "free_bytes": free, "is_writable": True}
    assert _disk(_report(plan=plan), {"machine": {"runs": runs}}).level == level


@pytest.mark.parametrize(("free", "level"), [(128 << 20, "OK"), ((128 << 20) - 1, "WARN")])
def test_each_rank_of_a_node_has_its_shared_memory(free: int, level: str) -> None:
    assert _shared_memory(_report(), {"machine": {"shm_free_bytes": free}}).level == level


@pytest.mark.parametrize(("stage", "told", "level"), [(None, False, "WARN"), ("/ssd", False, "OK"), (None, True, "OK")])
def test_what_the_kernel_caches_matters_only_without_a_stage(stage: str | None, told: bool, level: str) -> None:
    cluster = CLUSTER.model_copy(update={"paths": CLUSTER.paths.model_copy(update={"stage": stage})})
    data = {"folder": "/data", "problem": None, "records": 7, "is_cache_told": told}
    assert _data(_report(cluster), {"data": data}).level == level


@pytest.mark.parametrize(("wanted", "level"), [(1, "WARN"), (2, "FAIL")])
def test_one_rank_may_use_one_part_of_a_gpu(wanted: int, level: str) -> None:
    machine = {"machine": _machine()}
    machine["machine"]["environment"]["gpus"][1]["mig.mode.current"] = "Enabled"
    found = _drivers(_report(CLUSTER.model_copy(update={"ranks_per_node": wanted})), machine)
    assert found is not None
    assert (found.level, found.remedy) == (level, "switch MIG off (nvidia-smi -mig 0), or start one rank")


def test_one_host_has_one_clock_and_one_rank_nothing_to_reduce() -> None:
    ranks = _sound()[:2]
    ranks[0]["clock_offsets_s"] = [0.0, 99.0]
    assert str(_clocks(_report(ranks=ranks))) == "OK    clocks: one host, nothing to compare with"
    one = CLUSTER.model_copy(update={"num_nodes": 1, "ranks_per_node": 1})
    assert str(_allreduce(_report(one, [{"rank": 0, "allreduce": None}]))) == (
        "OK    allreduce: one rank, nothing to reduce"
    )
    lost = [{"rank": 0, "allreduce": {"is_right": True}}]
    assert _allreduce(_report(ranks=lost)).words == "1 of 6 ranks came to its end"


@pytest.mark.parametrize(
    ("nodes", "node", "rate", "level"),
    [
        (2, {"nics": 4, "nic_bytes_per_s": 25e9}, 10e9, "OK"),
        (2, {"nics": 4, "nic_bytes_per_s": 25e9}, 9.99e9, "WARN"),
        (2, {"nics": 4, "nic_bytes_per_s": None}, 1.0, "OK"),
        (1, {"nics": 4, "nic_bytes_per_s": 25e9, "gpu_link_bytes_per_s": 300e9}, 29.9e9, "WARN"),
        (1, {"nics": 4, "nic_bytes_per_s": 25e9, "gpu_link_bytes_per_s": 300e9}, 30e9, "OK"),
        (1, {"gpu_link_bytes_per_s": None}, 1.0, "OK"),
    ],
)
def test_a_tenth_of_the_links_of_a_rank_is_enough(nodes: int, node: dict[str, Any], rate: float, level: str) -> None:
    update = {"num_nodes": nodes, "node": CLUSTER.node.model_copy(update=node)}
    found = _bandwidth(CLUSTER.model_copy(update=update), 32 << 20, rate)
    assert found.level == level
    expected = f", the cluster file has {100 if nodes == 2 else 300} GB/s"
    assert found.words.endswith(expected) == (level == "WARN")


@pytest.mark.parametrize(("low", "level"), [(3360.0, "OK"), (3360.1, "WARN")])
def test_the_least_rate_that_the_simulator_expects_is_as_expected(low: float, level: str) -> None:
    forecast = {**FORECAST, "low": low}
    report = ProbeReport(V100, _rows(), STEP_PLAN, is_packed_on_demand=False, forecast=forecast)
    found: CheckResult = check_step(report)[-1]
    assert (found.topic, found.level) == ("forecast", level)


@pytest.mark.parametrize(
    ("words", "remedy"),
    [
        ("Failed to allocate CPU Memory", "take smaller micro-batches"),
        ("MemoryError: 7 GB", "take smaller micro-batches"),
        ("CUDA_ERROR_OUT_OF_MEMORY", "take smaller micro-batches"),
        ("invalid device function", "this MXNet has no kernels"),
        ("CUDA driver version is insufficient for CUDA runtime version", "update the driver"),
        ("the provided PTX was compiled with an unsupported PTX version", "update the driver"),
        ("NVRTC compilation failed", "update the driver"),
        ("cuDNN: no algorithm", "cuDNN has no algorithm"),
        ("nvjpeg: 5", "lower engine.input_threads"),
        ("Aborted", ""),
    ],
)
def test_each_wording_of_an_error_has_its_remedy(words: str, remedy: str) -> None:
    rows = _rows()
    rows[0]["step"]["failure"] = {"part": "warm-up", "words": words}
    (found,) = check_step(ProbeReport(V100, rows, {}, is_packed_on_demand=False))
    assert found.remedy.startswith(remedy)
    assert bool(found.remedy) == bool(remedy)


def test_a_check_that_fails_on_one_host_is_not_told_as_well_on_the_others() -> None:
    ranks = _sound()
    ranks[2]["machine"]["runs"]["is_writable"] = False
    assert [result.level for result in judge(_report(ranks=ranks)) if result.topic == "disk"] == ["FAIL"]
    ranks[2]["machine"]["runs"] |= {"is_writable": True, "free_bytes": 800e9}
    (disk,) = (result for result in judge(_report(ranks=ranks)) if result.topic == "disk")
    assert str(disk) == "OK    disk: 900.0 GB free at /runs, 4.1 GB needed for a run; others similar"


@pytest.mark.parametrize(
    ("nodes", "words"), [(7, "8 of 14 did not report: 6, 7, 8, 9, 10, 11, 12, 13"), (3, "6 on 3 hosts")]
)
def test_eight_missing_ranks_are_all_named(nodes: int, words: str) -> None:
    found = judge(_report(CLUSTER.model_copy(update={"num_nodes": nodes}), _sound()))[0]
    assert found.words == words


def test_hosts_with_other_changes_of_the_program_are_named_and_those_without_gpu_or_git_too() -> None:
    ranks = _sound()
    ranks[2]["machine"]["environment"]["git"]["diff_sha256"] = "77"
    ranks[4]["machine"]["environment"] |= {"gpus": [], "git": None}
    found = [str(result) for result in judge(_report(ranks=ranks)) if result.topic == "versions"]
    remedy = "start the program of all hosts from one folder or image"
    assert found == [
        f"WARN  versions (node1): changes 77, elsewhere none; {remedy}",
        f"FAIL  versions (node2): commit none, elsewhere abc; {remedy}",
        f"FAIL  versions (node2): driver none, elsewhere 535.104; {remedy}",
    ]


@pytest.mark.parametrize(
    ("words", "before", "ending"),
    [
        ("out of memory", 9e9 + 1e8, "out of memory; 0.1 GB too much by the plan"),
        ("out of memory", 9e9, "out of memory"),
        ("out of memory", None, "out of memory"),
        ("cuDNN: no algorithm", 10e9, "cuDNN: no algorithm"),
    ],
)
def test_what_the_plan_lacks_is_told_of_memory_alone(words: str, before: float | None, ending: str) -> None:
    rows = _rows()
    rows[0]["step"] |= {"failure": {"part": "warm-up", "words": words}, "memory_before_bytes": before}
    (found,) = check_step(ProbeReport(V100, rows, STEP_PLAN, is_packed_on_demand=False))
    assert found.words == f"rank 0 on node0, warm-up: {ending}"


def test_a_step_without_a_data_set_or_a_plan_is_told_without_their_figures() -> None:
    rows = _rows()
    for row in rows:
        row["step"]["seconds"] = {name: value for name, value in SECONDS.items() if name != "first batch"}
        row["step"]["seconds"] |= {"forward and backward": 0.011}
    step, _, memory = check_step(ProbeReport(V100, rows, None, is_packed_on_demand=False))
    assert "; first batch random, as no data set is there; " in step.words
    assert "; backward 0 ms; " in step.words, "noise makes no time negative"
    assert (memory.level, memory.words) == ("WARN", "not measured: nvidia-smi does not tell it")
