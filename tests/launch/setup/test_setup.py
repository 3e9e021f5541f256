"""What set-up decides and says before it installs anything: the machine, the kind of environment, the lock files."""

import re
import shutil
import subprocess
import sys
from collections.abc import Collection
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
from launch.setup.__main__ import Options, choose_engines, choose_kind, main, remembered_kind
from launch.setup.checks import find_problems
from launch.setup.gpu import Gpu, GpuSearch
from launch.setup.layout import LOCKS, NEWEST_PYTHON, PROJECT, ROOT, Engine, Environment, Kind, lock_file
from launch.setup.pins import closure, locked, named_by, read_pins
from launch.setup.stages import make_stages

MXNET, BOTH, OVER = (
    Kind(("mxnet",), "cpu"),
    Kind(("mxnet", "torch"), "cpu"),
    Kind(("mxnet",), "gpu", "/usr/bin/python3"),
)
TORCH = Kind(("torch",), "cpu")


def test_each_thing_that_a_machine_lacks_is_told_with_its_remedy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "my clone"
    folder.mkdir()
    for name in ("PATH", "CUDA_HOME", "HOROVOD_CUDA_HOME"):
        monkeypatch.setenv(name, str(tmp_path))
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setattr("platform.machine", lambda: "aarch64")
    monkeypatch.setattr("platform.python_version", lambda: "3.14.1")
    monkeypatch.setattr("sys.version_info", (3, 14, 1))
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None if name == "ensurepip" else name)
    found = find_problems(Kind(("mxnet", "torch"), "gpu"), folder, ["venv", "horovod"], 1)
    if Path("/usr/local/cuda/bin/nvcc").exists():
        found.append("no CUDA 11 toolkit")
    assert [line.partition(": ")[2] for line in found[:3]] == [
        "use such a machine or container",
        "leave --engine out to take PyTorch, or install such a Python, rm -r .venv if it is there, and run "
        "./run.sh setup",
        "use another Python, one with the modules venv and ensurepip",
    ]
    assert found[0].startswith("this is Linux aarch64; MXNet 1.9.1 and DALI have wheels for Linux x86_64 only")
    assert found[1].startswith(f"this Python is 3.14.1 ({sys.executable}), and MXNet and PyTorch needs 3.10 to 3.12: ")
    assert found[3].endswith("my clone' has a space, which Horovod's build cannot take: move this folder, or rename it")
    assert found[4:6] == [
        "no C++ compiler (c++, g++, clang++), which Horovod is built with: install one (GCC 7 or later); or use "
        "PyTorch, which needs none: ./run.sh setup --engine torch",
        "no make, which Horovod is built with: install GNU make",
    ]
    assert found[6].startswith("no CUDA 11 toolkit")
    monkeypatch.setattr("platform.machine", lambda: "x86_64")
    assert find_problems(OVER, folder, ["venv"], 1) == [], "over a base its Python counts"
    monkeypatch.setattr("sys.version_info", (3, 12, 1))
    assert find_problems(MXNET, folder, ["wheels"], 1) == [], "there is an environment already"
    assert len(find_problems(TORCH, folder, ["venv"], 1)) == 1
    monkeypatch.setattr("sys.version_info", (3, 13, 1))
    assert [len(find_problems(kind, folder, [], 1)) for kind in (MXNET, BOTH, TORCH)] == [1, 1, 0]


@pytest.mark.parametrize(
    ("options", "remembered", "python", "engines"),
    [
        (Options(), None, (3, 12), ("mxnet",)),
        (Options(), None, (3, 13), ("torch",)),
        (Options("mxnet"), None, (3, 13), ("mxnet",)),
        (Options(), TORCH, (3, 13), ("torch",)),
        (Options("torch"), MXNET, (3, 12), ("mxnet", "torch")),
        (Options("mxnet"), TORCH, (3, 12), ("mxnet", "torch")),
        (Options("torch"), MXNET, (3, 13), ("torch",)),
        (Options("torch", "gpu"), MXNET, (3, 12), ("torch",)),
        (Options("torch", "cpu"), Kind(("mxnet",), "gpu"), (3, 12), ("torch",)),
    ],
)
def test_engines_follow_the_options_the_environment_and_the_python(
    options: Options, remembered: Kind | None, python: tuple[int, int], engines: tuple[str, ...],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setattr("sys.version_info", (*python, 0))
    assert choose_engines(options, remembered) == engines


@pytest.mark.parametrize(
    ("options", "remembered", "variant"),
    [
        (Options("torch"), None, "gpu"),
        (Options("torch", "cpu"), Kind(("torch",), "gpu"), "cpu"),
        (Options("torch"), TORCH, "cpu"),
        (Options("torch", "gpu"), TORCH, "gpu"),
        (Options("torch", "cpu"), OVER, "cpu"),
    ],
)
def test_the_variant_is_what_was_asked_for_or_is_there_or_suits_the_engine(
    options: Options, remembered: Kind | None, variant: str, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    monkeypatch.setattr(set_up, "search_gpus", lambda: GpuSearch([Gpu("H100", (9, 0), "580.1")]))
    assert choose_kind(options, remembered) == Kind(("torch",), variant)  # type: ignore[arg-type]
    assert ("setup: 1 x H100" in capsys.readouterr().err) == (variant == "gpu")
    with pytest.raises(UserError, match=r"MXNet 1\.9\.1 has kernels for"):
        choose_kind(Options("mxnet"), None)


def test_an_environment_over_a_base_stays_one_until_another_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    own = Kind(("mxnet",), "gpu")
    for options in (Options(), Options(system=""), Options(system="/usr/bin/python3"), Options("mxnet")):
        assert remembered_kind(options, OVER) == OVER
    for options in (Options(variant="gpu"), Options(system="/opt/python"), Options("torch")):
        assert remembered_kind(options, OVER) is None
    assert remembered_kind(Options(system=""), own) is None
    assert remembered_kind(Options(), own) == own
    monkeypatch.setattr(set_up, "choose_base", lambda named: Kind(("mxnet",), "cpu", named or "/first/on/path"))
    for named, remembered, base in (("/new", OVER, "/new"), (None, OVER, OVER.base), ("", OVER, OVER.base),
                                    ("", MXNET, "/first/on/path")):  # fmt: skip
        assert choose_kind(Options(system=named), remembered).base == base


def test_a_wrong_argument_is_one_line_with_the_nearest_one(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--gpus"]) == 2
    assert re.fullmatch(r"error: '--gpus' is not expected here; did you mean '--gpu'\?.*\n", capsys.readouterr().err)


def _digests(kind: Kind, *, has_mpi: bool = False, extras: Collection[str] = ("test",)) -> dict[str, str]:
    return {stage.name: stage.digest for stage in make_stages(kind, has_mpi=has_mpi, extras=extras)}


def _changed(before: dict[str, str], now: dict[str, str]) -> set[str]:
    return {name for name, found in now.items() if found != before.get(name)}


@pytest.mark.parametrize("kind", [MXNET, BOTH, Kind(("torch",), "gpu"), OVER], ids=str)
def test_an_environment_is_begun_anew_in_another_folder_and_for_another_python(
    kind: Kind, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = _digests(kind)
    monkeypatch.setattr("sys.version_info", (3, 9, 0))
    assert _changed(before, _digests(kind)) == (set() if kind.base else {"venv"})
    monkeypatch.undo()
    for module in ("stages", "site"):
        monkeypatch.setattr(f"launch.setup.{module}.ROOT", Path("/moved"))
    assert _changed(before, _digests(kind)) == {"venv"}


@pytest.mark.parametrize(
    ("engine", "kind", "pattern", "expected"),
    [
        ("mxnet", MXNET, "==", {"tools", "mxnet", "wheels", "test", "horovod"}),
        ("mxnet", MXNET, "pandas|tqdm==", {"mxnet", "wheels", "test"}),
        ("mxnet", MXNET, "^numpy==", {"mxnet", "wheels", "test", "horovod"}),
        ("mxnet", Kind(("mxnet",), "gpu"), "^mxnet-cu112==", {"mxnet", "wheels", "test", "horovod"}),
        ("mxnet", TORCH, "==", set()),
        ("torch", BOTH, "==", {"torch"}),
        ("torch", TORCH, "==", {"tools", "torch", "test"}),
    ],
)  # fmt: skip
def test_other_pins_are_installed_by_the_stages_of_their_engine_alone(
    engine: Engine, kind: Kind, pattern: str, expected: set[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before, lock = _digests(kind), tmp_path / "lock"
    text = LOCKS[engine].read_text(encoding="utf-8")
    lock.write_text(re.sub(pattern, lambda found: f"{found[0]}9.", text, flags=re.MULTILINE), encoding="utf-8")
    monkeypatch.setitem(LOCKS, engine, lock)
    assert _changed(before, _digests(kind)) == expected


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


def test_the_lock_pins_what_the_program_needs_and_names_no_place() -> None:
    text = LOCKS["mxnet"].read_text(encoding="utf-8")
    assert all(" --hash=sha256:" in pin for engine in LOCKS for _, pin, _ in read_pins(engine))
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
def test_a_lock_pins_all_that_its_extras_want_for_every_python_of_the_engine(
    engine: Engine, python: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if python > "{}.{}".format(*NEWEST_PYTHON[engine]):
        pytest.skip("the engine does not run there")
    # Python 3.10 has no tomllib.
    project = pytest.importorskip("tomllib").loads(PROJECT.read_text(encoding="utf-8"))["project"]
    monkeypatch.setitem(LOCKS, engine, lock_file(engine, (3, int(python.partition(".")[2]))))
    extras = re.findall(r"--extra (\w+)", LOCKS[engine].read_text(encoding="utf-8").splitlines()[1])
    others = {"torch": {"mxnet", "onnx", "cpu", "gpu", "build"}, "mxnet": {"mxnet", "onnx", "torch"}}[engine]
    assert set(extras) == set(project["optional-dependencies"]) - others
    here = {"python_version": python, "python_full_version": f"{python}.0"}
    lines = [Requirement(pin.partition(" --hash")[0]) for _, pin, _ in read_pins(engine)]
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
    pins = [
        Requirement(pin.partition(" --hash")[0]) for each in extras for pin in closure(engine, named_by(here, each))
    ]
    listed = {canonicalize_name(pin.name) for pin in pins if not pin.marker or pin.marker.evaluate()}
    unlisted = {"pip", "setuptools", "horovod", "cffi", "pycparser", "cmake", "resnet-records", "tensorboardx"}
    present = {canonicalize_name(each.name) for each in distributions(path=[str(here.site_packages)])}
    if {"mxnet", "torch"} <= present:
        pytest.skip("an environment of both engines has packages by both lock files")
    assert present - unlisted - listed == set()
    assert "mxnet-cu112" not in listed


def _free(monkeypatch: pytest.MonkeyPatch, free_bytes: int) -> None:
    monkeypatch.setattr("shutil.disk_usage", lambda _folder: SimpleNamespace(free=free_bytes))


@pytest.mark.parametrize(("free_bytes", "told"), [(1_500_000_000, None), (1_499_999_999, "1.5"), (250_000_000, "0.2")])
def test_little_disk_is_one_line_with_what_is_there_and_what_is_needed(
    free_bytes: int, told: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _free(monkeypatch, free_bytes)
    found = find_problems(OVER, tmp_path, [], 1_500_000_000)
    line = f"{told} GB of disk free at {tmp_path}, 1.5 GB needed: free some, or move this folder to another disk"
    assert found == ([] if told is None else [line])


def test_an_environment_of_two_engines_becomes_one_for_gpus_of_a_named_engine_only() -> None:
    with pytest.raises(UserError, match="name it with --engine, mxnet or torch"):
        choose_engines(Options(variant="gpu"), BOTH)
