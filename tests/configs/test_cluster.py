"""Cluster files: variables that do something, parts that agree."""

from __future__ import annotations

import json
import re
import sys
from contextlib import nullcontext
from importlib.util import find_spec
from pathlib import Path

import pytest

from configs.errors import ConfigError
from configs.load import load_cluster
from configs.schema import Cluster
from configs.variables import KNOWN, is_read_by_site


@pytest.mark.parametrize(
    ("variable", "remedy"),
    [
        ("MXNET_EXEC_ENABLE_ADDTO", "use MXNET_EXEC_INPLACE_GRAD_SUM_CAP"),
        ("HOROVOD_NUM_STREAMS", "use HOROVOD_NUM_NCCL_STREAMS"),
        ("HOROVOD_ALLREDUCE_MODE", "use communication.allreduce: torus"),
        ("HOROVOD_CYCLETIME", "did you mean 'HOROVOD_CYCLE_TIME'?"),
        ("MXNET_GPU_WORKER_NTHREAD", "did you mean 'MXNET_GPU_WORKER_NTHREADS'?"),
        ("HOROVOD_RANKS", "did you mean 'HOROVOD_RANK'?"),
        ("MXNET_HOMES", "did you mean 'MXNET_HOME'?"),
        ("MXNET_QQQ", "leave it out"),
    ],
)
def test_a_variable_that_the_stock_libraries_ignore_is_refused_with_what_to_use(variable: str, remedy: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load_cluster("laptop", [f"cluster.environment={{{variable}: 1}}"])
    assert f"cluster.environment: got {variable!r}, allowed: variables that the stock" in str(caught.value)
    assert remedy in str(caught.value)


def test_variables_of_other_libraries_are_the_sites_own_affair() -> None:
    cluster = load_cluster("laptop", ["cluster.environment={NCCL_DEBUG: INFO, UCX_TLS: rc, MY_SITE: 1}"])
    assert cluster.environment == {"NCCL_DEBUG": "INFO", "UCX_TLS": "rc", "MY_SITE": "1"}


def test_a_sites_own_libraries_say_which_variables_they_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "python" / "mxnet").mkdir(parents=True)
    (tmp_path / "lib").mkdir()
    (tmp_path / "python" / "mxnet" / "__init__.py").touch()
    (tmp_path / "lib" / "libmxnet.so").write_bytes(b"\0MXNET_EXEC_ENABLE_ADDTO\0MXNET_SITE_WIDE\0")
    monkeypatch.syspath_prepend(tmp_path / "python")
    monkeypatch.delitem(sys.modules, "mxnet", raising=False)
    monkeypatch.setattr(sys, "prefix", str(tmp_path))
    for base, known in (("", ()), ("/usr/bin/python3", ("MXNET_EXEC_ENABLE_ADDTO", "MXNET_SITE_WIDE"))):
        (tmp_path / "setup.json").write_text(json.dumps({"base": base}), encoding="utf-8")
        is_read_by_site.cache_clear()
        for name in ("MXNET_EXEC_ENABLE_ADDTO", "MXNET_SITE_WIDE", "MXNET_SITE", "HOROVOD_NUM_STREAMS"):
            with nullcontext() if name in known else pytest.raises(ConfigError):
                load_cluster("laptop", [f"cluster.environment={{{name}: 1}}"])
    is_read_by_site.cache_clear()


def test_every_variable_that_the_installed_mxnet_names_is_known() -> None:
    spec = find_spec("mxnet")
    assert spec is not None
    assert spec.origin is not None
    text = Path(spec.origin).with_name("libmxnet.so").read_bytes()
    named = {match.decode() for match in re.findall(rb"\0(MXNET_[A-Z0-9_]+)\0", text)} - {"MXNET_C_API"}
    assert named
    assert named <= KNOWN


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("cluster.container.runtime=docker", "cluster.container.image: got '', allowed: an image with a runtime"),
        ("cluster.engine.decoded_cache_bytes=9", "cluster.engine.decoded_cache_bytes: got 9, allowed: 0, except with"),
        ("cluster.communication.allreduce=torus", "cluster.communication.allreduce: got 'torus', allowed: flat"),
        ("cluster.scheduler.kind=slrum", "cluster.scheduler.kind: got 'slrum'"),
        ("cluster.scheduler.wall_time_s=5", "cluster.scheduler.wall_time_s: got 5"),
    ],
)
def test_parts_that_do_not_agree_are_refused(override: str, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load_cluster("laptop", [override])
    assert message in str(caught.value)


def test_the_records_cluster_is_512_nodes_of_four() -> None:
    cluster = load_cluster("abci-v100")
    assert (cluster.world_size, cluster.num_nodes, cluster.ranks_per_node) == (2048, 512, 4)
    assert (cluster.launcher, cluster.communication.backend, cluster.node.nics) == ("mpirun", "nccl", 2)


@pytest.mark.parametrize(
    ("kind", "override", "allowed"),
    [
        ("none", "cluster.ranks_per_node=2", "for one rank, not 2"),
        ("devices", "cluster.num_nodes=2", "one machine"),
        ("parameter_server_async", "cluster.engine.precision=float16", "float32 only"),
    ],
)
def test_a_communication_that_cannot_be_is_refused(kind: str, override: str, allowed: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load_cluster("dgx-a100", [f"cluster.communication.kind={kind}", "cluster.num_nodes=1", override])
    assert str(caught.value).startswith(f"cluster.communication.kind: got {kind!r}, allowed: {allowed}")


def test_ranks_of_one_machine_share_memory_unless_the_file_says_otherwise() -> None:
    named = {"name": "own", "engine": {"name": "mxnet"}}
    for more, kind in (
        ({}, "shared_memory"),
        ({"num_nodes": 1}, "shared_memory"),
        ({"num_nodes": 2, "launcher": "mpirun", "communication": {"backend": "mpi"}}, "horovod"),
        ({"launcher": "mpirun", "communication": {"backend": "mpi"}}, "horovod"),
        ({"device": "gpu"}, "horovod"),
    ):
        assert Cluster.model_validate({**named, **more}).communication.kind == kind, more
