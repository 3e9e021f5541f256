"""The stages of set-up in their order: what each depends on, how much disk it takes, which command it runs."""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import sys
from collections.abc import Callable, Collection, Sequence
from functools import partial
from pathlib import Path

from launch.setup.checks import GB
from launch.setup.child import StageError
from launch.setup.horovod import build_environment, check_build
from launch.setup.layout import HOROVOD, LOCKS, PROJECT, ROOT, Engine, Environment, Kind, Variant, locked
from launch.setup.libraries import link_nvidia_libraries, missing_libraries
from launch.setup.over_base import stages_over_base
from launch.setup.pins import HOROVOD_PIN, Pin, closure, named_by, write_constraints, write_requirements
from launch.setup.state import digest
from launch.setup.work import EXTRAS, Stage, Work, command_variables, pip

__all__ = ["is_usable", "make_stages"]

_INSTALL = ("install", "--no-build-isolation")


def make_stages(kind: Kind, *, has_mpi: bool, extras: Collection[str]) -> list[Stage]:
    """Return the stages of an environment, with or without MPI, and with extras (`EXTRAS`)."""
    if kind.base:
        return stages_over_base(kind, extras=extras)
    main, *added = kind.engines
    makers: dict[Engine, Callable[[Variant], list[Stage]]] = {
        "mxnet": partial(_mxnet_stages, has_mpi=has_mpi),
        "torch": _torch_stages,
    }
    stages = makers[main](kind.variant)
    if added:  # PyTorch, see `configs.registry.ENGINES` for the order
        stages.append(_wheels_of_torch(kind.variant, _add_torch))
    for extra in sorted(set(extras)):
        run = partial(_install_extra, engine=main, extra=extra)
        stages.append(Stage(extra, EXTRAS[extra], _pins(main), GB // 3, run))
    return stages


def _mxnet_stages(variant: Variant, *, has_mpi: bool) -> list[Stage]:
    parts = ["Gloo", *(["MPI"] if has_mpi else []), *(["NCCL"] if variant == "gpu" else [])]
    mxnet = "mxnet-cu112" if variant == "gpu" else "mxnet"
    built_from = [HOROVOD, *parts, *locked("mxnet", mxnet, "numpy", "cmake", "setuptools", "nvidia-nccl-cu11")]
    size = "3 GB of" if variant == "gpu" else "about 500 MB of"
    return [
        _venv_stage(variant),
        Stage("tools", "build tools", digest(*_tools("mxnet")), GB // 2, partial(_install_tools, engine="mxnet")),
        Stage(
            "wheels",
            f"pinned wheels: MXNet ({variant}), DALI and others, {size} downloads",
            _pins("mxnet"),
            (10 if variant == "gpu" else 3) * GB,
            partial(_install_mxnet, variant=variant),
        ),
        Stage(
            "horovod",
            f"Horovod for MXNet with {', '.join(parts)}: compiled here, about 3 minutes",
            digest(built_from),
            GB,
            partial(_build_horovod, variant=variant, has_mpi=has_mpi),
        ),
    ]


def _venv_stage(variant: Variant, *only: Engine) -> Stage:
    """Return the first stage; ``only`` names the engine of an environment without MXNet."""
    version = f"{sys.version_info[0]}.{sys.version_info[1]}"
    depends = digest(version, ROOT, variant, *only)
    return Stage("venv", f"virtual environment: Python {version}", depends, GB // 10, _make_venv)


def _torch_stages(variant: Variant) -> list[Stage]:
    run = partial(_install_tools, engine="torch")
    return [
        _venv_stage(variant, "torch"),
        Stage("tools", "build tools", digest(*_tools("torch")), GB // 10, run),
        _wheels_of_torch(variant, partial(_install_torch, variant=variant)),
    ]


def _wheels_of_torch(variant: Variant, run: Callable[[Work], None]) -> Stage:
    title = f"pinned wheels: PyTorch ({variant}), up to 2.5 GB of downloads where pip finds no wheel for CPUs only"
    return Stage("torch", title, _pins("torch"), 8 * GB, run)


def _pins(engine: Engine) -> str:
    """Return a digest of all that an environment's packages depend on."""
    return digest(*(hashlib.sha256(path.read_bytes()).hexdigest() for path in (LOCKS[engine], PROJECT)))


def _tools(engine: Engine) -> list[str]:
    return locked(engine, "cmake", "setuptools", "wheel")


def _make_venv(work: Work) -> None:
    """Make the environment from the interpreter on which this process's own environment, if any, is based."""
    base = getattr(sys, "_base_executable", sys.executable)
    work.run([base, "-m", "venv", work.environment.folder], "venv")


def _install_tools(work: Work, engine: Engine) -> None:
    pip(work, ["install", *_of(work, closure(engine, ["cmake", "setuptools", "wheel"]))], "tools")


def _install_mxnet(work: Work, variant: Variant) -> None:
    _install_project(work)
    pip(work, [*_INSTALL, *_with_digests(work, "mxnet", variant)], "wheels")
    if sys.version_info >= (3, 12):
        _put_back_numpy_names(work.environment.site_packages)
    if variant == "gpu" and not link_nvidia_libraries(work.environment.site_packages):
        raise StageError(
            f"NVIDIA's CUDA libraries are not among the wheels: rm -r {work.environment.folder}, then "
            "./run.sh setup --gpu"
        )


def _put_back_numpy_names(site_packages: Path) -> None:
    module = "numpy_names_of_mxnet"
    shutil.copyfile(Path(__file__).with_name("numpy_names.py"), site_packages / f"{module}.py")
    (site_packages / f"{module}.pth").write_text(f"import {module}; {module}.watch_for_mxnet()\n", encoding="utf-8")


def _install_torch(work: Work, variant: Variant) -> None:
    """Install PyTorch with all that the program needs beside it.

    For GPUs the digests choose the version without a label. On CPUs, pip prefers a version with a label, such as
    2.13.0+cpu, to the same version without, which is for CUDA and runs on CPUs too; the files with labels are those of
    other indexes, so PyTorch itself has no digest there.
    """
    _install_project(work)
    words = _with_digests(work, "torch", "torch", without=() if variant == "gpu" else ("torch",))
    # To compile all modules in advance takes 83 s of CPU, half of the stage; those that a run imports take 10 s.
    pip(work, [*_INSTALL, "--no-compile", *words], "torch")
    if variant == "cpu":
        _install_labelled_torch(work)
    _check_torch(work, "torch.distributed", "nvidia.dali.fn", "matplotlib.pyplot", "mlperf_logging", "sklearn.datasets")


def _add_torch(work: Work) -> None:
    """Install PyTorch beside MXNet; it takes a newer setuptools with it than Horovod is compiled with."""
    _install_labelled_torch(work)
    _check_torch(work, "torch.distributed")


def _install_labelled_torch(work: Work) -> None:
    pip(work, ["install", "--no-compile", *write_constraints(work.environment, "torch"), "torch"], "torch-itself")


def _check_torch(work: Work, *modules: str) -> None:
    code = f"import torch, {', '.join(modules)}; assert torch.distributed.is_gloo_available()"
    work.run([work.environment.python, "-c", code], "torch")


def _install_extra(work: Work, engine: Engine, extra: str) -> None:
    pip(work, [*_INSTALL, *_with_digests(work, engine, extra)], extra)


def _build_horovod(work: Work, variant: Variant, *, has_mpi: bool) -> None:
    environment = work.environment
    _install_tools(work, "mxnet")  # again, because PyTorch may have replaced some
    variables = build_environment(command_variables(environment), environment, variant, has_mpi=has_mpi)
    # --no-cache-dir, because pip caches a built wheel by its version, whatever the wheel was built for.
    options = ["--no-cache-dir", "--no-build-isolation", "--no-deps", "--force-reinstall"]
    pip(work, ["install", "-v", *options, *_of(work, [HOROVOD_PIN])], "horovod-build", variables)
    check_build(variables, environment, variant, has_mpi=has_mpi)
    if missing := missing_libraries(environment.site_packages):
        raise StageError(f"libraries are not found: {'; '.join(missing)}: install them, then ./run.sh setup again")


def _install_project(work: Work) -> None:
    """Install this program where it lies, without its packages."""
    pip(work, [*_INSTALL, "--no-deps", "--editable", str(ROOT)], "project")


def _with_digests(work: Work, engine: Engine, extra: str, *, without: Collection[str] = ()) -> list[str]:
    """Return pip's arguments for all packages that this program needs with an extra."""
    return _of(work, closure(engine, named_by(work.environment, extra), without=without))


def _of(work: Work, pins: Sequence[Pin]) -> list[str]:
    return write_requirements(work.environment, pins, has_digests=work.checks_files)


def is_usable(environment: Environment) -> bool:
    """Return whether the environment's interpreter still runs; an upgraded system may have removed its base."""
    try:
        return subprocess.run([environment.python, "-c", ""], check=False, capture_output=True).returncode == 0
    except OSError:
        return False
