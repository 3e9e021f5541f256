"""``run.sh``: the search for Python, the verbs, and the messages when something is wrong."""

import importlib.util
import os
import re
import shutil
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest

from launch.setup.layout import ROOT
from tests.launch.stand_in import write_program
from tests.programs import python, run_program

pytestmark = pytest.mark.medium

_ROWS = re.findall(r'^  "([\w-]+)\|([\w.]+)\|', (ROOT / "run.sh").read_text(encoding="utf-8"), re.MULTILINE)


@pytest.fixture
def programs(tmp_path: Path) -> Path:
    """A folder of stand-ins that comes first on the PATH."""
    folder = tmp_path / "bin"
    folder.mkdir()
    return folder


def run(
    command: Path, *words: str, programs: Path | None = None, cwd: Path | None = None
) -> subprocess.CompletedProcess[str]:
    path = os.environ["PATH"] if programs is None else f"{programs}:{os.environ['PATH']}"
    return run_program(command, *words, env={**os.environ, "PATH": path}, cwd=cwd)


def test_help_lists_every_verb_of_the_table_and_the_module_of_each_exists() -> None:
    text = run(ROOT / "run.sh", "--help").stdout
    listed = re.findall(r"^  (\w+) ", text, re.MULTILINE)
    assert listed == [verb for verb, _ in _ROWS]
    assert {"setup", "train", "prepare", "check", "keys", "test"} <= set(listed)
    assert [module for _, module in _ROWS if importlib.util.find_spec(module) is None] == []
    assert run(ROOT / "run.sh", "help").stdout == text


def test_a_clone_of_git_for_windows_starts_under_wsl(tmp_path: Path) -> None:
    """Such a Git is set up to write CRLF, with which no shell script starts."""
    for name in (".gitattributes", "run.sh"):
        shutil.copy(ROOT / name, tmp_path)
    for words in (["init"], ["add", "run.sh"], ["checkout-index", "--prefix=clone/", "run.sh"]):
        subprocess.run(["git", "-c", "core.autocrlf=true", *words], cwd=tmp_path, check=True, capture_output=True)
    assert run(tmp_path / "clone" / "run.sh", "--help").returncode == 0


@pytest.mark.parametrize("words", [["--help"], ["--version"], ["test", "--help"]])
def test_what_nobody_reads_to_its_end_is_still_a_known_verb(words: list[str]) -> None:
    read, write = os.pipe()
    os.close(read)
    # Python's children may ignore SIGPIPE, so that a write fails and does not end them.
    done = subprocess.run(
        [ROOT / "run.sh", *words], stdout=write, stderr=subprocess.PIPE, text=True, check=False, restore_signals=False
    )
    os.close(write)
    assert "no such verb" not in done.stderr


@pytest.fixture(scope="module")
def bare_tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The program's files without an environment, and Python without packages beside them."""
    folder = tmp_path_factory.mktemp("bare")
    tree = folder / "checkout"
    tree.mkdir()
    shutil.copy2(ROOT / "run.sh", tree)
    for package in ("configs", "data", "launch", "logs", "train"):
        shutil.copytree(ROOT / package, tree / package, ignore=shutil.ignore_patterns("__pycache__"))
    programs = folder / "bin"
    programs.mkdir()
    # The first name is the first that run.sh looks for: each one that pyenv has without a version takes 0.2 s of CPU.
    for name in ("python3.13", "python3.11", "python3.10", "python3"):
        write_program(programs / name, f'exec {sys.executable} -S "$@"')
    return tree


@pytest.mark.parametrize("verb", ["help", *(verb for verb, _ in _ROWS)])
def test_help_needs_no_environment_and_leaves_nothing_behind(bare_tree: Path, verb: str) -> None:
    before = sorted(bare_tree.rglob("*"))
    done = run(bare_tree / "run.sh", verb, "--help", programs=bare_tree.parent / "bin", cwd=Path("/"))
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(f"usage: ./run.sh {'' if verb == 'help' else verb}")
    assert done.stderr == ""
    assert sorted(bare_tree.rglob("*")) == before


def test_an_unknown_verb_is_answered_with_the_nearest_one(tree: Path) -> None:
    done = run(tree / "run.sh", "checks")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "error: checks: no such verb; did you mean 'check'?\n"
    assert run(tree / "run.sh", "digits").stderr == "error: digits: no such verb; write ./run.sh train digits\n"


def test_it_works_through_a_symlink_and_from_any_folder(tree: Path, tmp_path: Path) -> None:
    link = tmp_path / "link"
    link.symlink_to(tree / "run.sh")
    done = run(link, "setup", "--help", cwd=Path("/"))
    assert done.returncode == 0
    assert done.stdout.startswith("usage: ./run.sh setup")
    refused = run(link, "setup", "--wheels", "carried", cwd=tmp_path)
    assert refused.stderr.startswith(f"error: --wheels: {tmp_path}/carried is no folder"), "the caller's folder counts"


@pytest.mark.parametrize("verb", ["plan", "setup", "recipes"])
def test_a_current_folder_that_was_deleted_is_one_line(tree: Path, tmp_path: Path, verb: str) -> None:
    script = 'mkdir "$1" && cd "$1" && rmdir "$1" && exec "$2" "$3"'
    done = run_program("bash", "-c", script, "-", str(tmp_path / "gone"), str(tree / "run.sh"), verb)
    told = [line for line in done.stderr.splitlines() if not line.startswith("shell-init: ")]  # bash's own
    assert (done.returncode, told) == (2, ["error: the current folder was deleted; change to another one"])


@pytest.mark.parametrize(
    ("managers", "remedy"),
    [
        ("", "install one beside it: a module of the site, conda, uv and pyenv have such versions"),
        ("apt-get", "apt-get update && apt-get install python3 python3-venv"),
        ("dnf", "dnf install python3.12"),
        ("zypper", "zypper install python311"),
        ("apt-get conda", "conda install python=3.12"),
    ],
)
def test_a_wrong_python_is_named_with_what_brings_a_right_one_here_and_nothing_is_made(
    tree: Path, programs: Path, managers: str, remedy: str
) -> None:
    for name in ("bash", "dirname", "readlink"):
        (programs / name).symlink_to(shutil.which(name) or name)
    for name in ("python3.13", "python3.10", *managers.split()):
        write_program(programs / name, "echo 'pyenv: no such command' >&2; exit 127")
    write_program(programs / "python3", 'case "$*" in --version) echo Python 3.9.2 ;; *difflib,*) exit 1 ;; esac')
    variables = {"PATH": str(programs), **({"CONDA_PREFIX": "/opt/conda"} if "conda" in managers else {})}
    done = run_program(tree / "run.sh", env=variables)
    as_root = "" if os.geteuid() == 0 or not managers or "conda" in managers else "as root: "
    assert done.returncode == 2
    assert done.stderr == f"error: Python 3.10 to 3.14 is needed, found: Python 3.9.2; {as_root}{remedy}\n"
    write_program(programs / "python3", '[ "$1" = --version ] && echo Python 3.13.5')
    done = run_program(tree / "run.sh", env=variables)
    assert "found: Python 3.13.5 without its standard library; " in done.stderr
    assert not (tree / ".venv").exists()
    write_program(programs / "python3.14", f'exec {sys.executable} "$@"')
    done = run_program(tree / "run.sh", "setup", "--gpus", env=variables)
    assert done.stderr.startswith("error: '--gpus' is not expected here"), "the newest Python is found"


@pytest.mark.ranks
def test_variables_that_lead_python_to_the_packages_of_another_are_ignored(
    tree: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "argparse.py").write_text("raise SystemExit('of PYTHONPATH')", encoding="utf-8")
    monkeypatch.setenv("PYTHONHOME", "/opt/conda")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    assert run(ROOT / "run.sh", "keys", "batch.global_size").returncode == 0
    done = run(tree / "run.sh", "setup", "--cpus")
    assert (done.returncode, done.stderr.partition(" here")[0]) == (2, "error: '--cpus' is not expected")


def test_sh_finds_bash_and_pip_is_told_to_use_run_sh() -> None:
    done = run_program("sh", ROOT / "run.sh", "--version")
    assert (done.returncode, done.stdout) == (0, f"resnet-records {metadata.version('resnet-records')}\n")
    refused = python("setup.py", "bdist_wheel")
    assert refused.returncode == 1
    assert "./run.sh" in refused.stderr
