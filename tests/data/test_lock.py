"""The lock of a folder: who may hold it beside whom, and until when."""

import contextlib
from pathlib import Path

import pytest

from data.lock import locked


def open_files() -> list[Path]:
    """Return the files that this process holds open."""
    return sorted(Path("/proc/self/fd").iterdir())


@pytest.mark.parametrize(
    ("first", "second", "may_both"), [(True, True, True), (True, False, False), (False, True, False), (False,) * 3]
)
def test_only_shared_holders_hold_a_folder_together(tmp_path: Path, first: bool, second: bool, may_both: bool) -> None:
    open_before = len(open_files())
    with locked(tmp_path, shared=first):
        blocked = contextlib.nullcontext() if may_both else pytest.raises(BlockingIOError)
        with blocked, locked(tmp_path, shared=second, wait=False):
            pass
    with contextlib.suppress(KeyError), locked(tmp_path, wait=False):
        raise KeyError
    with locked(tmp_path, wait=False):
        assert len(open_files()) == open_before + 1
    assert len(open_files()) == open_before
