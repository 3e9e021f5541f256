"""What the tests of README.md, CONTRIBUTING.md and docs/architecture.md share: tables, links, and names in backticks.

A name in backticks is a promise to the reader, so every one must be found: as a file, a function, a key, a verb of
run.sh, or a word of the source.
"""

import ast
import re
import subprocess
from functools import cache, lru_cache
from pathlib import Path

from configs.json_schema import list_blocks
from configs.load import FOLDERS, ROOT

PACKAGES = ("configs", "data", "launch", "logs", "train")

_LINK_OR_CODE = re.compile(r"\[(?:[^\]`]|`[^`]*`)*\]\(([^)]+)\)|`([^`]+)`")
_NEW_BLOCK = re.compile(r"\d+\. |- |\||$")
_FILE_OF_A_RUN = re.compile(r"\.(json|jsonl|txt|yaml|csv)$")


def read(name: str) -> str:
    """Return the text of a document, ``name`` being its path in the repository."""
    return (ROOT / name).read_text(encoding="utf-8")


def section(text: str, heading: str) -> str:
    """Return what stands below a heading, up to the next heading of the same or a higher level."""
    level = len(heading) - len(heading.lstrip("#"))
    found = re.search(rf"^{re.escape(heading)}$(.*?)(?=^#{{1,{level}}} |\Z)", text, re.MULTILINE | re.DOTALL)
    assert found is not None, f"no heading {heading!r}"
    return found[1]


def table_rows(text: str) -> list[list[str]]:
    """Return the cells of every row of the tables in a text, without heads and rulers."""
    rows = []
    for table in re.findall(r"(?:^\|.*\n?)+", text, re.MULTILINE):
        rows += [[cell.strip() for cell in line.strip("| ").split(" | ")] for line in table.splitlines()[2:]]
    return rows


def code_spans(text: str) -> list[str]:
    """Return what stands in backticks, in order; code blocks are left out."""
    return re.findall(r"`([^`\n]+)`", without_code_blocks(text))


def without_code_blocks(text: str) -> str:
    return re.sub(r"^```.*?^```$", "", text, flags=re.MULTILINE | re.DOTALL)


@lru_cache
def source_files() -> frozenset[str]:
    """Return the files of the repository, also those that are not committed yet."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.splitlines()
    return frozenset(name for name in listed if (ROOT / name).is_file())


@lru_cache
def verbs() -> frozenset[str]:
    """Return the verbs of run.sh."""
    return frozenset(re.findall(r'^  "(\w+)\|', read("run.sh"), re.MULTILINE))


@lru_cache
def keys() -> frozenset[str]:
    """Return the paths of all keys and blocks of recipes, cluster files and studies."""
    blocks = [block for kind in FOLDERS for block in list_blocks(kind)]
    return frozenset({block.path for block in blocks} | {key.path for block in blocks for key in block.keys})


@lru_cache
def _source_text() -> str:
    """Return the text of all source files and of what is checked beside them."""
    names = [name for name in source_files() if name.startswith(PACKAGES) or name in ("run.sh", "pyproject.toml")]
    names += [".ci/checks", ".ci/run", *(name for name in source_files() if name.startswith("tests/"))]
    return "\n".join(read(name) for name in names if name.endswith((".py", ".sh", ".toml")) or ".ci" in name)


def broken_links(name: str) -> list[str]:
    """Return the links of a document that lead to no file and no heading of the repository."""
    document = ROOT / name
    broken = []
    for target in re.findall(r"\]\(([^)\s]+)\)", without_code_blocks(read(name))):
        if "://" in target:
            continue
        file, _, anchor = target.partition("#")
        path = document if not file else document.parent / file
        if not path.exists() or (anchor and anchor not in _anchors(path)):
            broken.append(target)
    return broken


def _anchors(path: Path) -> set[str]:
    """Return the anchors that GitHub makes of a document's headings."""
    headings = re.findall(r"^#+ (.*)$", without_code_blocks(path.read_text(encoding="utf-8")), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def unknown_names(name: str, allowed: frozenset[str] = frozenset(), *, also_words: bool = False) -> list[str]:
    """Return the names in backticks that stand for nothing.

    Args:
        name: The document.
        allowed: Names that need not be found.
        also_words: Whether a plain name may be any word of the source. If not, it must be defined in a file that its
            paragraph, list item or table row links to.
    """
    unknown = []
    for block in _blocks(without_code_blocks(read(name))):
        linked: list[Path] = []
        for target, words in _LINK_OR_CODE.findall(block):
            code = " ".join(words.split())
            if target:
                linked.append((ROOT / name).parent / target.partition("#")[0])
            elif code not in allowed and not _is_known(code, linked) and not (also_words and _is_word(code)):
                unknown.append(code)
    return unknown


def _blocks(text: str) -> list[str]:
    blocks = [""]
    for line in text.splitlines():
        if _NEW_BLOCK.match(line):
            blocks.append("")
        blocks[-1] += f"{line} "
    return blocks


def _is_known(code: str, linked: list[Path]) -> bool:
    return (
        code in keys()
        or _is_path(code)
        or _is_command(code)
        or _names_module(code.removeprefix("python -m ").partition(" ")[0])
        or any(path.suffix == ".py" and _has_member(path, code.split(".")) for path in linked)
        or (code.startswith("--") and _is_word(code.partition(" ")[0]))
        or (bool(_FILE_OF_A_RUN.search(code)) and _is_word(code))
    )


def _is_path(code: str) -> bool:
    """Return whether this is a file or folder, or one that git ignores, which a new clone does not have yet."""
    is_there = (ROOT / code).exists() or ("/" in code and any(ROOT.glob(code.lstrip("/"))))
    return is_there or f"/{code}" in (ROOT / ".gitignore").read_text(encoding="utf-8").splitlines()


def _is_word(code: str) -> bool:
    """Return whether the source has ``code``, not as a part of a longer word."""
    text, end = _source_text(), -1
    # 30 times as fast as a regular expression with a look behind, which has to try each character.
    while (begin := text.find(code, end + 1)) >= 0:
        end = begin + len(code)
        if not _is_letter(text[begin - 1 : begin]) and not _is_letter(text[end : end + 1]):
            return True
        end = begin
    return False


def _is_letter(character: str) -> bool:
    return character.isalnum() or character == "_"


def _is_command(code: str) -> bool:
    """Return whether this is a command line of run.sh that begins with a verb; `keys` must ask for what exists."""
    first, *words = code.split()
    if first != "./run.sh":
        return False
    if words[:1] == ["keys"] and len(words) > 1 and words[1] != "BLOCK" and not words[1].startswith("-"):
        return words[1] in keys()
    return not words or words[0] in verbs() or words[0] == "VERB" or words[0].startswith("-")


def _names_module(dotted: str) -> bool:
    """Return whether ``dotted`` is a module of ours, or a name in one."""
    parts = dotted.split(".")
    if parts[0] not in PACKAGES:
        return False
    for end in range(len(parts), 0, -1):
        stem = "/".join(parts[:end])
        for file in (f"{stem}.py", f"{stem}/__init__.py"):
            if file in source_files():
                return _has_member(ROOT / file, parts[end:])
    return False


def _has_member(path: Path, names: list[str]) -> bool:
    body = _body(path)
    for name in names:
        found = [node for node in body if name in _defined_by(node)]
        if not found:
            return False
        body = found[0].body if isinstance(found[0], ast.ClassDef) else []
    return True


@cache
def _body(path: Path) -> list[ast.stmt]:
    return ast.parse(path.read_text(encoding="utf-8")).body if path.is_file() else []


def _defined_by(node: ast.stmt) -> list[str]:
    if isinstance(node, ast.FunctionDef | ast.ClassDef):
        return [node.name]
    if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
        return [node.target.id]
    if isinstance(node, ast.Assign):
        return [target.id for target in node.targets if isinstance(target, ast.Name)]
    return []
