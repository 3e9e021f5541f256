"""What set-up decides and says before it installs anything: the machine, the kind of environment, the lock files."""

import re
import shutil
import sys
from collections.abc import Sequence
from importlib.metadata import distributions
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from configs.errors import UserError
from launch.setup import __main__ as set_up
from launch.setup.__main__ import Options, choose_kind, remembered_kind
from launch.setup.checks import find_problems
from launch.setup.gpu import Gpu
from launch.setup.layout import LOCKS, PROJECT, ROOT, Environment, Kind, Lock, lock_file
from launch.setup.pins import closure, named_by, read_pins
from launch.setup.stages import make_stages
from launch.setup.state import State
from tests.programs import python

MXNET, BOTH = Kind(("mxnet",), "cpu"), Kind(("mxnet", "torch"), "cpu")
OVER = Kind(("mxnet",), "gpu", "/usr/bin/python3")
TORCH, CUDA12 = Kind(("torch",), "cpu"), Kind(("torch",), "cuda12")


def test_each_thing_that_a_machine_lacks_is_told_with_its_remedy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "my clone"
    folder.mkdir()
    for name in ("PATH", "CUDA_HOME", "HOROVOD_CUDA_HOME"):
        monkeypatch.setenv(name, str(tmp_path))
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setattr("platform.machine", lambda: "x86_64")
    monkeypatch.setattr("platform.python_version", lambda: "3.14.1")
    monkeypatch.setattr("sys.version_info", (3, 14, 1))
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None if name == "ensurepip" else name)
    found = find_problems(Kind(("mxnet", "torch"), "gpu"), folder, ["venv", "horovod"], 1)
    if Path("/usr/local/cuda/bin/nvcc").exists():
        found.append("no CUDA 11 toolkit")
    told = [
        (f"3.14.1 ({sys.executable})", "MXNet and PyTorch needs 3.10 to 3.12", "leave --engine out", "rm -r .venv"),
        ("cannot make virtual environments", "a Python that has the modules venv and ensurepip"),
        ("my clone' has a space", "./run.sh setup --engine torch"),
        ("(c++, g++, clang++)", "apt-get install g++", "./run.sh setup --engine torch"),
        ("no make", "apt-get install make"),
        ("no CUDA 11 toolkit",),
    ]
    assert len(found) >= len(told)
    assert all(word in line for line, words in zip(found, told, strict=False) for word in words)
    assert find_problems(OVER, folder, ["venv"], 1) == [], "over a base its Python counts"
    monkeypatch.setattr("sys.version_info", (3, 12, 1))
    assert find_problems(MXNET, folder, ["wheels"], 1) == [], "there is an environment already"
    assert len(find_problems(TORCH, folder, ["venv"], 1)) == 1
    monkeypatch.setattr("sys.version_info", (3, 13, 1))
    assert [len(find_problems(kind, folder, [], 1)) for kind in (MXNET, BOTH, TORCH)] == [1, 1, 0]


@pytest.mark.parametrize(
    ("system", "machine", "kind", "problem"),
    [
        ("Linux", "aarch64", TORCH, None),
        ("Linux", "aarch64", Kind(("torch",), "gpu"), None),
        ("Linux", "aarch64", OVER, None),
        ("Linux", "x86_64", CUDA12, None),
        ("Linux", "aarch64", CUDA12, "PyTorch (cuda12) has no build for it: leave --engine and --cuda12 out"),
        ("Linux", "aarch64", BOTH, "MXNet (cpu) has no build for it: leave --engine and --cpu out"),
        ("Linux", "riscv64", TORCH, "Linux riscv64; there are wheels for Linux on x86_64 and aarch64 only"),
        ("Linux", "riscv64", OVER, None),
        ("Darwin", "x86_64", OVER, "Darwin x86_64; there are wheels for Linux on x86_64 and aarch64 only"),
    ],
)
def test_a_machine_without_wheels_is_named_and_nothing_else_is_asked_of_it(
    system: str, machine: str, kind: Kind, problem: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("platform.system", lambda: system)
    monkeypatch.setattr("platform.machine", lambda: machine)
    monkeypatch.setenv("PATH", str(tmp_path))
    found = find_problems(kind, tmp_path, [] if problem is None else ["horovod"], 0)
    assert len(found) == (problem is not None)
    assert problem is None or problem in found[0]


_GPU, _TORCH_GPU = Kind(("mxnet",), "gpu"), Kind(("torch",), "gpu")
_NO_BUILD, _NO_KERNELS = "no build for it; taking PyTorch", "no kernels .*; taking PyTorch"


@pytest.mark.parametrize(
    ("options", "remembered", "machine", "outcome"),
    [
        # The engine: the wanted one, that of the environment, both where both fit, or what the machine can have.
        (Options(), None, "x86_64 12", (MXNET, "^$")),
        (Options(), None, "x86_64 13", (TORCH, f"Python 3.13 on x86_64: MXNet has {_NO_BUILD}")),
        (Options(), None, "aarch64 12", (TORCH, f"Python 3.12 on aarch64: MXNet has {_NO_BUILD}")),
        (Options("mxnet"), None, "x86_64 13", (MXNET, "^$")),
        (Options(), TORCH, "x86_64 13", (TORCH, "^$")),
        (Options("torch"), MXNET, "x86_64 12", (BOTH, "^$")),
        (Options("mxnet"), TORCH, "x86_64 12", (BOTH, "^$")),
        (Options("torch"), MXNET, "x86_64 13", (TORCH, "^$")),
        (Options("torch", "gpu"), MXNET, "x86_64 12 9.0 580.1", (_TORCH_GPU, "1 x H")),
        (Options("torch", "cpu"), _GPU, "x86_64 12", (TORCH, "^$")),
        (Options(), None, "x86_64 12 9.0 580.1", (_TORCH_GPU, _NO_KERNELS)),
        # The variant: the wanted one, that of the environment, or what suits the engine and the driver.
        (Options("torch"), None, "x86_64 12 9.0 570.1", (CUDA12, "1 x H")),
        (Options("torch", "cuda12"), None, "x86_64 12 9.0 580.1", (CUDA12, "1 x H")),
        (Options("torch"), TORCH, "x86_64 12 9.0 580.1", (TORCH, "^$")),
        (Options("torch", "gpu"), TORCH, "x86_64 12 9.0 580.1", (_TORCH_GPU, "1 x H")),
        (Options("torch", "cpu"), OVER, "x86_64 12 9.0 580.1", (TORCH, "^$")),
        (Options(), CUDA12, "x86_64 12 9.0 580.1", (CUDA12, "^$")),
        (Options("torch", "gpu"), CUDA12, "x86_64 12 9.0 580.1", (_TORCH_GPU, "1 x H")),
        (Options("torch"), _GPU, "x86_64 12 9.0 570.1", (CUDA12, "1 x H")),
        (Options("mxnet"), CUDA12, "x86_64 12 8.0 550.1", (_GPU, "1 x H")),
        (Options("torch", "gpu"), None, "x86_64 12", (_TORCH_GPU, "no NVIDIA driver")),
        # What cannot be.
        (Options(), None, "x86_64 12 3.7 470.1", (None, r"MXNet 1\.9\.1 has kernels for")),
        (Options("mxnet"), None, "x86_64 12 9.0 580.1", (None, r"MXNet 1\.9\.1 has kernels for")),
        (Options("mxnet", "cuda12"), None, "x86_64 12", (None, r"--cuda12: .* CUDA 11: add --engine torch")),
        (Options(variant="gpu"), BOTH, "x86_64 12", (None, "name it with --engine, mxnet or torch")),
    ],
)  # fmt: skip
def test_engine_and_variant_follow_the_options_the_environment_and_the_machine(
    options: Options, remembered: Kind | None, machine: str, outcome: tuple[Kind | None, str],
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    """A machine is a processor, the minor version of its Python and, if it has a GPU, the capability and the driver."""
    (processor, minor, *gpu), (kind, told) = machine.split(), outcome
    gpus = [Gpu("H", (int(gpu[0][0]), int(gpu[0][2])), gpu[1])] if gpu else []
    monkeypatch.setattr("platform.machine", lambda: processor)
    monkeypatch.setattr("sys.version_info", (3, int(minor), 0))
    monkeypatch.setattr(set_up, "search_gpus", lambda: (gpus, ""))
    if kind is None:
        with pytest.raises(UserError, match=told):
            choose_kind(options, remembered)
    else:
        assert choose_kind(options, remembered) == kind
        assert re.search(told, capsys.readouterr().err)


def test_an_environment_over_a_base_stays_one_until_another_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    own = Kind(("mxnet",), "gpu")
    for options in (Options(), Options(system=""), Options(system="/usr/bin/python3"), Options("mxnet")):
        assert remembered_kind(options, OVER) == OVER
    for options in (Options(variant="gpu"), Options(system="/opt/python"), Options("torch")):
        assert remembered_kind(options, OVER) is None
    assert remembered_kind(Options(system=""), own) is None
    assert remembered_kind(Options(), own) == own
    monkeypatch.setattr(
        set_up, "choose_base", lambda engines, named: Kind((engines[0],), "cpu", named or "/first/on/path")
    )
    for named, remembered, base in (("/new", OVER, "/new"), (None, OVER, OVER.base), ("", OVER, OVER.base),
                                    ("", MXNET, "/first/on/path")):  # fmt: skip
        assert choose_kind(Options(system=named), remembered) == Kind(("mxnet",), "cpu", base)
    over_torch = Kind(("torch",), "gpu", "/opt/python")
    assert choose_kind(Options("torch", system=""), None) == Kind(("torch",), "cpu", "/first/on/path")
    assert remembered_kind(Options("torch"), over_torch) == over_torch
    assert remembered_kind(Options("mxnet"), over_torch) is None


def _digests(kind: Kind) -> dict[str, str]:
    return {stage.name: stage.digest for stage in make_stages(kind, ["test"])}


def _changed(before: dict[str, str], now: dict[str, str]) -> set[str]:
    return {name for name, found in now.items() if found != before.get(name)}


@pytest.mark.parametrize("kind", [MXNET, BOTH, Kind(("torch",), "gpu"), OVER], ids=str)
def test_an_environment_is_begun_anew_in_another_folder_and_for_another_python(
    kind: Kind, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = _digests(kind)
    assert ("horovod" in before) == ("mxnet" in kind.engines and not kind.base), "a base has its own"
    monkeypatch.setattr("sys.version_info", (3, 9, 0))
    assert _changed(before, _digests(kind)) == (set() if kind.base else {"venv"})
    monkeypatch.undo()
    for module in ("stages", "site"):
        monkeypatch.setattr(f"launch.setup.{module}.ROOT", Path("/moved"))
    assert _changed(before, _digests(kind)) == {"venv"}


@pytest.mark.parametrize(
    ("lock", "kind", "pattern", "expected"),
    [
        ("mxnet", MXNET, "==", {"tools", "mxnet", "wheels", "test", "horovod"}),
        ("mxnet", MXNET, "pandas|tqdm==", {"mxnet", "wheels", "test"}),
        ("mxnet", MXNET, "^numpy==", {"mxnet", "wheels", "test", "horovod"}),
        ("mxnet", Kind(("mxnet",), "gpu"), "^mxnet-cu112==", {"mxnet", "wheels", "test", "horovod"}),
        ("mxnet", TORCH, "==", set()),
        ("torch", BOTH, "==", {"torch"}),
        ("torch", TORCH, "==", {"tools", "torch", "test"}),
        ("torch", CUDA12, "==", set()),
        ("torch-cuda12", CUDA12, "==", {"tools", "torch", "test"}),
    ],
)  # fmt: skip
def test_other_pins_are_installed_by_the_stages_of_their_engine_alone(
    lock: Lock, kind: Kind, pattern: str, expected: set[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before, other = _digests(kind), tmp_path / "lock"
    text = LOCKS[lock].read_text(encoding="utf-8")
    other.write_text(re.sub(pattern, lambda found: f"{found[0]}9.", text, flags=re.MULTILINE), encoding="utf-8")
    monkeypatch.setitem(LOCKS, lock, other)
    assert _changed(before, _digests(kind)) == expected


@pytest.mark.medium
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
        "kinds = ('mxnet', 'gpu'), ('torch', 'gpu'), ('torch', 'cuda12'); "
        "print(*(len(make(Kind((engine,), variant), ['test'])) for engine, variant in kinds))"
    )
    done = python("-S", "-c", code, cwd=tmp_path)
    assert (done.returncode, done.stdout) == (0, "6 4 4\n"), done.stderr


def test_each_pin_of_a_lock_has_its_hash_and_no_lock_names_a_place() -> None:
    assert all(" --hash=sha256:" in pin.line for lock in LOCKS for pin in read_pins(lock))
    assert not [lock for lock in LOCKS.values() if re.search(r"https?:|file:|index-url|find-links", lock.read_text())]


def _wanted(project: dict[str, Any], extra: str) -> list[Requirement]:
    """Return what pyproject.toml wants for an extra, with the extras that it names."""
    found = [Requirement(line) for line in project["optional-dependencies"][extra]]
    named = [name for each in found if each.name == project["name"] for name in each.extras]
    plain = [each for each in found if each.name != project["name"]]
    return plain + [each for name in named for each in _wanted(project, name)]


_PARTS = {"mxnet", "onnx", "torch-common", "torch-test", "dali12", "dali13", "exporter", "mlflow", "wandb"}
_OTHER_EXTRAS = {
    "mxnet": _PARTS | {"torch", "torch-cuda12"},
    "torch": _PARTS | {"cpu", "gpu", "build", "torch-cuda12"},
    "torch-cuda12": _PARTS | {"cpu", "gpu", "build", "torch"},
}
"""The extras that a lock file need not have, because it has those that name them or those of another environment.
Those of the trackers are chosen by pip."""

_PLACES: dict[Lock, tuple[int, Sequence[str]]] = {
    "mxnet": (12, ["x86_64"]), "torch": (14, ["x86_64", "aarch64"]), "torch-cuda12": (14, ["x86_64"]),
}  # fmt: skip
"""Lock file -> the newest Python 3 and the processors that it is for."""


@pytest.mark.parametrize("lock", LOCKS)
def test_a_lock_pins_all_that_its_extras_want_for_every_python_and_processor(
    lock: Lock, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Python 3.10 has no tomllib.
    project = pytest.importorskip("tomllib").loads(PROJECT.read_text(encoding="utf-8"))["project"]
    newest, machines = _PLACES[lock]
    for minor in range(10, newest + 1):
        monkeypatch.setitem(LOCKS, lock, lock_file(lock, (3, minor)))
        extras = re.findall(r"--extra ([\w-]+)", LOCKS[lock].read_text(encoding="utf-8").splitlines()[1])
        assert set(extras) == set(project["optional-dependencies"]) - _OTHER_EXTRAS[lock]
        lines = [Requirement(pin.version) for pin in read_pins(lock)]
        wanted = [Requirement(line) for line in project["dependencies"]]
        wanted += [deep for extra in extras for deep in _wanted(project, extra)]
        for machine in machines:
            here = {"python_version": f"3.{minor}", "python_full_version": f"3.{minor}.0", "platform_machine": machine}
            pins = {canonicalize_name(each.name): each for each in lines if _counts(each, here)}
            for each in wanted:
                if _counts(each, here):
                    (pin,) = pins[canonicalize_name(each.name)].specifier
                    assert each.specifier.contains(pin.version), each


def _counts(requirement: Requirement, place: dict[str, str]) -> bool:
    return requirement.marker is None or requirement.marker.evaluate(place)


def test_an_extra_is_installed_with_all_that_it_needs_and_nothing_of_the_others() -> None:
    """As pip found it: what set-up lists is what the environment of the tests has, each in the same version."""
    here = Environment(Path(sys.prefix))
    kind = State(here).kind or MXNET
    extras = ("cpu" if kind.lock == "mxnet" else kind.lock, "test")
    pins = [Requirement(pin.version) for each in extras for pin in closure(kind.lock, named_by(here, each))]
    listed = {canonicalize_name(pin.name) for pin in pins if not pin.marker or pin.marker.evaluate()}
    unlisted = {"pip", "setuptools", "horovod", "cffi", "pycparser", "cmake", "resnet-records", "tensorboardx"}
    present = {canonicalize_name(each.name) for each in distributions(path=[str(here.site_packages)])}
    if {"mxnet", "torch"} <= present:
        pytest.skip("an environment of both engines has packages by both lock files")
    assert present - unlisted - listed == set()
    assert "mxnet-cu112" not in listed


def test_little_disk_is_one_line_with_what_is_there_and_what_is_needed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = SimpleNamespace(f_bavail=1_500_000, f_frsize=1000, f_blocks=1)
    monkeypatch.setattr("os.statvfs", lambda _folder: disk)
    assert find_problems(OVER, tmp_path, [], 1_500_000_000) == []
    (line,) = find_problems(OVER, tmp_path, [], 1_500_000_001)
    assert line.startswith(f"1.5 GB of disk free at {tmp_path}, 1.5 GB needed: free some, or move this folder")
