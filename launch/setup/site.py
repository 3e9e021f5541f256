"""The site's own MXNet: a Python that has MXNet, Horovod and DALI already, as NVIDIA's containers do.

Set-up makes an environment that also sees the packages of that Python, its *base*. Nothing of the base is changed.
"""

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Collection
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

from configs.errors import UserError
from launch.setup.child import StageError
from launch.setup.layout import CURRENT, EXTRAS, NEWEST_PYTHON, PROJECT, ROOT, Kind
from launch.setup.state import digest
from launch.setup.work import GB, Stage, Work

_OLDEST = {"MXNet": (1, 9), "Horovod": (0, 28), "DALI": (1, 34)}
"""The versions with which this program was tried; older ones lack some of what it calls."""

_FRAMEWORKS = re.compile(r"(mxnet|horovod|nvidia-dali|numpy)\b", re.IGNORECASE)

_QUERY_TIMEOUT_S = 300

_DESCRIBE = """
import importlib, json, os, sys
from importlib.metadata import distributions
from importlib.util import find_spec
def lacks(name):
    try:
        return find_spec(name) is None
    except ModuleNotFoundError:
        return True
needed = {"MXNet": "mxnet", "Horovod": "horovod", "DALI": "nvidia.dali"}
found = {"python": list(sys.version_info[:2]), "problems": []}
found["lacks"] = [title for title, name in needed.items() if lacks(name)]
if found["lacks"]:
    print(json.dumps(found))
    sys.exit()
found["has_pip"], found["has_ensurepip"] = not lacks("pip"), not lacks("ensurepip")
found["has_tools"] = not (lacks("setuptools") or lacks("wheel"))
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


def choose_base(named: str) -> Kind:
    """Return the kind of an environment over an interpreter that has MXNet, Horovod and DALI; say what was found.

    Args:
        named: The interpreter that the user names. If empty, those on the PATH are asked.

    Raises:
        UserError: No interpreter has all three, or this program cannot use them.
    """
    names = [named] if named else ["python3", "python", "python3.12", "python3.11", "python3.10"]
    lacking: dict[str, str] = {}
    for path in filter(None, map(shutil.which, names)):
        python = str(Path(path).absolute())  # It is asked in another folder.
        if Path(python).is_relative_to(CURRENT.folder):
            continue
        found = _describe(python)
        if found["lacks"]:
            lacking.setdefault(python, f"lacks {', '.join(found['lacks'])}")
        elif problems := _problems(found):
            raise UserError("\n".join(f"{python}: {problem}" for problem in problems))
        else:
            kind = Kind(("mxnet",), "gpu" if found["has_cuda"] else "cpu", python)
            versions = ", ".join(
                f"{title} {found[title][0] if title in found else '(no driver to load it)'}"
                for title in (*_OLDEST, "NumPy")
            )
            sys.stderr.write(f"setup: {python} has {versions}; set-up makes the {kind.variant} environment over it\n")
            return kind
    why = "; ".join(f"{python} {reason}" for python, reason in lacking.items()) or f"there is no {' or '.join(names)}"
    raise UserError(
        f"--system needs a Python that has MXNet, Horovod and DALI: {why}; name the interpreter "
        "(./run.sh setup --system /opt/python/bin/python), or let ./run.sh setup install its own"
    )


@lru_cache
def _describe(python: str) -> dict[str, Any]:
    """Return what an interpreter says of its packages: versions, files, folders, parts of Horovod, what it lacks.

    It has the user's variables, because a module's PYTHONPATH may lead to the packages.
    """
    variables = {name: value for name, value in os.environ.items() if name != "PYTHONHOME"}
    try:
        done = subprocess.run(
            [python, "-c", _DESCRIBE], cwd=ROOT.anchor, env=variables, capture_output=True, text=True,
            timeout=_QUERY_TIMEOUT_S, check=False,
        )  # fmt: skip
        found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    except (OSError, subprocess.TimeoutExpired) as error:
        return {"lacks": [f"all of them: {error}"]}
    except (IndexError, ValueError):
        last = (done.stderr.strip().splitlines() or [f"exit status {done.returncode}"])[-1]
        return {"lacks": [f"all of them: {last}"]}
    return found


def _problems(found: dict[str, Any]) -> list[str]:
    """Return a line for each reason why this program cannot run on the packages of a base."""
    version, problems = found["python"], list(found["problems"])
    newest = max(NEWEST_PYTHON.values())
    if not (3, 10) <= tuple(version) <= newest:
        problems.append(f"it is Python {version[0]}.{version[1]}, and this program needs 3.10 to 3.{newest[1]}")
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


def _number(version: str) -> tuple[int, ...]:
    """Return the first two numbers of a version."""
    return tuple(int("".join(filter(str.isdigit, part)) or 0) for part in version.split(".")[:2])


def stages_over_base(kind: Kind, extras: Collection[str]) -> list[Stage]:
    """Return the stages of an environment over `Kind.base`, with extras (`EXTRAS`)."""
    project = digest(PROJECT.read_text(encoding="utf-8"))
    title = f"virtual environment that sees the packages of {kind.base}"
    packages = partial(_install_beside_base, extra="onnx")
    return [
        Stage("venv", title, digest(kind.base, ROOT, kind.variant), GB // 10, _make_venv_over_base),
        Stage("packages", "packages that are missing there", project, GB, packages),
        *(
            Stage(extra, EXTRAS[extra], project, GB // 3, partial(_install_beside_base, extra=extra))
            for extra in sorted(set(extras))
        ),
    ]


def _make_venv_over_base(work: Work) -> None:
    """Make an environment that sees the packages of its base after its own, and keep their versions for pip.

    Also the base of a virtual environment, of Conda or of a module's PYTHONPATH is seen so, with the lines of its
    ``.pth`` files.
    """
    found, environment = _describe(work.kind.base), work.environment
    # The base's own pip serves the environment, if it has one.
    options = ["--without-pip"] if found["has_pip"] else []
    work.run([work.kind.base, "-m", "venv", *options, environment.folder], "venv")
    lines = [f"import site; site.addsitedir({folder!r})\n" for folder in found["folders"]]
    (environment.site_packages / "zz_base.pth").write_text("".join(lines), encoding="utf-8")
    pins = [pin for pin in found["pins"] if not pin.lower().startswith("resnet-records==")]
    for name, kept in (("base", pins), ("base-frameworks", filter(_FRAMEWORKS.match, pins))):
        text = "\n".join([f"# the packages of {work.kind.base}", *kept, ""])
        (environment.folder / f"{name}.txt").write_text(text, encoding="utf-8")


def _install_beside_base(work: Work, extra: str) -> None:
    """Install the packages of an extra that the base lacks or has in a version that this program cannot use.

    All others stay those of the base, with their versions. If pip finds no such choice, only those stay that MXNet,
    Horovod and DALI are built for.
    """
    environment, base = work.environment, work.kind.base
    if not _describe(base)["has_tools"]:
        work.pip_install(["setuptools>=65", "wheel"], "tools")
    project = ["--editable", f"{ROOT}[{extra}]", "--constraint"]
    try:
        work.pip_install([*project, environment.folder / "base.txt"], extra)
    except StageError:
        work.pip_install([*project, environment.folder / "base-frameworks.txt"], extra)
    found = _describe(str(environment.python))
    problems = [f"it lacks {', '.join(found['lacks'])}"] if found["lacks"] else _problems(found)
    for title in ("NumPy", *_OLDEST):
        if Path(found.get(title, ["", ""])[1]).is_relative_to(environment.folder):
            problems.append(f"{title} is not that of {base}")
    if problems:
        raise StageError(f"{'; '.join(problems)}\n       all of the output: {environment.log(extra)}")
