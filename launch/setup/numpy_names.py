"""The names of NumPy that MXNet 1.9.1 uses and that NumPy 1.24 removed, put back when MXNet is imported.

Set-up copies this file into environments of Python 3.12, which has no older NumPy; a ``.pth`` file calls it whenever
the interpreter starts. So Horovod's build and every program that imports MXNet has the names.
"""

import sys

_NAMES = {"bool": bool, "int": int, "float": float, "complex": complex, "object": object, "str": str}


def watch_for_mxnet() -> None:
    """Give NumPy the names as soon as MXNet is about to be imported."""
    sys.meta_path.insert(0, _BeforeMXNet())


class _BeforeMXNet:
    """A finder of modules that finds none, and acts once: before MXNet is imported."""

    def find_spec(self, name: str, _path: object, _target: object = None) -> None:
        if name == "mxnet":
            sys.meta_path.remove(self)
            import numpy  # noqa: PLC0415 (programs without MXNet may not need it)

            for each, builtin in _NAMES.items():
                vars(numpy).setdefault(each, builtin)
