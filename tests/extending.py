"""The examples of docs/extending.md, and a copy of the program to try them in."""

import re
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

from configs.load import ROOT
from tests.programs import run_program

PAGE = ROOT / "docs" / "extending.md"


def code_blocks(section: str) -> list[tuple[str, str]]:
    """Return the language and the text of each code block below the heading ``section`` of the page."""
    found = re.search(rf"^## {re.escape(section)}\n(.*?)(?=^## |\Z)", PAGE.read_text(encoding="utf-8"), re.M | re.S)
    assert found is not None, f"docs/extending.md has no section {section!r}"
    return re.findall(r"^```(\w+)\n(.*?)^```$", found[1], re.M | re.S)


def copy_program(folder: Path) -> None:
    """Copy the files of the program that git lists, as they are now, into ``folder``."""
    listed = run_program("git", "ls-files", "-z", "--cached", "--others", "--exclude-standard", check=True).stdout
    names = [name for name in listed.split("\0") if name]
    for name in names:
        if (ROOT / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, folder / name)
    # Compiled modules are valid for copies of the same time and size, and save seconds of compiling.
    for cache in {(ROOT / name).parent / "__pycache__" for name in names}:
        if cache.is_dir():
            shutil.copytree(cache, folder / cache.relative_to(ROOT))


def add_example(folder: Path, section: str) -> list[Path]:
    """Add a section's blocks of Python and Jinja to the copy in ``folder``; return the files that they touch."""
    touched = []
    for language, text in code_blocks(section):
        if language not in ("python", "jinja"):
            continue
        header, _, code = text.partition("\n")
        name, _, line_replaced = header.removeprefix("# ").partition(", in place of: ")
        name, _, line_above = name.partition(", below: ")
        path = folder / name
        if line_replaced:
            old = path.read_text(encoding="utf-8")
            assert old.count(f"{line_replaced}\n") == 1, f"{name} has not exactly one line {line_replaced!r}"
            code = old.replace(f"{line_replaced}\n", code)
        elif line_above:
            old = path.read_text(encoding="utf-8")
            assert old.count(f"{line_above}\n") == 1, f"{name} has not exactly one line {line_above!r}"
            code = old.replace(f"{line_above}\n", f"{line_above}\n{code}")
        else:
            assert not path.exists(), f"{name} exists already"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(code, encoding="utf-8")
        touched.append(path)
    return list(dict.fromkeys(touched))


def make_environment(folder: Path) -> Path:
    """Return the Python of a new environment in which the copy in ``folder`` is installed, with our own packages.

    Ranks run isolated (``-I``), so that a working directory or PYTHONPATH would not make them import the copy.
    """
    environment = folder / ".venv"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(environment)], check=True)
    python = environment / "bin" / "python"
    (packages,) = environment.glob("lib/python*/site-packages")
    own = Path(sysconfig.get_path("purelib"))
    # From Python 3.12 on, MXNet needs names of NumPy and a module of distutils that such lines put back.
    lines = [line for path in sorted(own.glob("*.pth")) for line in path.read_text(encoding="utf-8").splitlines()]
    repair = "".join(f"{line}\n" for line in lines if line.startswith("import "))
    (packages / "program.pth").write_text(f"{folder}\n{own}\n{repair}", encoding="utf-8")
    return python
