"""The processes of pytest-xdist begin with the longest tests, and tell all that did not pass, not all that did."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from configs.load import ROOT

TESTS = """
import pytest

pytestmark = pytest.mark.xdist_group("each")


@pytest.fixture
def before():
    raise OSError


@pytest.fixture
def after():
    yield
    raise OSError


@pytest.mark.parametrize("number", range(9))
def test_quick(number): ...


def test_before(before): ...
def test_after(after): ...
def test_call(): raise OSError
def test_skip(): pytest.skip()
"""

LONG = "import pytest\n\n@pytest.mark.slow\ndef test_long(): ...\n"
SETTINGS = "[pytest]\naddopts = -p no:cacheprovider\nmarkers = slow: takes long\n"
SHARING = 'pytest_plugins = ["tests.sharing"]\n'


@pytest.mark.ranks
def test_long_tests_come_before_large_groups_and_what_does_not_pass_is_told(tmp_path: Path) -> None:
    files = {"conftest.py": SHARING, "test_each.py": TESTS, "test_long.py": LONG, "pytest.ini": SETTINGS}
    for name, text in files.items():
        (tmp_path / name).write_text(text, encoding="utf-8")
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-n", "1", "-v"],
        cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(ROOT)}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert "1 failed, 11 passed, 1 skipped, 2 errors" in done.stdout, done.stdout
    assert done.stdout.index("PASSED test_long.py") < done.stdout.index(" test_each.py"), done.stdout
