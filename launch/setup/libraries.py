"""Check that every library that MXNet, Horovod and PyTorch link is found, except the driver's; needs no GPU.

``python -m launch.setup.libraries [SITE_PACKAGES]`` lists the missing ones. The Dockerfile runs it, so that no image is
made without them.
"""

import os
import re
import subprocess
import sys
from pathlib import Path

from launch.setup.layout import CURRENT

_DRIVER = {"libcuda.so.1", "libnvidia-ml.so.1"}
"""Libraries that come with the driver, which a container runtime mounts into the image."""


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


def missing_libraries(packages: Path) -> list[str]:
    """Return a line for each library that the loader does not find.

    A library that libmxnet.so has loaded counts as found for Horovod, which is loaded into the same process.

    Args:
        packages: The site-packages folder with ``mxnet`` and, once it is compiled, ``horovod``, or with ``torch``.
    """
    lines: list[str] = []
    for group in (("mxnet/libmxnet.so", "horovod/mxnet/mpi_lib*.so"), ("torch/lib/libtorch_python.so",)):
        loaded: set[str] = set()
        for library in (path for pattern in group for path in sorted(packages.glob(pattern))):
            found, missing = _linked(library)
            lines += [f"{library.name}: {name}" for name in sorted(missing - _DRIVER - loaded)]
            loaded |= found
    return lines


def _linked(library: Path) -> tuple[set[str], set[str]]:
    """Return the names of all libraries that ``library`` links, directly or not: those found, and those not found."""
    answer = subprocess.run(["ldd", library], capture_output=True, text=True, check=True)
    rows = re.findall(r"^\s*(\S+) => (not found|\S+)", answer.stdout, re.MULTILINE)
    missing = {name for name, place in rows if place == "not found"}
    return {name for name, _ in rows} - missing, missing


def main() -> int:
    """Print the missing libraries; return 1 if there are any."""
    packages = Path(sys.argv[1]) if sys.argv[1:] else CURRENT.site_packages
    lines = missing_libraries(packages)
    sys.stdout.write("".join(f"not found: {line}\n" for line in lines) or "every library is found\n")
    return 1 if lines else 0


if __name__ == "__main__":
    sys.exit(main())
