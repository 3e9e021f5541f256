"""The variables of a rank: its share of cores and adapters, and the library by which ranks meet."""

import itertools

import pytest

from configs.load import load_cluster
from configs.rank_variables import (
    binding_environment,
    connecting_library,
    rank_environment,
)
from configs.schema import Cluster

LAPTOP, ABCI = load_cluster("laptop"), load_cluster("abci-v100")


def _node(ranks: int, **node: object) -> Cluster:
    return LAPTOP.model_copy(update={"ranks_per_node": ranks, "node": LAPTOP.node.model_copy(update=node)})


def test_neighbouring_ranks_share_an_adapter_and_all_adapters_are_used_alike() -> None:
    for ranks, adapters in itertools.product(range(1, 9), range(1, 5)):
        names = [f"mlx5_{number}" for number in range(adapters)]
        given = binding_environment(_node(ranks, hcas=tuple(names)))["RANK_HCAS"].split()
        assert given == sorted(given)
        counts = [given.count(name) for name in names]
        assert sum(counts) == len(given) == ranks
        assert max(counts) - min(counts) <= 1


def test_ranks_get_equal_blocks_of_cores_in_their_order() -> None:
    for ranks, cores in itertools.product((1, 2, 3, 4, 7), (1, 4, 7, 10, 64)):
        words = binding_environment(_node(ranks, cores=cores)).get("RANK_CORES", "").split()
        blocks = [list(range(int(word.split("-")[0]), int(word.split("-")[-1]) + 1)) for word in words]
        share = cores // ranks
        assert blocks == [list(range(rank * share, (rank + 1) * share)) for rank in range(ranks if share else 0)]


@pytest.mark.parametrize(
    ("backend", "launcher", "controller"),
    [
        ("nccl", "mpirun", "mpi"), ("nccl", "srun", "mpi"), ("nccl", "horovodrun", "gloo"), ("nccl", "local", "gloo"),
        ("mpi", "srun", "mpi"), ("mpi", "horovodrun", "mpi"), ("gloo", "srun", "gloo"), ("gloo", "local", "gloo"),
    ],
)  # fmt: skip
def test_ranks_meet_by_mpi_where_mpi_starts_them_or_carries_the_sums(
    backend: str, launcher: str, controller: str
) -> None:
    communication = ABCI.communication.model_copy(update={"backend": backend})
    cluster = ABCI.model_copy(update={"communication": communication, "launcher": launcher, "num_nodes": 1})
    variables = rank_environment(cluster)
    assert {variables["HOROVOD_CONTROLLER"], variables["HOROVOD_CPU_OPERATIONS"]} == {controller}
    assert ("OMPI_MCA_memory" in variables) is (controller == "mpi")


@pytest.mark.parametrize(
    ("keys", "name", "value"),
    [
        ("watchdog_s=77", "HOROVOD_GLOO_TIMEOUT_SECONDS", "300"),
        ("communication.cycle_time_ms=12.5", "HOROVOD_CYCLE_TIME", "12.5"),
        ("communication.cycle_time_ms=1", "HOROVOD_CYCLE_TIME", "1"),
        ("communication.bucket_bytes=5", "HOROVOD_FUSION_THRESHOLD", "5"),
        ("communication.allreduce=hierarchical", "HOROVOD_HIERARCHICAL_ALLREDUCE", "1"),
        ("communication.allreduce=flat", "HOROVOD_FLAT_ALLREDUCE", None),
        ("communication.kind=shared_memory", "HOROVOD_CONTROLLER", None),
        ("communication.kind=parameter_server communication.backend=mpi", "OMPI_MCA_memory", None),
        ("engine.threads=7", "OMP_NUM_THREADS", "7"),
        ("engine.threads=7 environment={OMP_NUM_THREADS:3}", "OMP_NUM_THREADS", "3"),
        ("environment={HOROVOD_CYCLE_TIME:9}", "HOROVOD_CYCLE_TIME", "9"),
        ("engine.threads=7", "MKL_NUM_THREADS", None),
        ("engine.deterministic=true", "MXNET_ENFORCE_DETERMINISM", "1"),
        ("engine.deterministic=true", "MXNET_CUDNN_AUTOTUNE_DEFAULT", "0"),
        (
            "engine.deterministic=true engine.name=torch communication.kind=none ranks_per_node=1",
            "CUBLAS_WORKSPACE_CONFIG",
            ":4096:8",
        ),
        ("engine.name=torch communication.kind=none ranks_per_node=1", "CUBLAS_WORKSPACE_CONFIG", None),
        ("node.hcas=['a']", "NCCL_IB_HCA", "=a"),
        ("node.interface=eth0 num_nodes=2 launcher=horovodrun", "NCCL_SOCKET_IFNAME", "=eth0"),
        ("node.interface=eth0", "NCCL_SOCKET_IFNAME", None),
        (
            "node.interface=eth0 num_nodes=2 launcher=mpirun engine.name=torch communication.kind=torch_distributed",
            "GLOO_SOCKET_IFNAME",
            "eth0",
        ),
        ("node.interface=a engine.name=torch communication.kind=torch_distributed", "GLOO_SOCKET_IFNAME", None),
    ],
)
def test_a_key_of_the_cluster_file_becomes_a_variable(keys: str, name: str, value: str | None) -> None:
    assert rank_environment(_laptop(keys)).get(name) == value


def _laptop(keys: str) -> Cluster:
    """Return the laptop with these keys, and with Horovod unless they say otherwise."""
    words = ["engine.name=mxnet", "communication.kind=horovod", *keys.split()]
    return load_cluster("laptop", [f"cluster.{word.replace(':', ': ')}" for word in words])


@pytest.mark.parametrize(
    ("kind", "backend", "by_mpi", "over_gloo"),
    [
        ("horovod", "mpi", True, False), ("horovod", "gloo", False, True),
        ("torch_distributed", "mpi", True, False), ("torch_distributed", "gloo", False, True),
        ("torch_distributed", "nccl", False, False), ("horovod", "nccl", False, True),
        ("shared_memory", "mpi", False, False), ("shared_memory", "gloo", False, False),
        ("parameter_server", "gloo", False, False), ("parameter_server_async", "mpi", False, False),
        ("devices", "gloo", False, False), ("devices", "mpi", False, False), ("none", "gloo", False, False),
    ],
)  # fmt: skip
def test_ranks_are_connected_by_a_library_only_where_it_carries_their_sums(
    kind: str, backend: str, by_mpi: bool, over_gloo: bool
) -> None:
    communication = LAPTOP.communication.model_copy(update={"kind": kind, "backend": backend})
    cluster = LAPTOP.model_copy(update={"communication": communication})
    assert (connecting_library(cluster) == "mpi", connecting_library(cluster) == "gloo") == (by_mpi, over_gloo)


@pytest.mark.parametrize(
    ("keys", "binding"),
    [
        ("communication.kind=devices node.cores=4 node.hcas=['a']", {"RANK_DEVICE": "cpus"}),
        ("communication.kind=devices device=gpu", {"RANK_DEVICE": "gpus"}),
        (
            "communication.kind=parameter_server ranks_per_node=3",
            {"RANK_WORLD_SIZE": "3", "RANK_LOCAL_SIZE": "3", "RANK_DEVICE": "cpu"},
        ),
        (
            "device=gpu node.cores=64",
            {
                "RANK_WORLD_SIZE": "2",
                "RANK_LOCAL_SIZE": "2",
                "RANK_DEVICE": "gpu",
                "RANK_CORES": "0-31 32-63",
                "RANK_CORES_BY": "gpu",
            },
        ),
        (
            "device=gpu node.cores=64 node.rank_cores=['5-7','1']",
            {"RANK_WORLD_SIZE": "2", "RANK_LOCAL_SIZE": "2", "RANK_DEVICE": "gpu", "RANK_CORES": "5-7 1"},
        ),
        (
            "node.rank_cores=['5-7','1'] num_nodes=3 launcher=srun",
            {"RANK_WORLD_SIZE": "6", "RANK_LOCAL_SIZE": "2", "RANK_DEVICE": "cpu", "RANK_CORES": "5-7 1"},
        ),
    ],
)
def test_a_rank_is_bound_to_its_share_and_the_devices_of_one_process_to_nothing(
    keys: str, binding: dict[str, str]
) -> None:
    assert binding_environment(_laptop(keys)) == binding


@pytest.mark.parametrize(
    ("keys", "layers"),
    [
        ("launcher=mpirun communication.backend=mpi num_nodes=2", ["btl", "oob"]),
        ("launcher=srun communication.backend=mpi num_nodes=2", ["btl", "oob"]),
        ("launcher=mpirun communication.backend=mpi", []),
        ("launcher=srun num_nodes=2", []),
        (
            "launcher=mpirun communication.backend=mpi num_nodes=2 environment={OMPI_MCA_btl_tcp_if_exclude:ib1}",
            ["oob"],
        ),
    ],
)
def test_mpi_on_several_nodes_takes_the_interface_of_the_cluster_file(keys: str, layers: list[str]) -> None:
    found = rank_environment(_laptop(f"communication.kind=horovod node.interface=ib0 {keys}"))
    assert {name: value for name, value in found.items() if "_tcp_if_include" in name} == {
        f"OMPI_MCA_{layer}_tcp_if_include": "ib0" for layer in layers
    }
