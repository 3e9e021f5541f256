"""Faster imports: a hook that changes a module as soon as it is imported, and the import of DALI with it."""

import inspect
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType


@contextmanager
def amended(amend: Mapping[str, Callable[[ModuleType], None]]) -> Iterator[None]:
    """Call a function on each named module as soon as the module is imported, before anybody else can use it.

    Args:
        amend: Module name -> function that changes the module.
    """

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


@contextmanager
def dali_without_manual() -> Iterator[None]:
    """Import DALI in this block without the documentation and the signatures that DALI generates for its operators.

    Generating them is more than half of the import: 0.28 s of processor time with them, 0.12 s without.
    """
    with amended({"nvidia.dali.ops._docs": _without_texts, "nvidia.dali.ops._signatures": _without_signatures}):
        yield


def _without_texts(docs: ModuleType) -> None:
    for name in ("_docstring_generator", "_docstring_generator_call", "_docstring_generator_fn"):
        setattr(docs, name, lambda _schema_name: "")


def _without_signatures(signatures: ModuleType) -> None:
    signatures._call_signature = lambda *_, **__: inspect.Signature()  # type: ignore[attr-defined]
