"""What a run folder keeps of the machine, and above all of what decides the last bits of a result."""

import hashlib
import json
import os
import platform
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from logs.environment import ENVIRONMENT_FILE, command_given, cpu_flags, environment, write_environment
from logs.redaction import REDACTED
from tests.launch.stand_in import write_program
from tests.programs import run_program


def _recorded(folder: Path) -> Any:
    return json.loads((folder / ENVIRONMENT_FILE).read_text(encoding="utf-8"))


def test_the_environment_names_versions_machine_and_variables_but_no_secret_and_only_its_owner_reads_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hidden = {"AWS_SECRET_ACCESS_KEY": "a", "HF_TOKEN": "c", "PROXY": "http://user:hush@proxy:3128"}
    monkeypatch.setenv("MXNET_TEST", "1")
    monkeypatch.setenv("HOROVOD_SECRET_KEY", "hush")
    monkeypatch.setattr("os.sched_getaffinity", lambda pid: {3} if pid == 0 else {3, 4})
    monkeypatch.setattr("os.cpu_count", lambda: 7)
    write_environment(tmp_path, {**hidden, "HOROVOD_CYCLE_TIME": "1"})
    found = _recorded(tmp_path)
    assert found["packages"]["mlperf-logging"]
    assert (found["variables"]["MXNET_TEST"], found["variables"]["HOROVOD_CYCLE_TIME"]) == ("1", "1")
    assert not {*hidden, "HOROVOD_SECRET_KEY"} & found["variables"].keys()
    assert (found["usable_cores"], found["cores"]) == (1, 7)
    assert found["memory_bytes"] > 1 << 28
    assert (found["python"], found["platform"]) == (sys.version, platform.platform())
    assert found["hostname"] == socket.gethostname()
    assert "earlier_attempts" not in found
    assert (tmp_path / ENVIRONMENT_FILE).stat().st_mode & 0o777 == 0o600


class Checkout:
    """A repository of this program with one commit, in place of the real one."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder = folder
        for name in ("HOME", "XDG_CONFIG_HOME"):
            monkeypatch.setenv(name, str(folder.parent))
        monkeypatch.setenv("GIT_CONFIG_NOSYSTEM", "1")
        monkeypatch.setattr("logs.environment.ROOT", folder)
        folder.mkdir()
        self.git("init", "--quiet")

    def git(self, *words: str) -> str:
        told = run_program("git", "-c", "user.name=a", "-c", "user.email=a@b.c", *words, cwd=self.folder, check=True)
        return told.stdout

    def commit(self, text: str) -> str:
        (self.folder / "file").write_text(text, encoding="utf-8")
        self.git("add", "file")
        self.git("commit", "--quiet", "--message", "one")
        return self.git("rev-parse", "HEAD").strip()


@pytest.fixture
def checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Checkout:
    return Checkout(tmp_path / "checkout", monkeypatch)


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to give a folder away")
def test_the_commit_is_known_in_a_folder_of_another_user(checkout: Checkout) -> None:
    commit = checkout.commit("a")
    for path in (checkout.folder, *checkout.folder.rglob("*")):
        os.chown(path, 12345, 12345)
    assert environment()["git"]["commit"] == commit


def test_a_program_that_does_not_answer_is_named_and_its_facts_are_left_out(
    checkout: Checkout, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    checkout.commit("a")
    monkeypatch.setattr("logs.environment.ANSWER_S", 0.1)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    write_program(tmp_path / "git", "exec sleep 60")
    assert environment()["git"] is None
    assert "warning: git has not answered in 0.1 s; environment.json goes without it\n" in capsys.readouterr().err


def test_the_commit_and_what_was_changed_since_are_recorded_without_lines_that_hold_a_secret(
    checkout: Checkout, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    checkout.git("config", "color.ui", "always")
    (checkout.folder / "new").touch()
    unborn = {"commit": None, "dirty": True, "diff_sha256": None, "diff": None}
    assert environment()["git"] == unborn, "a repository without a commit"
    (checkout.folder / "new").unlink()
    commit = checkout.commit("a\n")
    assert environment()["git"] == {"commit": commit, "dirty": False, "diff_sha256": None, "diff": None}
    (checkout.folder / "file").write_text("a\nWANDB_API_KEY: 0123\nrows = sorted(key=len)\n", encoding="utf-8")
    diff = checkout.git("diff", "--no-color", "HEAD")
    # The program is started by a hook of another repository.
    (tmp_path / "other").mkdir()
    for name in ("GIT_DIR", "GIT_INDEX_FILE"):
        monkeypatch.setenv(name, str(tmp_path / "other"))
    found = environment()["git"]
    assert (found["commit"], found["dirty"]) == (commit, True)
    assert found["diff"] == diff.replace("+WANDB_API_KEY: 0123", f"+{REDACTED}")
    assert found["diff_sha256"] == hashlib.sha256(diff.encode()).hexdigest()


@pytest.mark.parametrize(
    ("revision", "expected"),
    [
        ("0123abc", {"commit": "0123abc", "dirty": False, "diff_sha256": None, "diff": None}),
        ("0123abc-dirty", {"commit": "0123abc", "dirty": True, "diff_sha256": None, "diff": None}),
        ("unknown", None),
        (None, None),
    ],
)
def test_an_image_without_a_checkout_of_its_own_tells_the_commit_it_was_built_from(
    revision: str | None, expected: dict[str, Any] | None, checkout: Checkout, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkout.commit("a\n")
    (checkout.folder / "copy").mkdir()  # inside somebody else's checkout
    monkeypatch.setattr("logs.environment.ROOT", checkout.folder / "copy")
    monkeypatch.delenv("PROGRAM_REVISION", raising=False)
    if revision:
        monkeypatch.setenv("PROGRAM_REVISION", revision)
    assert environment()["git"] == expected


@pytest.fixture
def nvidia_smi(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the path of the only program that can be found, a script which the test writes."""
    monkeypatch.setenv("PATH", str(tmp_path))
    return tmp_path / "nvidia-smi"


@pytest.mark.parametrize(
    ("script", "gpus"),
    [
        (None, None),
        ("exit 9", None),
        # The order of the columns follows from the question.
        ('[[ $2 == --format=csv,noheader ]] && printf "H200, 550.1, 9 MiB, Disabled\\nH200, 550.1, 1 MiB, Enabled\\n"',
         [{"name": "H200", "driver_version": "550.1", "memory.total": size, "mig.mode.current": mode}
          for size, mode in (("9 MiB", "Disabled"), ("1 MiB", "Enabled"))]),
        # Drivers before R450 do not know MIG.
        ('[[ $1 != *mig* ]] && echo "V100, 418.1, 16 MiB"',
         [{"name": "V100", "driver_version": "418.1", "memory.total": "16 MiB"}]),
    ],
)  # fmt: skip
def test_gpus_are_told_as_far_as_the_driver_answers(
    script: str | None, gpus: list[dict[str, str]] | None, nvidia_smi: Path
) -> None:
    if script:
        nvidia_smi.write_text(f"#!/bin/bash\n{script}\n", encoding="utf-8")
        nvidia_smi.chmod(0o755)
    assert environment()["gpus"] == gpus
    assert environment()["git"] is None, "there is no git"


def test_a_core_counts_once_however_many_threads_it_has_and_what_is_not_told_is_unknown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def told() -> dict[str, Any]:
        return {key: value for key, value in environment().items() if key.startswith("cpu")}

    path = tmp_path / "cpuinfo"
    monkeypatch.setattr("logs.environment.CPUINFO", path)
    unknown = dict.fromkeys(("cpu", "cpu_id", "cpu_flags", "cpu_sockets", "cpu_cores", "cpu_cache"))
    assert told() == unknown
    blocks = [
        f"processor\t: {number}\nvendor_id\t: Maker\ncpu family\t: 6\nmodel\t\t: 85\nmodel name\t: Chip 3000\n"
        f"cache size\t: 512 KB\nphysical id\t: {socket}\ncore id\t\t: {core}\nflags\t\t: fpu {flags}\n"
        for number, (socket, core, flags) in enumerate(
            ((0, 0, "avx2 sse2 avx512f"), (0, 0, ""), (0, 1, ""), (1, 0, ""), (1, 1, ""), (1, 2, ""))
        )
    ]
    path.write_text("\n".join(blocks), encoding="utf-8")
    assert told() == {
        "cpu": "Chip 3000", "cpu_id": "Maker family 6 model 85", "cpu_flags": ["avx2", "avx512f", "sse2"],
        "cpu_sockets": 2, "cpu_cores": 5, "cpu_cache": "512 KB",
    }  # fmt: skip
    path.write_text("vendor_id\t: ARM\nmodel\t\t: 1\nflags\t\t: fpu\nphysical id\t: 0\n", encoding="utf-8")
    assert told() == unknown
    assert cpu_flags() == frozenset()


@pytest.mark.medium
def test_attempts_on_other_machines_are_kept_in_their_order(tmp_path: Path) -> None:
    def attempt(threads: str) -> list[str]:
        return write_environment(tmp_path, {"OMP_NUM_THREADS": threads})

    def earlier() -> list[str]:
        return [each["variables"]["OMP_NUM_THREADS"] for each in _recorded(tmp_path)["earlier_attempts"]]

    assert [attempt("1"), attempt("1"), attempt("1")] == [[], [], []]
    assert earlier() == ["1"]
    assert attempt("4") == attempt("4") == ["variables.OMP_NUM_THREADS 4 instead of 1"]
    assert attempt("1") == ["variables.OMP_NUM_THREADS 1 instead of 4"]
    assert earlier() == ["1", "4"]
    assert attempt("2") == [f"variables.OMP_NUM_THREADS 2 instead of {each}" for each in ("1", "4")]
    assert earlier() == ["1", "4", "1"]


def test_the_code_the_packages_and_the_host_of_every_attempt_are_kept(tmp_path: Path) -> None:
    path, begun = tmp_path / ENVIRONMENT_FILE, {"git": {"commit": "a" * 40, "diff": "+x"}, "packages": {"x": "1"}}
    write_environment(tmp_path, {})
    path.write_text(json.dumps(_recorded(tmp_path) | begun | {"hostname": "node1"}), encoding="utf-8")
    assert write_environment(tmp_path, {}), "the packages are others now"
    (earlier,) = _recorded(tmp_path)["earlier_attempts"]
    assert {key: earlier[key] for key in (*begun, "hostname")} == {**begun, "hostname": "node1"}


def test_a_damaged_record_of_the_attempt_before_is_named_and_kept(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / ENVIRONMENT_FILE
    path.write_bytes(b'{"git": {"commit": "')
    assert write_environment(tmp_path, {}) == []
    assert f"warning: {path}: damaged; " in capsys.readouterr().err
    assert Path(f"{path}.damaged").read_bytes() == b'{"git": {"commit": "'
    assert _recorded(tmp_path)["packages"]


def test_a_program_that_does_not_end_has_no_output(monkeypatch: pytest.MonkeyPatch) -> None:
    def hang(*_: object, timeout: float, **__: object) -> None:
        raise subprocess.TimeoutExpired("git", timeout)

    monkeypatch.setenv("PROGRAM_REVISION", "0123abc")
    monkeypatch.setattr(subprocess, "run", hang)
    assert environment()["git"]["commit"] == "0123abc"


@pytest.mark.parametrize(
    ("words", "command"),
    [
        ("python -I -m launch train digits --set a.b=[1, 2]", "./run.sh train digits --set 'a.b=[1, 2]'"),
        ("python -I -m launch.study sweep laptop", "./run.sh sweep laptop"),
        ("python -m launch.submit.job begin runs/a", None),
        ("python script.py train", None),
        ("python -I -m launch train d --set cluster.environment.HF_TOKEN=abc", f"./run.sh train d --set 'c{REDACTED}'"),
    ],
)
def test_the_command_is_that_of_the_door_without_secrets(words: str, command: str | None) -> None:
    given = [each.replace("_", " ") if "[" in each else each for each in words.replace(", ", ",_").split(" ")]
    assert command_given(given) == command


def test_a_resumed_run_keeps_the_command_that_began_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for words in ("train digits", "train --resume runs/d"):
        monkeypatch.setattr("sys.orig_argv", ["python", "-m", "launch", *words.split()])
        write_environment(tmp_path, {})
    assert _recorded(tmp_path)["command"] == "./run.sh train digits"
