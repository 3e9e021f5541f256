"""A faster import of MXNet, without the parts that a run does not use."""

import gc
import inspect
import sys
from collections.abc import Callable
from functools import partial
from types import ModuleType
from typing import Any

from train.rank.imports import amended

_HIDDEN = (
    "sklearn", "scipy", "onnx",
    *(["setuptools"] if sys.version_info < (3, 12) else []),
    *(f"mxnet.{kind}.gen_{name}" for kind in ("ndarray", "symbol")
      for name in ("op", "_internal", "contrib", "image", "linalg", "random", "sparse")),
)  # fmt: skip
"""Modules that MXNet imports if they are installed, and that a run does not need.

sklearn provides a base class of MXNet's old model interface, scipy MXNet's test tools and quantization, onnx the
export, setuptools one comparison of versions. From Python 3.12 on, setuptools also provides distutils, which MXNet
needs. The ``gen_`` modules hold generated operator stubs that MXNet overwrites at import.
"""

_DOWNLOADS = "requests"
"""MXNet uses this package for downloads only, but cannot be imported without it; an empty module is enough."""


def import_mxnet() -> None:
    """Import MXNet, if it is not imported yet, without the parts that a run does not need.

    Left out are the modules of `_HIDDEN`, and the Python code of MXNet's 2,500 operators: MXNet generates and compiles
    that code at import, here it is generated at an operator's first call. This import takes 0.24 s of processor time,
    a plain one 2.1 s. The objects made here live as long as the process, so they are kept from garbage collections.

    A site's own MXNet that needs what is left out is imported as it is.
    """
    if "mxnet" in sys.modules:
        return
    try:
        _import_without_unused()
    except (ImportError, AttributeError, KeyError, TypeError):
        for name in [name for name in sys.modules if name.partition(".")[0] == "mxnet"]:
            del sys.modules[name]
        import mxnet  # noqa: F401, PLC0415


def _import_without_unused() -> None:
    hidden = [name for name in _HIDDEN if name not in sys.modules]
    sys.modules.update(dict.fromkeys(hidden))  # type: ignore[arg-type]  # None makes the import fail
    if _DOWNLOADS not in sys.modules:
        sys.modules[_DOWNLOADS] = ModuleType(_DOWNLOADS)
        hidden.append(_DOWNLOADS)
    gc.disable()
    try:
        with amended({"mxnet.base": _defer_operators}):
            import mxnet  # noqa: F401, PLC0415
    finally:
        gc.enable()
        gc.freeze()
        for name in hidden:
            del sys.modules[name]


def _defer_operators(base: ModuleType) -> None:
    """Let the two functions by which MXNet makes its operators fill its modules with stand-ins for them."""
    for name in ("_init_op_module", "_init_np_op_module"):
        setattr(base, name, _deferring(getattr(base, name)))


def _deferring(register: Callable[..., None]) -> Callable[..., None]:
    def register_deferred(*arguments: Any, **keywords: Any) -> None:
        call = inspect.signature(register).bind(*arguments, **keywords)
        call.arguments["make_op_func"] = partial(_stand_in, call.arguments["make_op_func"])
        register(*call.args, **call.kwargs)

    return register_deferred


def _stand_in(make: Callable[..., Callable[..., Any]], handle: Any, name: str, func_name: str) -> Callable[..., Any]:
    """Return a function that calls what ``make`` makes, and has it made at the first call."""
    made: list[Callable[..., Any]] = []

    def operator(*arguments: Any, **keywords: Any) -> Any:
        if not made:
            made.append(make(handle, name, func_name))
        return made[0](*arguments, **keywords)

    operator.__name__, operator.__doc__ = func_name, ""
    return operator
