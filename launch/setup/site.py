"""The site's own MXNet: a Python that has MXNet, Horovod and DALI already, as NVIDIA's containers do.

Set-up makes an environment that also sees the packages of that Python, its *base*. Nothing of the base is changed.
"""

import json
import re
import shutil
import subprocess
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

from configs.errors import UserError
from launch.setup.layout import CURRENT, ROOT, Engine, Environment, Kind, Variant

ENGINES_OF_BASES: tuple[Engine, ...] = ("mxnet",)
"""The engines that set-up takes from a base."""

_NEEDED = {"mxnet": "MXNet", "horovod": "Horovod", "nvidia.dali": "DALI"}

_OLDEST = {"MXNet": (1, 9), "Horovod": (0, 28), "DALI": (1, 34)}
"""The versions with which this program was tried; older ones lack some of what it calls."""

_OLDEST_PYTHON, _NEWEST_PYTHON = (3, 10), (3, 13)
"""The versions on which this program itself runs."""

_FRAMEWORKS = re.compile(r"(mxnet|horovod|nvidia-dali|numpy)\b", re.IGNORECASE)

_QUERY_TIMEOUT_S = 300

_LACKS = f"""
import importlib.util
def lacks(name):
    try:
        return importlib.util.find_spec(name) is None
    except ModuleNotFoundError:
        return True
print(*(title for name, title in {_NEEDED!r}.items() if lacks(name)), sep=", ")
"""

_DESCRIBE = """
import importlib, importlib.util, json, os, sys
from importlib.metadata import distributions
found = {"python": list(sys.version_info[:2]), "problems": []}
found["has_pip"] = importlib.util.find_spec("pip") is not None
found["has_ensurepip"] = importlib.util.find_spec("ensurepip") is not None
modules = {}
for title, name in (("NumPy", "numpy"), ("MXNet", "mxnet"), ("Horovod", "horovod.mxnet"), ("DALI", "nvidia.dali.fn")):
    try:
        modules[title] = importlib.import_module(name)
        module = sys.modules[name if title != "DALI" else "nvidia.dali"]
        found[title] = [getattr(module, "__version__", None) or sys.modules["horovod"].__version__, module.__file__]
    except Exception as error:
        words = (str(error).strip().splitlines() or [""])[-1]
        if "libcuda.so.1" in words:  # as in an image that is being built
            found["has_cuda"] = True
            continue
        found["problems"].append(f"{title} cannot be imported: {type(error).__name__}: {words}")
if "MXNet" in modules:
    found["has_cuda"] = bool(modules["MXNet"].runtime.Features().is_enabled("CUDA"))
if "Horovod" in modules:
    parts = ("gloo", "mpi", "nccl")
    found["parts"] = [part for part in parts if getattr(modules["Horovod"], f"{part}_built")()]
folders = [os.path.abspath(path) for path in sys.path if path.endswith(("-packages", ".egg")) or os.path.isdir(
    os.path.join(path, "mxnet")) or os.path.isdir(os.path.join(path, "horovod"))]
found["folders"] = list(dict.fromkeys(folders))
found["pins"] = sorted({f"{each.metadata['Name']}=={each.version}" for each in distributions() if each.version})
print(json.dumps(found))
"""
"""What a Python says of its packages. The names of NumPy that MXNet needs must be there already, if it is new."""


def find_base(named: str) -> str:
    """Return the interpreter that has MXNet, Horovod and DALI.

    Args:
        named: The interpreter that the user names. If empty, those on the PATH are asked.

    Raises:
        UserError: No interpreter has all three.
    """
    names = [named] if named else ["python3", "python", "python3.12", "python3.11", "python3.10"]
    lacking: dict[str, str] = {}
    for found in filter(None, map(shutil.which, names)):
        python = str(Path(found).absolute())  # It is asked in another folder.
        if Path(python).is_relative_to(CURRENT.folder):
            continue
        done = _ask(python, _LACKS)
        if done.returncode == 0 and not done.stdout.strip():
            return python
        words = (done.stderr.strip().splitlines() or ["it does not run"])[-1]
        lacking.setdefault(python, f"lacks {done.stdout.strip()}" if done.returncode == 0 else words)
    why = "; ".join(f"{python} {words}" for python, words in lacking.items()) or f"there is no {' or '.join(names)}"
    raise UserError(
        f"--system needs a Python that has MXNet, Horovod and DALI: {why}; name the interpreter "
        "(./run.sh setup --system /opt/python/bin/python), or let ./run.sh setup install its own"
    )


@lru_cache
def describe_base(python: str) -> dict[str, Any]:
    """Return what an interpreter says of its packages: versions, files, folders, parts of Horovod, problems."""
    done = _ask(python, _DESCRIBE)
    try:
        found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    except (IndexError, ValueError):
        words = (done.stderr.strip().splitlines() or [f"exit status {done.returncode}"])[-1]
        raise UserError(f"{python}: MXNet, Horovod and DALI cannot be looked at: {words}") from None
    return found


def broken_base(found: dict[str, Any]) -> list[str]:
    """Return a line for each reason why this program cannot run on the packages of a base."""
    version, problems = tuple(found["python"]), list(found["problems"])
    if not _OLDEST_PYTHON <= version <= _NEWEST_PYTHON:
        problems.append(f"it is Python {version[0]}.{version[1]}, and this program needs 3.10 to 3.13")
    for title, oldest in _OLDEST.items():
        if title in found and _number(found[title][0]) < oldest:
            problems.append(f"{title} is {found[title][0]}, and this program needs {oldest[0]}.{oldest[1]} or later")
    if "MXNet" in found and _number(found["MXNet"][0]) >= (2, 0):
        problems.append(f"MXNet is {found['MXNet'][0]}, and this program needs MXNet 1")
    wanted = "nccl" if found.get("has_cuda") else "gloo"
    if "parts" in found and wanted not in found["parts"]:
        built = " and ".join(found["parts"]) or "none of Gloo, MPI and NCCL"
        problems.append(f"Horovod was built with {built}, and this program needs {wanted} here")
    if not (found["has_pip"] or found["has_ensurepip"]):
        problems.append("it has neither pip nor ensurepip: apt-get install python3-venv")
    return problems


def variant_of(found: dict[str, Any]) -> Variant:
    """Return the variant of a base: that of its MXNet."""
    return "gpu" if found["has_cuda"] else "cpu"


def link_base(environment: Environment, folders: Sequence[str]) -> None:
    """Let an environment see the folders of packages of its base, after its own.

    Also the base of a virtual environment, of Conda or of a module's PYTHONPATH is seen so, with the lines of its
    ``.pth`` files.
    """
    lines = [f"import site; site.addsitedir({folder!r})\n" for folder in folders]
    (environment.site_packages / "zz_base.pth").write_text("".join(lines), encoding="utf-8")


def base_venv_options(found: dict[str, Any]) -> list[str]:
    """Return the options of ``python -m venv`` for a base; its own pip serves the environment, if it has one."""
    return ["--without-pip"] if found["has_pip"] else []


def find_missing(environment: Environment, *modules: str) -> bool:
    """Return whether an environment, with the packages of its base, lacks any of these modules."""
    code = f"import importlib.util as found; assert all(map(found.find_spec, {modules!r}))"
    return _ask(str(environment.python), code).returncode != 0


def not_of_base(environment: Environment, base: str) -> list[str]:
    """Return a line for each reason why an environment does not work with the packages of its base."""
    found = describe_base(str(environment.python))
    problems = broken_base(found)
    own = [
        title for title in ("NumPy", *_OLDEST) if Path(found.get(title, ["", ""])[1]).is_relative_to(environment.folder)
    ]
    return problems + [f"{title} is not that of {base}" for title in own]


def keep_frameworks(pins: Path) -> Path:
    """Write the constraints on MXNet, Horovod, DALI and NumPy alone; return the file."""
    lines = [line for line in pins.read_text(encoding="utf-8").splitlines() if _FRAMEWORKS.match(line)]
    few = pins.with_name("base-frameworks.txt")
    few.write_text("\n".join([*lines, ""]), encoding="utf-8")
    return few


def pins_of_base(found: dict[str, Any], kind: Kind) -> str:
    """Return pip's constraints under which nothing that the base has is installed again."""
    lines = [pin for pin in found["pins"] if not pin.lower().startswith("resnet-records==")]
    return "\n".join([f"# the packages of {kind.base}", *lines, ""])


def _ask(python: str, code: str) -> subprocess.CompletedProcess[str]:
    """Run code in another Python, with the user's variables: a module's PYTHONPATH may lead to the packages."""
    command = [python, "-c", code]
    try:
        return subprocess.run(
            command, cwd=ROOT.anchor, capture_output=True, text=True, timeout=_QUERY_TIMEOUT_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return subprocess.CompletedProcess(command, 1, "", str(error))


def _number(version: str) -> tuple[int, ...]:
    """Return the first two numbers of a version."""
    return tuple(int("".join(filter(str.isdigit, part)) or 0) for part in version.split(".")[:2])
