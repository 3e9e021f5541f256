"""The examples of docs/extending.md work as the page says, and touch as few files as it says."""

import shlex
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from configs.registry import has_engine
from logs.folder import RunFolder
from tests.extending import add_example, code_blocks, copy_program, make_environment
from tests.programs import run_program

pytestmark = [pytest.mark.ranks, pytest.mark.xdist_group("extending")]

ADDED = {
    "An optimizer": 3, "A training idea": 3, "A decay": 3, "A network": 3, "A kind of layer": 7, "A communicator": 3,
    "A scheduler": 4, "A data source": 3,
}  # fmt: skip
"""Section -> files that its example touches."""
WITHOUT_DIGITS = {"A scheduler", "A data source", *([] if has_engine("mxnet") else ["A communicator"])}
"""Those whose commands do not train the digits, or not here: Horovod sums MXNet's arrays."""
SECTIONS = [section for section in ADDED if section not in WITHOUT_DIGITS]


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the program with the examples in it."""
    folder = tmp_path_factory.mktemp("program")
    copy_program(folder)
    for section, files in ADDED.items():
        assert len(add_example(folder, section)) == files, section
    return folder


@pytest.fixture(scope="module")
def python(program: Path) -> str:
    return str(make_environment(program))


def _run(program: Path, *command: str) -> subprocess.CompletedProcess[str]:
    return run_program(*command, cwd=program, timeout=240)


def _settings(section: str) -> list[str]:
    """Return the settings of the section's last command, which trains the digits."""
    (commands,) = [text for language, text in code_blocks(section) if language == "sh"]
    command = commands.splitlines()[-1]
    _, verb, recipe, *words = shlex.split(command)
    assert (verb, recipe) == ("train", "digits")
    assert set(words[::2]) == {"--set"}
    return words[1::2]


def test_the_commands_of_the_page_can_be_planned(program: Path, python: str) -> None:
    sets = [[word for setting in _settings(section) for word in ("--set", setting)] for section in SECTIONS]
    # One process for all: to start one takes longer than to plan.
    code = f"from train.plan.__main__ import main; print([main(['plan', 'digits', *words]) for words in {sets!r}])"
    done = _run(program, python, "-I", "-c", code)
    assert done.stdout.endswith(f"{[0] * len(SECTIONS)}\n"), done.stdout + done.stderr
    assert all(name in done.stdout for name in ("nesterov", "vgg11", "smooth"))


def test_the_commands_of_the_page_pack_images_and_taken_together_train_two_steps_on_them(
    program: Path, python: str
) -> None:
    """A run has one network: the one with the new kind of layer. The page tests the other one."""
    images = program / "my-images"
    images.mkdir()
    for split, count in (("train", 64), ("val", 16)):
        pixels = np.random.default_rng(count).integers(0, 256, (count, 8, 8), np.uint8)
        np.savez(images / f"{split}.npz", images=pixels, labels=np.arange(count) % 10)
    (commands,) = [text for language, text in code_blocks("A data source") if language == "sh"]
    packed = _run(program, python, "-I", "-m", "data", *shlex.split(commands.splitlines()[0])[1:])
    assert packed.returncode == 0, packed.stdout + packed.stderr
    # Read as text: the registry of this process has no such source.
    assert '"kind": "npz"' in (program / "runs/data/mine/manifest.json").read_text(encoding="utf-8")
    sections = [section for section in (*SECTIONS, "A data source") if section != "A network"]
    settings = dict.fromkeys(setting for section in sections for setting in _settings(section))
    sets = [word for setting in settings for word in ("--set", setting)]
    folder = program / "runs" / "together"
    # Not by run.sh, which would set up an environment in the copy.
    done = _run(program, python, "-I", "-m", "launch", "train", "digits", *sets, "--run-dir", str(folder))
    assert done.returncode == 0, done.stdout + done.stderr
    assert RunFolder(folder).summary().steps == 2
    config = (folder / "config.yaml").read_text(encoding="utf-8")
    names = ["nesterov", "exponential", "smooth", "npz", *["half"] * has_engine("mxnet")]
    assert all(f": {name}\n" in config for name in names)


def test_the_tests_of_the_page_pass(program: Path) -> None:
    names = ["configs/optimizers/test_nesterov", "configs/decays/test_exponential", "train/comm/test_half"]
    names += ["configs/ideas/test_centralised_gradients", "train/networks/test_vgg", "train/networks/test_smooth"]
    names += ["launch/submit/test_tide", "data/sources/test_npz"]
    # What every scheduler and every source is asked.
    names += ["launch/submit/test_schedulers", "data/sources/test_catalogue"]
    tests = [f"tests/{name}.py" for name in names]
    done = _run(program, sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-n", "0", *tests)
    assert done.returncode == 0, done.stdout


def test_the_examples_are_written_as_the_checks_want_them(program: Path) -> None:
    for words in (["format", "--check"], ["check"]):
        done = _run(program, sys.executable, "-m", "ruff", *words, "configs", "data", "launch", "train", "tests")
        assert done.returncode == 0, done.stdout


def test_the_command_of_the_page_prints_a_script_for_the_new_scheduler(program: Path) -> None:
    (command,) = [text for language, text in code_blocks("A scheduler") if language == "sh"]
    door, *words = shlex.split(command)
    assert door == "./run.sh"
    done = _run(program, sys.executable, "-m", "launch.submit", *words)
    assert done.returncode == 0, done.stderr  # a warning names an engine that is not here
    lines = done.stdout.splitlines()
    assert lines[:3] == ["#!/usr/bin/env bash", "#TIDE name=digits", "#TIDE nodes=2"]
    assert lines[-1].startswith(f"# tide submit {program}/runs/digits-")
