"""What a run folder keeps of the machine, and above all of what decides the last bits of a result."""

import hashlib
import json
import platform
import socket
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from configs.load import ROOT
from logs.environment import ENVIRONMENT_FILE, _cpu, _output_of, cpu_flags, environment, write_environment
from logs.redaction import REDACTED


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
    assert (found["python"], found["platform"]) == (sys.version, platform.platform())
    assert "earlier_attempts" not in found


def test_a_program_that_is_absent_or_fails_has_no_output() -> None:
    assert (_output_of("git", "--version") or "").startswith("git version ")
    assert _output_of("git", "no-such-verb") is None
    assert _output_of("no-such-program") is None


def test_no_secret_of_the_cluster_file_is_recorded_and_only_the_owner_reads_the_record(tmp_path: Path) -> None:
    hidden = {"AWS_SECRET_ACCESS_KEY": "a", "WANDB_API_KEY": "b", "HF_TOKEN": "c", "DB_PASSWORD": "d",
              "PROXY": "http://user:hush@proxy:3128", "NOTE": "AKIAABCDEFGHIJKLMNOP"}  # fmt: skip
    write_environment(tmp_path, {**hidden, "NCCL_DEBUG": "INFO"})
    found = _recorded(tmp_path)["variables"]
    assert not hidden.keys() & found.keys()
    assert found["NCCL_DEBUG"] == "INFO"
    assert (tmp_path / ENVIRONMENT_FILE).stat().st_mode & 0o777 == 0o600


def test_the_recorded_diff_has_no_line_with_a_secret(monkeypatch: pytest.MonkeyPatch) -> None:
    diff = "+WANDB_API_KEY: 0123\n+batch = sorted(rows, key=len)\n+-----BEGIN PRIVATE KEY-----\n+abc\n"
    monkeypatch.setattr(
        "logs.environment._output_of",
        lambda *words: diff if "diff" in words else f"{ROOT}\n" if "git" in words else None,
    )
    found = environment()["git"]
    assert found["diff"] == f"+{REDACTED}\n+batch = sorted(rows, key=len)\n+{REDACTED}"
    assert (found["diff_sha256"], found["dirty"]) == (hashlib.sha256(diff.encode()).hexdigest(), True)


@pytest.mark.parametrize(("length", "is_kept"), [(0, False), (1, True), (200_000, True), (200_001, False)])
def test_a_long_diff_is_known_by_its_digest_only(length: int, is_kept: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    told = {"rev-parse --show-toplevel": f"{ROOT}\n", "rev-parse --verify HEAD": "0123\n", "diff HEAD": "a" * length}
    monkeypatch.setattr("logs.environment._output_of", lambda *words: told.get(" ".join(words[3:]), ""))
    assert environment()["git"] == {
        "commit": "0123", "dirty": False, "diff": "a" * length if is_kept else None,
        "diff_sha256": hashlib.sha256(b"a" * length).hexdigest() if length else None,
    }  # fmt: skip


def test_gpus_are_asked_again_without_what_old_drivers_do_not_know(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    def answer(*words: str) -> str | None:
        if words[0] != "nvidia-smi":
            return None
        asked.append(words[1])
        return None if "mig" in words[1] else "V100, 418.1, 16 MiB\nV100, 418.1, 32 MiB\n"

    monkeypatch.setattr("logs.environment._output_of", answer)
    gpus = environment()["gpus"]
    assert gpus == [{"name": "V100", "driver_version": "418.1", "memory.total": f"{size} MiB"} for size in (16, 32)]
    keys = "name,driver_version,memory.total"
    assert asked == [f"--query-gpu={keys},mig.mode.current", f"--query-gpu={keys}"]


def test_a_gpu_of_which_less_is_told_than_was_asked_is_recorded_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("logs.environment._output_of", lambda *words: "GPU 1\n" if words[0] == "nvidia-smi" else None)
    assert environment()["gpus"] == [{"name": "GPU 1"}]


@pytest.mark.parametrize(
    ("revision", "expected"),
    [
        ("0123abc", {"commit": "0123abc", "dirty": False, "diff_sha256": None, "diff": None}),
        ("0123abc-dirty", {"commit": "0123abc", "dirty": True, "diff_sha256": None, "diff": None}),
        ("unknown", None),
    ],
)
def test_an_image_without_a_checkout_tells_the_commit_it_was_built_from(
    revision: str, expected: dict[str, Any] | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("logs.environment.ROOT", tmp_path)
    monkeypatch.setenv("PROGRAM_REVISION", revision)
    assert environment()["git"] == expected


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


def test_the_cores_that_this_process_may_use_are_not_all_that_there_are(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda pid: {3} if pid == 0 else {3, 4})
    monkeypatch.setattr("os.cpu_count", lambda: 7)
    found = environment()
    assert (found["usable_cores"], found["cores"]) == (1, 7)
    assert found["hostname"] == socket.gethostname()


def test_a_core_counts_once_however_many_threads_it_has(tmp_path: Path) -> None:
    path = tmp_path / "cpuinfo"
    blocks = [
        f"processor\t: {number}\nvendor_id\t: Maker\ncpu family\t: 6\nmodel\t\t: 85\nmodel name\t: Chip 3000\n"
        f"cache size\t: 512 KB\nphysical id\t: {socket}\ncore id\t\t: {core}\nflags\t\t: fpu {flags}\n"
        for number, (socket, core, flags) in enumerate(
            ((0, 0, "avx2 sse2 avx512f"), (0, 0, ""), (0, 1, ""), (1, 0, ""), (1, 1, ""), (1, 2, ""))
        )
    ]
    path.write_text("\n".join(blocks), encoding="utf-8")
    assert _cpu(path) == {
        "cpu": "Chip 3000", "cpu_id": "Maker family 6 model 85", "cpu_flags": ["avx2", "avx512f", "sse2"],
        "cpu_sockets": 2, "cpu_cores": 5, "cpu_cache": "512 KB",
    }  # fmt: skip
    path.write_text(
        "vendor_id\t: ARM\nmodel\t\t: 1\nflags\t\t: fpu\nphysical id\t: 0\n",
        "utf-8",  ###="utf-8"
    )
    unknown = ("cpu", "cpu_id", "cpu_flags", "cpu_sockets", "cpu_cores", "cpu_cache")
    assert _cpu(path) == _cpu(tmp_path / "absent") == dict.fromkeys(unknown)


def test_git_that_cannot_say_what_was_changed_has_not_said_that_nothing_was(monkeypatch: pytest.MonkeyPatch) -> None:
    git = f"git -C {ROOT} "
    told = {f"{git}rev-parse --show-toplevel": f"{ROOT}\n", f"{git}rev-parse --verify HEAD": "0123\n"}
    monkeypatch.setattr("logs.environment._output_of", lambda *words: told.get(" ".join(words)))
    assert environment()["git"] == {"commit": "0123", "dirty": None, "diff_sha256": None, "diff": None}
    del told[f"{git}rev-parse --verify HEAD"]  # a repository without a commit
    told[f"{git}status --porcelain"] = "?? new.py\n"
    assert environment()["git"] == {"commit": None, "dirty": True, "diff_sha256": None, "diff": None}
    told[f"{git}diff HEAD"] = "+1\n"
    assert environment()["git"]["diff"] == "+1\n"
    told[f"{git}rev-parse --show-toplevel"] = f"{ROOT.parent}\n"  # a copy inside somebody else's checkout
    monkeypatch.delenv("PROGRAM_REVISION", raising=False)
    assert environment()["git"] is None


def test_gpus_are_asked_for_rows_without_a_head(monkeypatch: pytest.MonkeyPatch) -> None:
    told = {"--format=csv,noheader": "H200, 550.1, 143771 MiB, Disabled\n"}
    monkeypatch.setattr(
        "logs.environment._output_of", lambda *words: told[words[2]] if words[0] == "nvidia-smi" else None
    )
    row = {"name": "H200", "driver_version": "550.1", "memory.total": "143771 MiB", "mig.mode.current": "Disabled"}
    assert environment()["gpus"] == [row]


@pytest.mark.parametrize("name", ["HOROVOD_CYCLE_TIME", "NCCL_ALGO", "DALI_THREADS", "CUDA_VISIBLE_DEVICES", "EDITOR"])
def test_variables_of_the_libraries_are_recorded_and_no_others(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(name, "other")
    assert environment()["variables"].get(name) == (None if name == "EDITOR" else "other")


def test_packages_are_sorted_and_told_by_the_head_of_their_metadata(monkeypatch: pytest.MonkeyPatch) -> None:
    texts = [
        "Name: b\nVersion: 2\n\nName: example\nVersion: 9\n",
        None,
        "Name: lost\n",
        "Version: 3",
        "Name: a\nVersion: 1",
    ]
    found = [SimpleNamespace(read_text=lambda name, text=text: text if name == "METADATA" else None) for text in texts]
    monkeypatch.setattr("logs.environment.distributions", lambda: found)
    assert list(environment()["packages"].items()) == [("a", "1"), ("b", "2")]


def test_a_program_that_does_not_end_has_no_output_and_bytes_that_are_no_text_are_replaced(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert _output_of("printf", r"a\377") == "a\ufffd"

    def hang(*_: object, timeout: float, **__: object) -> None:
        raise subprocess.TimeoutExpired("git", timeout)

    monkeypatch.setattr(subprocess, "run", hang)
    assert _output_of("git", "status") is None


def test_the_instruction_sets_alone_are_a_set_which_is_empty_where_they_are_unknown(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert cpu_flags() == set(environment()["cpu_flags"]) != set()
    monkeypatch.setattr("logs.environment._cpu", lambda: {"cpu_flags": None})
    assert cpu_flags() == frozenset()
