"""What changes in an environment that gets another path, and which variables the commands of set-up run with."""

import os
from pathlib import Path

import pytest

from launch.setup.child import Stopwatch
from launch.setup.layout import LOCKS, Environment, locked
from launch.setup.replacement import rewrite_path
from launch.setup.work import Work, command_variables, pip, remove_half_installed


def test_compiled_files_keep_their_length_and_scripts_get_the_new_path_and_prompt(tmp_path: Path) -> None:
    old, new = tmp_path / ".venv.building", tmp_path / ".venv"
    packages = old / "lib" / "python3.11" / "site-packages"
    library, other = packages / "horovod" / "mxnet" / "mpi_lib.so", packages / "mxnet" / "libmxnet.so"
    for path in (library, other, old / "bin" / "folder" / "script"):
        path.parent.mkdir(parents=True)
        path.write_bytes(b"\0" + f"{old}/lib:{old}".encode() + b"\0.venv.building")
    (old / "pyvenv.cfg").write_text("prompt = .venv.building\n", encoding="utf-8")
    activate = old / "bin" / "activate"
    activate.write_text(f"VIRTUAL_ENV={old}\nPS1=(.venv.building)\n", encoding="utf-8")
    activate.chmod(0o640)
    untouched = old / "bin" / "plain"
    untouched.write_text("echo\n", encoding="utf-8")
    number = untouched.stat().st_ino
    before = library.read_bytes()
    rewrite_path(old, new)
    slashes = 9 * "/"  # the letters of .building
    after = library.read_bytes()
    assert after == b"\0" + f"{new}{slashes}/lib:{new}{slashes}".encode() + b"\0.venv.building"
    assert len(after) == len(before)
    assert other.read_bytes() == before, "wheels hold no path of an environment"
    assert activate.read_text(encoding="utf-8") == f"VIRTUAL_ENV={new}\nPS1=(.venv)\n"
    assert activate.stat().st_mode & 0o777 == 0o640
    assert (old / "pyvenv.cfg").read_text(encoding="utf-8") == "prompt = .venv\n"
    assert untouched.stat().st_ino == number, "a file without the path is not written again"
    assert not list(old.rglob("*.rewritten"))


def test_commands_of_set_up_compile_what_they_import_and_say_at_once_what_they_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")
    for name in ("PATH", "PIP_DISABLE_PIP_VERSION_CHECK", "PYTHONUNBUFFERED"):
        monkeypatch.delenv(name, raising=False)
    made = command_variables(Environment(tmp_path))
    assert "PYTHONDONTWRITEBYTECODE" not in made
    assert {name: made[name] for name in ("PATH", "TMPDIR", "PIP_DISABLE_PIP_VERSION_CHECK", "PYTHONUNBUFFERED")} == {
        "PATH": f"{tmp_path}/bin:{os.defpath}",
        "TMPDIR": f"{tmp_path}/tmp",
        "PIP_DISABLE_PIP_VERSION_CHECK": "1",
        "PYTHONUNBUFFERED": "1",
    }


def test_pins_of_a_lock_file_are_found_by_whole_names_or_by_their_beginning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = ["# numpy==0", "mxnet==1.9.1 \\", "mxnet-cu112==1.9.1 \\", "    --hash=sha256:1", "numpy==1 ; python \\",
             "numpydoc==3", "nvidia-a==2", "nvidia.b==2"]  # fmt: skip
    (tmp_path / "lock").write_text("\n".join(lines) + "\n", encoding="utf-8")
    monkeypatch.setitem(LOCKS, "torch", tmp_path / "lock")
    assert locked("torch", "numpy", "mxnet") == ["mxnet==1.9.1", "numpy==1 ; python"]
    assert locked("torch", "nvidia-*") == ["nvidia-a==2"]
    assert locked("torch", "mxnet*") == ["mxnet==1.9.1", "mxnet-cu112==1.9.1"]
    assert locked("torch", "nvidia.a") == []


def test_the_files_of_set_up_lie_in_the_environments_folder(tmp_path: Path) -> None:
    environment = Environment(tmp_path)
    packages = tmp_path / "lib" / "python3.12" / "site-packages"
    packages.mkdir(parents=True)
    assert environment.site_packages == packages
    assert [environment.python, environment.temporary, environment.build, environment.base_pins,
            environment.state_file, environment.log("tools")] == [
        tmp_path / name for name in ("bin/python", "tmp", "build", "base.txt", "setup.json", "tools.log")
    ]  # fmt: skip


def test_only_folders_are_what_a_killed_pip_left(tmp_path: Path) -> None:
    for name in ("~file", "file.dist-info"):
        (tmp_path / name).touch()
    (tmp_path / "~folder").mkdir()
    remove_half_installed(tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {"~file", "file.dist-info"}


def test_a_pip_that_removes_its_temporary_files_by_itself_has_not_failed(tmp_path: Path) -> None:
    environment = Environment(tmp_path)
    for folder in (environment.python.parent, tmp_path / "lib/python3.11/site-packages"):
        folder.mkdir(parents=True)
    environment.python.write_text('#!/bin/sh\ntest -d "$TMPDIR" && rm -r "$TMPDIR"\n', encoding="utf-8")
    environment.python.chmod(0o755)
    with (tmp_path / "lock").open("w") as lock:
        pip(Work(environment, Stopwatch("a stage"), lock.fileno()), ["install", "x"], "wheels")
    assert not environment.temporary.exists()
