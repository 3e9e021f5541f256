"""Print what this Python says of an engine's libraries, as a line of JSON. The last line that is printed counts.

It may be any Python of a site, also one that this program cannot run on. The names of NumPy that MXNet needs must be
there already, if NumPy is new.
"""

from __future__ import annotations

import importlib
import json
import sys
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any

REQUIRED = {
    "mxnet": {"MXNet": "mxnet", "Horovod": "horovod", "DALI": "nvidia.dali"},
    "torch": {"PyTorch": "torch"},
}
"""Engine -> library that must be there -> its module."""

IMPORTED = {
    "mxnet": {"NumPy": "numpy", "MXNet": "mxnet", "Horovod": "horovod.mxnet", "DALI": "nvidia.dali.fn"},
    "torch": {"PyTorch": "torch.distributed", "NumPy": "numpy", "DALI": "nvidia.dali.fn"},
}
"""Engine -> library -> the module that is imported to see whether the library works, if it is there."""

_PARTS = ("gloo", "mpi", "nccl")


def main(engine: str) -> None:
    """Describe this Python: versions, files, folders, what was built in, what it lacks."""
    from importlib.metadata import distributions  # noqa: PLC0415 (20 ms, and every start of a run reads the tables)

    required = REQUIRED[engine]
    found: dict[str, Any] = {
        "python": list(sys.version_info[:2]), "problems": [], "has_pip": not _lacks("pip"),
        "lacks": [title for title, name in required.items() if _lacks(name)],
    }  # fmt: skip
    if not found["lacks"]:
        _describe_modules(_import_all(engine, found), found)
        packages = [name.partition(".")[0] for name in required.values()]
        found["folders"] = list(dict.fromkeys(str(Path(path).absolute()) for path in sys.path if _has(path, packages)))
        found["pins"] = sorted({f"{each.metadata['Name']}=={each.version}" for each in distributions() if each.version})
    sys.stdout.write(json.dumps(found) + "\n")


def _import_all(engine: str, found: dict[str, Any]) -> dict[str, ModuleType]:
    """Import the libraries that are there; note version and file of each, or why it cannot be imported."""
    modules = {}
    for title, name in IMPORTED[engine].items():
        if title not in REQUIRED[engine] and _lacks(name.rpartition(".")[0] or name):
            continue
        try:
            modules[title] = importlib.import_module(name)
            found[title] = [_version(name), modules[title].__file__]
        except Exception as error:  # noqa: BLE001 (a library may raise anything)
            words = (str(error).strip().splitlines() or [""])[-1]
            if "libcuda.so.1" in words:  # as in an image that is being built
                found["has_cuda"] = True
            else:
                found["problems"].append(f"{title} cannot be imported: {type(error).__name__}: {words}")
    return modules


def _describe_modules(modules: dict[str, Any], found: dict[str, Any]) -> None:
    """Note with which parts the libraries were built."""
    if "MXNet" in modules:
        found["has_cuda"] = bool(modules["MXNet"].runtime.Features().is_enabled("CUDA"))
    if "Horovod" in modules:
        found["parts"] = [part for part in _PARTS if getattr(modules["Horovod"], f"{part}_built")()]
    if distributed := modules.get("PyTorch"):
        version: Any = sys.modules["torch"].version
        found["cuda"], found["has_cuda"] = version.cuda, bool(version.cuda or version.hip)
        is_there = distributed.is_available()
        found["parts"] = [part for part in _PARTS if is_there and getattr(distributed, f"is_{part}_available")()]


def _lacks(name: str) -> bool:
    try:
        return find_spec(name) is None
    except ModuleNotFoundError:
        return True


def _version(name: str) -> str | None:
    """Return the version of a module, or else of the package around it."""
    while "." in name and not hasattr(sys.modules[name], "__version__"):
        name = name.rpartition(".")[0]
    return getattr(sys.modules[name], "__version__", None)


def _has(path: str, packages: list[str]) -> bool:
    """Return whether packages lie in a folder of the search path."""
    return path.endswith(("-packages", ".egg")) or any((Path(path) / name).is_dir() for name in packages)


if __name__ == "__main__":
    main(sys.argv[1])
