"""A site's own libraries: a Python that has PyTorch, or MXNet, Horovod and DALI, as NVIDIA's containers do.

Set-up makes an environment that also sees the packages of that Python, its *base*. Nothing of the base is changed.
"""

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Collection, Mapping, Sequence
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

from configs.errors import UserError
from launch.setup.child import StageError
from launch.setup.gpu import version_numbers
from launch.setup.layout import CURRENT, EXTRAS, NEWEST_PYTHON, PROJECT, ROOT, Engine, Kind
from launch.setup.probes import libraries
from launch.setup.probes.libraries import IMPORTED, REQUIRED
from launch.setup.state import digest
from launch.setup.work import GB, Stage, Work

_OLDEST: Mapping[str, tuple[int, int]] = {"MXNet": (1, 9), "Horovod": (0, 28), "PyTorch": (2, 4), "DALI": (1, 34)}
"""Library -> the oldest version with which this program was tried; older ones lack some of what it calls."""

_BUILT_FOR = re.compile(r"(mxnet|horovod|torch\w*|pytorch-triton\S*|triton|nvidia-\S+|numpy)\b", re.IGNORECASE)
"""Names of the packages that are built for each other, so that pip may replace none of them."""

_READERS = ("dali12", "dali13")
"""Extras of pyproject.toml: DALI by the major version of CUDA that PyTorch was built with. On a CPU, either will do."""

_QUERY_TIMEOUT_S = 300


def choose_base(engines: Sequence[Engine], named: str) -> Kind:
    """Return the kind of an environment over an interpreter that has an engine's libraries; say what was found.

    Args:
        engines: The engines that will do, the best one first.
        named: The interpreter that the user names. If empty, those on the PATH are asked.

    Raises:
        UserError: No interpreter has all that one of the engines needs, or this program cannot use it.
    """
    names = [named] if named else ["python3", "python", *(f"python3.{minor}" for minor in range(14, 9, -1))]
    # Absolute, because it is asked in another folder.
    pythons = [str(Path(path).absolute()) for path in filter(None, map(shutil.which, names))]
    lacking: list[str] = []
    for engine in engines:
        for python in pythons:
            if Path(python).is_relative_to(CURRENT.folder):
                continue
            found = _describe(python, engine)
            if found["lacks"]:
                lacking.append(f"{python} lacks {', '.join(found['lacks'])}")
                continue
            if problems := _problems(found, engine):
                remedy = "name another interpreter, or leave --system out"
                raise UserError("\n".join(f"{python}: {problem}; {remedy}" for problem in problems))
            kind = Kind((engine,), "gpu" if found["has_cuda"] else "cpu", python)
            versions = ", ".join(f"{title} {found[title][0]}" for title in IMPORTED[engine] if title in found)
            sys.stderr.write(f"setup: {python} has {versions}; set-up makes the {kind.variant} environment over it\n")
            return kind
    needed = ", or ".join(" and ".join(REQUIRED[engine]) for engine in engines)
    why = "; ".join(lacking) or f"there is no {' or '.join(names)}"
    raise UserError(
        f"--system needs a Python that has {needed}: {why}; name the interpreter (--system /opt/python/bin/python), or "
        "leave --system out"
    )


@lru_cache
def _describe(python: str, engine: Engine) -> dict[str, Any]:
    """Return what an interpreter says of its packages: versions, files, folders, what was built in, what it lacks.

    It has the user's variables, because a module's PYTHONPATH may lead to the packages, and writes no compiled modules.
    """
    variables = {name: value for name, value in os.environ.items() if name != "PYTHONHOME"}
    try:
        done = subprocess.run(
            [python, "-B", libraries.__file__, engine], cwd=ROOT.anchor, env=variables, capture_output=True, text=True,
            timeout=_QUERY_TIMEOUT_S, check=False,
        )  # fmt: skip
        found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    except (OSError, subprocess.TimeoutExpired) as error:
        return {"lacks": [f"a working interpreter ({error})"]}
    except (IndexError, ValueError):
        last = (done.stderr.strip().splitlines() or [f"exit status {done.returncode}"])[-1]
        return {"lacks": [f"a working interpreter ({last})"]}
    return found


def _problems(found: dict[str, Any], engine: Engine) -> list[str]:
    """Return a line for each reason why this program cannot run on the packages of a base."""
    version, problems = found["python"], list(found["problems"])
    newest = max(NEWEST_PYTHON.values())
    if not (3, 10) <= tuple(version) <= newest:
        problems.append(f"it is Python {version[0]}.{version[1]}, and this program needs 3.10 to 3.{newest[1]}")
    for title, oldest in _OLDEST.items():
        if title in found and (version_numbers(found[title][0]) or (0, 0)) < oldest:
            problems.append(f"{title} is {found[title][0]}, and this program needs {oldest[0]}.{oldest[1]} or later")
    wanted = "nccl" if found.get("has_cuda") else "gloo"
    if "parts" in found and wanted not in found["parts"]:
        built = " and ".join(found["parts"]) or "none of Gloo, MPI and NCCL"
        library = "Horovod" if engine == "mxnet" else "torch.distributed"
        problems.append(f"{library} was built with {built}, and this program needs {wanted} here")
    return problems


def stages_over_base(kind: Kind, extras: Collection[str]) -> list[Stage]:
    """Return the stages of an environment over `Kind.base`, with extras (`EXTRAS`)."""
    (engine,), project = kind.engines, digest(PROJECT.read_text(encoding="utf-8"))
    title = f"virtual environment that sees the packages of {kind.base}"
    made_for = digest(kind.base, ROOT, kind.variant, *([engine] if engine != "mxnet" else []))
    packages = partial(_install_beside_base, extra="onnx" if engine == "mxnet" else "")  # MXNet's exporter, too
    optional = Stage("optional", "DALI and ONNX, where they are missing and can be had", project, GB, _add_optional)
    return [
        Stage("venv", title, made_for, GB // 10, _make_venv_over_base),
        Stage("packages", "packages that are missing there", project, GB, packages),
        *([optional] if engine == "torch" else []),
        *(
            Stage(extra, EXTRAS[extra], project, GB // 3, partial(_install_beside_base, extra=extra))
            for extra in sorted(set(extras))
        ),
    ]


def _make_venv_over_base(work: Work) -> None:
    """Make an environment that sees the packages of its base after its own, and keep their versions for pip.

    Also the base of a virtual environment, of Conda or of a module's PYTHONPATH is seen so, with the lines of its
    ``.pth`` files. Where this user could write to the base's folders, Python would compile modules into them: then the
    compiled modules have a place in the environment.
    """
    found, environment = _describe(work.kind.base, *work.kind.engines), work.environment
    # The base's own pip serves the environment, if it has one.
    options = ["--without-pip"] if found["has_pip"] else []
    work.run([work.kind.base, "-B", "-m", "venv", *options, environment.folder], "venv")
    lines = [f"import site; site.addsitedir({folder!r})\n" for folder in found["folders"]]
    if any(os.access(folder, os.W_OK) for folder in found["folders"]):
        lines.insert(0, "import os, sys; sys.pycache_prefix = os.path.join(sys.prefix, 'compiled')\n")
    (environment.site_packages / "zz_base.pth").write_text("".join(lines), encoding="utf-8")
    pins = [pin for pin in found["pins"] if not pin.lower().startswith("resnet-records==")]
    built = filter(_BUILT_FOR.match, pins)
    for name, kept in (("base", pins), ("base-frameworks", built)):
        text = "\n".join([f"# the packages of {work.kind.base}", *kept, ""])
        (environment.folder / f"{name}.txt").write_text(text, encoding="utf-8")


def _install_beside_base(work: Work, extra: str) -> None:
    """Install the packages of an extra that the base lacks or has in a version that this program cannot use.

    All others stay those of the base, with their versions. If pip finds no such choice, only those stay that the
    engine's libraries are built for.

    Raises:
        StageError: pip found no such choice, or put a library in the place of the base's own.
    """
    environment, base, (engine,) = work.environment, work.kind.base, work.kind.engines
    work.pip_install(["setuptools>=65", "wheel"], "tools")
    project, log = ["--editable", f"{ROOT}[{extra}]" if extra else str(ROOT), "--constraint"], extra or "packages"
    try:
        work.pip_install([*project, environment.folder / "base.txt"], log)
    except StageError:
        work.pip_install([*project, environment.folder / "base-frameworks.txt"], log)
    _describe.cache_clear()
    found = _describe(str(environment.python), engine)
    problems = [f"it lacks {', '.join(found['lacks'])}"] if found["lacks"] else _problems(found, engine)
    for title in ("NumPy", *REQUIRED[engine]):
        if title in _describe(base, engine) and Path(found.get(title, ["", ""])[1]).is_relative_to(environment.folder):
            problems.append(f"{title} is not that of {base}")
    if problems:
        raise StageError(f"{'; '.join(problems)}\n       all of the output: {environment.log(log)}")


def _add_optional(work: Work) -> None:
    """Install what PyTorch's environment needs for images and for ONNX, or say what is left undone without it."""
    found = _describe(work.kind.base, "torch")
    # A PyTorch that no driver could load yet tells no version.
    version = found.get("cuda") or ("" if found["has_cuda"] else "13")
    reader = f"dali{version.partition('.')[0]}"
    if "DALI" not in found:
        loss = "data sets of images are refused, and --set data.source=synthetic trains"
        if reader in _READERS:
            _try_extra(work, reader, f"without DALI {loss}")
        else:
            sys.stderr.write(f"\nsetup: DALI has no build for this PyTorch; without it {loss}\n")
    _try_extra(work, "exporter", "export writes no ONNX file")


def _try_extra(work: Work, extra: str, loss: str) -> None:
    try:
        _install_beside_base(work, extra)
    except StageError as error:
        reason = str(error).partition("\n")[0]
        sys.stderr.write(f"\nwarning: {loss}: {reason}; to try again: rm -r .venv and this set-up\n")
