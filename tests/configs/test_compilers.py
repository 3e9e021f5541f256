"""What a machine lacks to compile kernels is named before a run, with what to install."""

import os
from pathlib import Path
from types import SimpleNamespace

import pytest

from configs.compilers import compiler_shortage, require_compiler
from configs.errors import ConfigError
from configs.load import load_cluster

CPU = ("cluster.engine.name=torch", "cluster.engine.compile=true")
GPU = (*CPU, "cluster.device=gpu", "cluster.ranks_per_node=1")
FUSED = ("cluster.engine={name: torch, layout: NHWC, batch_norm: fused}", *GPU[2:])


@pytest.fixture
def programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Give a folder that is all of PATH, and a Python with headers and Triton."""
    for variable in ("CC", "CXX"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr("sysconfig.get_path", lambda _: str(tmp_path))
    monkeypatch.setattr("configs.compilers.find_spec", lambda _: object())
    (tmp_path / "Python.h").touch()
    return tmp_path


def _install(folder: Path, *names: str) -> None:
    for name in names:
        (folder / name).touch(mode=0o755)


@pytest.mark.parametrize(
    ("words", "installed"),
    [
        (CPU, "g++"),
        (GPU, "gcc"),
        (FUSED, "gcc"),
        (GPU, "clang"),
        (FUSED[:1], "none at all"),
        ((*CPU, "cluster.environment={CXX: clang++-19}"), "clang++-19"),
    ],
)
def test_a_machine_with_a_compiler_lacks_nothing(words: tuple[str, ...], installed: str, programs: Path) -> None:
    _install(programs, installed)
    assert compiler_shortage(load_cluster("laptop", words)) is None


def test_a_user_without_a_home_compiles_below_the_current_folder_as_triton_does(
    programs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def without_entry(_: int) -> None:
        raise KeyError

    monkeypatch.delenv("HOME", raising=False)
    monkeypatch.setattr("pwd.getpwuid", without_entry)
    monkeypatch.chdir(programs)
    _install(programs, "gcc")
    assert compiler_shortage(load_cluster("laptop", FUSED)) is None


@pytest.mark.parametrize(
    ("words", "installed", "told"),
    [
        (CPU, ("gcc",), r"no C\+\+ compiler \(g\+\+\); install g\+\+, or set cluster.engine.compile=false"),
        ((*CPU, "cluster.environment={CXX: icpx}"), ("g++",), r"no C\+\+ compiler \(icpx\)"),
        (GPU, ("g++",), r"no C compiler \(gcc or clang\)"),
        (FUSED, ("g++",), r"no C compiler \(gcc or clang\); install g\+\+, or set cluster.engine.batch_norm=framework"),
    ],
)
def test_a_machine_without_the_compiler_is_told_in_one_line(
    words: tuple[str, ...], installed: tuple[str, ...], told: str, programs: Path
) -> None:
    _install(programs, *installed)
    given = "batch_norm: got 'fused', allowed: framework" if words == FUSED else "compile: got True, allowed: false"
    with pytest.raises(ConfigError, match=rf"^cluster.engine.{given} .* {told}"):
        require_compiler(load_cluster("laptop", words))
    require_compiler(load_cluster("laptop", [words[0]]))


def test_kernels_need_a_folder_from_which_they_can_be_loaded(programs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _install(programs, "g++")
    folder = programs / "new" / "folder"
    cluster = load_cluster("laptop", [*CPU, f"cluster.environment={{TORCHINDUCTOR_CACHE_DIR: {folder}}}"])
    assert compiler_shortage(cluster) is None
    noexec = {programs: SimpleNamespace(f_flag=os.ST_NOEXEC)}  # the nearest folder that exists
    monkeypatch.setattr("os.statvfs", noexec.__getitem__)
    shortage = compiler_shortage(cluster)
    assert shortage is not None
    assert shortage[0] == f"no folder for kernels: {folder} cannot be written or is mounted noexec"
    _install(programs, "gcc")
    monkeypatch.setenv("TRITON_CACHE_DIR", str(folder))
    assert compiler_shortage(load_cluster("laptop", FUSED)) == (
        shortage[0], "set cluster.environment.TRITON_CACHE_DIR to another one",
    )  # fmt: skip


def test_headers_and_triton_are_needed_too(programs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _install(programs, "g++", "gcc")
    monkeypatch.setattr("configs.compilers.find_spec", lambda name: None if name == "triton" else object())
    assert compiler_shortage(load_cluster("laptop", CPU)) is None
    shortage = compiler_shortage(load_cluster("laptop", GPU))
    assert shortage == ("no Triton", "./run.sh setup --engine torch --gpu installs it")
    (programs / "Python.h").unlink()
    shortage = compiler_shortage(load_cluster("laptop", CPU))
    assert shortage is not None
    assert shortage[0] == f"no Python.h in {programs}"
