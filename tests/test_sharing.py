"""The processes of pytest-xdist tell all that did not pass, though they send little of what did."""

import os
from pathlib import Path

import pytest

from configs.load import ROOT
from tests.programs import python

TESTS = """
import pytest


@pytest.fixture
def before():
    raise OSError


@pytest.fixture
def after():
    yield
    raise OSError


def test_before(before): ...
def test_after(after): ...
def test_call(): raise OSError
def test_skip(): pytest.skip()
"""


@pytest.mark.ranks
def test_what_does_not_pass_is_told(tmp_path: Path) -> None:
    (tmp_path / "test_each.py").write_text(TESTS, encoding="utf-8")
    (tmp_path / "pytest.ini").write_text("[pytest]\naddopts = -p tests.sharing -p no:cacheprovider\n", encoding="utf-8")
    variables = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = python("-m", "pytest", "-n", "1", "--dist", "loadgroup", cwd=tmp_path, env=variables)
    assert "1 failed, 1 passed, 1 skipped, 2 errors" in done.stdout, done.stdout
