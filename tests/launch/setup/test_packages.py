"""The hints of set-up: each machine's own package manager, with the names that the packages have there.

*Source* of the names: apt's index of Debian 12 and 13; for the others the documentation of each, since none is here.
"""

import os
import re
from pathlib import Path

import pytest

from launch.setup.packages import Need, remedy


@pytest.mark.parametrize(
    ("release", "programs", "need", "expected"),
    [
        ({"ID": "debian"}, "apt-get", "compiler", "apt-get update && apt-get install g++"),
        ({"ID": "ubuntu", "ID_LIKE": "debian"}, "apt-get", "mpi", "apt-get update && apt-get install libopenmpi-dev"),
        ({"ID": "mint", "ID_LIKE": "ubuntu debian"}, "apt-get", "make", "apt-get update && apt-get install make"),
        ({"ID": "debian"}, "apt-get", "venv", "apt-get update && apt-get install python3.13-venv"),
        ({"ID": "fedora"}, "apt-get dnf", "compiler", "dnf install gcc-c++"),
        ({"ID": "rocky", "ID_LIKE": "rhel centos fedora"}, "yum dnf", "mpi", "dnf install openmpi-devel"),
        ({"ID": "rhel", "ID_LIKE": "fedora"}, "microdnf", "make", "microdnf install make"),
        ({"ID": "opensuse-leap", "ID_LIKE": "suse opensuse"}, "zypper", "mpi", "zypper install openmpi4-devel"),
        ({"ID": "sles", "ID_LIKE": "suse"}, "zypper", "compiler", "zypper install gcc-c++"),
        ({"ID": "debian"}, "apt-get conda", "compiler", "conda install -c conda-forge cxx-compiler"),
        ({"ID": "debian"}, "apt-get conda", "make", "apt-get update && apt-get install make"),
        ({"ID": "alpine"}, "apk", "make", "install GNU make"),
        ({"ID": "debian"}, "", "mpi", "install its headers"),
        (None, "apt-get", "compiler", "install one (GCC 7 or later)"),
        ({"ID": "fedora"}, "dnf", "venv", "use another Python, one with the modules venv and ensurepip"),
    ],
)  # fmt: skip
def test_a_need_is_named_as_the_package_manager_of_the_machine_calls_it(
    release: dict[str, str] | None, programs: str, need: Need, expected: str, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    for name in programs.split():
        (tmp_path / name).touch(mode=0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CONDA_PREFIX", raising=False)
    if expected.startswith("conda"):
        monkeypatch.setenv("CONDA_PREFIX", "/opt/conda")

    def os_release() -> dict[str, str]:
        if release is None:
            raise OSError
        return release

    monkeypatch.setattr("platform.freedesktop_os_release", os_release)
    for user, words in ((0, ""), (1000, "as root: " if re.match("(apt|.*dnf|zypper)", expected) else "")):
        monkeypatch.setattr(os, "geteuid", lambda user=user: user)
        assert remedy(need, "/usr/bin/python3.13") == words + expected
    assert need != "venv" or remedy(need, "/opt/python/bin/python3.13").startswith("use another Python")
