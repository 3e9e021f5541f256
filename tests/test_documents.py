"""The documents tell of what is there: links, files, modules, verbs, keys, and what a run leaves in its folder."""

import ast
import re
from functools import cache
from pathlib import Path

import pytest

from configs.json_schema import list_blocks
from configs.load import FOLDERS, ROOT
from tests.runs import FinishedRun

PACKAGES = ("configs", "data", "launch", "logs", "train")
PAGES = sorted(
    path.relative_to(ROOT).as_posix() for path in (*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"))
    if path.name != "CHANGELOG.md"
)  # fmt: skip


def _read(page: str) -> str:
    """Return the text of a page without its code blocks."""
    return re.sub(r"^```.*?^```$", "", (ROOT / page).read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)


def _first_cells(page: str, heading: str) -> list[str]:
    """Return what stands in backticks in the first column of the tables below a heading."""
    below = _read(page).partition(f"\n{heading}\n")[2]
    rows = re.findall(r"^\| (`.*?) \|", re.split(r"^## ", below, flags=re.MULTILINE)[0], re.MULTILINE)
    return [word for row in rows for word in re.findall(r"`([^`]+)`", row)]


def _anchors(path: Path) -> set[str]:
    """Return the anchors that GitHub makes of a page's headings."""
    headings = re.findall(r"^#+ (.*)$", path.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES)
def test_every_link_leads_to_a_file_and_a_heading(page: str) -> None:
    broken = []
    for target in re.findall(r"\]\(([^)\s]+)\)", _read(page)):
        file, _, anchor = target.partition("#")
        path = (ROOT / page).parent / file if file else ROOT / page
        if "://" not in target and not (path.exists() and (not anchor or anchor in _anchors(path))):
            broken.append(target)
    assert broken == []


@cache
def _names_in(module: Path) -> dict[str, set[str]]:
    """Return the names that a module defines or imports, each with those that a class of that name defines."""
    names: dict[str, set[str]] = {}
    for node in ast.parse(module.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.ClassDef):
            inner = {each.name for each in node.body if isinstance(each, ast.FunctionDef | ast.ClassDef)}
            fields = {
                each.target.id for each in node.body if isinstance(each, ast.AnnAssign) if hasattr(each.target, "id")
            }
            names[node.name] = inner | fields
        elif isinstance(node, ast.FunctionDef):
            names[node.name] = set()
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            names |= {target.id: set() for target in targets if isinstance(target, ast.Name)}
        elif isinstance(node, ast.ImportFrom):
            names |= {alias.asname or alias.name: set() for alias in node.names}
    return names


def _exists(dotted: str) -> bool:
    """Return whether a dotted name is a package, a module, or a name in a module of this program."""
    parts = dotted.split(".")
    for end in range(len(parts), 0, -1):
        stem = ROOT.joinpath(*parts[:end])
        module = stem.with_suffix(".py") if stem.with_suffix(".py").is_file() else stem / "__init__.py"
        if not (module.is_file() or stem.is_dir()):
            continue
        rest = parts[end:]
        known = _names_in(module) if module.is_file() else {}
        return not rest or (rest[0] in known and all(name in known[rest[0]] for name in rest[1:]))
    return False


def _keys() -> set[str]:
    blocks = [block for kind in FOLDERS for block in list_blocks(kind)]
    return {block.path for block in blocks} | {key.path for block in blocks for key in block.keys}


@pytest.mark.parametrize("page", PAGES)
def test_every_module_function_file_and_key_in_backticks_exists(page: str) -> None:
    keys, unknown = _keys(), []
    for word in re.findall(r"`([^`\n]+)`", _read(page)):
        if re.fullmatch(rf"({'|'.join(PACKAGES)})(\.\w+)+", word):
            known = _exists(word) or word in keys
        elif re.fullmatch(rf"({'|'.join(PACKAGES)}|tests|docs)/[\w./]+", word):
            known = (ROOT / word).exists()
        elif page.startswith("docs/") and re.fullmatch(r"[a-z_]+\.py", word):
            known = any(next((ROOT / package).rglob(word), None) for package in (*PACKAGES, "docs"))
        elif re.fullmatch(r"cluster(\.[a-z_]+)+", word):
            known = word in keys
        else:
            continue
        unknown += [] if known else [word]
    assert unknown == []


def _verbs() -> list[str]:
    return re.findall(r'^  "(\w+)\|', (ROOT / "run.sh").read_text(encoding="utf-8"), re.MULTILINE)


def test_the_readme_names_every_verb_once_and_can_be_read_in_one_sitting() -> None:
    commands = [word.split()[1] for word in _first_cells("README.md", "## The commands") if word.startswith("./run.sh")]
    assert sorted(commands) == sorted(_verbs())
    assert len((ROOT / "README.md").read_text(encoding="utf-8").splitlines()) <= 150


@pytest.mark.parametrize("page", PAGES)
def test_every_command_has_a_verb_of_run_sh_and_keys_that_exist(page: str) -> None:
    text, keys = (ROOT / page).read_text(encoding="utf-8"), _keys()
    known = {*_verbs(), "help", "VERB"}
    assert set(re.findall(r"\./run\.sh ([a-z]\w*)", text)) - known == set()
    declared = re.findall(r"^    (\w+): \w+ = ", text, re.MULTILINE)  # by an example of the page
    unknown = [key for key in re.findall(r"--set ([a-z_.]+)=", text) if key not in keys]
    assert [key for key in unknown if key.split(".")[-1] not in declared] == []


@pytest.mark.ranks
def test_the_table_of_a_run_folder_is_what_a_run_leaves(short_run: FinishedRun) -> None:
    assert sorted(_first_cells("README.md", "## What you see")) == sorted(
        path.name for path in short_run.folder.iterdir()
    )
