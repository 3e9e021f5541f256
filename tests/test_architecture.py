"""docs/architecture.md names every source file exactly once, and nothing that does not exist."""

import re
from collections import Counter

import pytest

from tests.documents import PACKAGES, broken_links, read, section, source_files, table_rows, unknown_names

PAGE = "docs/architecture.md"

OTHER_WORDS = frozenset(
    {
        "__init__.py",
        "cluster.",  # the prefix of a cluster file's keys
        "local",  # a launcher
        "cpu",
        "gpu",
        "test",  # the extras of pyproject.toml
        "run_start",  # an event of the MLPerf log
        "checks",
        "run",  # files of .ci/, which stand in the row of their folder
        "bench_NAME.py",
        "failure_RANK.json",
        *("epoch", "overlap", "peers", "startup", "step"),  # benches
    }
)


def inventory() -> Counter[str]:
    """Return how often the page lists each source file; a folder's heading stands for its ``__init__.py``."""
    listed: Counter[str] = Counter()
    for folder, text in re.findall(r"^### (\S+)\n(.*?)(?=^### |\Z)", section(read(PAGE), "## The files"), re.M | re.S):
        listed[f"{folder}/__init__.py"] += 1
        for name, *_ in table_rows(text):
            listed[f"{folder}/{name.strip('`')}"] += 1
    return listed


def test_every_source_file_is_listed_once() -> None:
    wanted = {name for name in source_files() if name.startswith(PACKAGES) and name.endswith((".py", ".sh"))}
    listed = inventory()
    assert {name: count for name, count in listed.items() if count > 1} == {}, "listed twice"
    assert sorted(wanted - set(listed)) == [], "missing: give each a row in docs/architecture.md"
    assert sorted(set(listed) - wanted) == [], "listed, but not there"


def test_every_file_has_words() -> None:
    rows = table_rows(section(read(PAGE), "## The files"))
    assert [row[0] for row in rows if len(row) != 2 or len(row[1]) < 3] == []


def test_every_link_leads_somewhere() -> None:
    assert broken_links(PAGE) == []


def test_every_name_in_backticks_exists() -> None:
    text = read(PAGE).partition("## The files")[0]
    assert unknown_names(PAGE, OTHER_WORDS | {name.rpartition("/")[2] for name in inventory()}) == []
    assert len(re.findall(r"^\d+\. ", text, re.MULTILINE)) > 40, "the ways through the program are numbered lists"


def test_a_newcomers_questions_are_answered() -> None:
    questions = [row[0] for row in table_rows(section(read(PAGE), "## Where do I find it?"))]
    assert len(questions) >= 25
    assert all(question.endswith("?") for question in questions)


@pytest.mark.parametrize("name", ["train.loop.no_such_function", "train/no_such_file.py", "cluster.no_such_key"])
def test_a_name_that_does_not_exist_is_found(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.documents.read", lambda _: f"1. See `{name}`.")
    assert unknown_names(PAGE) == [name]
