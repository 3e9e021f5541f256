"""What set-up decides and says before it installs anything: the machine, the kind of environment, the lock files."""

import re
import shutil
import subprocess
import sys
from collections.abc import Collection, Sequence
from importlib.metadata import distributions
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from configs.errors import UserError
from launch.setup import __main__ as set_up
from launch.setup.__main__ import Options, choose_engines, choose_kind, remembered_kind, runs_here
from launch.setup.checks import find_problems
from launch.setup.child import Stopwatch
from launch.setup.gpu import Gpu, GpuSearch
from launch.setup.layout import LOCKS, PROJECT, ROOT, Environment, Kind, Lock, Variant, lock_file
from launch.setup.pins import closure, locked, named_by, read_pins
from launch.setup.stages import make_stages
from launch.setup.state import State
from launch.setup.work import Work

MXNET, BOTH, OVER = (
    Kind(("mxnet",), "cpu"),
    Kind(("mxnet", "torch"), "cpu"),
    Kind(("mxnet",), "gpu", "/usr/bin/python3"),
)
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
        ("cannot make virtual environments", "use another Python, one with the modules venv and ensurepip"),
        ("my clone' has a space", "./run.sh setup --engine torch"),
        ("(c++, g++, clang++)", "install one (GCC 7 or later)", "./run.sh setup --engine torch"),
        ("no make", "install GNU make"),
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
        ("Linux", "aarch64", CUDA12, "CUDA 12 has no build for it: update the driver to R580 or later"),
        ("Linux", "aarch64", BOTH, "MXNet has no build for it: leave --engine out to take PyTorch"),
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


@pytest.mark.parametrize(
    ("options", "remembered", "machine", "engines"),
    [
        (Options(), None, "x86_64 12", ("mxnet",)),
        (Options(), None, "x86_64 13", ("torch",)),
        (Options(), None, "aarch64 12", ("torch",)),
        (Options("mxnet"), None, "x86_64 13", ("mxnet",)),
        (Options("mxnet"), None, "aarch64 12", ("mxnet",)),
        (Options(), TORCH, "x86_64 13", ("torch",)),
        (Options("torch"), MXNET, "x86_64 12", ("mxnet", "torch")),
        (Options("mxnet"), TORCH, "x86_64 12", ("mxnet", "torch")),
        (Options("torch"), MXNET, "x86_64 13", ("torch",)),
        (Options("torch"), MXNET, "aarch64 12", ("torch",)),
        (Options("torch", "gpu"), MXNET, "x86_64 12", ("torch",)),
        (Options("torch", "cpu"), Kind(("mxnet",), "gpu"), "x86_64 12", ("torch",)),
    ],
)
def test_engines_follow_the_options_the_environment_the_processor_and_the_python(
    options: Options, remembered: Kind | None, machine: str, engines: tuple[str, ...], monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    processor, minor = machine.split()
    monkeypatch.setattr("platform.machine", lambda: processor)
    monkeypatch.setattr("sys.version_info", (3, int(minor), 0))
    assert choose_engines(options, remembered) == engines


@pytest.mark.parametrize(
    ("machine", "what"), [("x86_64 14", "Python 3.14"), ("aarch64 11", "aarch64"), ("aarch64 14", "aarch64")]
)
def test_pytorch_is_taken_by_itself_where_mxnet_has_no_build(
    machine: str, what: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    processor, minor = machine.split()
    monkeypatch.setattr("platform.machine", lambda: processor)
    monkeypatch.setattr("sys.version_info", (3, int(minor), 0))
    assert choose_kind(Options(variant="cpu"), None) == TORCH
    assert capsys.readouterr().err == f"setup: {what}: MXNet has no build for it; taking PyTorch\n"


@pytest.mark.parametrize(
    ("options", "remembered", "driver", "variant"),
    [
        (Options("torch"), None, "580.1", "gpu"),
        (Options("torch"), None, "570.1", "cuda12"),
        (Options("torch", "cuda12"), None, "580.1", "cuda12"),
        (Options("torch", "cpu"), Kind(("torch",), "gpu"), "580.1", "cpu"),
        (Options("torch"), TORCH, "580.1", "cpu"),
        (Options("torch", "gpu"), TORCH, "580.1", "gpu"),
        (Options("torch", "cpu"), OVER, "580.1", "cpu"),
        (Options(), CUDA12, "580.1", "cuda12"),
        (Options("torch", "gpu"), CUDA12, "580.1", "gpu"),
        (Options("torch"), Kind(("mxnet",), "gpu"), "570.1", "cuda12"),
        (Options("torch", "gpu"), None, None, "gpu"),
        (Options("torch", "cuda12"), None, None, "cuda12"),
        (Options("torch"), None, None, "cpu"),
    ],
)
def test_the_variant_is_what_was_asked_for_or_is_there_or_suits_the_engine_and_the_driver(
    options: Options, remembered: Kind | None, driver: str | None, variant: Variant, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    search = GpuSearch([Gpu("H100", (9, 0), driver)] if driver else [])
    monkeypatch.setattr(set_up, "search_gpus", lambda: search)
    assert choose_kind(options, remembered) == Kind(("torch",), variant)
    chosen = variant != "cpu" and remembered != Kind(("torch",), variant)
    first = "1 x H100" if driver else "no NVIDIA driver is here; set-up makes"
    assert (f"setup: {first}" in capsys.readouterr().err) == chosen


def test_another_engine_makes_of_an_environment_for_gpus_one_with_the_cuda_that_it_has(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(set_up, "search_gpus", lambda: GpuSearch([Gpu("A100", (8, 0), "550.1")]))
    assert remembered_kind(Options("mxnet"), CUDA12) == choose_kind(Options("mxnet"), CUDA12) == Kind(("mxnet",), "gpu")


@pytest.mark.skipif(not runs_here("mxnet"), reason="PyTorch is taken here anyway")
@pytest.mark.parametrize(
    ("capability", "driver", "taken", "words"),
    [
        ((9, 0), "580.1", "gpu", "setup: G (compute capability 9.0): MXNet has no kernels for it; taking PyTorch"),
        ((9, 0), "550.1", "cuda12", "setup: G (compute capability 9.0): MXNet has no kernels for it; taking PyTorch"),
        ((3, 7), "470.1", None, r"MXNet 1\.9\.1 has kernels for"),
    ],
)
def test_who_names_no_engine_gets_the_one_that_has_kernels_for_the_gpus(
    capability: tuple[int, int], driver: str, taken: Variant | None, words: str, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    monkeypatch.setattr(set_up, "search_gpus", lambda: GpuSearch([Gpu("G", capability, driver)]))
    if taken is None:
        with pytest.raises(UserError, match=words):
            choose_kind(Options(), None)
    else:
        assert choose_kind(Options(), None) == Kind(("torch",), taken)
        assert words in capsys.readouterr().err


def test_mxnet_is_refused_where_its_cuda_is_not_that_of_the_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(set_up, "search_gpus", lambda: GpuSearch([Gpu("H100", (9, 0), "580.1")]))
    with pytest.raises(UserError, match=r"MXNet 1\.9\.1 has kernels for"):
        choose_kind(Options("mxnet"), None)
    for remembered in (None, MXNET):
        with pytest.raises(UserError, match=r"--cuda12: MXNet 1\.9\.1 is built for CUDA 11: add --engine torch"):
            choose_kind(Options("mxnet", "cuda12"), remembered)


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
        "print(*(len(make(Kind((engine,), variant), has_mpi=True, extras=['test'])) for engine, variant in kinds))"
    )
    done = subprocess.run([sys.executable, "-S", "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "6 4 4\n"), done.stderr


def test_the_lock_pins_what_the_program_needs_and_names_no_place() -> None:
    text = LOCKS["mxnet"].read_text(encoding="utf-8")
    assert all(" --hash=sha256:" in pin.line for lock in LOCKS for pin in read_pins(lock))
    for pin in ("mxnet==1.9.1", "mxnet-cu112==1.9.1", "nvidia-dali-cuda110==1.34.0", "mlperf-logging==4.1.68"):
        assert pin in re.split(r"[\n ]", text)
    numpy = "1.23." if sys.version_info < (3, 12) else "1.26."
    assert all(line.startswith(f"numpy=={numpy}") for line in locked("mxnet", "numpy"))
    assert not [lock for lock in LOCKS.values() if re.search(r"https?:|file:|index-url|find-links", lock.read_text())]
    assert "horovod" not in PROJECT.read_text(encoding="utf-8").split("[tool.")[0].replace("# What Horovod", "")


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


@pytest.mark.parametrize(
    ("lock", "python", "machine"),
    [
        (lock, f"3.{minor}", machine)
        for lock, (newest, machines) in _PLACES.items()
        for minor in range(10, newest + 1)
        for machine in machines
    ],
)
def test_a_lock_pins_all_that_its_extras_want_for_every_python_and_processor(
    lock: Lock, python: str, machine: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Python 3.10 has no tomllib.
    project = pytest.importorskip("tomllib").loads(PROJECT.read_text(encoding="utf-8"))["project"]
    monkeypatch.setitem(LOCKS, lock, lock_file(lock, (3, int(python.partition(".")[2]))))
    extras = re.findall(r"--extra ([\w-]+)", LOCKS[lock].read_text(encoding="utf-8").splitlines()[1])
    assert set(extras) == set(project["optional-dependencies"]) - _OTHER_EXTRAS[lock]
    here = {"python_version": python, "python_full_version": f"{python}.0", "platform_machine": machine}
    lines = [Requirement(pin.version) for pin in read_pins(lock)]
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


def test_a_user_without_a_home_gets_one_for_the_commands_of_set_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    work = Work(Environment(tmp_path / "made"), MXNET, False, 0, True, Stopwatch(""), ())
    monkeypatch.setenv("HOME", "/home/me")
    assert work.variables()["HOME"] == "/home/me"
    monkeypatch.delenv("HOME")

    def has_no_entry(_user: int) -> None:
        raise KeyError

    monkeypatch.setattr("pwd.getpwuid", has_no_entry)
    assert Path(work.variables()["HOME"]).is_relative_to(tmp_path / "made")
