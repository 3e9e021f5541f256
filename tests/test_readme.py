"""README.md is short, and its tables, its output and its picture are those of the program as it is."""

import re
from pathlib import Path

import pytest

from configs.load import FOLDERS, ROOT
from tests.documents import broken_links, code_spans, keys, read, section, table_rows, verbs
from tests.runs import FinishedRun

PAGE = "README.md"


def first_spans(heading: str, start: str = "") -> list[str]:
    """Return the names in the first column of the tables below a heading, those that begin with ``start``."""
    spans = [span for row in table_rows(section(read(PAGE), heading)) for span in code_spans(row[0])]
    return [span for span in spans if span.startswith(start)]


def test_it_can_be_read_in_one_sitting() -> None:
    assert len(read(PAGE).splitlines()) <= 150


@pytest.mark.ranks
def test_the_table_of_a_run_folder_is_what_a_run_leaves(short_run: FinishedRun) -> None:
    assert sorted(first_spans("## What you see")) == sorted(path.name for path in short_run.folder.iterdir())


def test_the_table_of_commands_has_every_verb_once() -> None:
    commands = [span.split()[1] for span in first_spans("## The commands", "./run.sh")]
    assert sorted(commands) == sorted(verbs())


def test_the_recipes_exist() -> None:
    named = [name for name in first_spans("## The commands") if not name.startswith("./run.sh")]
    assert len(named) > 5
    assert [name for name in named if not list((ROOT / "configs" / FOLDERS["recipe"]).glob(f"{name}.yaml"))] == []


def test_every_link_and_every_key_exists() -> None:
    assert broken_links(PAGE) == []
    set_keys = re.findall(r"--set ([\w.]+)=", read(PAGE))
    assert [key for key in set_keys if key not in keys() and key != "KEY"] == []


def test_the_picture_shows_the_run_of_the_output() -> None:
    (image,) = re.findall(r"!\[[^\]]*\]\(([^)]+)\)", read(PAGE))
    picture = Path(ROOT / image).read_text(encoding="utf-8")
    output = section(read(PAGE), "## What you see")
    epoch, top1 = re.findall(r"epoch (\d+)  top-1 (0\.\d{4})", output)[0]
    assert f": {float(top1):.4g} at {epoch}<" in picture
    assert f"target {re.findall(r'[(]target ([0-9.]+)[)]', output)[0]}<" in picture
    assert "prefers-color-scheme: dark" in picture
    assert re.search(r"--plot \S+", read(PAGE)), "the command that drew it"
