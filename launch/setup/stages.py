"""The stages of set-up in their order: what each depends on, what it takes, what it runs."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from launch.setup.checks import GB
from launch.setup.child import StageError, Stopwatch, run_logged
from launch.setup.horovod import build_environment, check_build
from launch.setup.layout import HOROVOD, LOCK, PROJECT, ROOT, VENV, VENV_PYTHON, Variant, locked, site_packages
from launch.setup.libraries import link_nvidia_libraries, missing_libraries
from launch.setup.state import LOCK_NAME, digest

__all__ = ["Stage", "is_usable", "make_stages", "remove_half_installed"]

_KEPT = {LOCK_NAME, "setup.json", "setup.tmp"}
_TEMPORARY = VENV / "tmp"


@dataclass(frozen=True)
class Stage:
    """One step of set-up.

    Attributes:
        name: Its key in the state file.
        title: What a person reads while it runs.
        digest: Changes when the stage must be done again.
        needed_bytes: Disk space it takes, downloads included.
        run: Does it; gets the stage's line and the lock's descriptor.
    """

    name: str
    title: str
    digest: str
    needed_bytes: int
    run: Callable[[Stopwatch, int], None]


def make_stages(variant: Variant, *, has_mpi: bool, with_test: bool) -> list[Stage]:
    """List the stages for a variant, with MPI and the test tools or without."""
    version = f"{sys.version_info[0]}.{sys.version_info[1]}"
    pins = digest(_hash(LOCK), _hash(PROJECT))
    parts = ["Gloo", *(["MPI"] if has_mpi else []), *(["NCCL"] if variant == "gpu" else [])]
    mxnet = "mxnet-cu112" if variant == "gpu" else "mxnet"
    built_from = [HOROVOD, *parts, *locked(mxnet, "numpy", "cmake", "setuptools", "nvidia-nccl-cu11")]
    size = "3 GB of" if variant == "gpu" else "about 500 MB of"
    stages = [
        Stage("venv", f"virtual environment: Python {version}", digest(version, ROOT, variant), GB // 10, _make_venv),
        Stage("tools", "build tools", digest(*_tools()), GB // 2, _install_tools),
        Stage("wheels", f"pinned wheels: MXNet ({variant}), DALI and others, {size} downloads", pins,
              (10 if variant == "gpu" else 3) * GB, lambda watch, lock: _install_wheels(variant, watch, lock)),
        Stage("horovod", f"Horovod for MXNet with {', '.join(parts)}: compiled here, about 3 minutes",
              digest(built_from), GB, lambda watch, lock: _build_horovod(variant, has_mpi, watch, lock)),
    ]  # fmt: skip
    if with_test:
        stages.append(Stage("test", "tools for tests and checks", pins, GB // 3, _install_test_tools))
    return stages


def _hash(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def _tools() -> list[str]:
    return locked("cmake", "setuptools", "wheel")


def _make_venv(watch: Stopwatch, lock: int) -> None:
    """Make a new environment in place of whatever is there, from the interpreter that this one stands on."""
    for path in VENV.iterdir():
        if path.name in _KEPT:
            continue
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink()
    base = getattr(sys, "_base_executable", sys.executable)
    run_logged([base, "-m", "venv", VENV], log=_log("venv"), environment=_environment(), watch=watch, lock=lock)


def _install_tools(watch: Stopwatch, lock: int) -> None:
    _pip(["install", *_tools()], "tools", watch, lock)


def _install_wheels(variant: Variant, watch: Stopwatch, lock: int) -> None:
    _pip(_project(variant), "wheels", watch, lock)
    if variant == "gpu" and not link_nvidia_libraries(site_packages()):
        raise StageError("NVIDIA's CUDA libraries are not among the wheels: remove .venv, then ./run.sh setup --gpu")


def _install_test_tools(watch: Stopwatch, lock: int) -> None:
    _pip(_project("test"), "test", watch, lock)


def _build_horovod(variant: Variant, has_mpi: bool, watch: Stopwatch, lock: int) -> None:
    environment = build_environment(_environment(), variant, has_mpi=has_mpi)
    # pip caches a built wheel by version, whatever it was built for: hence --no-cache-dir.
    options = ["--no-cache-dir", "--no-build-isolation", "--no-deps", "--force-reinstall"]
    _pip(["install", "-v", *options, HOROVOD], "horovod-build", watch, lock, environment)
    check_build(environment, variant, has_mpi=has_mpi, log=_log("horovod-build"))
    if missing := missing_libraries(site_packages()):
        raise StageError(f"libraries are not found: {'; '.join(missing)}: install them, then ./run.sh setup again")


def _project(extra: str) -> list[str]:
    """Give pip's arguments that install the project where it lies, with an extra."""
    return ["install", "--no-build-isolation", "--constraint", str(LOCK), "--editable", f"{ROOT}[{extra}]"]


def _pip(
    words: Sequence[str], name: str, watch: Stopwatch, lock: int, environment: dict[str, str] | None = None
) -> None:
    """Run the environment's pip; what a cut-off pip left half installed is cleared away before."""
    remove_half_installed(site_packages())
    shutil.rmtree(_TEMPORARY, ignore_errors=True)
    _TEMPORARY.mkdir()
    log = _log(name)
    log.unlink(missing_ok=True)
    command: list[str | Path] = [VENV_PYTHON, "-m", "pip", "--no-input", *words, "--progress-bar", "off"]
    try:
        run_logged(command, log=log, environment=environment or _environment(), watch=watch, lock=lock)
    finally:
        shutil.rmtree(_TEMPORARY, ignore_errors=True)


def remove_half_installed(folder: Path) -> None:
    """Remove from ``folder`` the metadata of packages that pip did not finish, which it would take for installed.

    INSTALLER is what pip writes after a package's own files, RECORD among them, are there; a folder named ``~...`` is
    one that it was about to remove.
    """
    for path in folder.iterdir():
        is_unfinished = path.suffix == ".dist-info" and not (path / "INSTALLER").exists()
        if path.is_dir() and (is_unfinished or path.name.startswith("~")):
            shutil.rmtree(path)


def _log(name: str) -> Path:
    return VENV / f"{name}.log"


def _environment() -> dict[str, str]:
    """Give the commands' environment: the user's, less what leads Python or pip elsewhere.

    Temporary files go into the environment's folder: /tmp may be small or noexec, and a killed build leaves them.
    """
    left_out = {"PYTHONPATH", "PYTHONHOME", "PIP_TARGET", "PIP_PREFIX", "PIP_USER", "VIRTUAL_ENV"}
    kept = {name: value for name, value in os.environ.items() if name not in left_out}
    path = f"{VENV / 'bin'}{os.pathsep}{kept.get('PATH', os.defpath)}"
    settings = {"PATH": path, "TMPDIR": str(_TEMPORARY), "PIP_DISABLE_PIP_VERSION_CHECK": "1", "PYTHONUNBUFFERED": "1"}
    return {**kept, **settings}


def is_usable() -> bool:
    """Tell whether the environment's interpreter still runs; an upgraded system may have taken it away."""
    try:
        return subprocess.run([VENV_PYTHON, "-c", ""], check=False, capture_output=True).returncode == 0
    except OSError:
        return False
