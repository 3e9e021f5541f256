"""The variables of Horovod's build that depend on the machine, and what is said of a build that does not work."""

import ctypes
import sys
from pathlib import Path

import pytest

from launch.setup import horovod
from launch.setup.child import StageError
from launch.setup.horovod import build_environment, check_build
from launch.setup.layout import Environment


def test_as_many_compilers_run_as_this_process_may_use_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.cpu_count", lambda: 64)
    monkeypatch.setattr("os.sched_getaffinity", {0: {2, 3, 7}}.__getitem__)
    made = build_environment({}, Environment(Path("/environment")), "cpu", has_mpi=False)
    assert made["MAKEFLAGS"] == "-j3"
    assert made["CMAKE_TOOLCHAIN_FILE"] == str(Path(horovod.__file__).with_name("horovod.cmake"))


def test_a_build_for_cpus_asks_for_no_toolkit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(horovod, "find_toolkit", lambda: pytest.fail("not asked for"))
    made = build_environment({"A": "1"}, Environment(Path("/environment")), "cpu", has_mpi=True)
    assert made["A"] == "1", "the user's own variables stay"
    assert not [name for name in made if "CUDA" in name or "NCCL" in name or "GPU" in name]


def test_a_driver_is_known_by_its_library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    monkeypatch.setattr(ctypes, "CDLL", asked.append)
    assert horovod._stub_folder(Path("/cuda"), Environment(tmp_path)) == []
    assert asked == ["libcuda.so.1"]
    assert not list(tmp_path.iterdir())


def test_a_build_that_does_not_work_is_explained_by_what_its_import_says(tmp_path: Path) -> None:
    package, environment = tmp_path / "packages" / "horovod", Environment(tmp_path / "environment")
    package.mkdir(parents=True)
    (package / "__init__.py").touch()
    (package / "mxnet.py").write_text("print('half')\nraise ImportError('no symbol')\n", encoding="utf-8")
    environment.python.parent.mkdir(parents=True)
    environment.python.symlink_to(sys.executable)
    log = environment.log("horovod-build")
    log.write_text("the build\n", encoding="utf-8")
    with pytest.raises(StageError) as failure:
        check_build({"PYTHONPATH": str(package.parent)}, environment, "cpu", has_mpi=False)
    assert str(failure.value) == (
        f"the compiled Horovod does not work: ImportError: no symbol\n       all of the output: {log}"
    )
    text = log.read_text(encoding="utf-8")
    assert text.startswith("the build\nhalf\nTraceback")
    assert text.endswith("ImportError: no symbol\n")
