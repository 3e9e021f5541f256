"""A system description says what the runs recorded, in the units and counts of the official form."""

from pathlib import Path
from typing import Any

import pytest

from configs.errors import UserError
from configs.load import load_cluster
from configs.schema import Cluster
from logs.judge.system import describe, read_fields, required_fields

pytestmark = pytest.mark.ranks

RECORDED: dict[str, Any] = {
    "packages": {"mxnet-cu112": "1.9.1", "torch": "2.13.0", "horovod": "0.28.1", "nvidia-dali-cuda130": "2.4.0",
                 "numpy": "1.23.5"}, "cpu": "EPYC 7742", "cpu_cores": 128,
    "cpu_sockets": 2, "cpu_cache": "L3 256 MiB", "cores": 256, "memory_bytes": 1024 << 30, "platform": "Linux 5.15",
    "gpus": [{"name": "A100", "memory.total": "40960 MiB"}], "git": {"commit": "f" * 40},
}  # fmt: skip
DGX = load_cluster(
    "dgx-a100", ["cluster.num_nodes=12", "cluster.submission.platform=DGX", "cluster.submission.status=onprem"]
)


DESCRIBED = {
    "submitter": "Testers", "division": "open", "status": "Available on-premise", "system_name": "DGX",
    "number_of_nodes": "12", "host_processors_per_node": "2", "host_processor_model_name": "EPYC 7742",
    "host_processor_core_count": "64", "host_processor_vcpu_count": "256", "host_processor_caches": "L3 256 MiB",
    "host_memory_capacity": "1024 GiB", "accelerators_per_node": "8", "accelerator_model_name": "A100",
    "accelerator_memory_capacity": "40960 MiB", "framework": "MXNet 1.9.1",
    "other_software_stack": "horovod 0.28.1; nvidia-dali-cuda130 2.4.0; numpy 1.23.5",
    "operating_system": "Linux 5.15", "hw_notes": "", "sw_notes": f"commit {'f' * 40}",
}  # fmt: skip
"""What the runs have recorded; all other fields are given by the user."""


def _describe(environment: dict[str, Any], given: dict[str, str], cluster: Cluster = DGX) -> dict[str, str]:
    rest = {name: "" for name in required_fields() if name not in DESCRIBED}
    return describe(environment, cluster, {**rest, **given}, org="Testers", division="open")


@pytest.mark.parametrize(("engine", "framework"), [("mxnet", "MXNet 1.9.1"), ("torch", "PyTorch 2.13.0")])
def test_a_description_holds_what_was_recorded_and_the_engine_that_trained(engine: str, framework: str) -> None:
    # The engine is set by hand, because this environment may lack it.
    cluster = DGX.model_copy(update={"engine": DGX.engine.model_copy(update={"name": engine})})
    found = _describe(RECORDED, {}, cluster)
    assert {name: found[name] for name in DESCRIBED} == {**DESCRIBED, "framework": framework}


def test_a_cpu_has_no_accelerators_and_what_is_given_comes_first() -> None:
    found = _describe({**RECORDED, "gpus": []}, {"cooling": "air", "host_memory_capacity": "2 TB"},
                      load_cluster("laptop", ["cluster.engine.name=mxnet"]))  # fmt: skip
    assert (found["accelerators_per_node"], found["accelerator_model_name"]) == ("0", "none")
    assert (found["cooling"], found["host_memory_capacity"]) == ("air", "2 TB")


def test_fields_of_the_command_line_replace_those_of_the_file(tmp_path: Path) -> None:
    path = tmp_path / "fields.yaml"
    path.write_text("cooling: water\nnics: 4\nsw_notes:\n12: x\n", encoding="utf-8")
    assert read_fields(None, []) == {}
    assert read_fields(path, ["cooling=air=cold", "nics=", "new=1"]) == {
        "cooling": "air=cold", "nics": "", "sw_notes": "", "12": "x", "new": "1",
    }  # fmt: skip


@pytest.mark.parametrize("content", [b"[1, 2]", b"", b"a: \xff", None])
def test_a_file_that_holds_no_fields_is_refused(tmp_path: Path, content: bytes | None) -> None:
    path = tmp_path / "fields.yaml"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(UserError, match=rf"^{path}: .*(a mapping|a YAML or JSON file)"):
        read_fields(path, [])
    with pytest.raises(UserError, match=r"^/dev/null: cannot be read \(.*it is not a file"):
        read_fields(Path("/dev/null"), [])
