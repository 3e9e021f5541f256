"""Observes in which order a writer syncs and renames files: after a power failure, a name without its bytes is worse
than no name."""

import os
from pathlib import Path
from typing import Any

import pytest


class DiskOrder:
    """What reached the disk while the test's ``monkeypatch`` lasts; every call still does what it did.

    Attributes:
        synced: Inode -> size at its last fsync.
        named: (final path, inode, size), in the order of the renames.
        is_named_on_disk: Final path -> whether its folder was synced after the rename.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.synced: dict[int, int] = {}
        self.named: list[tuple[Path, int, int]] = []
        self.is_named_on_disk: dict[Path, bool] = {}
        real_sync, real_replace, real_rename = os.fsync, Path.replace, Path.rename

        def sync(descriptor: int) -> None:
            real_sync(descriptor)
            state = os.fstat(descriptor)
            self.synced[state.st_ino] = state.st_size
            for path in self.is_named_on_disk:
                if path.parent.exists() and path.parent.stat().st_ino == state.st_ino:
                    self.is_named_on_disk[path] = True

        def named(real: Any) -> Any:
            def move(path: Path, target: Path) -> Path:
                for file in [each for each in (path, *path.rglob("*")) if each.is_file()]:
                    self.named.append((file, file.stat().st_ino, file.stat().st_size))
                self.is_named_on_disk[target] = False
                moved: Path = real(path, target)
                return moved

            return move

        monkeypatch.setattr(os, "fsync", sync)
        monkeypatch.setattr(Path, "replace", named(real_replace))
        monkeypatch.setattr(Path, "rename", named(real_rename))

    def unsafe(self) -> list[str]:
        """Return the files that got a name before all of their bytes were on the disk."""
        return [path.name for path, inode, size in self.named if self.synced.get(inode) != size]
