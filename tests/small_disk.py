"""A file system in memory that is as small as a test wants it."""

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest


@contextmanager
def small_disk(folder: Path, options: str) -> Iterator[None]:
    """Mount a tmpfs on an existing folder while the block runs; skip the test where that is not allowed.

    Args:
        folder: The place.
        options: Of the mount, as ``size=256k``, ``nr_inodes=3`` or ``ro``.
    """
    if os.geteuid() != 0:
        pytest.skip("mounting a small tmpfs needs root")
    if subprocess.run(["mount", "-t", "tmpfs", "-o", options, "tmpfs", folder], check=False).returncode:
        pytest.skip("this machine does not allow mounts")
    try:
        yield
    finally:
        subprocess.run(["umount", "--lazy", folder], check=True)
