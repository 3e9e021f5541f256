"""Whether everything that MXNet and Horovod link is found, save the driver's own; needs no GPU.

``python -m launch.setup.libraries [SITE_PACKAGES]`` tells; an image is only made where it passes.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

from launch.setup.layout import site_packages

__all__ = ["link_nvidia_libraries", "missing_libraries"]

_DRIVER = {"libcuda.so.1", "libnvidia-ml.so.1"}
"""They come with the driver, into a container too."""


def link_nvidia_libraries(packages: Path) -> bool:
    """Link NVIDIA's libraries beside libmxnet.so, which looks for them there and nowhere else; False without any."""
    folder = packages / "mxnet"
    libraries = sorted(packages.glob("nvidia/*/lib/lib*.so*"))
    for library in libraries:
        link = folder / library.name
        link.unlink(missing_ok=True)
        link.symlink_to(os.path.relpath(library, folder))
    return bool(libraries)


def missing_libraries(packages: Path) -> list[str]:
    """Name what the loader does not find, a line a library; what MXNet brought, Horovod finds in the process.

    Args:
        packages: The site-packages folder with ``mxnet`` and, once it is compiled, ``horovod``.
    """
    mxnet, *others = [packages / "mxnet" / "libmxnet.so", *sorted(packages.glob("horovod/mxnet/mpi_lib*.so"))]
    found, missing = _linked(mxnet)
    lines = [f"{mxnet.name}: {name}" for name in sorted(missing - _DRIVER)]
    for library in others:
        lines += [f"{library.name}: {name}" for name in sorted(_linked(library)[1] - _DRIVER - found)]
    return lines


def _linked(library: Path) -> tuple[set[str], set[str]]:
    """Give what a library links, and what that links, by name: found, and not found."""
    answer = subprocess.run(["ldd", library], capture_output=True, text=True, check=True)
    rows = re.findall(r"^\s*(\S+) => (not found|\S+)", answer.stdout, re.MULTILINE)
    missing = {name for name, place in rows if place == "not found"}
    return {name for name, _ in rows} - missing, missing


def main() -> int:
    """Tell what is missing; gives 1 if anything is."""
    packages = Path(sys.argv[1]) if sys.argv[1:] else site_packages()
    lines = missing_libraries(packages)
    sys.stdout.write("".join(f"not found: {line}\n" for line in lines) or "every library is found\n")
    return 1 if lines else 0


if __name__ == "__main__":
    sys.exit(main())
