"""What a run folder keeps of the machine, and above all of what decides the last bits of a result."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from logs.environment import ENVIRONMENT_FILE, environment, write_environment


def _recorded(folder: Path) -> Any:
    return json.loads((folder / ENVIRONMENT_FILE).read_text(encoding="utf-8"))


def test_the_environment_names_versions_and_variables_but_no_secret(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MXNET_TEST", "1")
    monkeypatch.setenv("HOROVOD_SECRET_KEY", "hush")
    write_environment(tmp_path, {"HOROVOD_CYCLE_TIME": "1"})
    found = _recorded(tmp_path)
    assert found["packages"]["mlperf-logging"]
    assert (found["variables"]["MXNET_TEST"], found["variables"]["HOROVOD_CYCLE_TIME"]) == ("1", "1")
    assert "hush" not in found["variables"].values()
    assert 1 <= found["usable_cores"] <= found["cores"]
    assert found["memory_bytes"] > 1 << 28
    assert "earlier_attempts" not in found


@pytest.mark.parametrize(
    "name", ["DNNL_MAX_CPU_ISA", "KMP_AFFINITY", "MKL_CBWR", "OMP_PROC_BIND", "ONEDNN_MAX_CPU_ISA", "OPENBLAS_CORETYPE"]
)
def test_variables_that_choose_kernels_and_threads_are_recorded(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(name, "other")
    assert environment()["variables"][name] == "other"


def test_instruction_sets_and_the_numbers_behind_the_model_name_are_the_machines(tmp_path: Path) -> None:
    told = subprocess.run(["lscpu", "--json"], capture_output=True, text=True, check=True, env={"LC_ALL": "C"}).stdout
    fields = {row["field"].rstrip(":"): row["data"] for row in _rows(json.loads(told)["lscpu"])}
    found = environment()
    assert found["cpu"] == fields["Model name"]
    assert found["cpu_id"] == f"{fields['Vendor ID']} family {fields['CPU family']} model {fields['Model']}"
    flags = set(fields["Flags"].split())
    assert found["cpu_flags"] == sorted(found["cpu_flags"])
    assert {"sse2", "sse4_2"} <= set(found["cpu_flags"]) <= flags
    assert {flag for flag in flags if flag.startswith(("avx", "fma", "amx"))} <= set(found["cpu_flags"])
    assert not {"fpu", "vmx", "rdrand"} & set(found["cpu_flags"])


def _rows(tree: Any) -> list[dict[str, Any]]:
    return [row for each in tree for row in [each, *_rows(each.get("children", []))]]


def test_attempts_on_other_machines_are_kept_in_their_order(tmp_path: Path) -> None:
    def attempt(threads: str) -> list[str]:
        return write_environment(tmp_path, {"OMP_NUM_THREADS": threads})

    assert [attempt("1"), attempt("1"), attempt("1")] == [[], [], []]
    assert len(_recorded(tmp_path)["earlier_attempts"]) == 1
    assert attempt("4") == attempt("4") == ["engine.threads 4 instead of 1"]
    assert attempt("1") == []
    assert [each["variables"]["OMP_NUM_THREADS"] for each in _recorded(tmp_path)["earlier_attempts"]] == ["1", "4"]
    assert attempt("2") == ["engine.threads 2 instead of 1"]
    assert [each["variables"]["OMP_NUM_THREADS"] for each in _recorded(tmp_path)["earlier_attempts"]] == ["1", "4", "1"]


@pytest.mark.parametrize("content", ["{", "[]", '"text"'])
def test_a_damaged_record_of_the_attempt_before_is_replaced(tmp_path: Path, content: str) -> None:
    (tmp_path / ENVIRONMENT_FILE).write_text(content, encoding="utf-8")
    assert write_environment(tmp_path, {}) == []
    assert _recorded(tmp_path)["cores"]
