"""Every problem is found, on the host that has it, and a sound cluster has none."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from pydantic import TypeAdapter

from configs.load import load_cluster
from configs.registry import CAST_FLAGS
from configs.schema import Cluster
from launch.doctor.check_result import CheckResult, PlannedRun, ProbeReport
from launch.doctor.diagnosis import judge
from launch.doctor.facts import RankFacts

pytestmark = pytest.mark.usefixtures("with_mxnet")

Ranks = list[dict[str, Any]]

_GPU = {"name": "A100", "driver_version": "535.104", "memory.total": "81251 MiB"}
_FOLDER = {"folder": "/tmp", "free_bytes": 1e9, "is_writable": True, "free_inodes": 1000}
CLUSTER = load_cluster("dgx-a100", ["cluster.ranks_per_node=2", "cluster.node.rank_cores=[]", "cluster.num_nodes=3"])
PLAN = PlannedRun(
    total_bytes=10 * 10**9, certain_bytes=9 * 10**9, available_bytes=None, pinned_bytes_per_node=20 * 10**9,
    parameters=25_557_032,
)  # fmt: skip


def _machine() -> dict[str, Any]:
    environment = {"python": "3.11.7 (main)", "packages": {"mxnet-cu112": "1.9.1", "tqdm": "4.66"},
                   "gpus": [dict(_GPU), dict(_GPU)], "git": {"commit": "abc", "diff_sha256": None}}  # fmt: skip
    return {
        "environment": environment, "memory_available_bytes": 900e9, "locked_memory_bytes": None,
        "shm_free_bytes": 500e9, "runs": {"folder": "/runs", "free_bytes": 900e9, "is_writable": True}, "stage": None,
        "limits": {"open files": 256}, "temporary": _FOLDER,
        "interfaces": {"lo": "unknown", "eth0": "up"},
        "adapters": {name: {"1": "4: ACTIVE, 200 Gb/sec (4X HDR)"} for name in CLUSTER.node.hcas},
    }  # fmt: skip


def _sound() -> Ranks:
    ranks: Ranks = []
    for rank in range(6):
        row: dict[str, Any] = {
            "rank": rank, "local_rank": rank % 2, "world_size": 6, "host": f"node{rank // 2}",
            "cores": list(range(128)),
            "libraries": {"MXNet": {"has": {"gpus": 2, "CUDA": True}}, "DALI": {"has": None},
                          "Horovod": {"has": {"gloo": True, "mpi": True, "nccl": True}}},
            "allreduce": {"bytes": 32 << 20, "median_s": 0.001, "bus_bytes_per_s": 60e9, "is_right": True},
            "clock_offsets_s": [0.001 * number for number in range(6)],
        }  # fmt: skip
        if rank % 2 == 0:
            row["machine"] = _machine()
            row["data"] = {"folder": "/data", "problem": None, "records": 7, "bytes": 150e9, "stays_cached": None}
        ranks.append(row)
    return ranks


def reports(ranks: Ranks) -> list[RankFacts]:
    """Return the reports that a rank's JSON would give."""
    return TypeAdapter(list[RankFacts]).validate_python(ranks)


def _check(ranks: Ranks, cluster: Cluster = CLUSTER, plan: PlannedRun | None = PLAN, **more: Any) -> list[CheckResult]:
    return judge(ProbeReport(cluster, reports(ranks), plan, **{"is_packed_on_demand": False, **more}))


def _on(topic: str, *given: Any, **more: Any) -> list[str]:
    """Return the results on a topic without their hosts."""
    return [str(replace(result, hosts=())) for result in _check(*given, **more) if result.topic == topic]


def _host(cluster: Cluster = CLUSTER, **machine: Any) -> tuple[Ranks, Cluster]:
    """Return the reports of one host, whose machine differs in this, and the cluster."""
    ranks = _sound()[:2]
    ranks[0]["machine"] |= machine
    return ranks, cluster


def test_the_kernels_of_a_sites_own_mxnet_are_not_judged() -> None:
    ranks = _sound()
    for rank in ranks[::2]:
        for gpu in rank["machine"]["environment"]["gpus"]:
            gpu["name"] = "NVIDIA H100 80GB HBM3"
    assert _on("driver", ranks)[0].startswith("FAIL")
    assert _on("driver", ranks, base="/usr/bin/python3") == [
        "OK    driver: 535.104, 2 NVIDIA H100 80GB HBM3; not compared with the MXNet of /usr/bin/python3"
    ]


def test_a_setting_that_costs_a_factor_is_a_warning() -> None:
    assert _on("settings", _sound()) == []
    assert _on("settings", _sound(), plan=replace(PLAN, slow_settings=["x; set y", "z"])) == [
        "WARN  settings: x; set y",
        "WARN  settings: z",
    ]


def _lost(ranks: Ranks) -> None:
    del ranks[3]


def _no_driver(ranks: Ranks) -> None:
    ranks[2]["machine"]["environment"]["gpus"] = None


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


def _old_driver(version: str) -> Callable[[Ranks], None]:
    def apply(ranks: Ranks) -> None:
        for rank in ranks[::2]:
            environment = rank["machine"]["environment"]
            environment["gpus"] = [{**gpu, "driver_version": version} for gpu in environment["gpus"]]

    return apply


def _newer_gpu(ranks: Ranks) -> None:
    gpus = ranks[2]["machine"]["environment"]["gpus"]
    ranks[2]["machine"]["environment"]["gpus"] = [{**gpu, "name": "NVIDIA H100 80GB HBM3"} for gpu in gpus]


def _set_cores(number: int) -> Callable[[Ranks], None]:
    def apply(ranks: Ranks) -> None:
        for rank in ranks[2:4]:
            rank["cores"] = list(range(number))

    return apply


TROUBLES = [
    (_lost, "FAIL", "ranks: 1 of 6 did not report: 3;"),
    (_no_driver, "FAIL", "driver (node1): no GPU can be seen;"),
    (_old_driver("470.57.02"), "WARN", "driver (node0, node1, node2): 470.57.02, 2 A100: older than R520, so"),
    (_old_driver("440.33"), "FAIL", "driver (node0, node1, node2): 440.33, 2 A100: too old for CUDA 11;"),
    (_newer_gpu, "FAIL", "driver (node1): 535.104, 2 NVIDIA H100 80GB HBM3: MXNet 1.9.1 has no kernels for this GPU;"),
    (_set(2, "libraries", "DALI", to={"problem": "no such library"}), "FAIL", "libraries (node1): DALI: no such"),
    (_set(4, "libraries", "Horovod", "has", "nccl", to=False), "FAIL", "libraries (node2): Horovod was built without"),
    (_set(4, "machine", "environment", "packages", "mxnet-cu112", to="1.9.0"), "FAIL",
     "versions (node2): mxnet-cu112 1.9.0, elsewhere 1.9.1; start the program of all hosts from one folder or image"),
    (_set(4, "machine", "environment", "packages", "tqdm", to="4.67"), "WARN", "versions (node2): tqdm 4.67"),
    (_set(0, "machine", "environment", "git", "commit", to="def"), "FAIL", "versions (node0): commit def"),
    (_set(2, "machine", "memory_available_bytes", to=1e8), "FAIL", "memory (node1): 0.1 GB free, 20.5 GB needed"),
    (_set(2, "machine", "environment", "gpus", 0, "memory.total", to="8000 MiB"), "FAIL", "memory (node1): the plan"),
    (_set(2, "machine", "environment", "gpus", 0, "memory.total", to="9200 MiB"), "WARN", "memory (node1): the plan"),
    (_set(2, "machine", "runs", "free_bytes", to=0.41e9), "WARN", "disk (node1): 0.4 GB free at /runs, 4.1 GB needed"),
    (_set(2, "machine", "runs", "is_writable", to=False), "FAIL", "disk (node1): /runs is not writable;"),
    (_set(2, "machine", "shm_free_bytes", to=(128 << 20) - 1), "WARN", "shared memory (node1): 0.1 GB free"),
    (_set(4, "machine", "adapters", "mlx5_3", "1", to="1: DOWN, 10 Gb/sec"), "FAIL", "links (node2): mlx5_3 down;"),
    (_set(4, "machine", "adapters", to={}), "FAIL", "links (node2): mlx5_0 missing, mlx5_1 missing"),
    (_set(4, "machine", "locked_memory_bytes", to=65536), "WARN", "links (node2): adapters are up, but locked memory"),
    (_set(2, "data", "problem", to="train.rec: gone; run it"), "FAIL", "data (node1): train.rec: gone; run it"),
    (_set(2, "data", "stays_cached", to="own the images"), "WARN", "data (node1): /data: 7 records"),
    (_set(2, "machine", "stage", to={"folder": "/ssd", "free_bytes": 1e9, "is_writable": True}), "FAIL",
     "stage (node1): 1.0 GB free at /ssd, the data set needs 150.0 GB;"),
    (_set(0, "clock_offsets_s", 3, to=-2.5), "WARN", "clocks: node1 is 2.500 s behind node0; start chronyd"),
    (_fails, "FAIL", "allreduce (node2): rank 5 on node2: Connection refused;"),
    (_set(5, "allreduce", "is_right", to=False), "FAIL", "allreduce: the sums are wrong;"),
    (_set(5, "allreduce", "bus_bytes_per_s", to=19e9), "WARN", "allreduce: 32 MiB over 6 ranks by nccl: 19.00 GB/s"),
    (_set(2, "machine", "environment", "gpus", to=[_GPU]), "FAIL", "driver (node1): 1 GPU for 2 ranks per node;"),
    (_set(2, "machine", "environment", "gpus", to=[_GPU, {**_GPU, "mig.mode.current": "Enabled"}]), "FAIL",
     "driver (node1): 535.104, 2 A100; MIG is on"),
    (_set(2, "libraries", "MXNet", "has", "CUDA", to=False), "FAIL", "libraries (node1): this MXNet was built without"),
    (_set(2, "libraries", "MXNet", "has", "gpus", to=1), "FAIL", "libraries (node1): MXNet: 1 GPU for 2 ranks"),
    (_set(2, "machine", "usable_cores", to=0.5), "WARN", "cores (node1): 0.5 granted, node.cores: 128"),
    (_set(2, "machine", "limits", to={"open files": 255}), "WARN", "limits (node1): open files: 255, 256 needed"),
    (_set(2, "machine", "limits", to={"file size": 300 << 20}), "WARN", "limits (node1): file size: 314,572,800, "),
    (_set(2, "machine", "temporary", to=_FOLDER | {"free_inodes": 999}), "WARN", "files (node1): /tmp: 999 inodes"),
    (_set(2, "machine", "data", to=_FOLDER | {"free_inodes": 0}), "FAIL", "files (node1): /tmp: 0 inodes free, 1000"),
    (_set(2, "machine", "temporary", to=_FOLDER | {"free_bytes": 9e7}), "WARN", "files (node1): /tmp: 0.1 GB free"),
    (_set(2, "machine", "temporary", to=_FOLDER | {"is_writable": False}), "WARN", "files (node1): /tmp is not writ"),
    (_set_cores(127), "WARN", "cores (node1): 127 granted, node.cores: 128"),
    (_set(2, "machine", "runs", "free_bytes", to=0.4e9), "FAIL", "disk (node1): 0.4 GB free at /runs, 4.1 GB needed"),
    (_set(2, "machine", "shm_free_bytes", to=None), "WARN", "shared memory (node1): unknown free"),
    (_set(2, "data", to=None), "WARN", "data (node1): not checked"),
    (_set(2, "machine", "stage", to={"folder": "/ssd", "problem": "/ssd: Read-only file system"}), "FAIL",
     "stage (node1): /ssd: Read-"),
    (_set(2, "machine", "stage", to={"folder": "/ssd", "is_writable": False}), "FAIL",
     "stage (node1): /ssd is not writable"),
    (_set(2, "machine", "stage", to={"folder": "/ssd", "is_writable": True}), "WARN",
     "stage (node1): unknown free at /ssd"),
    (_set(2, "machine", "runs", "free_bytes", to=None), "WARN", "disk (node1): unknown free at /runs, 4.1 GB needed"),
    (_set(0, "clock_offsets_s", 5, to=60.5), "FAIL", "clocks: node2 is 60.500 s ahead of node0"),
    (_set(0, "clock_offsets_s", 5, to=59.5), "WARN", "clocks: node2 is 59.500 s ahead of node0"),
    (_set(0, "clock_offsets_s", 2, to=0.5), "WARN", "clocks: node1 is 0.500 s ahead of node0"),
    (_set(2, "host", to="node0"), "WARN", "ranks: 6 ranks on 2 hosts, the cluster file has num_nodes: 3"),
]  # fmt: skip


def test_a_sound_cluster_has_one_line_a_topic_and_no_trouble() -> None:
    results = _check(_sound())
    assert {result.level for result in results} == {"OK"}
    topics = [result.topic for result in results]
    assert topics == ["ranks", "driver", "libraries", "versions", "cores", "memory", "limits", "disk", "files",
                      "shared memory", "links",
                      "data", "clocks", "allreduce"]  # fmt: skip


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


def test_ranks_on_more_hosts_than_the_cluster_file_has_are_told_too() -> None:
    cluster = CLUSTER.model_copy(update={"ranks_per_node": 3, "num_nodes": 2})
    found, *_ = _check(_sound(), cluster)
    assert str(found).startswith("WARN  ranks: 6 ranks on 3 hosts, the cluster file has num_nodes: 2")


def test_libraries_that_compute_must_have_one_version_on_all_hosts() -> None:
    for name in (
        "mxnet",
        "horovod",
        "torch",
        "numpy",
        "nvidia-dali-cuda110",
        "nvidia-dali-cuda120",
        "nvidia-dali-cuda130",
    ):
        ranks = _sound()
        ranks[2]["machine"]["environment"]["packages"][name] = "7"
        assert [line[:4] for line in _on("versions", ranks)] == ["FAIL"], name


def test_of_many_ranks_and_hosts_the_first_are_named() -> None:
    cluster = CLUSTER.model_copy(update={"num_nodes": 12})
    found, *_ = _check(_sound(), cluster)
    assert found.words == "18 of 24 did not report: 6, 7, 8, 9, 10, 11, 12, 13 ..."
    result = CheckResult("FAIL", "topic", "words", "remedy", ("a", "b", "c", "d", "e"))
    assert str(result) == "FAIL  topic (a, b, c and 2 more): words; remedy"


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
    assert all(result.words == "the CPU has no avx512bw, which MXNet needs for bfloat16" for result in told)


@pytest.mark.parametrize(
    ("compiles", "lines"), [(True, ["FAIL  compiler (node1): no C++ compiler (g++); install g++"]), (False, [])]
)
def test_a_host_without_a_compiler_fails_where_steps_are_compiled(compiles: bool, lines: list[str]) -> None:
    cluster = CLUSTER.model_copy(update={"engine": CLUSTER.engine.model_copy(update={"compile": compiles})})
    ranks = _sound()
    ranks[2]["machine"]["compiler_shortage"] = ["no C++ compiler (g++)", "install g++"]
    assert [str(each) for each in _check(ranks, cluster) if each.topic == "compiler" and each.level != "OK"] == lines


def test_two_hosts_are_compared_with_each_other_and_what_differs_comes_by_name() -> None:
    ranks = _sound()[:4]
    ranks[0]["clock_offsets_s"] = [0.0, 0.0, 2.5, 0.0]
    for name in "kjihgf":
        ranks[2]["machine"]["environment"]["packages"][name] = "1"
    results = _check(ranks)
    versions = [result.words for result in results if result.topic == "versions"]
    assert versions == [f"{name} 1, elsewhere none" for name in "fghijk"]
    assert [result.words for result in results if result.topic == "clocks"] == ["node1 is 2.500 s ahead of node0"]


def test_ranks_that_hang_in_a_library_are_told_from_ranks_that_never_started() -> None:
    ranks = _sound()
    for rank in ranks:
        for key in ("libraries", "allreduce", "clock_offsets_s"):
            rank.pop(key)
    failed = [str(result) for result in _check(ranks) if result.level == "FAIL"]
    assert failed[0].startswith(
        "FAIL  libraries (node0, node1, node2): a rank ended or hung while it loaded the libraries"
    )
    assert failed[1].startswith("FAIL  allreduce: 0 of 6 ranks completed it")


@pytest.mark.parametrize(
    ("version", "level"),
    [("450.79", "FAIL"), ("450.80.02", "WARN"), ("519.99", "WARN"), ("520.0", "OK"), ("unknown", "OK")],
)
def test_a_driver_is_good_from_the_versions_on_that_cuda_11_and_fusion_need(version: str, level: str) -> None:
    ranks = _sound()
    _old_driver(version)(ranks)
    assert [line.split()[0] for line in _on("driver", ranks)] == [level]


def test_a_driver_is_compared_with_the_cuda_of_pytorchs_environment() -> None:
    ranks = _sound()
    for rank in ranks:
        rank["libraries"]["PyTorch"] = rank["libraries"].pop("MXNet")
    cluster = CLUSTER.model_copy(update={"engine": CLUSTER.engine.model_copy(update={"name": "torch"})})
    assert _on("driver", ranks, cluster, variant="cuda12") == ["OK    driver: 535.104, 2 A100"]
    assert _on("driver", ranks, cluster) == [
        "FAIL  driver: 535.104, 2 A100: too old for CUDA 13; update the driver to R580 or later, or run ./run.sh setup "
        "--engine torch --cuda12"
    ]


def test_a_gpu_that_nobody_knows_is_not_refused() -> None:
    ranks = _sound()
    for rank in ranks[::2]:
        rank["machine"]["environment"]["gpus"] = [{**_GPU, "name": "NVIDIA X1"}] * 2
    assert _on("driver", ranks) == ["OK    driver: 535.104, 2 NVIDIA X1"]


def test_libraries_are_told_with_what_they_were_built_with_only() -> None:
    ranks = _sound()
    for rank in ranks:
        rank["libraries"]["Horovod"]["has"]["mpi"] = False
    assert _on("libraries", ranks) == ["OK    libraries: MXNet, DALI, Horovod load; with CUDA, gloo, nccl"]


@pytest.mark.parametrize(
    ("packs", "exists", "level"), [(True, False, "OK"), (True, True, "FAIL"), (False, False, "FAIL")]
)
def test_only_a_data_set_that_the_first_run_packs_may_be_missing(packs: bool, exists: bool, level: str) -> None:
    ranks = _sound()
    for rank in ranks[::2]:
        rank["data"] |= {"problem": "no such data set", "exists": exists}
    assert {line.split()[0] for line in _on("data", ranks, is_packed_on_demand=packs)} == {level}


@pytest.mark.parametrize(("nodes", "words"), [(1, "2 on 1 host"), (2, "4 on 2 hosts")])
def test_ranks_are_counted_by_host(nodes: int, words: str) -> None:
    sets = ["cluster.ranks_per_node=2", "cluster.node.rank_cores=[]", f"cluster.num_nodes={nodes}"]
    results = _check(_sound()[: 2 * nodes], load_cluster("dgx-a100", sets))
    lines = {str(result).split(":")[0].split()[-1]: result for result in results}
    assert (lines["ranks"].level, str(lines["ranks"])) == ("OK", f"OK    ranks: {words}")
    alone = "python 3.11.7, mxnet-cu112 1.9.1, driver 535.104 (one host, nothing to compare with)"
    assert str(lines["versions"]) == f"OK    versions: {alone if nodes == 1 else 'the same on all 2 hosts'}"


@pytest.mark.parametrize(
    ("sets", "changes", "line"),
    [
        (["num_nodes=2"], {}, "OK    links: eth0 up; the cluster file names no InfiniBand adapters"),
        (["num_nodes=2"], {"interfaces": {"lo": "unknown", "eth0": "down"}},
         "FAIL  links: no network interface is up; see ip link"),
        (["num_nodes=1"], {"interfaces": {"lo": "unknown"}},
         "OK    links: only lo up; the cluster file names no InfiniBand adapters"),
        (["num_nodes=2"], {"interfaces": {"b": "up", "a": "up"}},
         "OK    links: a, b up; the cluster file names no InfiniBand adapters"),
        (["environment={HOROVOD_GLOO_IFACE: eth0}"], {},
         "OK    links: eth0 up; the cluster file names no InfiniBand adapters"),
        (["environment={HOROVOD_GLOO_IFACE: lo}"], {},
         "OK    links: eth0 up; the cluster file names no InfiniBand adapters"),
        (["environment={HOROVOD_GLOO_IFACE: eth1}"], {},
         "FAIL  links: eth1 missing; see ibstat and ip link; correct node.hcas, or have the node taken out of service"),
        (["environment={HOROVOD_GLOO_IFACE: eth1}"], {"interfaces": {"eth1": "down"}},
         "FAIL  links: eth1 down; see ibstat and ip link; correct node.hcas, or have the node taken out of service"),
        (["node.hcas=[mlx5_0, mlx5_1]"], {},
         "OK    links: mlx5_0, mlx5_1 active"),
    ],
)  # fmt: skip
def test_links_are_judged_by_what_the_cluster_file_names(sets: list[str], changes: dict[str, Any], line: str) -> None:
    own = [f"cluster.{each}" for each in ("ranks_per_node=2", "node.rank_cores=[]", "node.hcas=[]", "environment={}")]
    cluster = load_cluster("dgx-a100", [*own, *(f"cluster.{each}" for each in sets)])
    assert _on("links", *_host(cluster, **changes)) == [line]


@pytest.mark.parametrize(
    ("device", "planned", "certain", "free", "line"),
    [
        ("gpu", 9e9, 9e9, None, "OK    memory: unknown free, about 20.5 GB needed"),
        ("gpu", 81251 << 20, 9e9, 900e9, "OK    memory: 900.0 GB free, about 20.5 GB needed"),
        ("gpu", (81251 << 20) + 1, 81251 << 20, 900e9, "WARN  memory: the plan needs 85.2 GB and a GPU has 85.2 GB; "),
        ("gpu", (81251 << 20) + 1, (81251 << 20) + 1, 900e9, "FAIL  memory: the plan needs 85.2 GB and a GPU has"),
        ("cpu", (81251 << 20) + 1, (81251 << 20) + 1, 900e9, "OK    memory: 900.0 GB free, about 170.4 GB needed"),
        ("gpu", 7e9, 7e9, 20.46e9, "OK    memory: 20.5 GB free, about 20.5 GB needed"),
        ("gpu", 7e9, 7e9, 20.46e9 - 1, "FAIL  memory: 20.5 GB free, 20.5 GB needed for 2 ranks; end other programs, "),
        ("cpu", 7e9, 5e9, 14e9, "OK    memory: 14.0 GB free, about 14.0 GB needed"),
        ("cpu", 7e9, 5e9, 14e9 - 1, "WARN  memory: 14.0 GB free, 14.0 GB needed for 2 ranks; "),
        ("cpu", 7e9, 5e9, 10e9, "WARN  memory: 10.0 GB free, 14.0 GB needed for 2 ranks; "),
        ("cpu", 7e9, 5e9, 10e9 - 1, "FAIL  memory: 10.0 GB free, 14.0 GB needed for 2 ranks; end other programs, "),
    ],
)
def test_a_host_holds_the_pinned_images_of_its_gpus_or_all_that_the_plan_says_of_its_cpu_ranks(
    device: str, planned: float, certain: float, free: float | None, line: str
) -> None:
    cluster = CLUSTER.model_copy(update={"device": device})
    plan = replace(PLAN, total_bytes=int(planned), certain_bytes=int(certain))  # 0.3 GB a rank for the libraries on top
    (found,) = _on("memory", *_host(cluster, memory_available_bytes=free), plan)
    assert found.startswith(line)


def test_memory_is_not_compared_without_a_plan() -> None:
    words = "900.0 GB free, not compared with a plan; name a recipe with --recipe"
    assert _on("memory", _sound(), plan=None) == [f"WARN  memory: {words}"]


@pytest.mark.parametrize(
    ("stage", "data", "line"),
    [
        (None, {"bytes": 5e9}, []),
        ({"free_bytes": 5e9}, {"bytes": 5e9}, ["OK    stage: 5.0 GB free at /ssd, the data set needs 5.0 GB"]),
        ({"free_bytes": 5e9}, None, ["OK    stage: 5.0 GB free at /ssd, the data set needs 0.0 GB"]),
        ({"free_bytes": 5e9}, {"bytes": 5e9 + 1},
         ["FAIL  stage: 5.0 GB free at /ssd, the data set needs 5.0 GB; free some space, or set cluster.paths.stage: "
          "null"]),
    ],
)  # fmt: skip
def test_a_stage_holds_the_data_set(stage: dict[str, Any] | None, data: dict[str, Any] | None, line: list[str]) -> None:
    ranks, cluster = _host(stage=stage and {"folder": "/ssd", "is_writable": True, **stage})
    ranks[0]["data"] = data and {"folder": "/data", **data}
    assert _on("stage", ranks, cluster) == line


def test_data_that_is_generated_needs_no_check() -> None:
    ranks, cluster = _host()
    ranks[0]["data"] = {"folder": None}
    assert _on("data", ranks, cluster) == ["OK    data: generated in memory, nothing to read"]


_OF_LAPTOP = ("engine.name=mxnet", "ranks_per_node=3", "engine.threads=2", "node.cores=null")
LAPTOP = load_cluster("laptop", [f"cluster.{key}" for key in _OF_LAPTOP])


def test_a_node_of_cpus_needs_no_gpu_in_driver_and_libraries() -> None:
    ranks, _ = _host()
    ranks[0]["machine"]["environment"]["gpus"] = []
    title = {"mxnet": "MXNet", "torch": "PyTorch"}[LAPTOP.engine.name]
    features = {"gpus": 0, "CUDA": False, "gloo": True, "mpi": True, "nccl": False}
    ranks[0]["libraries"] = {title: {"has": features}}
    assert _on("driver", ranks, LAPTOP) == []
    assert _on("libraries", ranks, LAPTOP) == [f"OK    libraries: {title} load; with gloo, mpi"]


@pytest.mark.parametrize(
    ("node_cores", "granted", "line"),
    [
        (None, 6, "OK    cores: 6 granted for 6 operator threads"),
        (None, 5, "WARN  cores: 5 granted for 6 operator threads; ask the scheduler for whole nodes"),
        (6, 6, "OK    cores: 6 granted for 6 operator threads"),
        (7, 6, "WARN  cores: 6 granted, node.cores: 7; ask the scheduler for whole nodes"),
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
    host = _host(runs={"folder": "/runs", "free_bytes": free, "is_writable": True})
    assert [line.split()[0] for line in _on("disk", *host, plan)] == [level]


def test_each_rank_of_a_node_has_its_64_mib_of_shared_memory() -> None:
    assert _on("shared memory", *_host(shm_free_bytes=128 << 20)) == ["OK    shared memory: 0.1 GB free at /dev/shm"]


@pytest.mark.parametrize(("wanted", "level"), [(1, "WARN"), (2, "FAIL")])
def test_one_rank_may_use_one_part_of_a_gpu(wanted: int, level: str) -> None:
    ranks, _ = _host()
    ranks[0]["machine"]["environment"]["gpus"][1]["mig.mode.current"] = "Enabled"
    (found,) = _on("driver", ranks, CLUSTER.model_copy(update={"ranks_per_node": wanted}))
    assert found.startswith(level)
    assert found.endswith("; switch MIG off (nvidia-smi -mig 0), or start one rank")


def test_one_host_has_one_clock_and_one_rank_nothing_to_reduce() -> None:
    ranks = _sound()[:2]
    ranks[0]["clock_offsets_s"] = [0.0, 99.0]
    assert _on("clocks", ranks) == ["OK    clocks: one host, nothing to compare with"]
    one = CLUSTER.model_copy(update={"num_nodes": 1, "ranks_per_node": 1})
    ranks[0] |= {"allreduce": None, "clock_offsets_s": [0.0]}
    assert _on("allreduce", ranks[:1], one) == ["OK    allreduce: one rank, nothing to reduce"]
    assert "2 of 6 ranks completed it" in _on("allreduce", ranks)[0]


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
    ranks[-1]["allreduce"]["bus_bytes_per_s"] = rate
    (found,) = _on("allreduce", ranks, cluster)
    assert found.startswith(level)
    assert (f", the cluster file has {100 if nodes == 2 else 300} GB/s" in found) == (level == "WARN")


def test_a_check_that_fails_on_one_host_is_not_told_as_well_on_the_others() -> None:
    ranks = _sound()
    ranks[2]["machine"]["runs"] |= {"free_bytes": 800e9}
    assert _on("disk", ranks) == ["OK    disk: 900.0 GB free at /runs, 4.1 GB needed for a run; others similar"]


@pytest.mark.parametrize(
    ("nodes", "words"), [(7, "8 of 14 did not report: 6, 7, 8, 9, 10, 11, 12, 13"), (3, "6 on 3 hosts")]
)
def test_eight_missing_ranks_are_all_named(nodes: int, words: str) -> None:
    assert _check(_sound(), CLUSTER.model_copy(update={"num_nodes": nodes}))[0].words == words


def test_hosts_with_other_changes_of_the_program_are_named_and_those_without_gpu_or_git_too() -> None:
    ranks = _sound()
    ranks[2]["machine"]["environment"]["git"]["diff_sha256"] = "77"
    ranks[4]["machine"]["environment"] |= {"gpus": [], "git": None}
    remedy = "start the program of all hosts from one folder or image"
    assert [str(result) for result in _check(ranks) if result.topic == "versions"] == [
        f"WARN  versions (node1): changes 77, elsewhere none; {remedy}",
        f"FAIL  versions (node2): commit none, elsewhere abc; {remedy}",
        f"FAIL  versions (node2): driver none, elsewhere 535.104; {remedy}",
    ]
