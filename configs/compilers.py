"""What ``engine.compile`` needs of a machine beside PyTorch: a compiler, Python's headers, a folder, Triton on a GPU.

Imports no framework, so that the launcher and the doctor can tell before a run.
"""

import os
import shutil
import sysconfig
import tempfile
from importlib.util import find_spec
from pathlib import Path

from configs.errors import ConfigError
from configs.schema import Cluster


def compiler_shortage(cluster: Cluster) -> tuple[str, str] | None:
    """Return what this machine lacks for the cluster's ``engine.compile``, and a remedy; None if nothing is missing.

    Inductor, the part of PyTorch that makes the kernels, compiles C++ for a CPU by the compiler in CXX. Triton, which
    makes those for a GPU, compiles what launches them by a C compiler. Both include ``Python.h``, and load what they
    have compiled from a folder, which Docker's ``--tmpfs`` forbids unless told otherwise.
    """
    if not cluster.engine.compile:
        return None
    variables = os.environ | cluster.environment
    if cluster.device == "gpu":
        language, names = "C", [variables["CC"]] if "CC" in variables else ["gcc", "clang"]
    else:
        language, names = "C++", [variables.get("CXX", "g++")]
    if cluster.device == "gpu" and find_spec("triton") is None:
        return "no Triton", "./run.sh setup --engine torch --gpu installs it"
    if not any(map(shutil.which, names)):
        return f"no {language} compiler ({' or '.join(names)})", "install g++, or set cluster.engine.compile=false"
    headers = Path(sysconfig.get_path("include"))
    if not (headers / "Python.h").is_file():
        return f"no Python.h in {headers}", "install this Python's headers, the package python3-dev or python3-devel"
    folder = Path(variables.get("TORCHINDUCTOR_CACHE_DIR", tempfile.gettempdir()))
    existing = next(path for path in (folder, *folder.absolute().parents) if path.exists())
    if os.statvfs(existing).f_flag & os.ST_NOEXEC or not os.access(existing, os.W_OK):
        remedy = "set cluster.environment.TORCHINDUCTOR_CACHE_DIR to another one"
        return f"no folder for kernels: {folder} cannot be written or is mounted noexec", remedy
    return None


def require_compiler(cluster: Cluster) -> None:
    """Raise if this machine lacks what ``engine.compile`` needs.

    Raises:
        ConfigError: Something is missing; the message says what to install.
    """
    if shortage := compiler_shortage(cluster):
        words, remedy = shortage
        raise ConfigError("cluster.engine.compile", True, f"false on this machine, which has {words}", remedy)
