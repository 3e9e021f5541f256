"""The parts of set-up: checks, the record of stages, running and stopping commands, explaining failures."""

import itertools
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Collection
from contextlib import nullcontext
from importlib.metadata import distributions
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from configs.errors import UserError
from launch.setup import __main__ as set_up
from launch.setup import checks, child, gpu, over_base, replacement, stages
from launch.setup.__main__ import _Plan, main
from launch.setup.__main__ import _run as run_stages
from launch.setup.causes import explain
from launch.setup.checks import GB
from launch.setup.child import StageError, Stopwatch, run_logged
from launch.setup.gpu import Gpu
from launch.setup.horovod import build_environment, check_build
from launch.setup.layout import (
    LOCKS,
    NEWEST_PYTHON,
    PROJECT,
    ROOT,
    Engine,
    Environment,
    Kind,
    Variant,
    lock_file,
    locked,
)
from launch.setup.pins import HOROVOD_PIN, Pin, closure, named_by, read_pins, write_constraints, write_requirements
from launch.setup.site import find_missing
from launch.setup.stages import make_stages
from launch.setup.state import State, digest
from launch.setup.work import Stage, Work, command_variables, pip, remove_half_installed

MXNET, BOTH = Kind(("mxnet",), "cpu"), Kind(("mxnet", "torch"), "cpu")


@pytest.mark.parametrize("capability", [(5, 0), (6, 1), (7, 0), (7, 5), (8, 0), (8, 6), (8, 9)])
def test_a_gpu_with_kernels_gives_the_gpu_variant(capability: tuple[int, int]) -> None:
    assert checks.check_gpus([Gpu("some GPU", capability)]) == "gpu"


@pytest.mark.parametrize("capability", [(3, 7), (9, 0), (10, 0)])
def test_a_gpu_without_kernels_is_refused_by_name(capability: tuple[int, int]) -> None:
    with pytest.raises(UserError, match=rf"some GPU \(compute capability {capability[0]}\.{capability[1]}\).*--cpu"):
        checks.check_gpus([Gpu("some GPU", capability)])


needs_old_python = pytest.mark.skipif(
    sys.version_info >= (3, 13), reason="set-up for MXNet finds this Python, which is too new, before anything else"
)


def test_no_gpu_gives_the_cpu_variant() -> None:
    assert checks.check_gpus([]) == "cpu"


@needs_old_python
def test_little_disk_is_one_line_with_what_is_there_and_what_is_needed(tmp_path: Path) -> None:
    (problem,) = checks.find_problems(MXNET, tmp_path, [], 10**18)
    assert re.fullmatch(r"[\d.]+ GB of disk free at .*, 1000000000\.0 GB needed: free some, or move .*", problem)


@pytest.mark.parametrize(
    ("free", "problem"),
    [
        (15 * GB // 10, None),
        (15 * GB // 10 - 1, "1.5 GB of disk free at {folder}, 1.5 GB needed: free some, or move this folder to another "
         "disk"),
        (GB // 4, "0.2 GB of disk free at {folder}, 1.5 GB needed: free some, or move this folder to another disk"),
    ],
)  # fmt: skip
def test_a_disk_with_just_what_is_needed_is_enough(
    free: int, problem: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Path] = []

    def usage(folder: Path) -> SimpleNamespace:
        asked.append(folder)
        return SimpleNamespace(total=9 * GB, used=9 * GB - free, free=free)

    monkeypatch.setattr("shutil.disk_usage", usage)
    told = None if problem is None else problem.format(folder=tmp_path)
    assert checks._little_disk(tmp_path, 15 * GB // 10) == told
    assert asked == [tmp_path]


@needs_old_python
def test_a_path_with_a_space_is_refused(tmp_path: Path) -> None:
    folder = tmp_path / "my clone"
    folder.mkdir()
    (problem,) = checks.find_problems(MXNET, folder, ["horovod"], 1)
    assert problem.endswith("my clone' has a space, which Horovod's build cannot take: move this folder, or rename it")


@needs_old_python
def test_this_machine_has_what_set_up_needs(tmp_path: Path) -> None:
    assert checks.find_problems(MXNET, tmp_path, ["venv", "tools", "wheels", "horovod"], 1) == []


def test_a_module_that_an_environment_lacks_is_missed(tmp_path: Path) -> None:
    environment = Environment(tmp_path)
    environment.python.parent.mkdir()
    environment.python.symlink_to(sys.executable)
    assert not find_missing(environment, "json", "email")
    assert find_missing(environment, "json", "no_such_module")


def _make_nvcc(home: Path, *lines: str) -> None:
    compiler = home / "bin" / "nvcc"
    compiler.parent.mkdir(parents=True, exist_ok=True)
    compiler.write_text("\n".join(lines) + "\n", encoding="utf-8")
    compiler.chmod(0o755)


@pytest.mark.medium
def test_the_toolkit_is_the_first_of_cuda_11_that_answers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    homes = [tmp_path / name for name in ("for_horovod", "for_all", "on_path")]
    for home in homes:
        _make_nvcc(home, "#!/bin/sh", "echo 'Cuda compilation tools, release 11.8, V11.8.89'")
    monkeypatch.setenv("HOROVOD_CUDA_HOME", str(homes[0]))
    monkeypatch.setenv("CUDA_HOME", str(homes[1]))
    monkeypatch.setenv("PATH", str(homes[2] / "bin"))
    assert gpu.find_toolkit() == homes[0]
    assert checks._no_toolkit() is None
    _make_nvcc(homes[0], "#!/bin/sh", "echo 'Cuda compilation tools, release 13.0, V13.0.88'")
    assert gpu.find_toolkit() == homes[1]
    monkeypatch.setattr(gpu, "_QUERY_TIMEOUT_S", 0.5)
    _make_nvcc(homes[1], f"#!{sys.executable} -IS", "import time", "time.sleep(30)", "print('release 11.8, V11.8.89')")
    assert gpu.find_toolkit() == homes[2]
    _make_nvcc(homes[2], "#!/bin/sh", "echo 'release 11.8, V11.8.89'; exit 1")
    assert gpu.find_toolkit() not in homes


def test_a_stage_is_done_until_its_digest_changes_or_it_begins_again(tmp_path: Path) -> None:
    environment = Environment(tmp_path / "environment")
    state = State(environment)
    state.reset(BOTH, has_mpi=False)
    state.finish("wheels", digest("a", 1))
    again = State(environment)
    assert again.kind == BOTH
    assert again.is_done("wheels", digest("a", 1))
    assert not again.is_done("wheels", digest("a", 2))
    again.begin("wheels")
    assert not State(environment).is_done("wheels", digest("a", 1))


def test_mpi_stays_known_where_the_machine_of_the_run_has_no_compiler_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    environment = Environment(tmp_path / "environment")
    assert not State(environment).has_mpi
    State(environment).reset(MXNET, has_mpi=True)
    assert State(environment).has_mpi


def test_a_damaged_state_file_counts_as_nothing_done(tmp_path: Path) -> None:
    environment = Environment(tmp_path)
    environment.state_file.write_text('{"stages": {"ve', encoding="utf-8")
    assert State(environment).kind is None


def test_what_a_killed_pip_left_is_not_taken_for_installed(tmp_path: Path) -> None:
    for name in ("numpy-1.23.5.dist-info", "scipy-1.15.3.dist-info", "~andas", "numpy"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "RECORD").touch()
    (tmp_path / "numpy-1.23.5.dist-info" / "INSTALLER").touch()
    remove_half_installed(tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {"numpy-1.23.5.dist-info", "numpy"}


def test_horovod_is_built_again_for_mpi_and_not_for_test_tools() -> None:
    def horovod(*, has_mpi: bool, extras: Collection[str]) -> str:
        stages = make_stages(MXNET, has_mpi=has_mpi, extras=extras)
        return next(stage.digest for stage in stages if stage.name == "horovod")

    assert horovod(has_mpi=False, extras=()) == horovod(has_mpi=False, extras=("test",))
    assert horovod(has_mpi=False, extras=()) != horovod(has_mpi=True, extras=())


@pytest.mark.parametrize(("variant", "package"), [("cpu", "mxnet"), ("gpu", "mxnet-cu112")])
def test_horovod_is_built_again_for_another_version_of_what_it_is_built_from(
    monkeypatch: pytest.MonkeyPatch, variant: Variant, package: str
) -> None:
    def built(*changed: str) -> str:
        def of(engine: Engine, *names: str) -> list[str]:
            return [f"{name} changed" if name in changed else pin for name in names for pin in locked(engine, name)]

        monkeypatch.setattr(stages, "locked", of)
        return stages._horovod_stage(variant, has_mpi=False).digest

    before = built()
    for name in (package, "numpy", "cmake", "setuptools", "nvidia-nccl-cu11"):
        assert built(name) != before, name
    assert built("pandas", "dali") == before


@pytest.mark.parametrize("changed", ["lock", "pyproject.toml"])
def test_packages_are_looked_at_again_when_a_lock_file_or_the_project_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, changed: str
) -> None:
    lock, project = tmp_path / "lock", tmp_path / "pyproject.toml"
    for path in (lock, project):
        path.write_text("before", encoding="utf-8")
    monkeypatch.setitem(LOCKS, "mxnet", lock)
    monkeypatch.setattr(stages, "PROJECT", project)
    before = stages._pins("mxnet")
    assert stages._pins("mxnet") == before
    (tmp_path / changed).write_text("after", encoding="utf-8")
    assert stages._pins("mxnet") != before


def test_the_lock_pins_what_the_program_needs_and_names_no_place() -> None:
    text = LOCKS["mxnet"].read_text(encoding="utf-8")
    assert all(pin.digests for lock in LOCKS.values() for pin in read_pins(lock))
    for pin in ("mxnet==1.9.1", "mxnet-cu112==1.9.1", "nvidia-dali-cuda110==1.34.0", "mlperf-logging==4.1.68"):
        assert pin in re.split(r"[\n ]", text)
    numpy = "1.23." if sys.version_info < (3, 12) else "1.26."
    assert all(line.startswith(f"numpy=={numpy}") for line in locked("mxnet", "numpy"))
    assert not re.search(r"https?:|file:|index-url|find-links", text)
    assert "horovod" not in PROJECT.read_text(encoding="utf-8").split("[tool.")[0].replace("# What Horovod", "")


def _wanted(project: dict[str, Any], extra: str) -> list[Requirement]:
    """Return what pyproject.toml wants for an extra, with the extras that it names."""
    found = [Requirement(line) for line in project["optional-dependencies"][extra]]
    named = [name for each in found if each.name == project["name"] for name in each.extras]
    plain = [each for each in found if each.name != project["name"]]
    return plain + [each for name in named for each in _wanted(project, name)]


@pytest.mark.parametrize("engine", LOCKS)
@pytest.mark.parametrize("python", ["3.10", "3.11", "3.12", "3.13"])
def test_a_lock_pins_all_that_its_extras_want_for_every_python_of_the_engine(engine: Engine, python: str) -> None:
    if python > "{}.{}".format(*NEWEST_PYTHON[engine]):
        pytest.skip("the engine does not run there")
    # Python 3.10 has no tomllib.
    project = pytest.importorskip("tomllib").loads(PROJECT.read_text(encoding="utf-8"))["project"]
    minor = int(python.partition(".")[2])
    text = lock_file(engine, (3, minor)).read_text(encoding="utf-8")
    extras = re.findall(r"--extra (\w+)", text.splitlines()[1])
    others = {"torch": {"mxnet", "onnx", "cpu", "gpu", "build"}, "mxnet": {"mxnet", "onnx", "torch"}}[engine]
    assert set(extras) == set(project["optional-dependencies"]) - others
    here = {"python_version": python, "python_full_version": f"{python}.0"}
    lines = [Requirement(pin.line) for pin in read_pins(lock_file(engine, (3, minor)))]
    pins = {canonicalize_name(each.name): each for each in lines if not each.marker or each.marker.evaluate(here)}
    wanted = [Requirement(line) for line in project["dependencies"]]
    for each in wanted + [deep for extra in extras for deep in _wanted(project, extra)]:
        if each.marker and not each.marker.evaluate(here):
            continue
        (pin,) = pins[canonicalize_name(each.name)].specifier
        assert each.specifier.contains(pin.version), each


def test_an_extra_is_installed_with_all_that_it_needs_and_nothing_of_the_others() -> None:
    """As pip found it: what set-up lists is what the environment of the tests has, each in the same version."""
    here = Environment(Path(sys.prefix))
    engine: Engine = "mxnet" if find_spec("mxnet") else "torch"
    extras = ("cpu" if engine == "mxnet" else "torch", "test")
    listed = {
        pin.name
        for extra in extras
        for pin in closure(engine, named_by(here, extra))
        if not (marker := Requirement(pin.line).marker) or marker.evaluate()
    }
    unlisted = {"pip", "setuptools", "horovod", "cffi", "pycparser", "cmake", "resnet-records", "tensorboardx"}
    present = {canonicalize_name(each.name) for each in distributions(path=[str(here.site_packages)])}
    if {"mxnet", "torch"} <= present:
        pytest.skip("an environment of both engines has packages by both lock files")
    assert present - unlisted - listed == set()
    assert "mxnet-cu112" not in listed


def test_the_build_takes_no_flag_of_the_users_that_contradicts_ours() -> None:
    base = {
        "HOROVOD_WITHOUT_MXNET": "1",
        "HOROVOD_WITH_TENSORFLOW": "1",
        "HOROVOD_BUILD_ARCH_FLAGS": "-mavx",
        "MAKEFLAGS": "",
    }
    environment = Environment(Path("/environment"))
    made = build_environment(base, environment, "cpu", has_mpi=False)
    assert "HOROVOD_WITHOUT_MXNET" not in made
    assert "HOROVOD_WITH_TENSORFLOW" not in made
    assert made["HOROVOD_BUILD_ARCH_FLAGS"] == "-mavx"
    assert {name: made[name] for name in made if name.startswith("HOROVOD_WITH")} == dict.fromkeys(
        ["HOROVOD_WITH_MXNET", "HOROVOD_WITH_GLOO", "HOROVOD_WITHOUT_MPI", "HOROVOD_WITHOUT_TENSORFLOW",
         "HOROVOD_WITHOUT_PYTORCH"], "1",
    )  # fmt: skip
    assert made["HOROVOD_CMAKE"] == "/environment/bin/cmake"
    assert re.fullmatch(r"-j[1-9]\d*", made["MAKEFLAGS"])
    flags = Path(made["CMAKE_TOOLCHAIN_FILE"]).read_text(encoding="utf-8")
    assert re.findall(r"^set\((\S+) (.*) CACHE", flags, re.MULTILINE) == [
        ("CMAKE_CXX_FLAGS_RELWITHDEBINFO", '"-O3 -DNDEBUG"')
    ]
    assert "HOROVOD_WITHOUT_MPI" not in build_environment(base, environment, "cpu", has_mpi=True)


_THEN = "then run ./run.sh again: it goes on where it stopped"
_DISK = f"the disk is full; free some space, {_THEN}"
_MEMORY = "the compiler ran out of memory; close programs, or compile one file at a time: MAKEFLAGS=-j1 ./run.sh setup"
_CERTIFICATE = f"the package index's certificate is not trusted; point PIP_CERT at your site's certificates, {_THEN}"
_UNREACHED = f"the package index was not reached; check network, proxy and pip's settings (pip config list), {_THEN}"
_MPI = "MPI was found but cannot be compiled with; install its headers (libopenmpi-dev), or take mpicxx off the PATH"
_CUDA = "the CUDA toolkit is not complete; install CUDA 11.8 with its headers and set CUDA_HOME"


@pytest.mark.parametrize(
    ("output", "words"),
    [
        ("as: write error: No space left on device\nmake: *** Error 1", _DISK),
        ("OSError: [Errno 28] no room", _DISK),
        ("c++: fatal error: Killed signal terminated program cc1plus", _MEMORY),
        ("c++: internal compiler error: Killed (program cc1plus)", _MEMORY),
        ("virtual memory exhausted: Cannot allocate memory", _MEMORY),
        ("Killed\nmake: ***", _MEMORY),
        (
            "ERROR: No matching distribution found for mxnet==1.9.1",
            "the package index has no mxnet==1.9.1 for this Python; check pip's index settings (pip config list)",
        ),
        (
            "ERROR: THESE PACKAGES DO NOT MATCH THE HASHES FROM\n    wheel==0.48.0 from https://i/w.whl:\n"
            "        Expected sha256 00\n             Got        32\n",
            "wheel==0.48.0 is not a file that the lock file names: it was damaged (pip cache purge, then ./run.sh "
            "again), or your index has a build of its own (./run.sh setup --without-hashes)",
        ),
        (
            "x.cc:3:10: fatal error: zlib.h: No such file or directory",
            "the header zlib.h is missing; install the package that has it",
        ),
        ("ssl.SSLError: bad", _CERTIFICATE),
        ("[SSL: CERTIFICATE_VERIFY_FAILED]", _CERTIFICATE),
        ("NewConnectionError: Temporary failure in name resolution", _UNREACHED),
        ("Failed to establish a new connection: [Errno 101]", _UNREACHED),
        ("Max retries exceeded with url: /simple", _UNREACHED),
        ("HTTPSConnectionPool: Read timed out.", _UNREACHED),
        ("ConnectionResetError(104)", _UNREACHED),
        ("ConnectionRefusedError: Connection refused", _UNREACHED),
        ("ProxyError('Cannot connect to proxy.')", _UNREACHED),
        ("IncompleteRead(7 bytes read)", _UNREACHED),
        (
            "mkdir: cannot create: Permission denied",
            f"a file could not be written; give yourself this folder (chown -R), {_THEN}",
        ),
        ("-- Could NOT find MPI (missing: MPI_CXX)", _MPI),
        ("a.cc:1: fatal error: mpi.h: No such file", _MPI),
        ("fatal error: cuda_runtime.h: No such file", _CUDA),
        ("fatal error: cublas_v2.h: No such file", _CUDA),
        ("Could NOT find CUDAToolkit (missing: nvcc)", _CUDA),
        ("No CMAKE_CUDA_COMPILER could be found.", _CUDA),
        (
            "libcuda.so.1: cannot open shared object",
            "no NVIDIA driver library; install the driver, or the CUDA toolkit with its stubs",
        ),
        (
            "Illegal instruction (core dumped)",
            "this CPU lacks AVX, FMA or F16C, which Horovod is built with; use a newer machine",
        ),
        (
            "#error -- unsupported GNU version!",
            "the compiler is too new for this CUDA; set CXX to an older one (g++-11)",
        ),
        ("a.cc:1: error: expected ';'\nmake: *** [all] stopped\n", "a.cc:1: error: expected ';'"),
        (
            "  a.cc:1: error: expected ';'\n  make[2]: *** [x.o] Error 1\n  gmake: *** [all] Error 2\n"
            "  subprocess.CalledProcessError: Command 'cmake' returned 2: error\n  ERROR: Failed building wheel for x\n"
            "ERROR: Failed to build one or more wheels\n",
            "a.cc:1: error: expected ';'",
        ),
        (
            "ModuleNotFoundError: No module named 'x'\nerror: subprocess-exited-with-error\nERROR: Failed to build x\n",
            "ModuleNotFoundError: No module named 'x'",
        ),
        ("one\nERROR: Failed to build x\nlast", "ERROR: Failed to build x"),
        ("\n", "the command printed nothing"),
        ("error: one\nError 2\nlast", "Error 2"),
        ("one\nlast" + "t" * 300, "last" + "t" * 196),
    ],
)
def test_a_failure_is_explained_in_one_line(output: str, words: str) -> None:
    assert explain(output) == words


_VENV = ("venv", "virtual environment: Python {version}", GB // 10, None)
_TOOLS = ("tools", "build tools", GB // 2, {"engine": "mxnet"})
_MXNET = ("mxnet", "pinned wheels: MXNet (cpu) and what it links, about 100 MB of downloads", GB, {"variant": "cpu"})
_WHEELS = ("wheels", "pinned wheels: DALI and others, about 500 MB of downloads", 2 * GB, {"variant": "cpu"})
_COMPILED = "compiled here since MXNet is there, about 3 minutes"
_HOROVOD = ("horovod", f"Horovod for MXNet with Gloo: {_COMPILED}", GB, {"variant": "cpu", "has_mpi": False})
_TORCH = "pinned wheels: PyTorch ({}), up to 2.5 GB of downloads where pip finds no wheel for CPUs only"
_TEST = ("test", "tools for tests and checks", GB // 3, {"engine": "mxnet", "extra": "test"})
_OVER = Kind(("mxnet",), "gpu", "/usr/bin/python3")


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        (BOTH, [_VENV, _TOOLS, _MXNET, _WHEELS, _TEST, _HOROVOD, ("torch", _TORCH.format("cpu"), 8 * GB, None)]),
        (
            Kind(("mxnet",), "gpu"),
            [
                _VENV,
                _TOOLS,
                ("mxnet", "pinned wheels: MXNet (gpu) and what it links, 2 GB of downloads", 8 * GB,
                 {"variant": "gpu"}),
                (*_WHEELS[:3], {"variant": "gpu"}),
                _TEST,
                ("horovod", f"Horovod for MXNet with Gloo, MPI, NCCL: {_COMPILED}", GB,
                 {"variant": "gpu", "has_mpi": True}),
            ],
        ),
        (
            Kind(("torch",), "gpu"),
            [
                _VENV,
                ("tools", "build tools", GB // 10, {"engine": "torch"}),
                ("torch", _TORCH.format("gpu"), 8 * GB, {"variant": "gpu"}),
                (*_TEST[:3], {"engine": "torch", "extra": "test"}),
            ],
        ),
        (
            _OVER,
            [
                ("venv", "virtual environment that sees the packages of /usr/bin/python3", GB // 10, {"kind": _OVER}),
                ("packages", "packages that are missing there", GB, {"kind": _OVER, "extra": "onnx"}),
                (*_TEST[:3], {"kind": _OVER, "extra": "test"}),
            ],
        ),
    ],
    ids=["both", "mxnet", "torch", "base"],
)  # fmt: skip
def test_an_environment_is_made_in_the_stages_that_a_person_reads(kind: Kind, expected: list[tuple[Any, ...]]) -> None:
    version = f"{sys.version_info[0]}.{sys.version_info[1]}"
    made = make_stages(kind, has_mpi=kind.variant == "gpu", extras=["test"])
    rows = [(each.name, each.title, each.needed_bytes, getattr(each.run, "keywords", None)) for each in made]
    assert rows == [(name, title.replace("{version}", version), *rest) for name, title, *rest in expected]
    assert made[0].digest != made[1].digest
    # Horovod is compiled beside the stages between.
    assert {stage.name: stage.after for stage in made if stage.after} == (
        {"horovod": "mxnet"} if "horovod" in {stage.name for stage in made} else {}
    )


@pytest.mark.parametrize("kind", [MXNET, BOTH, Kind(("torch",), "cpu"), Kind(("torch",), "gpu")], ids=str)
def test_pip_gets_the_options_without_which_a_stage_goes_wrong(
    kind: Kind, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[str] = []
    monkeypatch.setattr(stages, "pip", lambda _work, words, log, *_: told.append(f"{log}: {' '.join(words)}"))
    monkeypatch.setattr(stages, "_with_digests", lambda _work, *of, without=(): [f"<{' '.join(of)} -{without}>"])
    monkeypatch.setattr(stages, "_of", lambda _work, pins: [f"<{' '.join(pin.name for pin in pins)}>"])
    monkeypatch.setattr(
        stages, "closure", lambda engine, names: [SimpleNamespace(name=each) for each in (engine, *names)]
    )
    monkeypatch.setattr(stages, "write_constraints", lambda _environment, engine: [f"<{engine}>"])
    monkeypatch.setattr(stages, "build_environment", lambda *_, **__: {})
    monkeypatch.setattr(stages, "check_build", lambda *_, **__: None)
    monkeypatch.setattr(stages, "_put_back_numpy_names", lambda _folder: None)
    monkeypatch.setattr(stages, "missing_libraries", lambda _folder: [])
    build = SimpleNamespace(wait=lambda _watch: told.append("the build is waited for"))
    monkeypatch.setattr(Environment, "build", tmp_path)
    (tmp_path / "horovod-1.whl").touch()
    monkeypatch.setattr(stages, "named_by", lambda _environment, extra: ["mxnet", "numpy-x", "nvidia-dali", extra])
    work = SimpleNamespace(
        environment=Environment(Path(sys.prefix)), checks_files=True, run=lambda words, *_: told.append(str(words[1:])),
        begun={"horovod": build}, watch=None,
    )  # fmt: skip
    for stage in make_stages(kind, has_mpi=False, extras=["test"]):
        if stage.name != "venv":
            stage.run(work)  # type: ignore[arg-type]
    install, project = "install --no-build-isolation", f"install --no-build-isolation --no-deps --editable {ROOT}"
    tools = f"tools: install <{kind.engines[0]} cmake setuptools wheel>"
    itself = "torch-itself: install --no-compile <torch> torch"
    parts = "".join(f", {name}" for name in stages._IMPORTED)
    mxnet = [
        tools,
        f"project: {project}",
        f"mxnet: {install} --no-compile <mxnet mxnet numpy-x>",
        f"wheels: {install} --no-compile <mxnet cpu -()>",
        f"['-c', 'import mxnet{parts}']",
        "the build is waited for",
        f"horovod: install --no-index --no-deps --force-reinstall {tmp_path}/horovod-1.whl",
    ]
    check = "['-c', 'import torch, torch.distributed{}; assert torch.distributed.is_gloo_available()']"
    left_out = "('torch',)" if kind.variant == "cpu" else "()"
    torch = [
        tools,
        f"project: {project}",
        f"torch: {install} --no-compile <torch torch -{left_out}>",
        *([itself] if kind.variant == "cpu" else []),
        check.format(parts),
    ]
    added = [itself, check.format("")] if len(kind.engines) == 2 else []
    expected = [*(mxnet if kind.engines[0] == "mxnet" else torch), *added]
    assert [line for line in told if not line.startswith("test:")] == expected
    assert f"test: {install} --no-compile <{kind.engines[0]} test -()>" in told


def test_each_thing_that_a_machine_lacks_is_told_with_its_remedy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setattr(checks, "find_toolkit", lambda: None)
    monkeypatch.setattr("platform.machine", lambda: "aarch64")
    monkeypatch.setattr("platform.python_version", lambda: "3.14.1")
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None if name == "ensurepip" else name)
    assert checks.find_problems(MXNET, tmp_path, ["wheels"], 1)[1:] == [], "there is an environment already"
    package = f"python{sys.version_info[0]}.{sys.version_info[1]}-venv"
    monkeypatch.setattr(checks, "NEWEST_PYTHON", {"mxnet": (3, 8), "torch": (3, 9)})
    assert checks.find_problems(Kind(("mxnet", "torch"), "gpu"), tmp_path, ["venv", "horovod"], 1) == [
        "this is Linux aarch64; MXNet 1.9.1 and DALI have wheels for Linux x86_64 only: use such a machine or "
        "container",
        f"this Python is 3.14.1 ({sys.executable}), and MXNet and PyTorch needs 3.10 to 3.8: rm -r .venv if it is "
        "there, then ./run.sh setup with an older Python (apt-get install python3.11-venv)",
        f"this Python ({sys.executable}) cannot make virtual environments: apt-get install {package}",
        "no C++ compiler (c++, g++, clang++), which Horovod is built with: apt-get install g++, or use PyTorch, which "
        "needs none: ./run.sh setup --engine torch",
        "no make, which Horovod is built with: apt-get install make",
        "no CUDA 11 toolkit (nvcc), which Horovod needs to be built for GPUs: install CUDA 11.8 and set CUDA_HOME, or "
        "train on the CPU with ./run.sh setup --cpu",
    ]


@pytest.mark.parametrize(
    ("chunk", "line"),
    [
        ("Collecting numpy\n  Downloading numpy.whl\n\n", "Downloading numpy.whl"),
        ("Building\nLooking in indexes: a\nWARNING: Location 'file:x' is ignored\n", "Building"),
        ("[ 7%] Building\n  cd /a && c++\n/usr/bin/c++ -o x\nmake[1]: Leaving\ngmake: b\n", "[ 7%] Building"),
        ("\n", ""),
    ],
)
def test_the_last_line_that_tells_something_is_shown(chunk: str, line: str) -> None:
    assert child._last_line(chunk) == line


@pytest.mark.parametrize(("script", "is_over"), [("sleep 0.3; echo made ready; sleep 60", False), ("exit 3", True)])
def test_waiting_for_a_word_of_a_command_ends_with_the_word_or_the_command(
    script: str, is_over: bool, tmp_path: Path
) -> None:
    log, watch = tmp_path / "stage.log", Stopwatch("a stage")
    with (tmp_path / "lock").open("w") as lock:
        command = child.Command(["sh", "-c", script], log=log, environment=dict(os.environ), lock=lock.fileno())
        try:
            command.start()
            command.wait_for("made ready", watch)
            assert log.read_text(encoding="utf-8") == ("" if is_over else "made ready\n")
            assert command._process is not None
            assert (command._process.poll() is not None) == is_over
        finally:
            command.stop()


def test_a_command_that_a_signal_killed_says_so(tmp_path: Path) -> None:
    log = tmp_path / "stage.log"
    with pytest.raises(StageError) as failure:
        run_shell("kill -9 $$", log)
    cause = "the command was killed by SIGKILL; run ./run.sh again: it goes on where it stopped"
    assert str(failure.value) == f"{cause}\n       all of the output: {log}"


def run_shell(script: str, log: Path) -> None:
    with log.with_suffix(".lock").open("w") as lock:
        run_logged(
            ["sh", "-c", script], log=log, environment=dict(os.environ), watch=Stopwatch("a stage"), lock=lock.fileno()
        )


def test_output_goes_to_the_log_and_a_failure_names_cause_and_log(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    log = tmp_path / "stage.log"
    with pytest.raises(StageError) as failure:
        run_shell("echo one; echo 'error: two' >&2; exit 3", log)
    assert str(failure.value) == f"error: two\n       all of the output: {log}"
    assert log.read_text(encoding="utf-8") == "one\nerror: two\n"
    assert capsys.readouterr().err == "setup: a stage ..."


@pytest.mark.ranks
def test_a_stopped_set_up_leaves_no_process_behind(tmp_path: Path) -> None:
    code = (
        "import sys; sys.path.insert(0, sys.argv[1]); from pathlib import Path; "
        "from tests.launch.setup.test_setup import run_shell; "
        "run_shell('trap \"\" TERM; sleep 60 & echo $! > $PIDS; echo $$ >> $PIDS; wait; sleep 60', Path(sys.argv[2]))"
    )
    pids = tmp_path / "pids"
    child = subprocess.Popen(
        [sys.executable, "-c", code, str(ROOT), str(tmp_path / "stage.log")],
        env={**os.environ, "PIDS": str(pids)},
        stderr=subprocess.DEVNULL,
    )
    while not (pids.exists() and len(pids.read_text().split()) == 2):
        assert child.poll() is None
        time.sleep(0.02)
    child.send_signal(signal.SIGINT)
    child.wait()
    deadline_s = time.monotonic() + 30  # the processes sleep for 60 s
    # They were killed, but on a busy machine it takes a while until they are dead.
    while any(_is_alive(pid) for pid in pids.read_text().split()):
        assert time.monotonic() < deadline_s
        time.sleep(0.02)


def _is_alive(pid: str) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def test_a_wrong_argument_is_one_line_with_the_nearest_one(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--gpus"]) == 2
    assert re.fullmatch(r"error: '--gpus' is not expected here; did you mean '--gpu'\?.*\n", capsys.readouterr().err)


def test_the_dockerfile_copies_what_set_up_reads(tmp_path: Path) -> None:
    stage, _, _ = (ROOT / "Dockerfile").read_text(encoding="utf-8").partition("FROM scratch")[2].partition("FROM ")
    for line in re.findall(r"^COPY (.*)$", stage, re.MULTILINE):
        *sources, target = line.split()
        (tmp_path / target).mkdir(parents=True, exist_ok=True)
        for source in map(ROOT.joinpath, sources):
            if source.is_dir():
                shutil.copytree(source, tmp_path / target, dirs_exist_ok=True)
            else:
                shutil.copy2(source, tmp_path / target)
    code = (
        "from launch.setup.__main__ import Kind, make_stages as make; "
        "print(*(len(make(Kind((engine,), 'gpu'), has_mpi=True, extras=['test'])) for engine in ('mxnet', 'torch')))"
    )
    done = subprocess.run([sys.executable, "-S", "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "6 4\n"), done.stderr


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_an_interruption_between_the_two_renames_waits_for_the_second(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: signal.Signals
) -> None:
    current, building, old = (tmp_path / name for name in (".venv", ".venv.building", ".venv.old"))
    for folder in (current, building):
        (folder / "bin").mkdir(parents=True)
        (folder / "pyvenv.cfg").write_text(f"prompt = {folder.name}\n", encoding="utf-8")
    for name, value in {"CURRENT": Environment(current), "BUILDING": Environment(building), "REPLACED": old}.items():
        monkeypatch.setattr(replacement, name, value)
    rename = Path.rename

    def interrupted(path: Path, target: Path) -> Path:
        renamed = rename(path, target)
        if path == current:
            signal.raise_signal(number)
        return renamed

    def stop(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Path, "rename", interrupted)
    before = signal.signal(number, stop)
    try:
        with pytest.raises(KeyboardInterrupt):
            replacement.put_in_place()
    finally:
        signal.signal(number, before)
    assert (current / "pyvenv.cfg").read_text(encoding="utf-8") == "prompt = .venv\n"
    assert not building.exists()
    assert signal.pthread_sigmask(signal.SIG_BLOCK, ()) == set()


def test_a_command_that_is_ended_may_tidy_up_first(tmp_path: Path) -> None:
    script = f"trap 'sleep 0.1; touch {tmp_path}/tidy; exit' TERM; touch {tmp_path}/began; while :; do sleep 0.02; done"
    with subprocess.Popen(["sh", "-c", script], start_new_session=True) as process:
        while not (tmp_path / "began").exists():
            time.sleep(0.01)
        child._end_group(process)
        assert (tmp_path / "tidy").exists()
        child._end_group(process)


def test_a_command_that_ignores_its_end_is_killed_after_the_grace(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(child, "_TERM_GRACE_S", 0.05)
    command = ["sh", "-c", "trap '' TERM; echo; exec sleep 60"]
    with subprocess.Popen(command, start_new_session=True, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        child._end_group(process)
        assert process.returncode == -signal.SIGKILL


def test_pip_gets_a_file_of_pins_in_the_environment(tmp_path: Path) -> None:
    work = Work(Environment(tmp_path), Stopwatch("a stage"), 0)
    *options, file = stages._of(work, [HOROVOD_PIN])
    assert options == ["--require-hashes", "--requirement"]
    assert Path(file).parent == tmp_path
    assert Path(file).read_text(encoding="utf-8").startswith("horovod==0.28.1 --hash=sha256:")


@pytest.mark.parametrize("has_mpi", [True, False])
def test_horovod_is_built_with_the_mpi_that_its_stage_is_named_after(has_mpi: bool) -> None:
    stage = make_stages(MXNET, has_mpi=has_mpi, extras=())[-1]
    assert ("MPI" in stage.title) == has_mpi
    assert stage.run.keywords == {"variant": "cpu", "has_mpi": has_mpi}  # type: ignore[attr-defined]


def test_no_package_is_installed_while_the_build_of_horovod_imports_them(tmp_path: Path) -> None:
    environment = Environment(tmp_path)
    environment.python.parent.mkdir()
    configured = tmp_path / "configured"
    script = f'#!/bin/sh\nsleep 0.3; touch "{configured}"; echo "  -- Configuring done (8.8s)"; exec sleep 60\n'
    environment.python.write_text(script, encoding="utf-8")
    environment.python.chmod(0o755)
    with (tmp_path / "lock").open("w") as lock:
        work = Work(environment, Stopwatch("a stage"), lock.fileno())
        try:
            stages._begin_horovod(work, "cpu", has_mpi=False)
            assert configured.exists()
        finally:
            work.begun["horovod"].stop()


@pytest.mark.parametrize("end", [None, StageError, KeyboardInterrupt])
def test_a_long_command_runs_beside_other_stages_and_no_longer_than_set_up(
    end: type[BaseException] | None, tmp_path: Path
) -> None:
    environment = Environment(tmp_path)
    environment.log("script").write_text("of an attempt before", encoding="utf-8")
    began, may_end = tmp_path / "began", tmp_path / "may end"
    script = f'echo $$ > "{began}"; while [ ! -e "{may_end}" ]; do sleep 0.01; done; echo done'

    def begin(work: Work) -> None:
        work.begin(["sh", "-c", script], "last", "script", dict(os.environ))

    def beside(_work: Work) -> None:
        while not (began.exists() and began.read_text(encoding="utf-8")):
            time.sleep(0.01)
        if end:
            raise end("no")
        may_end.touch()

    made = [
        Stage("first", "", "1", 0, lambda _: None),
        Stage("second", "", "1", 0, beside),
        Stage("last", "", "1", 0, lambda work: work.begun["last"].wait(work.watch), begin, after="first"),
    ]
    state = State(environment)
    state.reset(MXNET, has_mpi=False)
    with (tmp_path / "lock").open("w") as lock, pytest.raises(end) if end else nullcontext():
        run_stages(
            _Plan(environment, [Stage("venv", "", "1", 0, begin), *made], made, has_mpi=False),
            MXNET,
            lock.fileno(),
            checks_files=True,
        )
    assert not _is_alive(began.read_text(encoding="utf-8").strip())
    assert State(environment).is_done("last", "1") == (end is None)
    assert environment.log("script").read_text(encoding="utf-8") == ("" if end else "done\n")
    assert environment.log("script-before").read_text(encoding="utf-8") == "of an attempt before"


def test_no_variable_of_the_user_leads_python_or_pip_elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    leading = ("PYTHONPATH", "PYTHONHOME", "PIP_TARGET", "PIP_PREFIX", "PIP_USER", "VIRTUAL_ENV")
    for name in (*leading, "PIP_INDEX_URL"):
        monkeypatch.setenv(name, "elsewhere")
    made = command_variables(Environment(tmp_path))
    assert not set(leading) & set(made)
    assert made["PIP_INDEX_URL"] == "elsewhere"
    assert made["PATH"] == f"{tmp_path}/bin:{os.environ['PATH']}"
    assert Path(made["TMPDIR"]).is_relative_to(tmp_path)


def test_horovod_for_gpus_is_built_with_nccl_of_the_wheels_and_the_named_toolkit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "lib/python3.11/site-packages/nvidia/nccl/lib").mkdir(parents=True)
    monkeypatch.setattr("launch.setup.horovod.find_toolkit", lambda: Path("/cuda"))
    monkeypatch.setattr("ctypes.CDLL", lambda _name: None)
    environment = Environment(tmp_path)
    made = build_environment({"LD_LIBRARY_PATH": "/site"}, environment, "gpu", has_mpi=True)
    expected = {
        "HOROVOD_GPU": "CUDA",
        "HOROVOD_GPU_OPERATIONS": "NCCL",
        "HOROVOD_CUDA_HOME": "/cuda",
        "HOROVOD_NCCL_HOME": f"{tmp_path}/nccl",
        "HOROVOD_NCCL_LINK": "SHARED",
        "HOROVOD_BUILD_CUDA_CC_LIST": "50,60,70,80,86",
        "NVCC_APPEND_FLAGS": "-allow-unsupported-compiler",
        "LD_LIBRARY_PATH": f"{environment.site_packages}/nvidia/nccl/lib:/site",
        "HOROVOD_WITH_MPI": "1",
    }
    assert {name: made[name] for name in expected} == expected
    links = {path.name: path.readlink() for path in (tmp_path / "nccl").rglob("*") if path.is_symlink()}
    packages = Path("lib/python3.11/site-packages/nvidia/nccl")
    assert links == {"include": ".." / packages / "include", "libnccl.so": "../.." / packages / "lib/libnccl.so.2"}

    def absent(_name: str) -> None:
        raise OSError

    monkeypatch.setattr("ctypes.CDLL", absent)
    own = {
        "MAKEFLAGS": "-j7",
        "CMAKE_TOOLCHAIN_FILE": "/own.cmake",
        "HOROVOD_BUILD_CUDA_CC_LIST": "80",
        "NVCC_APPEND_FLAGS": "-w",
    }
    made = build_environment(own, environment, "gpu", has_mpi=True)
    assert {name: made[name] for name in own} == own
    assert made["LD_LIBRARY_PATH"] == f"{environment.site_packages}/nvidia/nccl/lib:{tmp_path}/cuda-stub"
    assert (tmp_path / "cuda-stub/libcuda.so.1").readlink() == Path("/cuda/lib64/stubs/libcuda.so")


_LOCK = """\
# made by a tool
a-b==1.0 ; python_version < "3.12" \\
    --hash=sha256:1 \\
    --hash=sha256:2
    # via resnet-records (pyproject.toml)
C_d==2.0 \\
    --hash=sha256:3
    # via
    #   a-b
    #   e
e==3.0
    # via a-b
f==4.0
    # via c-d
"""


def test_a_folder_is_removed_with_its_content_and_a_link_without(tmp_path: Path) -> None:
    (tmp_path / "folder" / "below").mkdir(parents=True)
    (tmp_path / "link").symlink_to(tmp_path / "folder")
    for name, left in (("none", {"folder", "link"}), ("link", {"folder"}), ("folder", set())):
        replacement.remove_folder(tmp_path / name)
        assert {path.name for path in tmp_path.iterdir()} == left


def test_pip_gets_each_pin_with_its_digests_or_without(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lock = tmp_path / "lock"
    lock.write_text(_LOCK, encoding="utf-8")
    monkeypatch.setitem(LOCKS, "mxnet", lock)
    found = read_pins(lock)
    first = 'a-b==1.0 ; python_version < "3.12"'
    assert [(pin.name, pin.line, pin.digests) for pin in found] == [
        ("a-b", first, ("sha256:1", "sha256:2")), ("c-d", "C_d==2.0", ("sha256:3",)), ("e", "e==3.0", ()),
        ("f", "f==4.0", ()),
    ]  # fmt: skip
    assert [sorted(pin.needed_by - {"via"}) for pin in found] == [["resnet-records"], ["a-b", "e"], ["a-b"], ["c-d"]]
    closures = [closure("mxnet", names, without=left) for names, left in ((["a-b"], ()), (["a-b"], ["e"]), (["e"], ()))]
    assert [[pin.name for pin in pins] for pins in closures] == [
        ["a-b", "c-d", "e", "f"],
        ["a-b", "c-d", "f"],
        ["c-d", "e", "f"],
    ]
    environment, file = Environment(tmp_path), tmp_path / "pins.txt"
    assert write_requirements(tmp_path, found, has_digests=True) == ["--require-hashes", "--requirement", str(file)]
    lines = [f"{first} --hash=sha256:1 --hash=sha256:2", "C_d==2.0 --hash=sha256:3", "e==3.0", "f==4.0"]
    assert file.read_text(encoding="utf-8").splitlines() == lines
    assert write_requirements(tmp_path, found, has_digests=False) == ["--requirement", str(file)]
    assert write_constraints(environment, "mxnet") == ["--constraint", str(file)]
    assert file.read_text(encoding="utf-8").splitlines() == [first, "C_d==2.0", "e==3.0", "f==4.0"]


def test_a_stage_that_was_not_done_says_so_with_its_seconds(capsys: pytest.CaptureFixture[str]) -> None:
    watch = Stopwatch("[1/2] title: more")
    watch.tick("not on a terminal")
    watch.end("not done, ")
    assert capsys.readouterr().err == "setup: [1/2] title: more ... not done, 0 s\n"


def test_a_terminal_gets_a_line_at_most_twice_a_second_and_never_a_longer_one(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    now = itertools.count(100.0, 0.125)
    monkeypatch.setattr(child, "time", SimpleNamespace(monotonic=lambda: next(now)))
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", "40")
    watch = Stopwatch("[1/2] title: more")
    for number in range(9):
        watch.tick(f"{number} " + 60 * "x")
    _, *drawn = capsys.readouterr().err.split("\r\x1b[K")
    assert [line[:30] for line in drawn] == [f"setup: [1/2] title ... {s} s  {n} " for s, n in ((0, 0), (1, 4), (1, 8))]
    assert {len(line) for line in drawn} == {39}


@pytest.mark.parametrize(
    ("error", "told", "status"),
    [
        (UserError("one\ntwo"), "error: one\nerror: two\n", 2),
        (StageError("cause\n       all of the output: log"), "error: cause\n       all of the output: log\n", 1),
        (KeyboardInterrupt(), "\nsetup: stopped; ./run.sh goes on from here\n", 130),
    ],
)
def test_the_end_of_set_up_is_told_by_its_status(
    error: BaseException, told: str, status: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(*_: object, **__: object) -> int:
        raise error

    monkeypatch.setattr("launch.setup.__main__.set_up", fail)
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGHUP)}
    try:
        assert main([]) == status
        assert all(signal.getsignal(number) != signal.SIG_DFL for number in before)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    assert capsys.readouterr().err == told


@pytest.mark.parametrize(
    ("variant", "has_mpi", "built", "lacks"),
    [
        ("cpu", False, "gloo", ""),
        ("cpu", True, "mpi nccl", "gloo"),
        ("cpu", True, "gloo nccl", "mpi"),
        ("gpu", False, "gloo nccl", ""),
        ("gpu", False, "gloo mpi", "nccl"),
    ],
)
def test_a_compiled_horovod_has_what_was_wanted(
    tmp_path: Path, variant: Variant, has_mpi: bool, built: str, lacks: str
) -> None:
    package, environment = tmp_path / "packages" / "horovod", Environment(tmp_path / "environment")
    package.mkdir(parents=True)
    (package / "__init__.py").touch()
    lines = [f"def {name}_built(): return {name in built.split()}\n" for name in ("gloo", "mpi", "nccl")]
    (package / "mxnet.py").write_text("".join(lines), encoding="utf-8")
    environment.python.parent.mkdir(parents=True)
    environment.python.symlink_to(sys.executable)
    variables = {"PYTHONPATH": str(package.parent)}
    if not lacks:
        check_build(variables, environment, variant, has_mpi=has_mpi)
        return
    with pytest.raises(StageError, match="the compiled Horovod does not work"):
        check_build(variables, environment, variant, has_mpi=has_mpi)
    log = environment.log("horovod-build")
    assert log.read_text(encoding="utf-8") == f"lacks {lacks}_built\n"
    (package / "mxnet.py").write_text("raise ImportError('no symbol')\n", encoding="utf-8")
    with pytest.raises(StageError, match=f"all of the output: {log}"):
        check_build(variables, environment, variant, has_mpi=has_mpi)
    assert "no symbol" in log.read_text(encoding="utf-8")


def _digests(kind: Kind) -> dict[str, str]:
    return {stage.name: stage.digest for stage in make_stages(kind, has_mpi=False, extras=["test"])}


@pytest.mark.parametrize("kind", [MXNET, BOTH, Kind(("torch",), "gpu"), _OVER], ids=str)
def test_an_environment_is_begun_anew_in_another_folder_and_for_another_python(
    kind: Kind, monkeypatch: pytest.MonkeyPatch
) -> None:
    def changed() -> set[str]:
        return {name for name, found in _digests(kind).items() if found != before[name]}

    before = _digests(kind)
    monkeypatch.setattr("sys.version_info", (3, 9, 0))
    assert changed() == (set() if kind.base else {"venv"})
    monkeypatch.undo()
    for module in ("stages", "over_base"):
        monkeypatch.setattr(f"launch.setup.{module}.ROOT", Path("/moved"))
    assert changed() == {"venv"}


def test_each_kind_of_environment_has_a_first_stage_of_its_own() -> None:
    bases = [Kind(("mxnet",), "gpu", base) for base in ("/a/python", "/b/python")]
    kinds = [Kind((engine,), variant) for engine in LOCKS for variant in ("cpu", "gpu")]
    assert len({_digests(kind)["venv"] for kind in kinds + bases}) == 6
    assert _digests(BOTH)["venv"] == _digests(MXNET)["venv"]


@pytest.mark.parametrize(
    ("engine", "kind", "expected"),
    [
        ("mxnet", MXNET, {"tools", "mxnet", "wheels", "test", "horovod"}),
        ("mxnet", Kind(("torch",), "cpu"), set()),
        ("torch", MXNET, set()),
        ("torch", BOTH, {"torch"}),
        ("torch", Kind(("torch",), "cpu"), {"tools", "torch", "test"}),
    ],
)
def test_other_pins_are_installed_by_the_stages_of_their_engine_alone(
    engine: Engine, kind: Kind, expected: set[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before, lock = _digests(kind), tmp_path / "lock"
    lock.write_text(LOCKS[engine].read_text(encoding="utf-8").replace("==", "==9."), encoding="utf-8")
    monkeypatch.setitem(LOCKS, engine, lock)
    assert {name for name, found in _digests(kind).items() if found != before[name]} == expected


def test_another_horovod_is_built_again(monkeypatch: pytest.MonkeyPatch) -> None:
    before = _digests(MXNET)
    monkeypatch.setattr(stages, "HOROVOD", "horovod==9")
    assert {name for name, found in _digests(MXNET).items() if found != before[name]} == {"horovod"}


def _with_metadata(folder: Path, *lines: str) -> Environment:
    metadata = folder / "lib/python3.11/site-packages/resnet_records-1.dist-info/METADATA"
    metadata.parent.mkdir(parents=True)
    metadata.write_text("".join(f"Requires-Dist: {line}\n" for line in lines), encoding="utf-8")
    return Environment(folder)


def test_an_extra_names_its_packages_and_those_of_the_extras_in_it(tmp_path: Path) -> None:
    lines = ["Foo_Bar>1", "own ; extra == 'test'", "other; extra == 'tests'", "Deep.One; extra == \"b\"",
             "resnet-records[a,b]; extra == 'test'", "deep-two==2; extra == 'a'"]  # fmt: skip
    environment = _with_metadata(tmp_path, *lines)
    assert named_by(environment, "test") == {"foo-bar", "own", "deep-one", "deep-two"}
    assert named_by(environment, "a") == {"foo-bar", "deep-two"}


@pytest.mark.parametrize("checks_files", [True, False])
def test_a_package_is_left_out_with_what_only_it_needs_and_digests_where_no_files_are_checked(
    checks_files: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "lock").write_text(_LOCK, encoding="utf-8")
    monkeypatch.setitem(LOCKS, "mxnet", tmp_path / "lock")
    work = Work(_with_metadata(tmp_path, "e", "f"), Stopwatch("a stage"), 0, checks_files)
    words = stages._with_digests(work, "mxnet", "cpu", without=["e"])
    assert Path(words[-1]).read_text(encoding="utf-8") == "f==4.0\n"
    assert ("--require-hashes" in words) == checks_files


@pytest.mark.parametrize("checks_files", [True, False])
def test_horovod_is_built_from_its_pin_in_an_empty_folder_and_never_from_a_cache(
    checks_files: bool, tmp_path: Path
) -> None:
    environment = Environment(tmp_path)
    for folder in (environment.python.parent, environment.build):
        folder.mkdir()
    (environment.build / "horovod-of-before.whl").touch()
    environment.python.write_text('#!/bin/sh\nprintf "%s\\n" "$@"\n', encoding="utf-8")
    environment.python.chmod(0o755)
    with (tmp_path / "lock").open("w") as lock:
        work = Work(environment, Stopwatch("a stage"), lock.fileno(), checks_files)
        stages._begin_horovod(work, "cpu", has_mpi=False)
        work.begun["horovod"].wait(work.watch)
    words = environment.log("horovod-build").read_text(encoding="utf-8").splitlines()
    (pins,) = environment.build.iterdir()
    assert "--no-cache-dir" in words
    assert ("--require-hashes" in words) == ("--hash" in pins.read_text(encoding="utf-8")) == checks_files


def test_horovod_that_is_built_in_a_second_try_gets_its_tools_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    environment, done = Environment(tmp_path), []
    work = Work(environment, Stopwatch("a stage"), 0)

    def build(work: Work, *_: object, **__: object) -> None:
        done.append("build")
        environment.build.mkdir()
        (environment.build / "horovod-1.whl").touch()
        work.begun["horovod"] = SimpleNamespace(wait=lambda _watch: None)  # type: ignore[assignment]

    (tmp_path / "lib/python3.11/site-packages").mkdir(parents=True)
    monkeypatch.setattr(stages, "_install_tools", lambda *_: done.append("tools"))
    monkeypatch.setattr(stages, "_begin_horovod", build)
    monkeypatch.setattr(stages, "pip", lambda *_: done.append("pip"))
    monkeypatch.setattr(stages, "check_build", lambda *_, **__: done.append("check"))
    monkeypatch.setattr(stages, "missing_libraries", lambda _folder: ["a: b"])
    with pytest.raises(StageError, match="libraries are not found: a: b: install them"):
        stages._build_horovod(work, "cpu", has_mpi=False)
    assert done == ["tools", "build", "pip", "check"]
    assert not environment.build.exists()


def test_mxnet_for_gpus_is_installed_with_cudas_libraries_and_not_without(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[Any] = []

    def closure_of(_engine: Engine, names: Collection[str], **_: object) -> list[Pin]:
        told.append(set(names))
        return []

    monkeypatch.setattr(stages, "pip", lambda *_: None)
    monkeypatch.setattr(stages, "_put_back_numpy_names", lambda _folder: None)
    monkeypatch.setattr(stages, "closure", closure_of)
    environment = _with_metadata(tmp_path, "mxnet-cu112", "numpy", "nvidia-nccl-cu11", "tqdm")
    work = SimpleNamespace(environment=environment, checks_files=True, run=lambda words, _log: told.append(words[2]))
    with pytest.raises(StageError, match="NVIDIA's CUDA libraries are not among the wheels"):
        stages._install_mxnet(work, "gpu")  # type: ignore[arg-type]
    (environment.site_packages / "mxnet").mkdir()
    (environment.site_packages / "nvidia/nccl/lib").mkdir(parents=True)
    (environment.site_packages / "nvidia/nccl/lib/libnccl.so.2").touch()
    stages._install_mxnet(work, "gpu")  # type: ignore[arg-type]
    assert told == 2 * [{"mxnet-cu112", "numpy", "nvidia-nccl-cu11"}]
    stages._install_wheels(work, "gpu")  # type: ignore[arg-type]
    assert told[-1] == f"import {', '.join(stages._IMPORTED)}", "MXNet for GPUs is not loaded without a driver"


@pytest.mark.parametrize(("script", "is_usable"), [("exit 0", True), ("exit 1", False), (None, False)])
def test_an_environment_is_usable_while_its_interpreter_runs(
    script: str | None, is_usable: bool, tmp_path: Path
) -> None:
    environment = Environment(tmp_path)
    environment.python.parent.mkdir()
    if script:
        environment.python.write_text(f"#!/bin/sh\n{script}\n", encoding="utf-8")
        environment.python.chmod(0o755)
    assert stages.is_usable(environment) == is_usable


def test_pip_of_a_second_try_begins_its_log_anew_and_leaves_no_temporary_files(tmp_path: Path) -> None:
    environment = Environment(tmp_path)
    half = tmp_path / "lib/python3.11/site-packages/half-1.dist-info"
    for folder in (environment.python.parent, environment.temporary, half):
        folder.mkdir(parents=True)
    (environment.temporary / "left by a killed pip").touch()
    environment.python.write_text('#!/bin/sh\nls "$TMPDIR"; echo "$*" "$OWN"; exit 1\n', encoding="utf-8")
    environment.python.chmod(0o755)
    variables = {**command_variables(environment), "OWN": "variable"}
    with (tmp_path / "lock").open("w") as lock:
        for _ in range(2):
            work = Work(environment, Stopwatch("a stage"), lock.fileno())
            with pytest.raises(StageError):
                pip(work, ["install", "x"], "wheels", variables)
    words = "-m pip --no-input install x --progress-bar off variable\n"
    assert environment.log("wheels").read_text(encoding="utf-8") == words
    assert not environment.temporary.exists()
    assert not half.exists()


def test_a_command_holds_the_lock_and_adds_to_its_log_whatever_it_prints(tmp_path: Path) -> None:
    log, before = tmp_path / "stage.log", signal.pthread_sigmask(signal.SIG_BLOCK, ())
    with pytest.raises(StageError, match="error: bad"):
        run_shell("readlink /proc/self/fd/* | grep -o 'stage.lock'; printf '\\377\\n'; echo error: bad; exit 1", log)
    run_shell("echo again", log)
    assert log.read_bytes() == b"stage.lock\n\377\nerror: bad\nagain\n"
    assert signal.pthread_sigmask(signal.SIG_BLOCK, ()) == before


@pytest.mark.usefixtures("typed")
def test_a_command_of_a_stage_holds_the_lock_reads_nothing_and_has_the_environments_variables(tmp_path: Path) -> None:
    environment = Environment(tmp_path / "environment")
    environment.log("tools").parent.mkdir(parents=True)
    with (tmp_path / "lock").open("w") as lock:
        work = Work(environment, Stopwatch("a stage"), lock.fileno())
        held = f"test /proc/self/fd/{lock.fileno()} -ef '{tmp_path}/lock'"
        work.run(["sh", "-c", f"{held} && cat && echo $TMPDIR"], "tools")
        work.run(["sh", "-c", f"{held} && cat && echo $TMPDIR"], "tools", {"TMPDIR": "own"})
        work.begin(["sh", "-c", f"{held} && cat && echo $TMPDIR"], "horovod", "build", {"TMPDIR": "other"})
        work.begun["horovod"].wait(work.watch)
        work.begun["horovod"].stop()
    assert environment.log("tools").read_text(encoding="utf-8") == f"{environment.temporary}\nown\n"
    assert environment.log("build").read_text(encoding="utf-8") == "other\n"


def test_links_for_the_build_of_horovod_are_made_in_a_second_try_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "lib/python3.11/site-packages/nvidia/nccl/lib").mkdir(parents=True)
    for toolkit in ("/old", "/new"):
        monkeypatch.setattr("launch.setup.horovod.find_toolkit", lambda toolkit=toolkit: Path(toolkit))
        monkeypatch.setattr("ctypes.CDLL", lambda _name: (_ for _ in ()).throw(OSError))
        made = build_environment({"HOROVOD_GPU_BROADCAST": "MPI"}, Environment(tmp_path), "gpu", has_mpi=False)
    assert (tmp_path / "cuda-stub/libcuda.so.1").readlink() == Path("/new/lib64/stubs/libcuda.so")
    assert "HOROVOD_GPU_BROADCAST" not in made


@pytest.fixture
def places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Environment, Environment]:
    """Let set-up see a current environment and a new one that are the test's own; both have an interpreter."""
    current, building = Environment(tmp_path / ".venv"), Environment(tmp_path / ".venv.building")
    for name, value in {"CURRENT": current, "BUILDING": building, "REPLACED": tmp_path / ".venv.old"}.items():
        for module in (replacement, set_up):
            monkeypatch.setattr(module, name, value, raising=False)
    for environment in (current, building):
        environment.python.parent.mkdir(parents=True)
        environment.python.symlink_to("/bin/true")
        (environment.folder / "bin" / "activate").write_text(f"{environment.folder}\n", encoding="utf-8")
        (environment.folder / "pyvenv.cfg").write_text(f"prompt = {environment.folder.name}\n", encoding="utf-8")
    return current, building


def _finish(environment: Environment, kind: Kind, *, has_mpi: bool = False, but: Collection[str] = ()) -> None:
    state = State(environment)
    state.reset(kind, has_mpi=has_mpi)
    for stage in make_stages(kind, has_mpi=has_mpi, extras=()):
        if stage.name not in but:
            state.finish(stage.name, stage.digest)


def _planned(kind: Kind = MXNET) -> tuple[str, list[str]]:
    plan = set_up._plan(kind, extras=())
    return plan.environment.folder.name, [stage.name for stage in plan.pending]


_ALL = ["venv", "tools", "mxnet", "wheels", "horovod"]


def test_set_up_goes_on_in_the_environment_that_can_be_used(
    places: tuple[Environment, Environment], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shutil.which", lambda _name: None)
    current, building = places
    assert _planned() == (".venv.building", _ALL)
    _finish(building, MXNET, but=["wheels"])
    assert _planned() == (".venv.building", ["wheels"])
    (building.folder / "bin" / "activate").write_text(f"{current.folder}\n", encoding="utf-8")
    assert _planned() == (".venv.building", _ALL), "the scripts name the final place already"
    (building.folder / "bin" / "activate").unlink()
    assert _planned() == (".venv.building", _ALL)
    _finish(building, MXNET)
    assert _planned() == (".venv.building", []), "complete, but for its name"
    assert not set_up._plan(MXNET, extras=()).is_done
    _finish(current, MXNET, but=["horovod"])
    assert _planned() == (".venv", ["horovod"])
    _finish(current, MXNET)
    assert set_up._plan(MXNET, extras=()).is_done
    current.python.unlink()
    assert _planned() == (".venv.building", []), "the system's Python may have been removed"
    building.python.unlink()
    assert _planned() == (".venv.building", _ALL)


@pytest.mark.parametrize("is_quiet", [True, False])
def test_a_run_that_begins_while_an_environment_is_built_keeps_its_own(
    is_quiet: bool, places: tuple[Environment, Environment], monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    told: list[object] = []
    is_used = iter([False, True])
    made = [Stage(name, "a stage", "1", 7, lambda work: told.append(work.checks_files)) for name in ("venv", "tools")]

    def look(*words: object) -> list[str]:
        told.append(words[1:])
        return []

    monkeypatch.setattr(set_up, "make_stages", lambda *_, **__: made)
    monkeypatch.setattr(set_up, "find_problems", look)
    monkeypatch.setattr(set_up, "only_one", lambda: nullcontext(0))
    monkeypatch.setattr(set_up, "is_used", lambda: next(is_used))
    monkeypatch.setattr(set_up, "_choose_kind", lambda *_: MXNET)
    monkeypatch.setattr(set_up, "put_in_place", lambda: told.append("put in place"))
    with nullcontext() if is_quiet else pytest.raises(UserError, match=f"^a run uses {places[0].folder}, and .*; wait"):
        assert set_up.set_up(set_up.Wish(checks_files=False), extras=(), is_quiet=is_quiet) == 0
    assert told == [(ROOT, ["venv", "tools"], 14), False, False]
    lines = capsys.readouterr().err.splitlines()
    assert [line.partition(" ...")[0] for line in lines[:2]] == ["setup: [1/2] a stage", "setup: [2/2] a stage"]
    assert bool(lines[2:]) == is_quiet
    assert [State(places[1]).is_done(stage.name, "1") for stage in made] == [True, True], "the next set-up goes on"


def test_mpi_that_was_known_of_a_build_is_built_with_again(
    places: tuple[Environment, Environment], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shutil.which", lambda _name: None)
    _finish(places[1], MXNET, has_mpi=True, but=["horovod"])
    assert set_up._plan(MXNET, extras=()).has_mpi


def test_an_old_environment_that_was_left_is_deleted_or_brought_back(places: tuple[Environment, Environment]) -> None:
    current, building = places
    old = current.folder.with_name(".venv.old")
    script, link = building.folder / "bin" / "script", building.folder / "bin" / "linked"
    script.write_text(f"#!{building.python}\n", encoding="utf-8")
    script.chmod(0o750)
    shared, elsewhere = old.with_name("shared"), old.with_name("elsewhere")
    os.link(script, shared)
    elsewhere.write_text(str(building.folder), encoding="utf-8")
    link.symlink_to(elsewhere)
    old.mkdir()
    (old / "left").touch()
    replacement.put_in_place()
    assert not old.exists()
    assert not building.folder.exists()
    final = current.folder / "bin" / "script"
    assert (final.read_text(encoding="utf-8"), final.stat().st_mode & 0o777) == (f"#!{current.python}\n", 0o750)
    assert (current.folder / "pyvenv.cfg").read_text(encoding="utf-8") == "prompt = .venv\n"
    for other in (shared, elsewhere):
        assert str(building.folder) in other.read_text(encoding="utf-8"), "a file of others"
    current.folder.rename(old)
    replacement.restore_replaced()
    assert final.is_file()
    old.mkdir()
    replacement.restore_replaced()
    assert old.is_dir()


@pytest.mark.parametrize("number", [0, 1])
def test_an_environment_that_is_a_link_or_a_file_is_refused(
    places: tuple[Environment, Environment], number: int, tmp_path: Path
) -> None:
    replacement.refuse_links()
    folder = places[number].folder
    folder.rename(tmp_path / "behind")
    folder.symlink_to(tmp_path / "behind")
    with pytest.raises(UserError, match=f"{folder} is a symbolic link"):
        replacement.refuse_links()
    folder.unlink()
    folder.touch()
    with pytest.raises(UserError, match=f"{folder} is not a folder"):
        replacement.refuse_links()


def test_a_base_that_a_person_names_wins_over_the_one_that_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    found = {"python": [3, 10], "problems": [], "has_pip": True, "has_ensurepip": True, "has_cuda": False}
    monkeypatch.setattr(set_up, "find_base", lambda named: named or "/first/on/path")
    monkeypatch.setattr(set_up, "describe_base", lambda _python: found)
    over = Kind(("mxnet",), "cpu", "/old")
    for base, expected in (("/new", "/new"), (None, "/old"), ("", "/old")):
        assert set_up._choose_kind(set_up.Wish(base=base), over) == Kind(("mxnet",), "cpu", expected)
    assert set_up._choose_kind(set_up.Wish(base=""), MXNET) == Kind(("mxnet",), "cpu", "/first/on/path")
    assert set_up._choose_kind(set_up.Wish(engine="torch", variant="cpu"), over) == Kind(("torch",), "cpu")


@pytest.mark.parametrize("clashes", [False, True])
def test_the_packages_of_a_base_are_kept_as_far_as_pip_can(
    clashes: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[tuple[str, str]] = []

    def run(_work: Work, words: list[str], log: str) -> None:
        told.append((log, " ".join(word for word in words if word[0] != "-")))
        if clashes and words[-1] == str(environment.base_pins):
            raise StageError

    environment = Environment(tmp_path)
    environment.base_pins.write_text("numpy==1\ntqdm==4\n", encoding="utf-8")
    monkeypatch.setattr(over_base, "pip", run)
    monkeypatch.setattr(over_base, "find_missing", lambda *_: clashes)
    monkeypatch.setattr(over_base, "not_of_base", lambda *_: ["NumPy is not that of /b"] if clashes else [])
    work = Work(environment, Stopwatch("a stage"), 0)
    with pytest.raises(StageError, match="NumPy is not that of /b") if clashes else nullcontext():
        over_base._install_beside_base(work, _OVER, "test")
    first = ("test", f"install {ROOT}[test] {tmp_path}/base.txt")
    tools, few = (
        ("tools", "install setuptools>=65 wheel"),
        ("test", f"install {ROOT}[test] {tmp_path}/base-frameworks.txt"),
    )
    assert told == ([tools, first, few] if clashes else [first])


@pytest.mark.parametrize(("compiler", "is_fine"), [("c++", False), ("own-c++", True)])
def test_the_compiler_that_a_person_names_is_the_only_one_that_counts(
    compiler: str, is_fine: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / compiler).touch(mode=0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("CXX", "own-c++")
    assert (checks._no_compiler() is None) == is_fine


def test_over_a_base_its_python_counts_and_not_the_one_of_set_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checks, "NEWEST_PYTHON", {"mxnet": (3, 8)})
    monkeypatch.setattr("importlib.util.find_spec", lambda _name: None)
    assert checks.find_problems(_OVER, tmp_path, ["venv"], 1) == []
