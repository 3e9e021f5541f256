"""Every problem is found, on the host that has it, and a sound cluster has none."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from pydantic import TypeAdapter

from configs.load import load_cluster
from configs.registry import CAST_FLAGS
from configs.schema import Cluster
from launch.doctor.check_result import CheckResult, ProbeReport
from launch.doctor.diagnosis import judge
from launch.doctor.facts import RankFacts
from launch.setup.layout import Kind

pytestmark = pytest.mark.usefixtures("with_mxnet")

Ranks = list[dict[str, Any]]

_GPU = {"name": "A100", "driver_version": "535.104", "memory.total": "81251 MiB"}
_FOLDER = {"folder": "/tmp", "free_bytes": 1e9, "is_writable": True}
CLUSTER = load_cluster("dgx-a100", ["cluster.ranks_per_node=2", "cluster.node.rank_cores=[]", "cluster.num_nodes=3"])
PLAN: dict[str, Any] = {
    "total_bytes": 10 * 10**9, "certain_bytes": 9 * 10**9, "pinned_bytes_per_node": 20 * 10**9,
    "parameters": 25_557_032, "slow_settings": [],
}  # fmt: skip


def _machine() -> dict[str, Any]:
    environment = {"python": "3.11.7 (main)", "packages": {"mxnet-cu112": "1.9.1", "tqdm": "4.66"},
                   "gpus": [dict(_GPU), dict(_GPU)], "git": {"commit": "abc", "diff_sha256": None}}  # fmt: skip
    return {
        "environment": environment, "memory_available_bytes": 900e9,
        "shm_free_bytes": 500e9, "runs": {"folder": "/runs", "free_bytes": 900e9, "is_writable": True}, "stage": None,
        "limits": {"open files": 256}, "temporary": _FOLDER,
        "interfaces": {"lo": "unknown", "eth0": "up"},
        "adapters": {name: ["4: ACTIVE"] for name in CLUSTER.node.hcas},
    }  # fmt: skip


def _sound() -> Ranks:
    ranks: Ranks = []
    for rank in range(6):
        row: dict[str, Any] = {
            "rank": rank, "local_rank": rank % 2, "world_size": 6, "host": f"node{rank // 2}",
            "cores": list(range(128)),
            "libraries": {"MXNet": {"gpus": 2, "CUDA": True}, "DALI": {},
                          "Horovod": {"gloo": True, "mpi": True, "nccl": True}},
            "bus_bytes_per_s": 60e9, "sums_are_right": True,
            "clock_offsets_s": [0.001 * number for number in range(6)],
        }  # fmt: skip
        if rank % 2 == 0:
            row["machine"] = _machine()
            row["data"] = {"folder": "/data", "problem": None, "records": 7, "bytes": 150e9}
        ranks.append(row)
    return ranks


_REPORTS = TypeAdapter(list[RankFacts])


def reports(ranks: Ranks) -> list[RankFacts]:
    """Return the reports that a rank's JSON would give."""
    return _REPORTS.validate_python(ranks)


def _check(ranks: Ranks, cluster: Cluster = CLUSTER, plan: Any = PLAN, **more: Any) -> list[CheckResult]:
    return judge(ProbeReport(cluster, reports(ranks), plan, **more))


def _on(topic: str, *given: Any, **more: Any) -> list[str]:
    """Return the results on a topic without their hosts."""
    return [str(replace(result, hosts=())) for result in _check(*given, **more) if result.topic == topic]


def _lost(ranks: Ranks) -> None:
    del ranks[3]


def _fails(ranks: Ranks) -> None:
    ranks[1] |= {"failure": "Horovod has been shut down", "is_second_hand": True}
    ranks[5] |= {"failure": "Connection refused", "is_second_hand": False}


def _set(rank: int, *path: Any, to: Any) -> Callable[[Ranks], None]:
    def apply(ranks: Ranks) -> None:
        node: Any = ranks[rank]
        for key in path[:-1]:
            node = node[key]
        node[path[-1]] = to

    return apply


def _gpus(hosts: slice, **of_each: str) -> Callable[[Ranks], None]:
    """Return the function that changes the GPUs of hosts."""

    def apply(ranks: Ranks) -> None:
        for rank in ranks[::2][hosts]:
            environment = rank["machine"]["environment"]
            environment["gpus"] = [gpu | of_each for gpu in environment["gpus"]]

    return apply


_ALL = slice(None)

_no_driver = _set(2, "machine", "environment", "gpus", to=None)

TROUBLES = [
    (_lost, "FAIL", "ranks: 1 of 6 did not report: 3;"),
    (_set(2, "host", to="node0"), "WARN", "ranks: 6 ranks on 2 hosts, the cluster file has num_nodes: 3"),
    (_no_driver, "FAIL", "driver (node1): no GPU can be seen;"),
    (_gpus(_ALL, driver_version="440.33"), "FAIL", "driver (node0, node1, node2): 440.33, 2 A100: too old for CUDA 11"),
    (_gpus(slice(1, 2), name="NVIDIA H100 80GB HBM3"), "FAIL",
     "driver (node1): 535.104, 2 NVIDIA H100 80GB HBM3: MXNet 1.9.1 has no kernels for this GPU;"),
    (_set(2, "machine", "environment", "gpus", to=[_GPU]), "FAIL", "driver (node1): 1 GPU for 2 ranks per node;"),
    (_set(2, "machine", "environment", "gpus", to=[_GPU, {**_GPU, "mig.mode.current": "Enabled"}]), "FAIL",
     "driver (node1): 535.104, 2 A100; MIG is on"),
    (_set(2, "libraries", "DALI", to="no such library"), "FAIL", "libraries (node1): DALI: no such"),
    (_set(4, "libraries", "Horovod", "nccl", to=False), "FAIL", "libraries (node2): Horovod was built without"),
    (_set(2, "libraries", "MXNet", "CUDA", to=False), "FAIL", "libraries (node1): this MXNet was built without"),
    (_set(2, "libraries", "MXNet", "gpus", to=1), "FAIL", "libraries (node1): MXNet: 1 GPU for 2 ranks"),
    (_set(4, "machine", "environment", "packages", "mxnet-cu112", to="1.9.0"), "FAIL",
     "versions (node2): mxnet-cu112 1.9.0, elsewhere 1.9.1;"),
    (_set(4, "machine", "environment", "packages", "tqdm", to="4.67"), "WARN", "versions (node2): tqdm 4.67"),
    (_set(2, "machine", "environment", "git", "diff_sha256", to="77"), "WARN", "versions (node1): changes 77, elsewhe"),
    (_set(4, "machine", "environment", "git", to=None), "FAIL", "versions (node2): commit none, elsewhere abc"),
    (_set(2, "machine", "memory_available_bytes", to=1e8), "FAIL", "memory (node1): 0.1 GB free, 20.5 GB needed"),
    (_set(2, "machine", "runs", "free_bytes", to=None), "WARN", "disk (node1): unknown free at /runs, 4.1 GB needed"),
    (_set(2, "machine", "runs", "is_writable", to=False), "FAIL", "disk (node1): /runs is not writable;"),
    (_set(2, "machine", "shm_free_bytes", to=(128 << 20) - 1), "WARN", "shared memory (node1): 0.1 GB free"),
    (_set(4, "machine", "adapters", "mlx5_3", to=["1: DOWN"]), "FAIL", "links (node2): mlx5_3 down;"),
    (_set(4, "machine", "adapters", to={}), "FAIL", "links (node2): mlx5_0 missing, mlx5_1 missing"),
    (_set(4, "machine", "limits", to={"locked memory": 65536}), "WARN", "links (node2): adapters are up, but locked"),
    (_set(2, "data", to=None), "WARN", "data (node1): not checked"),
    (_set(2, "data", "problem", to="train.rec: gone; run it"), "FAIL", "data (node1): train.rec: gone; run it"),
    (_set(2, "machine", "stage", to={"folder": "/ssd", "free_bytes": 1e9, "is_writable": True}), "FAIL",
     "stage (node1): 1.0 GB free at /ssd, 150.0 GB needed;"),
    (_set(2, "machine", "stage", to={"folder": "/ssd", "problem": "/ssd: Read-only file system"}), "FAIL",
     "stage (node1): /ssd: Read-"),
    (_set(2, "machine", "stage", to={"folder": "/ssd", "is_writable": False}), "FAIL",
     "stage (node1): /ssd is not writable"),
    (_set(2, "machine", "usable_cores", to=0.5), "WARN", "cores (node1): 0.5 granted for"),
    (_set(2, "machine", "limits", to={"open files": 255}), "WARN", "limits (node1): open files: 255, 256 needed"),
    (_set(2, "machine", "limits", to={"file size": 300 << 20}), "WARN", "limits (node1): file size: 314,572,800, "),
    (_set(2, "machine", "temporary", to=_FOLDER | {"free_bytes": 9e7}), "WARN", "temporary files (node1): 0.1 GB free"),
    (_set(0, "clock_offsets_s", 3, to=-2.5), "WARN", "clocks: node1 is 2.500 s behind node0; start chronyd"),
    (_set(0, "clock_offsets_s", 5, to=60.5), "FAIL", "clocks: node2 is 60.500 s ahead of node0"),
    (_set(0, "clock_offsets_s", 2, to=0.5), "WARN", "clocks: node1 is 0.500 s ahead of node0"),
    (_fails, "FAIL", "allreduce (node2): rank 5 on node2: Connection refused;"),
    (_set(5, "sums_are_right", to=False), "FAIL", "allreduce: the sums are wrong;"),
    (_set(5, "bus_bytes_per_s", to=19e9), "WARN", "allreduce: 32 MiB over 6 ranks by nccl: 19.00 GB/s"),
]  # fmt: skip


def test_a_sound_cluster_has_one_line_a_topic_and_no_trouble() -> None:
    results = _check(_sound())
    assert {result.level for result in results} == {"OK"}
    assert [result.topic for result in results] == [
        "ranks", "driver", "libraries", "versions", "cores", "memory", "limits", "disk", "temporary files",
        "shared memory", "links", "data", "clocks", "allreduce",
    ]  # fmt: skip


@pytest.mark.parametrize(("harm", "level", "line"), TROUBLES, ids=[line for _, _, line in TROUBLES])
def test_a_trouble_is_the_only_one_found_and_names_its_host(
    harm: Callable[[Ranks], None], level: str, line: str
) -> None:
    ranks = _sound()
    harm(ranks)
    (found, *others) = [result for result in _check(ranks) if result.level != "OK"]
    assert str(found).startswith(f"{level:<4}  {line}")
    # A rank without a report has no allreduce either, and a host without a driver has no version of it.
    also: dict[Callable[[Ranks], None], list[str]] = {_lost: ["allreduce"], _no_driver: ["versions"]}
    assert [each.topic for each in others] == also.get(harm, [])


_H100 = {"name": "NVIDIA H100 80GB HBM3"}
_ON_CPU = {"device": "cpu"}
_ONE_RANK = {"num_nodes": 1, "ranks_per_node": 1}
_NO_HCAS = {"node": CLUSTER.node.model_copy(update={"hcas": ()}), "environment": {}}


def _gloo(interface: str) -> dict[str, Any]:
    return {**_NO_HCAS, "environment": {"HOROVOD_GLOO_IFACE": interface}}


def _memory_of(total: float, certain: float) -> dict[str, Any]:
    return PLAN | {"total_bytes": int(total), "certain_bytes": int(certain)}


_SSD = {"folder": "/ssd", "is_writable": True, "free_bytes": 5e9}

OF_ONE_HOST: list[tuple[dict[str, Any], dict[str, Any], dict[str, Any] | None, str]] = [
    # Changes of the cluster and of the machine, the plan, and how the line on a topic begins.
    ({}, {"gpus": {"driver_version": "unknown"}}, PLAN, "OK    driver"),
    ({}, {"gpus": {"name": "NVIDIA X1"}}, PLAN, "OK    driver: 535.104, 2 NVIDIA X1"),
    (_ONE_RANK, {"gpus": {"mig.mode.current": "Enabled"}}, PLAN, "WARN  driver: 535.104, 2 A100; MIG is on"),
    (_NO_HCAS, {}, PLAN, "OK    links: eth0 up; the cluster file names no InfiniBand adapters"),
    (_NO_HCAS, {"interfaces": {"lo": "unknown", "eth0": "down"}}, PLAN, "FAIL  links: no network interface is up"),
    ({**_NO_HCAS, "num_nodes": 1}, {"interfaces": {"lo": "unknown"}}, PLAN, "OK    links: only lo up"),
    (_gloo("lo"), {}, PLAN, "OK    links: eth0 up"),
    (_gloo("eth1"), {}, PLAN, "FAIL  links: eth1 missing"),
    (_gloo("eth1"), {"interfaces": {"eth1": "down"}}, PLAN, "FAIL  links: eth1 down"),
    # 0.3 GB a rank for the libraries on top of the pinned images of the GPUs, or all that the plan says on a CPU.
    ({}, {"memory_available_bytes": None}, _memory_of(9e9, 9e9), "OK    memory: unknown free, about 20.5 GB needed"),
    ({}, {}, _memory_of((81251 << 20) + 1, 81251 << 20), "WARN  memory: the plan needs 85.2 GB and a GPU has 85.2 GB"),
    ({}, {}, _memory_of((81251 << 20) + 1, (81251 << 20) + 1), "FAIL  memory: the plan needs 85.2 GB and a GPU has"),
    (_ON_CPU, {}, _memory_of((81251 << 20) + 1, (81251 << 20) + 1), "OK    memory: 900.0 GB free, about 170.4 GB"),
    (_ON_CPU, {"memory_available_bytes": 14e9}, _memory_of(7e9, 5e9), "OK    memory: 14.0 GB free, about 14.0 GB"),
    (_ON_CPU, {"memory_available_bytes": 14e9 - 1}, _memory_of(7e9, 5e9), "WARN  memory: 14.0 GB free, 14.0 GB needed"),
    (_ON_CPU, {"memory_available_bytes": 10e9 - 1}, _memory_of(7e9, 5e9), "FAIL  memory: 10.0 GB free, 14.0 GB needed"),
    ({}, {}, None, "WARN  memory: 900.0 GB free, not compared with a plan; name a recipe"),
    ({}, {"stage": _SSD}, PLAN, "OK    stage: 5.0 GB free at /ssd, 5.0 GB needed"),
    # 1 GB, and 120 bytes for each of 25,557,032 parameters.
    ({}, {"runs": _FOLDER | {"free_bytes": 4_066_843_840}}, PLAN, "OK    disk"),
    ({}, {"runs": _FOLDER | {"free_bytes": 4_066_843_839}}, PLAN, "WARN  disk"),
    ({}, {"runs": _FOLDER | {"free_bytes": 406_684_383}}, PLAN, "FAIL  disk"),
    ({}, {"runs": _FOLDER | {"free_bytes": 999_999_999}}, None, "WARN  disk"),
]  # fmt: skip


@pytest.mark.parametrize(("cluster", "machine", "plan", "line"), OF_ONE_HOST)
def test_a_host_is_judged_to_the_byte_and_by_what_the_cluster_file_names(
    cluster: dict[str, Any], machine: dict[str, Any], plan: dict[str, Any] | None, line: str
) -> None:
    ranks = _sound()[:2]
    _gpus(_ALL, **machine.get("gpus", {}))(ranks)
    ranks[0]["machine"] |= {key: value for key, value in machine.items() if key != "gpus"}
    ranks[0]["data"]["bytes"] = 5e9
    place = CLUSTER.model_copy(update={"num_nodes": 2, **cluster})
    (found,) = _on(line[6:].partition(":")[0], ranks, place, plan)
    assert found.startswith(line)


@pytest.mark.parametrize(
    ("precision", "lacking", "level"),
    [("bfloat16", "avx512bw", ["FAIL"]), ("bfloat16", None, []), ("float32", "avx512bw", []), ("gpu", "avx512bw", [])],
)
def test_a_cpu_has_the_instructions_of_the_precision(precision: str, lacking: str | None, level: list[str]) -> None:
    sets = ["cluster.engine.name=mxnet", f"cluster.engine.precision={precision.replace('gpu', 'bfloat16')}"]
    on_cpu = load_cluster("laptop", sets).model_copy(update={"device": "gpu" if precision == "gpu" else "cpu"})
    ranks = _sound()
    for rank in ranks[::2]:
        rank["machine"]["environment"]["cpu_flags"] = sorted({"avx2", *CAST_FLAGS} - {lacking})
    told = [result for result in _check(ranks, on_cpu) if result.topic == "precision"]
    assert [result.level for result in told] == level
    assert all("no avx512bw" in result.words for result in told)


@pytest.mark.parametrize(("compiles", "level"), [(True, ["FAIL"]), (False, [])])
def test_a_host_without_a_compiler_fails_where_steps_are_compiled(compiles: bool, level: list[str]) -> None:
    cluster = CLUSTER.model_copy(update={"engine": CLUSTER.engine.model_copy(update={"compile": compiles})})
    ranks = _sound()
    ranks[2]["machine"]["compiler_shortage"] = ["no C++ compiler (g++)", "install g++"]
    assert [each[:4] for each in _on("compiler", ranks, cluster) if not each.startswith("OK")] == level


def test_ranks_that_hang_in_a_library_are_told_from_ranks_that_never_started() -> None:
    ranks = _sound()
    for rank in ranks:
        for key in ("libraries", "bus_bytes_per_s", "clock_offsets_s"):
            rank.pop(key)
    failed = [str(result) for result in _check(ranks) if result.level == "FAIL"]
    assert failed[0].startswith("FAIL  libraries (node0, node1, node2): a rank ended or hung while it loaded")
    assert failed[1].startswith("FAIL  allreduce: 0 of 6 ranks completed it")


def test_a_driver_is_compared_with_the_needs_of_the_environment() -> None:
    ranks = _sound()
    _gpus(_ALL, **_H100)(ranks)
    (own,) = _on("driver", ranks, kind=Kind(("mxnet",), "gpu", "/usr/bin/python3"))
    assert own.startswith("OK    driver: 535.104, 2 NVIDIA H100 80GB HBM3; not compared"), "a site's own MXNet"
    for rank in ranks:
        rank["libraries"]["PyTorch"] = rank["libraries"].pop("MXNet")
    cluster = CLUSTER.model_copy(update={"engine": CLUSTER.engine.model_copy(update={"name": "torch"})})
    assert [line[:4] for line in _on("driver", ranks, cluster, kind=Kind(("torch",), "cuda12"))] == ["OK  "]
    (found,) = _on("driver", ranks, cluster)
    assert "too old for CUDA 13; update the driver to R580 or later, or run ./run.sh setup --engine torch" in found


@pytest.mark.parametrize(
    ("folder", "exists", "words"),
    [("/data", False, "/data does not exist yet; the first run packs it"), (None, True, "generated in memory")],
)
def test_a_data_set_that_need_not_be_there_may_be_missing(folder: str | None, exists: bool, words: str) -> None:
    ranks = _sound()
    for rank in ranks[::2]:
        rank["data"] = {"folder": folder, "exists": exists}
    (found,) = _on("data", ranks)
    assert found.startswith(f"OK    data: {words}")


_OF_LAPTOP = ("engine.name=mxnet", "ranks_per_node=3", "engine.threads=2", "node.cores=null")
LAPTOP = load_cluster("laptop", [f"cluster.{key}" for key in _OF_LAPTOP])


def test_libraries_are_told_with_what_they_were_built_with_only_and_a_cpu_needs_no_gpu() -> None:
    ranks = _sound()
    for rank in ranks:
        rank["libraries"]["Horovod"]["mpi"] = False
    assert _on("libraries", ranks) == ["OK    libraries: MXNet, DALI, Horovod load; with CUDA, gloo, nccl"]
    ranks = ranks[:2]
    ranks[0]["machine"]["environment"]["gpus"] = []
    ranks[0]["libraries"] = {"MXNet": {"gpus": 0, "CUDA": False, "gloo": True, "mpi": True, "nccl": False}}
    assert _on("driver", ranks, LAPTOP) == []
    assert _on("libraries", ranks, LAPTOP) == ["OK    libraries: MXNet load; with gloo, mpi"]


@pytest.mark.parametrize(
    ("node_cores", "granted", "line"),
    [
        (None, 6, "OK    cores: 6 granted for 6 operator threads"),
        (None, 5, "WARN  cores: 5 granted for 6 operator threads and node.cores: null; ask the scheduler"),
        (6, 6, "OK    cores: 6 granted for 6 operator threads"),
        (7, 6, "WARN  cores: 6 granted for 6 operator threads and node.cores: 7; ask the scheduler"),
    ],
)
def test_the_cores_of_all_ranks_of_a_host_are_counted_once(node_cores: int | None, granted: int, line: str) -> None:
    cluster = LAPTOP.model_copy(update={"node": LAPTOP.node.model_copy(update={"cores": node_cores})})
    ranks = _sound()[:3]
    for rank, cores in zip(ranks, (range(granted - 1), range(1, granted), range(64)), strict=True):
        rank["cores"] = list(cores)
    del ranks[2]["machine"]
    (found,) = _on("cores", ranks, cluster)
    assert found.startswith(line)


def test_hosts_are_compared_only_with_others() -> None:
    ranks = _sound()[:2]
    ranks[0]["clock_offsets_s"] = [0.0, 99.0]
    assert _on("clocks", ranks) == ["OK    clocks: one host, nothing to compare with"]
    assert _on("versions", ranks) == [
        "OK    versions: python 3.11.7, mxnet-cu112 1.9.1, driver 535.104 (one host, nothing to compare with)"
    ]
    assert "2 of 6 ranks completed it" in _on("allreduce", ranks)[0]
    ranks[0] |= {"bus_bytes_per_s": None, "clock_offsets_s": [0.0]}
    one = CLUSTER.model_copy(update=_ONE_RANK)
    assert _on("allreduce", ranks[:1], one) == ["OK    allreduce: one rank, nothing to reduce"]


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
    cluster = CLUSTER.model_copy(update={"num_nodes": nodes, "node": CLUSTER.node.model_copy(update=node)})
    ranks = _sound()[: 2 * nodes]
    ranks[-1]["bus_bytes_per_s"] = rate
    (found,) = _on("allreduce", ranks, cluster)
    assert found.startswith(level)
    assert (f", the cluster file has {100 if nodes == 2 else 300} GB/s" in found) == (level == "WARN")


def test_what_is_ok_is_told_once_and_every_slow_setting_is_a_warning() -> None:
    ranks = _sound()
    ranks[2]["machine"]["runs"] |= {"free_bytes": 800e9}
    assert _on("disk", ranks) == ["OK    disk: 900.0 GB free at /runs, 4.1 GB needed; others similar"]
    slow = PLAN | {"slow_settings": ["x; set y", "z"]}
    assert _on("settings", ranks, plan=slow) == ["WARN  settings: x; set y", "WARN  settings: z"]
