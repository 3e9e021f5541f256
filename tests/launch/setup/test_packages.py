"""The hints of set-up: each machine's own package manager, with the names that the packages have there.

*Source* of the names: apt's index of Debian 12 and 13; for the others the documentation of each, since none is here.
"""

import os
import re
from pathlib import Path

import pytest

from launch.setup.packages import Need, remedy


@pytest.mark.parametrize(
    ("programs", "need", "expected"),
    [
        ("apt-get", "compiler", "apt-get update && apt-get install g++"),
        ("apt-get", "mpi", "apt-get update && apt-get install libopenmpi-dev"),
        ("apt-get", "venv", "apt-get update && apt-get install python3.13-venv"),
        ("apt-get dnf", "compiler", "dnf install gcc-c++"),
        ("dnf", "mpi", "dnf install openmpi-devel"),
        ("zypper", "mpi", "zypper install openmpi4-devel"),
        ("apt-get conda", "compiler", "conda install -c conda-forge cxx-compiler"),
        ("apt-get conda", "make", "apt-get update && apt-get install make"),
        ("apk", "make", "install GNU make"),
        ("", "mpi", "install its headers"),
        ("", "compiler", "install one (GCC 7 or later)"),
        ("dnf", "venv", "use another Python, one with the modules venv and ensurepip"),
    ],
)
def test_a_need_is_named_as_the_package_manager_of_the_machine_calls_it(
    programs: str, need: Need, expected: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in programs.split():
        (tmp_path / name).touch(mode=0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CONDA_PREFIX", raising=False)
    if expected.startswith("conda"):
        monkeypatch.setenv("CONDA_PREFIX", "/opt/conda")
    monkeypatch.setattr("sys.executable", "/usr/bin/python3.13")
    for user, words in ((0, ""), (1000, "as root: " if re.match("(apt|.*dnf|zypper)", expected) else "")):
        monkeypatch.setattr(os, "geteuid", lambda user=user: user)
        assert remedy(need) == words + expected
    monkeypatch.setattr("sys.executable", "/opt/python/bin/python3.13")
    assert need != "venv" or remedy(need).startswith("use another Python")
