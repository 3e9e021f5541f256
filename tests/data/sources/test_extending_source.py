"""The data source of docs/extending.md works as the page says, and touches three files."""

import shlex
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from logs.folder import RunFolder
from tests.extending import add_example, code_blocks, copy_program, make_environment

SECTION = "A data source"


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a copy of the program with the example in it, and with the images that the page packs."""
    folder = tmp_path_factory.mktemp("program")
    copy_program(folder)
    assert len(add_example(folder, SECTION)) == 3
    images = folder / "my-images"
    images.mkdir()
    for split, count in (("train", 64), ("val", 16)):
        pixels = np.random.default_rng(count).integers(0, 256, (count, 8, 8), np.uint8)
        np.savez(images / f"{split}.npz", images=pixels, labels=np.arange(count) % 10)
    return folder


def _run(program: Path, *command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, cwd=program, capture_output=True, text=True, check=False, timeout=120)


@pytest.mark.ranks
def test_the_commands_of_the_page_pack_the_images_and_train_on_them(program: Path) -> None:
    (commands,) = [text for language, text in code_blocks(SECTION) if language == "sh"]
    python = str(make_environment(program))
    one_rank = ["--run-dir", "runs/two-steps", "--set", "cluster.ranks_per_node=1"]
    for line, module, more in zip(commands.splitlines(), ("data", "launch"), ([], one_rank), strict=True):
        # Not by run.sh, which would set up an environment in the copy.
        done = _run(program, python, "-I", "-m", module, *shlex.split(line)[1:], *more)
        assert done.returncode == 0, done.stdout + done.stderr
    # Read as text: the registry of this process has no such source.
    assert '"kind": "npz"' in (program / "runs/data/mine/manifest.json").read_text(encoding="utf-8")
    assert RunFolder(program / "runs/two-steps").summary().steps == 2


@pytest.mark.ranks
def test_the_test_of_the_page_and_that_of_every_source_pass(program: Path) -> None:
    tests = [f"tests/data/sources/{name}.py" for name in ("test_npz", "test_catalogue")]
    done = _run(program, sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *tests)
    assert done.returncode == 0, done.stdout


@pytest.mark.medium
def test_the_example_is_written_as_the_checks_want_it(program: Path) -> None:
    for words in (["format", "--check"], ["check"]):
        places = ["data/sources", "configs/registry.py", "tests/data/sources"]
        done = _run(program, sys.executable, "-m", "ruff", *words, *places)
        assert done.returncode == 0, done.stdout
