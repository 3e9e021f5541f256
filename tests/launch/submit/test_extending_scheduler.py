"""The scheduler of docs/extending.md works as the page says, and touches four files."""

import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from tests.extending import add_example, code_blocks, copy_program

pytestmark = [pytest.mark.ranks, pytest.mark.xdist_group("extending")]

SECTION = "A scheduler"


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the program with the example in it."""
    folder = tmp_path_factory.mktemp("program")
    copy_program(folder)
    assert len(add_example(folder, SECTION)) == 4
    return folder


def _python(program: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *words], cwd=program, capture_output=True, text=True, check=False, timeout=60
    )


def test_the_command_of_the_page_prints_a_script_for_the_new_scheduler(program: Path) -> None:
    (command,) = [text for language, text in code_blocks(SECTION) if language == "sh"]
    door, *words = shlex.split(command)
    assert door == "./run.sh"
    # Not by run.sh, which would set up an environment in the copy.
    done = _python(program, "-m", "launch.submit", *words)
    assert (done.returncode, done.stderr) == (0, "")
    lines = done.stdout.splitlines()
    assert lines[:3] == ["#!/usr/bin/env bash", "#TIDE name=digits", "#TIDE nodes=2"]
    assert lines[-1].startswith(f"# tide submit {program}/runs/digits-")


@pytest.mark.ranks
def test_the_test_of_the_page_and_those_of_every_scheduler_pass(program: Path) -> None:
    tests = [f"tests/launch/submit/{name}.py" for name in ("test_tide", "test_schedulers")]
    done = _python(program, "-m", "pytest", "-q", "-p", "no:cacheprovider", *tests)
    assert done.returncode == 0, done.stdout


def test_the_example_is_written_as_the_checks_want_it(program: Path) -> None:
    for words in (["format", "--check"], ["check"]):
        done = _python(program, "-m", "ruff", *words, "launch/submit", "configs/blocks/jobs.py", "tests/launch/submit")
        assert done.returncode == 0, done.stdout
