"""Four examples of docs/extending.md work as the page says, and touch three files each."""

from __future__ import annotations

import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from tests.extending import add_example, code_blocks, copy_program, make_environment

pytestmark = [pytest.mark.ranks, pytest.mark.xdist_group("extending")]

SECTIONS = ("An optimizer", "A decay", "A network", "A communicator")
QUICK = ("data.source=synthetic", "data.name=synthetic", "data.train_samples=64", "data.eval_samples=16")


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the program with the four examples in it."""
    folder = tmp_path_factory.mktemp("program")
    copy_program(folder)
    for section in SECTIONS:
        assert len(add_example(folder, section)) == 3, section
    return folder


@pytest.fixture(scope="module")
def python(program: Path) -> str:
    return str(make_environment(program))


def _run(program: Path, *command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, cwd=program, capture_output=True, text=True, check=False, timeout=120)


@pytest.mark.parametrize("section", SECTIONS)
def test_the_command_of_the_page_trains_two_steps(program: Path, python: str, section: str) -> None:
    (command,) = [text for language, text in code_blocks(section) if language == "sh"]
    sets = [word for setting in QUICK for word in ("--set", setting)]
    folder = program / "runs" / section.replace(" ", "-")
    # Not by run.sh, which would set up an environment in the copy.
    words = ["-I", "-m", "launch", *shlex.split(command)[1:], *sets, "--run-dir", str(folder)]
    done = _run(program, python, *words)
    assert done.returncode == 0, done.stdout + done.stderr
    assert '"steps": 2' in (folder / "summary.json").read_text(encoding="utf-8")


def test_the_tests_of_the_page_pass(program: Path) -> None:
    names = ("configs/optimizers/test_nesterov", "configs/decays/test_exponential", "train/networks/test_vgg")
    tests = [f"tests/{name}.py" for name in (*names, "train/comm/test_half")]
    done = _run(program, sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-n", "0", *tests)
    assert done.returncode == 0, done.stdout


def test_a_plan_shows_the_new_optimizer_and_its_log_keys(program: Path, python: str) -> None:
    words = ["plan", "digits", "--set", "optimizer={name: nesterov, weight_decay: 1e-4}"]
    done = _run(program, python, "-I", "-m", "train.plan", *words)
    assert done.returncode == 0, done.stderr
    assert "nesterov" in done.stdout


def test_the_examples_are_written_as_the_checks_want_them(program: Path) -> None:
    for words in (["format", "--check"], ["check"]):
        done = _run(program, sys.executable, "-m", "ruff", *words, "configs", "train", "tests")
        assert done.returncode == 0, done.stdout
