"""What a machine needs beside PyTorch to compile kernels: a compiler, Python's headers, a folder, Triton on a GPU.

``engine.compile`` compiles all kernels, and ``engine.batch_norm: fused`` those of Triton on a GPU.

Imports no framework, so that the launcher and the doctor can tell before a run.
"""

import os
import shutil
import sysconfig
import tempfile
from collections.abc import Callable, Mapping
from importlib.util import find_spec
from pathlib import Path

from configs.errors import ConfigError
from configs.schema import Cluster

_KEYS: Mapping[str, tuple[str, str, Callable[[], str]]] = {
    "compile": ("false", "TORCHINDUCTOR_CACHE_DIR", tempfile.gettempdir),
    "batch_norm": ("framework", "TRITON_CACHE_DIR", lambda: os.path.expanduser("~/.triton")),  # noqa: PTH111 (no error without a home)
}
"""Key for which kernels are compiled -> the value that compiles none, the variable that names the kernels' folder, and
the folder without it."""


def compiling_key(cluster: Cluster) -> str | None:
    """Return the key of ``engine`` for which a run compiles kernels; None if it compiles none."""
    if cluster.engine.compile:
        return "compile"
    return "batch_norm" if cluster.engine.batch_norm == "fused" and cluster.device == "gpu" else None


def compiler_shortage(cluster: Cluster) -> tuple[str, str] | None:
    """Return what this machine lacks to compile the kernels of a cluster's runs, and a remedy; None if nothing.

    Inductor, the part of PyTorch that makes the kernels, compiles C++ for a CPU by the compiler in CXX. Triton, which
    makes those for a GPU, compiles what launches them by a C compiler. Both include ``Python.h``, and load what they
    have compiled from a folder, which Docker's ``--tmpfs`` forbids unless told otherwise.
    """
    key = compiling_key(cluster)
    if key is None:
        return None
    plain, variable, usual = _KEYS[key]
    variables = os.environ | cluster.environment
    if cluster.device == "gpu":
        language, names = "C", [variables["CC"]] if "CC" in variables else ["gcc", "clang"]
    else:
        language, names = "C++", [variables.get("CXX", "g++")]
    if cluster.device == "gpu" and find_spec("triton") is None:
        return "no Triton", "./run.sh setup --engine torch --gpu installs it"
    if not any(map(shutil.which, names)):
        return f"no {language} compiler ({' or '.join(names)})", f"install g++, or set cluster.engine.{key}={plain}"
    headers = Path(sysconfig.get_path("include"))
    if not (headers / "Python.h").is_file():
        return f"no Python.h in {headers}", "install this Python's headers, the package python3-dev or python3-devel"
    folder = Path(variables.get(variable) or usual())
    existing = next(path for path in (folder, *folder.absolute().parents) if path.exists())
    if os.statvfs(existing).f_flag & os.ST_NOEXEC or not os.access(existing, os.W_OK):
        remedy = f"set cluster.environment.{variable} to another one"
        return f"no folder for kernels: {folder} cannot be written or is mounted noexec", remedy
    return None


def require_compiler(cluster: Cluster) -> None:
    """Raise if this machine lacks what compiles the kernels of a cluster's runs.

    Raises:
        ConfigError: Something is missing; the message says what to install.
    """
    key = compiling_key(cluster)
    if key and (shortage := compiler_shortage(cluster)):
        words, remedy = shortage
        allowed = f"{_KEYS[key][0]} on this machine, which has {words}"
        raise ConfigError(f"cluster.engine.{key}", getattr(cluster.engine, key), allowed, remedy)
