"""Cluster files: variables that do something, parts that agree."""

import re
from pathlib import Path
from typing import Any

import pytest

from configs.errors import ConfigError
from configs.load import load_cluster
from configs.schema import Cluster
from configs.validate import validate

GPU = "device=gpu communication.backend=nccl"
MPI = "launcher=mpirun communication.backend=mpi"
TORCH = "engine.name=torch communication.kind=torch_distributed"
WAITS = "rehearsal.waits={forward_s: 0, gradients_s: [], update_s: 0, evaluation_s: 0, top1: []}"

# Keys of both files; those of the file that is allowed; those of the file that is refused; the key that is named.
NEIGHBOURS = [
    ("communication.backend=nccl", "device=gpu", "device=cpu", "communication.backend"),
    (GPU, "engine.precision=float16", "engine.precision=bfloat16", "engine.precision"),
    (TORCH, f"{GPU} engine.precision=float16", "engine.precision=float16", "engine.precision"),
    (f"{TORCH} {GPU}", "engine.precision=bfloat16", "communication.kind=horovod", "communication.kind"),
    ("engine.layout=NHWC", TORCH, "", "engine.layout"),
    ("", "engine.precision=bfloat16", "engine.precision=float16", "engine.precision"),
    ("", TORCH, "communication.kind=torch_distributed", "communication.kind"),
    (WAITS, "engine.name=timed", "engine.name=mxnet", "engine.name"),
    ("engine.name=timed", WAITS, "", "engine.name"),
    ("engine.decoded_cache_bytes=1", f"{GPU} engine.stick_to_shard=true", GPU, "engine.decoded_cache_bytes"),
    ("engine.stick_to_shard=true", "", "engine.decoded_cache_bytes=1", "engine.decoded_cache_bytes"),
    ("engine.hw_decoder_load=0", GPU, "", "engine.hw_decoder_load"),
    (TORCH, "engine.compile=true", "engine.name=mxnet engine.compile=true", "engine.compile"),
    (TORCH, "engine.cuda_graphs=step", "engine.name=mxnet engine.cuda_graphs=compute", "engine.cuda_graphs"),
    (f"{TORCH} engine.batch_norm=fused", "engine.layout=NHWC", "engine.layout=NCHW", "engine.batch_norm"),
    ("engine.batch_norm=fused engine.layout=NHWC device=gpu", TORCH, "engine.name=mxnet", "engine.batch_norm"),
    (f"{MPI} num_nodes=2 node.rank_cores=['0','1']", "ranks_per_node=2", "ranks_per_node=3", "node.rank_cores"),
    ("ranks_per_node=2", "node.rank_cores=[]", "node.rank_cores=['1']", "node.rank_cores"),
    ("num_nodes=2", "launcher=horovodrun", "launcher=local", "launcher"),
    ("", "communication.allreduce=hierarchical", "communication.allreduce=torus", "communication.allreduce"),
    ("communication.allreduce=torus", GPU, "device=gpu communication.backend=mpi", "communication.allreduce"),
    (TORCH, "", "communication.allreduce=hierarchical", "communication.allreduce"),
    ("communication.deferred_fraction=0.2", "", TORCH, "communication.deferred_fraction"),
    ("checkpoint.best=true", "", "communication.kind=parameter_server_async", "checkpoint.best"),
    ("communication.kind=none", "ranks_per_node=1", "ranks_per_node=2", "communication.kind"),
    ("communication.kind=devices launcher=mpirun", "ranks_per_node=8", "num_nodes=2", "communication.kind"),
    ("communication.kind=shared_memory launcher=mpirun", "ranks_per_node=8", "num_nodes=2", "communication.kind"),
    (f"{GPU} engine.precision=float16", "communication.kind=parameter_server",
     "communication.kind=parameter_server_async", "communication.kind"),
    ("communication.kind=parameter_server_async", "engine.precision=bfloat16",
     f"{GPU} engine.precision=float16", "communication.kind"),
    ("communication.kind=shared_memory", "engine.precision=bfloat16",
     "engine.name=torch engine.precision=bfloat16", "communication.kind"),
    ("communication.kind=shared_memory", "", "device=gpu", "communication.kind"),
    ("communication.kind=shared_memory", "", "communication.allreduce=hierarchical", "communication.allreduce"),
    ("communication.link_bytes_per_s=1e6", "", "launcher=mpirun", "communication.link_bytes_per_s"),
    ("communication.link_bytes_per_s=1e6", "ranks_per_node=4", GPU, "communication.link_bytes_per_s"),
    ("communication.link_bytes_per_s=1e6", TORCH, "communication.kind=shared_memory", "communication.link_bytes_per_s"),
    ("", "communication.bucket_fraction=1", "communication.bucket_fraction=1.01", "communication.bucket_fraction"),
    ("", "communication.deferred_fraction=0.5", "communication.deferred_fraction=0.51",
     "communication.deferred_fraction"),
    ("", "environment={A: 1}", "environment={1A: 1}", "environment"),
    ("", "environment={OMPI_MCA_btl_2: 1}", "environment={OMPI_MCA_BTL_x: 1}", "environment"),
    ("", "environment={X: 1}", "environment={X: 1, x: 1}", "environment"),
    ("", "environment={X: 1}", "environment={X: [1]}", "environment.X"),
]  # fmt: skip


@pytest.mark.parametrize(("both", "allowed", "refused", "key"), NEIGHBOURS)
def test_a_file_is_refused_for_one_part_that_does_not_agree_and_allowed_without_it(
    both: str, allowed: str, refused: str, key: str
) -> None:
    load_cluster("laptop", _overrides(both, allowed))
    with pytest.raises(ConfigError) as caught:
        load_cluster("laptop", _overrides(both, refused))
    assert caught.value.key == f"cluster.{key}"


def _overrides(*words: str) -> list[str]:
    """Return the keys that stand in ``words``; the defaults, which are those of the environment, come first."""
    keys = re.split(r" (?=[a-z._]+=)", " ".join(("engine.name=mxnet communication.kind=horovod", *filter(None, words))))
    return [f"cluster.{key}" for key in keys]


@pytest.mark.parametrize(
    ("keys", "kind"),
    [
        ({"communication": {"backend": "gloo"}}, "horovod"),
        ({"communication": {"allreduce": "flat"}}, "horovod"),
        ({"communication": {"cycle_time_ms": 1.0}}, "horovod"),
        ({"communication": {"link_bytes_per_s": 1e6}}, "horovod"),
        ({"communication": {"bucket_bytes": 1, "timeout_s": 5}}, "shared_memory"),
        ({"communication": {"backend": "gloo", "kind": "shared_memory"}}, "shared_memory"),
        ({"communication": {"kind": "parameter_server"}}, "parameter_server"),
        ({"launcher": "mpirun"}, "horovod"),
        ({"launcher": "local", "device": "cpu", "num_nodes": 1}, "shared_memory"),
        ({"ranks_per_node": 7}, "shared_memory"),
        ({"engine": {"name": "mxnet", "precision": "bfloat16"}}, "shared_memory"),
        ({"device": "gpu", "engine": {"name": "mxnet", "precision": "float16"}}, "horovod"),
        ({"engine": {"name": "torch"}}, "torch_distributed"),
        ({"engine": {"name": "torch"}, "communication": {"kind": "shared_memory"}}, "shared_memory"),
    ],
)
def test_what_a_file_leaves_out_decides_what_sums_the_gradients(keys: dict[str, Any], kind: str) -> None:
    cluster = Cluster.model_validate({"name": "own", "engine": {"name": "mxnet"}, **keys})
    assert cluster.communication.kind == kind
    assert cluster.engine.name == keys.get("engine", {}).get("name", "mxnet")


@pytest.mark.parametrize("text", ["1", "0.5", "1.10", "010", "1e3", "null", "~", "true", "text", "a/b", "'08'"])
def test_values_of_variables_are_texts_as_they_are_written(tmp_path: Path, text: str) -> None:
    file = tmp_path / "own.yaml"
    file.write_text(f"name: own\nnum_nodes: 1\nenvironment:\n  A_SITES: {text}\n", encoding="utf-8")
    given = [
        load_cluster("laptop", [f"cluster.environment{word}"]) for word in (f"={{A_SITES: {text}}}", f".A_SITES={text}")
    ]
    for cluster in (load_cluster(str(file)), *given):
        assert cluster.environment == {"A_SITES": text.strip("'")}


FAST = {
    "engine.precision": "float16", "engine.layout": "NHWC", "engine.decoder": "whole", "engine.input_threads": 4,
    "communication.kind": "torch_distributed", "communication.backend": "nccl", "communication.bucket_bytes": 16 << 20,
}  # fmt: skip
"""float16 in channels last by NCCL is what NVIDIA's and PyTorch's examples for ResNet-50 take; nvImageCodec's issue 55
asks for whole images; the buckets are those of the shipped files for NCCL."""


def _values(cluster: Cluster) -> dict[str, Any]:
    return {key: getattr(getattr(cluster, key.partition(".")[0]), key.partition(".")[2]) for key in FAST}


@pytest.mark.parametrize(("device", "engine"), [("gpu", "torch"), ("gpu", "mxnet"), ("cpu", "torch"), ("cpu", "mxnet")])
def test_pytorch_on_a_gpu_is_fast_by_default_and_whatever_the_file_says_counts(device: str, engine: str) -> None:
    keys: dict[str, Any] = {"name": "own", "device": device, "ranks_per_node": 8}
    found = Cluster.model_validate({**keys, "engine": {"name": engine}})
    usual: dict[str, Any] = {"engine.precision": "float32", "engine.layout": "NCHW", "engine.decoder": "region"}
    usual |= {"engine.input_threads": 1, "communication.backend": "gloo", "communication.bucket_bytes": 4 << 20}
    kind = {"communication.kind": found.communication.kind}
    assert _values(found) == (FAST if (device, engine) == ("gpu", "torch") else usual | kind)
    slow = {"precision": "float32", "layout": "NCHW", "decoder": "region", "input_threads": 1}
    own = Cluster.model_validate(
        {**keys, "engine": {"name": engine, **slow}, "communication": {"backend": "gloo", "bucket_bytes": 4 << 20}}
    )
    assert _values(own) == usual | {"communication.kind": own.communication.kind}


@pytest.mark.parametrize(
    ("cores", "ranks", "threads"), [(112, 8, 8), (64, 8, 6), (24, 8, 1), (8, 8, 1), (4, 8, 1), (12, 1, 8), (None, 8, 4)]
)
def test_a_gpu_has_dali_threads_by_the_cores_of_its_node(cores: int | None, ranks: int, threads: int) -> None:
    keys = {"name": "own", "device": "gpu", "ranks_per_node": ranks, "engine": {"name": "torch"}}
    assert Cluster.model_validate({**keys, "node": {"cores": cores}}).engine.input_threads == threads


@pytest.mark.parametrize(("key", "value"), [("node", 3), ("node", {"cores": "many"}), ("ranks_per_node", 0)])
def test_a_wrong_value_beside_a_default_that_depends_on_it_is_refused_by_its_own_name(key: str, value: object) -> None:
    with pytest.raises(ConfigError, match=rf"^{key}"):
        validate(Cluster, {"name": "own", "device": "gpu", "engine": {"name": "torch"}, key: value})
