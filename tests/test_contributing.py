"""CONTRIBUTING.md tells of the checks, marks and limits that there are, and the licence is the one that it names."""

import hashlib
import re

import pytest

from configs.load import ROOT
from tests.documents import broken_links, read, section, table_rows, unknown_names
from tests.limits import QUICK_S
from tests.sharing import FEW_FILES

PAGE = "CONTRIBUTING.md"
APACHE_2_SHA256 = "cfc7749b96f63bd31c3c42b5c471bf756814053e847c10f3eb003417bc523d30"
"""Digest of https://www.apache.org/licenses/LICENSE-2.0.txt."""

GENERATORS = ("launch.golden_jobs", "train.sim.test_golden", "test_usages")
"""Modules of the tests that write files anew."""

OTHER_WORDS = frozenset(
    {
        "pre-commit",
        "pre-commit install",
        "-n 0",
        "area: imperative summary",
        "utils.py",
        ".venv/bin/ruff format .",
        *(f".venv/bin/python -m tests.{module}" for module in GENERATORS),
        *("_s", "_ms", "_bytes", "_steps", "_epochs"),
    }
)


def first_column(heading: str) -> list[str]:
    return [row[0].strip("`") for row in table_rows(section(read(PAGE), heading))]


def test_the_checks_are_those_of_ci_checks() -> None:
    checks = re.findall(r"^check (.*)$", read(".ci/checks"), re.MULTILINE)
    assert [check for check in checks if not check.startswith(tuple(first_column("## The loop")))] == []
    assert len(checks) == len(first_column("## The loop"))


def test_the_marks_are_those_of_the_suite() -> None:
    text = read("pyproject.toml").partition("markers = [")[2].partition("]")[0]
    marks = re.findall(r'^ *"(\w+):', text, re.MULTILINE)
    assert sorted(first_column("## The suite")[: len(marks)]) == sorted(marks)


def test_the_limits_are_those_of_the_suite(pytestconfig: pytest.Config) -> None:
    text = read(PAGE)
    assert f"a limit of {pytestconfig.getini('timeout')} s" in text
    assert f"more than {QUICK_S:g} s of CPU time" in text
    assert f"more than {FEW_FILES} files" in text


def test_every_name_in_backticks_exists() -> None:
    assert unknown_names(PAGE, OTHER_WORDS, also_words=True) == []
    assert broken_links(PAGE) == []


def test_the_page_stays_short() -> None:
    assert 80 <= len(read(PAGE).splitlines()) <= 160


def test_the_licence_is_apache_2_to_the_letter() -> None:
    assert hashlib.sha256((ROOT / "LICENSE").read_bytes()).hexdigest() == APACHE_2_SHA256
    assert 'license = { text = "Apache-2.0" }' in read("pyproject.toml")
