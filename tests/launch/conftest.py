"""What tests of the launcher share: a checkout of its own for each test that changes one."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from configs.load import ROOT

_NEEDED = ("run.sh", "pyproject.toml", "requirements.lock", "requirements-torch.lock", "configs", "launch")


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """Make a checkout without an environment, of the files that set-up reads."""
    folder = tmp_path / "checkout"
    folder.mkdir()
    for name in _NEEDED:
        source = ROOT / name
        if source.is_dir():
            shutil.copytree(source, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy2(source, folder / name)
    return folder
