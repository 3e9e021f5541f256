"""Links in an environment: NVIDIA's wheels have libraries in other folders than MXNet and Horovod look in."""

import os
from pathlib import Path


def link(path: Path, target: Path) -> None:
    """Make ``path`` a link to ``target``: a relative one, because the environment is renamed when it is complete."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.unlink(missing_ok=True)
    path.symlink_to(os.path.relpath(target, path.parent))


def link_nvidia_libraries(packages: Path) -> bool:
    """Link NVIDIA's libraries beside libmxnet.so, which looks for them in its own folder only.

    Returns:
        Whether ``packages`` has any of NVIDIA's libraries.
    """
    libraries = sorted(packages.glob("nvidia/*/lib/lib*.so*"))
    for library in libraries:
        link(packages / "mxnet" / library.name, library)
    return bool(libraries)
