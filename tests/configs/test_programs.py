"""The table of started modules is whole: every entry exists and can be started."""

import ast
import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from configs.load import ROOT
from configs.programs import Program, command_of


@pytest.mark.parametrize("program", Program)
def test_every_program_of_the_table_can_be_started(program: Program) -> None:
    found = importlib.util.find_spec(program.value)
    assert found is not None
    assert found.origin is not None
    file = Path(found.origin)
    if file.name == "__init__.py":
        assert file.with_name("__main__.py").is_file()
    else:
        assert '\nif __name__ == "__main__":\n' in file.read_text(encoding="utf-8")


@pytest.mark.parametrize("name", ["run.sh", ".ci/run", ".ci/checks"])
def test_every_module_that_a_script_starts_exists(name: str) -> None:
    text = (ROOT / name).read_text(encoding="utf-8")
    modules = re.findall(r"-m (?!quick\b)([a-z][\w.]*)", text)
    modules += re.findall(r'^  "[\w-]+\|([\w.]+)\|', text, re.MULTILINE)
    assert modules or name.startswith(".ci")
    assert [module for module in modules if importlib.util.find_spec(module) is None] == []


def test_a_program_is_started_by_this_interpreter_and_away_from_the_users_files() -> None:
    assert command_of(Program.RANK, "folder") == [sys.executable, "-I", "-u", "-m", "train", "folder"]
    assert command_of(Program.RANK, python=Path("/python")) == ["/python", "-I", "-u", "-m", "train"]


@pytest.mark.parametrize(("flags", "paths", "expected"), [
    ([], [ROOT], ["-u"]), ([], ["/none", f"{ROOT}/configs/.."], ["-u"]), (["-E"], [ROOT], ["-I", "-u"]),
    ([], ["/none", ""], ["-I", "-u"]),
])  # fmt: skip
def test_where_pythonpath_leads_to_the_program_the_programs_that_it_starts_follow(
    flags: list[str], paths: list[str | Path], expected: list[str]
) -> None:
    code = (
        f"import sys; sys.path[:0] = [{str(ROOT)!r}]; from configs.programs import *; print(command_of(Program.RANK))"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, paths))}
    told = subprocess.run([sys.executable, "-S", *flags, "-c", code], env=environment, capture_output=True, check=True)
    assert ast.literal_eval(told.stdout.decode())[1:] == [*expected, "-m", "train"]
