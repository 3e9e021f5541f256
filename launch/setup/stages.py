"""The stages of set-up in their order: what each depends on, how much disk it takes, which command it runs."""

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
from launch.setup.replacement import remove_folder
from launch.setup.state import digest
from launch.setup.work import EXTRAS, Stage, Work, command_variables, pip

_INSTALL = ("install", "--no-build-isolation")
_IMPORTED = (
    "nvidia.dali.fn", "matplotlib.pyplot", "mlperf_logging.compliance_checker.mlp_compliance", "mlperf_logging.mllog",
    "pydantic.main", "sklearn.datasets", "tqdm",
)  # fmt: skip


def make_stages(kind: Kind, *, has_mpi: bool, extras: Collection[str]) -> list[Stage]:
    """Return the stages of an environment, with or without MPI, and with extras (`EXTRAS`)."""
    if kind.base:
        return stages_over_base(kind, extras=extras)
    main, *added = kind.engines
    engine_stages: dict[Engine, Callable[..., _BeforeAndAfter]] = {"mxnet": _mxnet_stages, "torch": _torch_stages}
    stages, last = engine_stages[main](kind.variant, has_mpi=has_mpi)
    for extra in sorted(set(extras)):
        run = partial(_install_extra, engine=main, extra=extra)
        stages.append(Stage(extra, EXTRAS[extra], _pins(main), GB // 3, run))
    stages += last
    if added:  # PyTorch, see `configs.registry.ENGINES` for the order; its setuptools are too new for Horovod's build
        stages.append(_wheels_of_torch(kind.variant, _add_torch))
    return stages


_BeforeAndAfter = tuple[list[Stage], list[Stage]]
"""The stages of an engine: those before the extras, and those after."""


def _mxnet_stages(variant: Variant, *, has_mpi: bool) -> _BeforeAndAfter:
    size, disk_GB = ("2 GB", (8, 2)) if variant == "gpu" else ("about 100 MB", (1, 2))
    before = [
        _venv_stage(variant),
        Stage("tools", "build tools", digest(*_tools("mxnet")), GB // 2, partial(_install_tools, engine="mxnet")),
        Stage(
            "mxnet",
            f"pinned wheels: MXNet ({variant}) and what it links, {size} of downloads",
            _pins("mxnet"),
            disk_GB[0] * GB,
            partial(_install_mxnet, variant=variant),
        ),
        Stage(
            "wheels",
            "pinned wheels: DALI and others, about 500 MB of downloads",
            _pins("mxnet"),
            disk_GB[1] * GB,
            partial(_install_wheels, variant=variant),
        ),
    ]
    return before, [_horovod_stage(variant, has_mpi=has_mpi)]


def _horovod_stage(variant: Variant, *, has_mpi: bool) -> Stage:
    parts = ["Gloo", *(["MPI"] if has_mpi else []), *(["NCCL"] if variant == "gpu" else [])]
    mxnet = "mxnet-cu112" if variant == "gpu" else "mxnet"
    built_from = [HOROVOD, *parts, *locked("mxnet", mxnet, "numpy", "cmake", "setuptools", "nvidia-nccl-cu11")]
    return Stage(
        "horovod",
        f"Horovod for MXNet with {', '.join(parts)}: compiled here since MXNet is there, about 3 minutes",
        digest(built_from),
        GB,
        partial(_build_horovod, variant=variant, has_mpi=has_mpi),
        begin=partial(_begin_horovod, variant=variant, has_mpi=has_mpi),
        after="mxnet",
    )


def _venv_stage(variant: Variant, *only: Engine) -> Stage:
    """Return the first stage; ``only`` names the engine of an environment without MXNet."""
    version = f"{sys.version_info[0]}.{sys.version_info[1]}"
    depends = digest(version, ROOT, variant, *only)
    return Stage("venv", f"virtual environment: Python {version}", depends, GB // 10, _make_venv)


def _torch_stages(variant: Variant, *, has_mpi: bool) -> _BeforeAndAfter:
    del has_mpi  # nothing is compiled
    run = partial(_install_tools, engine="torch")
    before = [
        _venv_stage(variant, "torch"),
        Stage("tools", "build tools", digest(*_tools("torch")), GB // 10, run),
        _wheels_of_torch(variant, partial(_install_torch, variant=variant)),
    ]
    return before, []


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
    """Install MXNet with all that it imports and links, which is what Horovod's build needs."""
    _install_project(work)
    wanted = named_by(work.environment, variant)
    names = [name for name in wanted if name.startswith(("mxnet", "numpy")) or name.endswith("-cu11")]
    pip(work, [*_INSTALL, "--no-compile", *_of(work, closure("mxnet", names))], "mxnet")
    if sys.version_info >= (3, 12):
        _put_back_numpy_names(work.environment.site_packages)
    if variant == "gpu" and not link_nvidia_libraries(work.environment.site_packages):
        raise StageError(
            f"NVIDIA's CUDA libraries are not among the wheels: rm -r {work.environment.folder}, then "
            "./run.sh setup --gpu"
        )


def _install_wheels(work: Work, variant: Variant) -> None:
    """Install the other packages, and compile those modules of them that a run imports.

    To compile all modules, as pip does, takes 45 s of CPU for MXNet's environment, those that a run imports 10 s.
    """
    pip(work, [*_INSTALL, "--no-compile", *_with_digests(work, "mxnet", variant)], "wheels")
    # The one for GPUs is not loaded without a driver: the check of Horovod's build imports it, with a stub.
    mxnet = ["mxnet"] if variant == "cpu" else []
    work.run([work.environment.python, "-c", f"import {', '.join([*mxnet, *_IMPORTED])}"], "wheels")


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
    pip(work, [*_INSTALL, "--no-compile", *words], "torch")
    if variant == "cpu":
        _install_labelled_torch(work)
    _check_torch(work, "torch.distributed", *_IMPORTED)


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
    pip(work, [*_INSTALL, "--no-compile", *_with_digests(work, engine, extra)], extra)


def _begin_horovod(work: Work, variant: Variant, *, has_mpi: bool) -> None:
    """Start to compile Horovod into a wheel. From the return on, pip may install other packages meanwhile."""
    environment, folder = work.environment, work.environment.build
    remove_folder(folder)
    folder.mkdir()
    pins = write_requirements(folder, [HOROVOD_PIN], has_digests=work.checks_files)
    # --no-cache-dir, because pip caches a built wheel by its version, whatever the wheel was built for.
    options = ["--no-cache-dir", "--no-build-isolation", "--no-deps", "--wheel-dir", str(folder)]
    command = [str(environment.python), "-m", "pip", "--no-input", "wheel", "-v", *options, *pins]
    variables = {**command_variables(environment), "TMPDIR": str(folder)}
    variables = build_environment(variables, environment, variant, has_mpi=has_mpi)
    work.begin([*command, "--progress-bar", "off"], "horovod", "horovod-build", variables)
    # CMake imports MXNet, which imports whatever else it finds: no package may be half installed by pip just then.
    work.begun["horovod"].wait_for("-- Configuring done", work.watch)


def _build_horovod(work: Work, variant: Variant, *, has_mpi: bool) -> None:
    environment = work.environment
    if "horovod" not in work.begun:
        _install_tools(work, "mxnet")  # again, because PyTorch may have replaced some
        _begin_horovod(work, variant, has_mpi=has_mpi)
    work.begun["horovod"].wait(work.watch)
    (wheel,) = environment.build.glob("horovod-*.whl")
    pip(work, ["install", "--no-index", "--no-deps", "--force-reinstall", str(wheel)], "horovod")
    remove_folder(environment.build)
    variables = build_environment(command_variables(environment), environment, variant, has_mpi=has_mpi)
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
    return write_requirements(work.environment.folder, pins, has_digests=work.checks_files)


def is_usable(environment: Environment) -> bool:
    """Return whether the environment's interpreter still runs; an upgraded system may have removed its base."""
    try:
        return subprocess.run([environment.python, "-c", ""], check=False, capture_output=True).returncode == 0
    except OSError:
        return False
