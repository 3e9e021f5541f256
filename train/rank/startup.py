"""Start-up: quick imports of MXNet and DALI, and the ledger: which phase ran when, what ran side by side."""

from __future__ import annotations

import gc
import inspect
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from types import ModuleType
from typing import Any

__all__ = ["Ledger", "dali_without_manual", "import_mxnet", "process_age_s"]

_HIDDEN = (
    "sklearn", "scipy", "onnx", "setuptools",
    *(f"mxnet.{kind}.gen_{name}" for kind in ("ndarray", "symbol")
      for name in ("op", "_internal", "contrib", "image", "linalg", "random", "sparse")),
)  # fmt: skip
"""What MXNet imports where it is there and a run does not need: for a base class of its old model, its test tools,
quantization, ONNX, one comparison of versions, and bodiless twins of its operators, which it replaces at once."""

_DOWNLOADS = "requests"
"""What MXNet downloads by, and cannot be imported without; an empty module will do."""


def import_mxnet() -> None:
    """Import MXNet, if it is not yet, without what a run does not need.

    That is the packages which it takes along only where they are installed, and the code of its 2,500 operators, which
    it writes and compiles at import, here at an operator's first call. Such an import takes 0.24 s of processor time,
    a plain one 2.1 s. What it made is never garbage, so that no collection, neither now nor in a step, looks at it.
    """
    if "mxnet" in sys.modules:
        return
    hidden = [name for name in _HIDDEN if name not in sys.modules]
    sys.modules.update(dict.fromkeys(hidden))  # type: ignore[arg-type]  # None makes an import of it fail
    if _DOWNLOADS not in sys.modules:
        sys.modules[_DOWNLOADS] = ModuleType(_DOWNLOADS)
        hidden.append(_DOWNLOADS)
    gc.disable()
    try:
        with _amended({"mxnet.base": _defer_operators}):
            import mxnet  # noqa: F401, PLC0415
    finally:
        gc.enable()
        gc.freeze()
        for name in hidden:
            del sys.modules[name]


@contextmanager
def dali_without_manual() -> Iterator[None]:
    """Let an import of DALI in the block write no text and no signature of its operators, more than half its time.

    Processor time of such an import: 0.12 s, of a plain one 0.28 s.
    """
    with _amended({"nvidia.dali.ops._docs": _without_texts, "nvidia.dali.ops._signatures": _without_signatures}):
        yield


def _without_texts(docs: ModuleType) -> None:
    for name in ("_docstring_generator", "_docstring_generator_call", "_docstring_generator_fn"):
        setattr(docs, name, lambda _schema_name: "")


def _without_signatures(signatures: ModuleType) -> None:
    signatures._call_signature = lambda *_, **__: inspect.Signature()  # type: ignore[attr-defined]


@contextmanager
def _amended(amend: Mapping[str, Callable[[ModuleType], None]]) -> Iterator[None]:
    """Call what is given for a module as soon as it is imported, before others can use it."""

    class Finder(MetaPathFinder):
        def find_spec(
            self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
        ) -> ModuleSpec | None:
            spec = PathFinder.find_spec(name, path, target) if name in amend else None
            if spec is not None and spec.loader is not None:
                execute = spec.loader.exec_module

                def execute_and_amend(module: ModuleType) -> None:
                    execute(module)
                    amend[name](module)

                spec.loader.exec_module = execute_and_amend  # type: ignore[method-assign]
            return spec

    finder = Finder()
    sys.meta_path.insert(0, finder)
    try:
        yield
    finally:
        sys.meta_path.remove(finder)


def _defer_operators(base: ModuleType) -> None:
    """Replace what MXNet's operators are made by."""
    for name in ("_init_op_module", "_init_np_op_module"):
        setattr(base, name, _deferring(getattr(base, name)))


def _deferring(register: Callable[..., None]) -> Callable[..., None]:
    """Let ``register`` fill MXNet's modules with stand-ins for operators instead."""

    def register_deferred(*arguments: str, **keywords: Any) -> None:
        call = inspect.signature(register).bind(*arguments, **keywords)
        call.arguments["make_op_func"] = partial(_stand_in, call.arguments["make_op_func"])
        register(*call.args, **call.kwargs)

    return register_deferred


def _stand_in(make: Callable[..., Callable[..., Any]], handle: Any, name: str, func_name: str) -> Callable[..., Any]:
    """Give a function that is what ``make`` would have made, once it is called."""
    made: list[Callable[..., Any]] = []

    def operator(*arguments: Any, **keywords: Any) -> Any:
        if not made:
            made.append(make(handle, name, func_name))
        return made[0](*arguments, **keywords)

    operator.__name__, operator.__doc__ = func_name, ""
    return operator


def process_age_s() -> float:
    """Seconds since the kernel started this process, so that the interpreter's own start is counted."""
    fields = Path("/proc/self/stat").read_text(encoding="ascii").rpartition(")")[2].split()
    started_s = int(fields[19]) / os.sysconf("SC_CLK_TCK")
    return time.clock_gettime(time.CLOCK_BOOTTIME) - started_s


class Ledger:
    """Phases of one rank's start-up, in seconds since its process started. Safe to use from several threads."""

    def __init__(self) -> None:
        age_s = process_age_s()
        self._origin = time.monotonic() - age_s
        self._started_time = time.time() - age_s
        self._rows: list[dict[str, Any]] = []
        self._lock = threading.Lock()
        self._add("interpreter", self._origin, time.monotonic())

    def _add(self, name: str, begin: float, end: float) -> None:
        row = {
            "phase": name,
            "thread": threading.current_thread().name,
            "begin_s": round(begin - self._origin, 6),
            "end_s": round(end - self._origin, 6),
        }
        with self._lock:
            self._rows.append(row)

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Enter the time a block takes, also when it raises."""
        begin = time.monotonic()
        try:
            yield
        finally:
            self._add(name, begin, time.monotonic())

    def to_json(self) -> dict[str, Any]:
        """Give the ledger.

        ``started_time`` is when the process started, in Unix seconds, ``elapsed_s`` the wall time from then to the end
        of the last phase, ``work_s`` the sum of all phases, and ``overlap_saved_s`` the time in which more than one
        phase ran, counted once for each beyond the first: what the start would have taken longer had the same phases,
        each as long, run one after another.
        """
        with self._lock:
            rows = sorted(self._rows, key=lambda row: row["begin_s"])
        work = sum(row["end_s"] - row["begin_s"] for row in rows)
        covered, reach = 0.0, 0.0
        for row in rows:
            covered += max(0.0, row["end_s"] - max(row["begin_s"], reach))
            reach = max(reach, row["end_s"])
        return {
            "started_time": self._started_time,
            "phases": rows,
            "elapsed_s": reach,
            "work_s": round(work, 6),
            "overlap_saved_s": round(work - covered, 6),
        }
