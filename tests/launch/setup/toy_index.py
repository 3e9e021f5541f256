"""A checkout with a package index of its own: wheels of a few bytes, lock files that name them, a Horovod to compile.

Real pip, from the environment that set-up makes, installs them by ``--find-links`` and without a network.
"""

import hashlib
import io
import os
import re
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from importlib.metadata import distribution, distributions
from pathlib import Path

from tests.launch.stand_in import write_program
from tests.programs import run_program

_FEATURES = "class Features:\n    def is_enabled(self, _name): return False\n"
_MODULES: dict[str, dict[str, str]] = {
    "mxnet": {"mxnet/__init__.py": "from mxnet import runtime\n__version__ = '1.9.1'\n", "mxnet/runtime.py": _FEATURES},
    "nvidia-dali-cuda110": {"nvidia/dali/__init__.py": "__version__ = '1.34.0'\n", "nvidia/dali/fn.py": ""},
    "nvidia-dali-cuda120": {"nvidia/dali/__init__.py": "__version__ = '2.4.0'\n", "nvidia/dali/fn.py": ""},
    "nvidia-dali-cuda130": {"nvidia/dali/__init__.py": "__version__ = '2.4.0'\n", "nvidia/dali/fn.py": ""},
    "mlperf-logging": {
        "mlperf_logging/mllog.py": "", "mlperf_logging/compliance_checker/mlp_compliance.py": "",
    },
    "numpy": {"numpy/__init__.py": "__version__ = '1.23.5'\n"},
    "matplotlib": {"matplotlib/pyplot.py": ""},
    "pydantic": {"pydantic/main.py": ""},
    "scikit-learn": {"sklearn/datasets.py": ""},
    "torch": {
        "torch/__init__.py": "from torch import version\n__version__ = '2.13.0+cpu'\n",
        "torch/version.py": "cuda = hip = None\n",
        "torch/distributed.py": "def is_available(): return True\nis_gloo_available = is_available\n"
        "def is_nccl_available(): return False\nis_mpi_available = is_nccl_available\n",
    },
}  # fmt: skip
"""What the toy packages hold that set-up imports; the others hold a module of their name."""

_PROJECT = """
[build-system]
requires = ["setuptools"]
build-backend = "toy_backend"
backend-path = ["."]
"""

_NEEDS = {
    "": ["matplotlib", "mlperf-logging", "pydantic", "scikit_learn", "tqdm>1"],
    "mxnet": ["numpy>=1.23.5; python_version < '4'", "nvidia-dali-cuda110==1.34.0"],
    "onnx": ["onnx"],
    "cpu": ["resnet-records[mxnet]", "mxnet==1.9.1"],
    "torch": ["torch==2.13.0", "nvidia-dali-cuda130"],
    "torch-cuda12": ["resnet-records[torch-common,dali12]", "torch==2.10.0"],
    "torch-common": ["sympy"],
    "dali12": ["nvidia-dali-cuda120==2.4.0"],
    "dali13": ["nvidia-dali-cuda130==2.4.0"],
    "exporter": ["onnx", "onnxruntime"],
    "test": ["pytest"],
    "tensorboard": ["tensorboardX"],
}
"""What the program needs, and what each of its extras does."""

_BACKEND = """
import importlib.util, zipfile
from pathlib import Path

assert importlib.util.find_spec("setuptools"), "the program is installed before the tools"

def build_editable(folder, config_settings=None, metadata_directory=None):
    info, files = "resnet_records-0.1.0.dist-info", {"resnet_records.pth": str(Path(__file__).parent)}
    files[info + "/METADATA"] = METADATA
    files[info + "/WHEEL"] = "Wheel-Version: 1.0\\nGenerator: toy\\nRoot-Is-Purelib: true\\nTag: py3-none-any\\n"
    files[info + "/RECORD"] = "".join(name + ",,\\n" for name in [*files, info + "/RECORD"])
    with zipfile.ZipFile(Path(folder, "resnet_records-0.1.0-py3-none-any.whl"), "w") as wheel:
        for name, text in files.items():
            wheel.writestr(name, text)
    return "resnet_records-0.1.0-py3-none-any.whl"
"""
"""Builds the program's wheel in place of setuptools, which pip starts three times for it, for 1.2 s of CPU."""

_COMMON = [
    "matplotlib==3.9 <- resnet-records", "onnx==1.14 <- resnet-records", "mlperf-logging==4.1 <- resnet-records",
    "pydantic==2.6 <- resnet-records",
    "pydantic-core==2.7 <- pydantic", "pytest==8.1 <- resnet-records", "pluggy==1.5 <- pytest",
    "scikit-learn==1.3 <- resnet-records", "tensorboardx==2.6 <- resnet-records",
    "tqdm==4.66 <- resnet-records", "typing-extensions==4.12 <- pydantic pydantic-core",
]  # fmt: skip
_MXNET = [
    "cmake==3.30 <- resnet-records", "mxnet==1.9.1 <- resnet-records", "numpy==1.23.5 <- mxnet",
    "nvidia-dali-cuda110==1.34.0 <- resnet-records", "requests==2.32 <- mxnet",
]  # fmt: skip
_TORCH = [
    "torch==2.13.0 <- resnet-records", "nvidia-dali-cuda130==2.4.0 <- resnet-records", "sympy==1.13 <- torch",
    "nvidia-cublas==13.1 <- torch",
]  # fmt: skip
_CUDA12 = ["torch==2.10.0 <- resnet-records", "nvidia-dali-cuda120==2.4.0 <- resnet-records", "sympy==1.13 <- torch"]
"""Packages of the lock files, each with those that need it."""

_HOROVOD_SETUP = """
import importlib.util, json, os, sys
from setuptools import setup
if "bdist_wheel" in sys.argv:
    print("tqdm is there:", importlib.util.find_spec("tqdm") is not None)
    print("-- Configuring done", flush=True)
    import mxnet, subprocess, sysconfig  # MXNet must be there
    if source := os.environ.get("TOY_SOURCE"):
        subprocess.run(["g++", "-c", "-x", "c++", "-o", os.devnull, "-"], input=source.encode(), check=True)
    os.makedirs("horovod/mxnet")
    open("horovod/__init__.py", "w").write("__version__ = '0.28.1'")
    built = {name.lower() + "_built": "HOROVOD_WITH_" + name in os.environ for name in ("MXNET", "GLOO", "MPI", "NCCL")}
    lines = [f"def {name}(): return {is_built}" for name, is_built in built.items()]
    open("horovod/mxnet/__init__.py", "w").write("\\n".join(lines))
    search = "-Wl,-rpath," + sysconfig.get_path("purelib") + "/mxnet"
    subprocess.run(["g++", "-shared", search, "-x", "c++", os.devnull, "-o", "horovod/mxnet/mpi_lib.so"], check=True)
    json.dump(dict(os.environ), open("horovod/variables.json", "w"))
setup(name="horovod", version="0.28.1", packages=["horovod", "horovod.mxnet"] if os.path.isdir("horovod") else [],
      package_data={"": ["*.so", "*.json"]})
"""


_SET_UP_WITH_COPIED_PIP = """
import shutil, sys
from launch.setup import __main__ as setup, stages, wheels

def make_venv(work):
    work.run([sys._base_executable, "-m", "venv", "--without-pip", work.environment.folder], "venv")
    for path in sys.argv[1].split(":"):
        shutil.copytree(path, work.environment.site_packages / path.rpartition("/")[2])

stages.make_venv = wheels.make_venv = make_venv
sys.exit(setup.main(sys.argv[2:]))
"""
"""A new environment gets the pip of this one: to install that of Python, as set-up does, takes 5 s of CPU."""


_ASKED_BY_PIP = ("lsb_release", "rustc")
"""Programs by which every pip finds out what it would tell an index; where they are, each takes its time."""


@dataclass(frozen=True)
class ToyCheckout:
    """A checkout whose lock files name the wheels of a folder.

    Attributes:
        tree: Its folder.
        index: The folder of the wheels.
    """

    tree: Path
    index: Path

    @property
    def site_packages(self) -> Path:
        """The packages of the environment."""
        return next((self.tree / ".venv").glob("lib/python3.*/site-packages"))

    def set_up(self, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
        """Run ``python -m launch.setup`` with pip's settings for the index."""
        home = self.index.parent
        pip = {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(self.index), "PIP_CONFIG_FILE": str(home / "pip.conf")}
        pip |= {"XDG_CONFIG_DIRS": str(home), "HOME": str(home), "PIP_NO_CACHE_DIR": "1"}
        ours = distribution("pip")
        copied = ":".join(str(ours.locate_file(name)) for name in ("pip", f"pip-{ours.version}.dist-info"))
        command = [sys.executable, "-c", _SET_UP_WITH_COPIED_PIP, copied, *arguments]
        environment = {**os.environ, **pip, **variables}
        environment["PATH"] = f"{home / 'bin'}{os.pathsep}{environment['PATH']}"
        return run_program(*command, cwd=self.tree, env=environment)

    def installed(self) -> set[str]:
        """Return name and version of each package of the environment, without pip and its like."""
        found = {f"{each.name}=={each.version}" for each in distributions(path=[str(self.site_packages)])}
        return found - {f"pip=={distribution('pip').version}"}


def make_toy_checkout(tree: Path, index: Path) -> ToyCheckout:
    """Give a checkout a small pyproject.toml, lock files and an index, and a pip.conf that leads pip elsewhere."""
    index.mkdir(parents=True)
    (tree / "pyproject.toml").write_text(_PROJECT, encoding="utf-8")
    (tree / "toy_backend.py").write_text(f"METADATA = {_metadata()!r}\n{_BACKEND}", encoding="utf-8")
    for name in _ASKED_BY_PIP:
        write_program(index.parent / "bin" / name, "")
    tools = {name: _copy_installed(index, name) for name in ("packaging", "setuptools", "wheel")}
    locks = {"": _MXNET, "-py312": _MXNET, "-torch": _TORCH, "-torch-cuda12": _CUDA12}
    for lock, packages in locks.items():
        blocks = []
        for line in _COMMON + packages:
            pin, parents = line.split(" <- ")
            name, version = pin.split("==")
            needs = [each.split("==")[0] for each in _COMMON + packages if re.search(rf"<-.* {name}\b", each)]
            blocks.append(_block(pin, _make_wheel(index, name, version, needs), parents.split()))
        blocks += [_block(f"{name}=={distribution(name).version}", wheel, ["wheel"]) for name, wheel in tools.items()]
        (tree / f"requirements{lock}.lock").write_text("".join(blocks), encoding="utf-8")
    _make_wheel(index, "torch", "2.13.0+cpu", ["sympy"])
    _make_horovod(index, tree / "launch" / "setup" / "pins.py")
    (index.parent / "pip.conf").write_text(
        "[install]\nuser = true\nprefix = /no/such\nroot = /no/such\ntarget = /no/such\n", encoding="utf-8"
    )
    return ToyCheckout(tree, index)


def _metadata() -> str:
    """Return the metadata of the program's own wheel."""
    lines = ["Metadata-Version: 2.1", "Name: resnet-records", "Version: 0.1.0"]
    for extra, needs in _NEEDS.items():
        lines += [f"Provides-Extra: {extra}"] * bool(extra)
        for each in needs:
            name, _, marker = each.partition("; ")
            conditions = [*([f"({marker})"] if marker else []), *([f"extra == '{extra}'"] if extra else [])]
            lines.append(f"Requires-Dist: {'; '.join([name, *([' and '.join(conditions)] if conditions else [])])}")
    return "\n".join([*lines, ""])


def _block(pin: str, wheel: Path, parents: Sequence[str]) -> str:
    """Return a package of a lock file as uv writes it."""
    via = f" {parents[0]}" if len(parents) == 1 else "".join(f"\n    #   {each}" for each in parents)
    return f"{pin} \\\n    --hash=sha256:{'0' * 64} \\\n    --hash=sha256:{_digest(wheel)}\n    # via{via}\n"


def _make_horovod(index: Path, pins: Path) -> None:
    """Write the sources of a Horovod that compiles nothing, and let a checkout's pin be that of their digest."""
    path = index / "horovod-0.28.1.tar.gz"
    metadata = "Metadata-Version: 2.1\nName: horovod\nVersion: 0.28.1\n"
    with tarfile.open(path, "w:gz") as archive:
        for name, text in (("setup.py", _HOROVOD_SETUP), ("PKG-INFO", metadata)):
            entry = tarfile.TarInfo(f"horovod-0.28.1/{name}")
            entry.size = len(text.encode())
            archive.addfile(entry, io.BytesIO(text.encode()))
    pins.write_text(
        re.sub(r"sha256:\w+", f"sha256:{_digest(path)}", pins.read_text(encoding="utf-8")), encoding="utf-8"
    )


def _make_wheel(index: Path, name: str, version: str, needs: Collection[str]) -> Path:
    plain = re.sub(r"[-_.]+", "_", name)
    info, path = f"{plain}-{version}.dist-info", index / f"{plain}-{version}-py3-none-any.whl"
    requires = "".join(f"Requires-Dist: {each}\n" for each in needs)
    files = {
        **_MODULES.get(name, {f"{plain.lower()}/__init__.py": ""}),
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n{requires}",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: toy\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    record = "".join(f"{file},,\n" for file in [*files, f"{info}/RECORD"])
    with zipfile.ZipFile(path, "w") as archive:
        for file, text in {**files, f"{info}/RECORD": record}.items():
            archive.writestr(zipfile.ZipInfo(file), text)
    return path


def _copy_installed(index: Path, name: str) -> Path:
    """Pack an installed package into a wheel again."""
    found = distribution(name)
    path = index / f"{name}-{found.version}-py3-none-any.whl"
    files = [each for each in found.files or [] if ".." not in each.parts and each.suffix != ".pyc"]
    with zipfile.ZipFile(path, "w") as archive:
        for each in files:
            if each.name not in ("INSTALLER", "REQUESTED", "direct_url.json"):
                archive.writestr(zipfile.ZipInfo(each.as_posix()), Path(str(each.locate())).read_bytes())
    return path


def _digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()
