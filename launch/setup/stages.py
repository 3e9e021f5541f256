"""The stages of set-up in their order: what each depends on, how much disk it takes, which commands it runs."""

import hashlib
import shutil
import sys
from collections.abc import Collection, Mapping, Sequence
from functools import partial
from pathlib import Path

from launch.setup.child import Command, StageError
from launch.setup.horovod import build_environment, check_code, link_nvidia_libraries
from launch.setup.layout import EXTRAS, LOCKS, PROJECT, ROOT, Kind, Lock, Variant
from launch.setup.pins import HOROVOD, TOOLS, locked, named_by, named_by_extra, read_pins, write_constraints
from launch.setup.site import stages_over_base
from launch.setup.state import digest, remove_folder
from launch.setup.work import GB, Stage, Work

_IMPORTED = (
    "nvidia.dali.fn", "matplotlib.pyplot", "mlperf_logging.compliance_checker.mlp_compliance", "mlperf_logging.mllog",
    "pydantic.main", "sklearn.datasets", "tqdm",
)  # fmt: skip

_TORCH_GB: Mapping[Variant, tuple[int, int]] = {"cpu": (3, 9), "gpu": (3, 9), "cuda12": (5, 13)}
"""Downloads of PyTorch's wheels, and the disk that they and the environment take while pip works (measured)."""


def make_stages(kind: Kind, extras: Collection[str] = ()) -> list[Stage]:
    """Return the stages of an environment with extras (`EXTRAS`)."""
    if kind.base:
        return stages_over_base(kind, extras)
    (main, *added), lock = kind.engines, kind.lock
    tests = [
        Stage(each, EXTRAS[each], _pins(lock), GB // 3 if lock == "mxnet" else GB, partial(_install_extra, extra=each))
        for each in sorted(set(extras))
    ]
    downloads_GB, disk_GB = _TORCH_GB[kind.variant]
    torch = f"pinned wheels: PyTorch ({kind.variant}), up to {downloads_GB} GB of downloads"
    if main == "torch":
        wheels, last = [Stage("torch", torch, _pins(lock), disk_GB * GB, _install_torch)], list[Stage]()
    else:
        wheels, last = _mxnet_stages(kind.variant)
    if added:  # PyTorch comes last beside MXNet, because its setuptools are too new for Horovod's build.
        last.append(Stage("torch", torch, _pins("torch"), disk_GB * GB, _add_torch))
    version = f"{sys.version_info[0]}.{sys.version_info[1]}"
    of = digest(version, ROOT, kind.variant, *([main] if main == "torch" else []))
    tools_bytes, tools = GB // (10 if main == "torch" else 2), digest(*locked(lock, *TOOLS))
    return [
        Stage("venv", f"virtual environment: Python {version}", of, GB // 10, make_venv),
        Stage("tools", "build tools", tools, tools_bytes, install_tools),
        *wheels, *tests, *last,
    ]  # fmt: skip


def _mxnet_stages(variant: Variant) -> tuple[list[Stage], list[Stage]]:
    """Return the stages before the extras, and the one after them."""
    size, disk_GB = ("2 GB", (8, 2)) if variant == "gpu" else ("about 100 MB", (1, 2))
    title = f"pinned wheels: MXNet ({variant}) and what it links, {size} of downloads"
    others = "pinned wheels: DALI and others, about 500 MB of downloads"
    wheels = [
        Stage("mxnet", title, _pins("mxnet"), disk_GB[0] * GB, _install_mxnet),
        Stage("wheels", others, _pins("mxnet"), disk_GB[1] * GB, _install_wheels),
    ]
    parts = ["Gloo", *(["NCCL"] if variant == "gpu" else [])]
    mxnet = "mxnet-cu112" if variant == "gpu" else "mxnet"
    built_from = [HOROVOD.version, *parts, *locked("mxnet", mxnet, "numpy", "cmake", "setuptools", "nvidia-nccl-cu11")]
    title = f"Horovod for MXNet with {', '.join(parts)}, and MPI where it is: compiled here, about 3 minutes"
    return wheels, [Stage("horovod", title, digest(built_from), GB, _build_horovod)]


def _pins(lock: Lock) -> str:
    """Return a digest of all that an environment's packages depend on."""
    return digest(*(hashlib.sha256(path.read_bytes()).hexdigest() for path in (LOCKS[lock], PROJECT)))


def make_venv(work: Work) -> None:
    """Make the environment from the interpreter on which this process's own environment, if any, is based."""
    base = getattr(sys, "_base_executable", sys.executable)
    work.run([base, "-m", "venv", work.environment.folder], "venv")


def install_tools(work: Work) -> None:
    """Install the packages that build others."""
    work.install(TOOLS, "tools")


def install_project(work: Work) -> None:
    """Install this program where it lies, without its packages."""
    work.pip_install(["--no-deps", "--editable", ROOT], "project")


def _install_extra(work: Work, extra: str) -> None:
    """Install an extra. For what the lock file does not pin, pip may change no package that is there."""
    names = named_by_extra(work.environment, work.kind.lock, extra)
    work.install(names, extra)
    if unpinned := names - {pin.name for pin in read_pins(work.kind.lock)}:
        kept = [path.stem.replace("-", "==", 1) for path in work.environment.site_packages.glob("*.dist-info")]
        constraints = work.environment.folder / "kept.txt"
        constraints.write_text("\n".join(kept), encoding="utf-8")
        work.pip_install(["--constraint", constraints, *sorted(unpinned)], extra)


def _install_mxnet(work: Work) -> None:
    """Install MXNet with all that it imports and links, which is what Horovod's build needs."""
    install_project(work)
    packages = work.environment.site_packages
    wanted = named_by(work.environment, work.kind.variant)
    names = [name for name in wanted if name.startswith(("mxnet", "numpy")) or name.endswith("-cu11")]
    work.install(names, "mxnet")
    if sys.version_info >= (3, 12):
        module = "numpy_names_of_mxnet"
        shutil.copyfile(Path(__file__).with_name("numpy_names.py"), packages / f"{module}.py")
        (packages / f"{module}.pth").write_text(f"import {module}; {module}.watch_for_mxnet()\n", encoding="utf-8")
    if work.kind.variant == "gpu" and not link_nvidia_libraries(packages):
        raise StageError(
            f"NVIDIA's CUDA libraries are not among the wheels: rm -r {work.environment.folder}, then "
            "./run.sh setup --gpu"
        )


def _install_wheels(work: Work) -> None:
    """Install the other packages, beside the build of Horovod, and compile those modules that a run imports.

    To compile all modules, as pip does, takes 45 s of CPU for MXNet's environment, those that a run imports 10 s.
    """
    if "horovod" in work.pending:
        _begin_horovod(work)
    work.install(named_by(work.environment, work.kind.variant), "wheels")
    # The one for GPUs is not loaded without a driver: the check of Horovod's build imports it, with a stub.
    mxnet = ["mxnet"] if work.kind.variant == "cpu" else []
    work.run([work.environment.python, "-c", f"import {', '.join([*mxnet, *_IMPORTED])}"], "wheels")


def _begin_horovod(work: Work) -> None:
    """Start to compile Horovod into a wheel. From the return on, pip may install other packages meanwhile."""
    log, folder = work.environment.log("horovod-build"), work.environment.folder / "build"
    log.unlink(missing_ok=True)
    remove_folder(folder)
    folder.mkdir()
    # --no-cache-dir, because pip caches a built wheel by its version, whatever the wheel was built for.
    options = ["--no-cache-dir", "--no-build-isolation", "--no-deps", "--no-binary=horovod", "--progress-bar=off"]
    pip = [str(work.environment.python), "-m", "pip", "--no-input", "wheel", "-v", f"--wheel-dir={folder}", *options]
    variables = {**_horovod_variables(work), "TMPDIR": str(folder)}
    words = [*pip, *work.pinned([HOROVOD], folder)]
    command = Command(words, log=log, environment=variables, lock=work.lock)
    work.begun["horovod"] = command
    # CMake imports MXNet, which imports whatever else it finds: no package may be half installed by pip just then.
    command.wait(until="-- Configuring done")


def _horovod_variables(work: Work) -> Mapping[str, str]:
    return build_environment(work.variables(), work.environment, work.kind.variant)


def _build_horovod(work: Work) -> None:
    environment, folder = work.environment, work.environment.folder / "build"
    if "horovod" not in work.begun:
        install_tools(work)  # again, because PyTorch may have replaced some
        _begin_horovod(work)
    work.begun["horovod"].wait()
    (wheel,) = folder.glob("horovod-*.whl")
    work.pip_install(["--no-index", "--no-deps", "--force-reinstall", wheel], "horovod")
    remove_folder(folder)
    work.run([environment.python, "-c", check_code(work.kind.variant)], "horovod", _horovod_variables(work))


def _install_torch(work: Work) -> None:
    """Install PyTorch with all that the program needs beside it.

    For GPUs the digests choose the version without a label. On CPUs, pip prefers a version with a label, such as
    2.13.0+cpu, to the same version without, which is for CUDA and runs on CPUs too; the files with labels are those of
    other indexes, so PyTorch itself has no digest there.
    """
    install_project(work)
    lock, is_gpu = work.kind.lock, work.kind.variant != "cpu"
    names = named_by(work.environment, lock)
    work.install(names if is_gpu else names - {"torch"}, "torch")
    _add_torch(work, _IMPORTED, is_there=is_gpu)


def _add_torch(work: Work, modules: Sequence[str] = (), *, is_there: bool = False) -> None:
    """Install PyTorch itself for CPUs, unless it is there; check that it and other modules can be imported."""
    if not is_there:
        work.pip_install([*write_constraints(work.environment, "torch"), *locked("torch", "torch")], "torch-itself")
    imported = ", ".join(["torch", "torch.distributed", *modules])
    code = f"import {imported}; assert torch.distributed.is_gloo_available()"
    work.run([work.environment.python, "-c", code], "torch")
