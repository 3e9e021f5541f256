"""A new environment takes the place of the old one, which is kept until the new one is complete; links are left alone.

The environments are real ones without pip; two small stages stand for the wheels and for Horovod.
"""

import fcntl
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from launch.setup.layout import NEWEST_PYTHON, Engine
from tests.launch.stand_in import write_program
from tests.programs import run_program

pytestmark = pytest.mark.ranks

ENGINE: Engine = "mxnet" if sys.version_info[:2] <= NEWEST_PYTHON["mxnet"] else "torch"
"""One that the Python of the tests can have."""

SETUP_WITH_SMALL_STAGES = """
import os, sys
from dataclasses import replace
from launch.setup import __main__ as setup
from launch.setup.stages import make_stages
from launch.setup.work import Stage

def make_venv(work):  # pip takes seconds to install
    work.run([sys._base_executable, "-m", "venv", "--without-pip", work.environment.folder], "venv")

def run_command(work):
    work.run(["bash", "-c", os.environ.get("COMMAND", "true")], "tools")

def small_stages(kind, extras):
    def write_script(work):
        script = work.environment.folder / "bin" / "variant"
        lines = [f"#!{work.environment.python}", "import sys", f"print({kind.variant!r}, sys.prefix)", ""]
        script.write_text(chr(10).join(lines), encoding="utf-8")
        script.chmod(0o755)
    venv = replace(make_stages(kind, extras)[0], run=make_venv)
    script = Stage("script", "script", "1", 0, write_script)
    return [venv, script, Stage("tools", "tools", os.environ.get("TOOLS", "1"), 0, run_command)]

setup.make_stages = small_stages
sys.exit(setup.main(sys.argv[1:]))
"""


def _command(*words: str) -> list[str]:
    return [sys.executable, "-c", SETUP_WITH_SMALL_STAGES, "--engine", ENGINE, *words]


def _set_up(tree: Path, *words: str, **variables: str) -> subprocess.CompletedProcess[str]:
    return run_program(*_command(*words), cwd=tree, env={**os.environ, **variables})


def _content(folder: Path) -> dict[str, Any]:
    """Return every file and link of a folder, so that any change shows."""
    return {
        str(path.relative_to(folder)): path.readlink() if path.is_symlink() else path.stat().st_mtime_ns
        for path in folder.rglob("*")
        if "__pycache__" not in path.parts
    }


def _assert_works(environment: Path, variant: str) -> None:
    """Run scripts of the environment, and see that it stands alone."""
    told = run_program(environment / "bin" / "variant", check=True).stdout
    assert told == f"{variant} {environment}\n"
    shell = f"source {environment}/bin/activate; python -c 'import sys; print(sys.prefix)'; echo $PS1"
    activated = run_program("bash", "-c", shell, check=True)
    assert activated.stdout.splitlines()[0] == str(environment)
    assert not environment.with_name(".venv.old").exists()


def test_what_is_missing_is_added_to_an_environment(tree: Path) -> None:
    done = _set_up(tree, "--cpu")
    assert done.returncode == 0, done.stderr
    _assert_works(tree / ".venv", "cpu")
    before = _content(tree / ".venv" / "bin")
    done = _set_up(tree, "--cpu", TOOLS="2", COMMAND=f"test ! -e {tree}/.venv.old")
    assert done.returncode == 0, done.stderr
    assert [line.split(":")[1] for line in done.stderr.splitlines()] == [" [3/3] tools ... 0 s"], "what is missing"
    assert _content(tree / ".venv" / "bin") == before
    assert _set_up(tree, "--cpu", TOOLS="3", COMMAND="exit 1").returncode == 1
    done = _set_up(tree, "--cpu", TOOLS="2")
    assert "[3/3] tools" in done.stderr, "what was there before a stage that failed is not there any more"


def test_an_environment_that_a_run_uses_is_left_alone(tree: Path) -> None:
    assert _set_up(tree, "--cpu").returncode == 0
    before = _content(tree / ".venv")
    with (tree / ".venv.used").open("w") as used:
        fcntl.flock(used, fcntl.LOCK_SH)
        done = _set_up(tree, "--cpu", TOOLS="2")
        assert (done.returncode, done.stderr.count("\n")) == (2, 1)
        assert done.stderr.startswith(f"error: a run uses {tree}/.venv, and set-up does not change it before")
        before_a_verb = _set_up(tree, "--quiet", TOOLS="2")
        assert before_a_verb.returncode == 0
        assert before_a_verb.stderr.startswith("warning: the environment does not match this version")
        assert _set_up(tree).returncode == 0, "nothing to do"
    assert _content(tree / ".venv") == before


def test_a_build_that_fails_or_is_stopped_goes_on_where_it_was_and_the_old_environment_can_be_taken_back(
    tree: Path,
) -> None:
    assert _set_up(tree, "--cpu").returncode == 0
    before = _content(tree / ".venv")
    for kinds in (["--gpu"], ["--gpu", "--cpu"]):
        for kind in kinds:
            failed = _set_up(tree, kind, COMMAND="echo error: broken; exit 1")
            assert (failed.returncode, "setup: [3/3] tools ... not done, " in failed.stderr) == (1, True)
            assert f"all of the output: {tree}/.venv/tools.log" in failed.stderr
        back = failed.stderr.splitlines()[-1].partition("back: ")[2]
        subprocess.run(["bash", "-c", back], check=True)
        assert _content(tree / ".venv") == before
        assert _set_up(tree, "--quiet").stderr == "", "the old environment is whole"
    _assert_works(tree / ".venv", "cpu")
    variables = {**os.environ, "COMMAND": f"touch {tree}/started; sleep 60"}
    with subprocess.Popen(_command("--gpu"), cwd=tree, env=variables, stderr=subprocess.PIPE, text=True) as build:
        while not (tree / "started").exists():
            assert build.poll() is None
            time.sleep(0.02)
        build.send_signal(signal.SIGINT)
        assert build.stderr is not None
        told = build.stderr.read()
    assert "stopped; ./run.sh continues from here" in told
    assert f"back: {back}\n" in told
    assert build.returncode == 130
    assert _content(tree / ".venv.old") == before
    done = _set_up(tree, "--gpu")
    assert [line.split("]")[0] for line in done.stderr.splitlines()[1:]] == ["setup: [3/3"]
    _assert_works(tree / ".venv", "gpu")


def test_a_checkout_that_was_moved_gets_another_environment(tree: Path) -> None:
    assert _set_up(tree, "--cpu").returncode == 0
    moved = tree.with_name("moved")
    tree.rename(moved)
    assert f"{moved}/.venv was made as {tree}/.venv and works by that path alone" in _set_up(moved).stderr
    _assert_works(moved / ".venv", "cpu")


@pytest.mark.parametrize("words", [["setup", "--gpu"], ["train", "digits"]])
def test_a_link_is_refused_by_every_verb_and_nothing_behind_it_is_touched(
    tree: Path, tmp_path: Path, words: list[str]
) -> None:
    behind = tmp_path / "behind"
    write_program(behind / "bin" / "python", f"touch {behind}/was-run\nexec python3 $@")
    (behind / "setup.json").write_text(json.dumps({"variant": "cpu", "stages": {"venv": "1"}}), encoding="utf-8")
    (tree / ".venv").symlink_to(behind)
    before = _content(behind)
    # Where pyenv has the first names that run.sh looks for without a version, each takes 0.2 s of CPU.
    python = tmp_path / "bin" / "python3.11"
    python.parent.mkdir()
    python.symlink_to(sys.executable)
    path = f"{python.parent}:{os.environ['PATH']}"
    done = run_program(str(tree / "run.sh"), *words, env={**os.environ, "PATH": path})
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert done.stderr.startswith(f"error: {tree}/.venv is a symbolic link or a file, ")
    assert _content(behind) == before
    assert {path.name for path in tree.iterdir() if path.name.startswith(".")} == {".venv"}


def test_a_link_to_nowhere_a_file_and_a_checkout_that_cannot_be_written_are_refused_in_one_line(
    tree: Path, tmp_path: Path
) -> None:
    environment = tree / ".venv"

    def refused() -> str:
        done = _set_up(tree, "--cpu")
        assert (done.returncode, done.stderr.count("\n")) == (2, 1)
        return done.stderr

    environment.symlink_to(tmp_path / "nowhere")
    assert "is a symbolic link" in refused()
    assert not (tmp_path / "nowhere").exists()
    environment.unlink()
    environment.touch()
    assert "is a symbolic link or a file" in refused()
    environment.unlink()
    (tree / ".venv.lock").mkdir()  # root may write any file, but no folder
    assert f"{tree}/.venv.lock: Is a directory; the environment is not complete" in refused()
    assert not (tree / ".venv").exists()


def test_an_environment_of_another_machine_is_made_again_or_named_where_that_cannot_be(tree: Path) -> None:
    assert _set_up(tree, "--cpu").returncode == 0
    python = tree / ".venv" / "bin" / "python"
    python.unlink()
    python.symlink_to("/opt/other/bin/python3.11")
    (tree / ".venv.lock").unlink()
    (tree / ".venv.lock").mkdir()
    done = _set_up(tree, "--cpu")
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert f"{python} (/opt/other/bin/python3.11) does not run here: No such file or directory" in done.stderr
    (tree / ".venv.lock").rmdir()
    python.unlink()
    write_program(python, "echo libpython3.11.so: not found >&2; exit 127")
    done = _set_up(tree, "--cpu")
    assert done.returncode == 0
    assert done.stderr.splitlines()[0] == (
        f"setup: {python} ({python}) does not run here: libpython3.11.so: not found; making a new environment"
    )
    _assert_works(tree / ".venv", "cpu")


def test_a_second_set_up_waits_for_the_first_and_finds_nothing_to_do(tree: Path) -> None:
    variables = {**os.environ, "COMMAND": f"touch {tree}/started; until test -e {tree}/go-on; do sleep 0.05; done"}
    with (
        subprocess.Popen(_command("--cpu"), cwd=tree, env=variables, stderr=subprocess.PIPE, text=True) as first,
        subprocess.Popen(
            ["bash", "-c", f'until test -e {tree}/started; do sleep 0.02; done; exec "$@"', "bash", *_command("--cpu")],
            cwd=tree,
            stderr=subprocess.PIPE,
            text=True,
        ) as second,
    ):
        assert second.stderr is not None
        assert second.stderr.readline() == "setup: another set-up is running in this folder; waiting for its end\n"
        (tree / "go-on").touch()
        assert second.stderr.read() == ""
        assert first.stderr is not None
        assert first.stderr.read().count("\n") == 3
    assert (first.returncode, second.returncode) == (0, 0)
    _assert_works(tree / ".venv", "cpu")
