"""Set-up over a Python that has MXNet, Horovod and DALI already.

The base is this environment once more, by hard links, without two packages that the program needs, and with an MXNet
that needs a package which `train.engine.mxnet` leaves out of a faster import.
"""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from configs.errors import UserError
from configs.load import ROOT
from configs.registry import installed_engine
from launch.setup import numpy_names
from launch.setup.__main__ import Wish, _parser, _remembered_kind
from launch.setup.layout import Environment, Kind
from launch.setup.site import (
    base_venv_options,
    broken_base,
    describe_base,
    find_base,
    keep_frameworks,
    link_base,
    not_of_base,
    pins_of_base,
    variant_of,
)

_GOOD: dict[str, Any] = {
    "python": [3, 10], "problems": [], "has_pip": True, "has_ensurepip": False, "has_cuda": True,
    "parts": ["mpi", "nccl"], "MXNet": ["1.9.1", ""], "Horovod": ["0.28.1+nv24.4", ""], "DALI": ["1.36.0", ""],
}  # fmt: skip


def test_a_base_is_good_or_each_reason_against_it_is_named() -> None:
    assert broken_base(_GOOD) == []
    bad = {**_GOOD, "python": [3, 8], "MXNet": ["1.5.0", ""], "parts": ["gloo"], "has_pip": False}
    assert broken_base(bad) == [
        "it is Python 3.8, and this program needs 3.10 to 3.13",
        "MXNet is 1.5.0, and this program needs 1.9 or later",
        "Horovod was built with gloo, and this program needs nccl here",
        "it has neither pip nor ensurepip: apt-get install python3-venv",
    ]
    assert broken_base({**_GOOD, "MXNet": ["2.0.0", ""]}) == ["MXNet is 2.0.0, and this program needs MXNet 1"]


@pytest.mark.parametrize(
    ("change", "problems"),
    [
        ({"python": [3, 10]}, []),
        ({"python": [3, 13]}, []),
        ({"python": [3, 9]}, ["it is Python 3.9, and this program needs 3.10 to 3.13"]),
        ({"python": [3, 14]}, ["it is Python 3.14, and this program needs 3.10 to 3.13"]),
        ({"MXNet": ["1.9.0", ""], "Horovod": ["0.28.0", ""], "DALI": ["1.34.0", ""]}, []),
        ({"MXNet": ["1.8.9", ""]}, ["MXNet is 1.8.9, and this program needs 1.9 or later"]),
        ({"Horovod": ["0.27.9", ""]}, ["Horovod is 0.27.9, and this program needs 0.28 or later"]),
        ({"DALI": ["1.33.0", ""]}, ["DALI is 1.33.0, and this program needs 1.34 or later"]),
        ({"has_cuda": False}, ["Horovod was built with mpi and nccl, and this program needs gloo here"]),
        ({"MXNet": ["1.10", ""]}, []),
        ({"MXNet": ["2.0.0.beta1", ""]}, ["MXNet is 2.0.0.beta1, and this program needs MXNet 1"]),
        ({"parts": []}, ["Horovod was built with none of Gloo, MPI and NCCL, and this program needs nccl here"]),
        ({"has_pip": False, "has_ensurepip": True}, []),
        ({"problems": ["DALI cannot be imported"]}, ["DALI cannot be imported"]),
    ],
    ids=str,
)
def test_the_oldest_packages_of_a_base_that_are_tried_are_good(change: dict[str, Any], problems: list[str]) -> None:
    assert broken_base({**_GOOD, **change}) == problems


def test_the_packages_of_a_base_are_kept_by_constraints(tmp_path: Path) -> None:
    pins = ["mxnet==1.9.1", "Horovod==0.28.1", "nvidia-dali-cuda110==1.34", "numpy==1.23.5", "numpydoc==1", "tqdm==4",
            "resnet-records==0.1", "nvidia-nccl==2"]  # fmt: skip
    text = pins_of_base({"pins": pins}, Kind(("mxnet",), "gpu", "/opt/python"))
    assert text.splitlines() == [
        "# the packages of /opt/python",
        *(pin for pin in pins if pin != "resnet-records==0.1"),
    ]
    (tmp_path / "base.txt").write_text(text, encoding="utf-8")
    few = keep_frameworks(tmp_path / "base.txt")
    assert few.read_text(encoding="utf-8").splitlines() == pins[:4]
    assert few != tmp_path / "base.txt"


def test_the_environment_sees_the_folders_of_its_base_and_uses_its_pip(tmp_path: Path) -> None:
    folder = tmp_path / "lib/python3.11/site-packages"
    folder.mkdir(parents=True)
    link_base(Environment(tmp_path), ["/a b", "/c"])
    assert [(path.name, path.read_text(encoding="utf-8")) for path in folder.iterdir()] == [
        ("zz_base.pth", "import site; site.addsitedir('/a b')\nimport site; site.addsitedir('/c')\n")
    ]
    assert [base_venv_options({"has_pip": has}) for has in (True, False)] == [["--without-pip"], []]
    assert [variant_of({"has_cuda": has}) for has in (True, False)] == ["gpu", "cpu"]


def test_a_package_of_the_environment_in_place_of_the_bases_is_a_problem(monkeypatch: pytest.MonkeyPatch) -> None:
    found = {**_GOOD, "NumPy": ["1.23", "/env/numpy.py"], "MXNet": ["1.9.1", "/base/mxnet.py"],
             "DALI": ["1.34", "/env/dali.py"], "Horovod": ["0.28.1", "/environment/horovod.py"]}  # fmt: skip
    monkeypatch.setattr("launch.setup.site.describe_base", lambda _python: found)
    assert not_of_base(Environment(Path("/env")), "/base") == [
        "NumPy is not that of /base",
        "DALI is not that of /base",
    ]


def test_a_python_without_the_libraries_is_refused_with_what_it_lacks(tmp_path: Path) -> None:
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\nexec {sys.executable} -S "$@"\n', encoding="utf-8")
    python.chmod(0o755)
    with pytest.raises(UserError, match=rf"{python} lacks MXNet, Horovod, DALI; name the interpreter"):
        find_base(str(python))
    with pytest.raises(UserError, match="there is no /no/python"):
        find_base("/no/python")


@pytest.mark.parametrize(
    ("line", "words"), [("#!/bin/sh\nexec sleep 60\n", "timed out"), ("#!/nowhere/sh\n", "No such file")]
)
def test_a_python_that_hangs_or_does_not_start_is_refused(
    line: str, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("launch.setup.site._QUERY_TIMEOUT_S", 0.1)
    python = _python(tmp_path / "python")
    python.write_text(line, encoding="utf-8")
    with pytest.raises(UserError, match=words):
        find_base(str(python))


@pytest.mark.parametrize(
    ("said", "reason"),
    [("Traceback:\n  File\nImportError: libx.so\n", "ImportError: libx.so"), ("", "")],
    ids=["traceback", "silent"],
)
def test_a_python_that_fails_is_refused_with_the_last_line_of_what_it_says(
    tmp_path: Path, said: str, reason: str
) -> None:
    python = tmp_path / "python"
    python.write_text(f"#!/bin/sh\nprintf '%s' '{said}' >&2\nexit 3\n", encoding="utf-8")
    python.chmod(0o755)
    with pytest.raises(UserError, match=f": {python} {reason or 'it does not run'}; name the interpreter"):
        find_base(str(python))
    with pytest.raises(UserError, match=f"cannot be looked at: {reason or 'exit status 3'}$"):
        describe_base(str(python))


def test_what_the_packages_of_a_python_print_when_they_are_imported_is_passed_over(tmp_path: Path) -> None:
    python = _python(tmp_path / "python", lacks='Loading the modules of the site\n{"python": [3, 11]}')
    assert describe_base(str(python)) == {"python": [3, 11]}
    silent = tmp_path / "silent"
    silent.write_text("#!/bin/sh\n", encoding="utf-8")
    silent.chmod(0o755)
    with pytest.raises(UserError, match=r"cannot be looked at: exit status 0$"):
        describe_base(str(silent))


def _python(path: Path, lacks: str = "") -> Path:
    """Make an interpreter that says which of the libraries it lacks."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\necho '{lacks}'\n", encoding="utf-8")
    path.chmod(0o755)
    return path


def test_the_first_python_of_the_path_with_the_libraries_is_the_base_but_never_the_environment_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("launch.setup.site.CURRENT", Environment(tmp_path / "own"))
    monkeypatch.chdir(tmp_path)
    bad = _python(tmp_path / "bad" / "python3", "Horovod, DALI")
    monkeypatch.setenv("PATH", f"{tmp_path}/own/bin:bad:{tmp_path}/good")
    own = _python(tmp_path / "own" / "bin" / "python")
    with pytest.raises(UserError, match=f"DALI: {bad} lacks Horovod, DALI; name the interpreter"):
        find_base("")
    for name in ("python3.10", "python3.11", "python3.12", "python"):
        good = _python(tmp_path / "good" / name)
        if name != "python":  # the one of the environment comes first on the path
            assert find_base("") == str(good)
    own.unlink()
    assert find_base("") == f"{tmp_path}/good/python"
    bad.unlink()
    with pytest.raises(UserError, match=r": there is no none; name"):
        find_base("none")
    assert find_base("python3.10") == f"{tmp_path}/good/python3.10"
    monkeypatch.setenv("PATH", "good")
    assert find_base("") == f"{tmp_path}/good/python", "set-up may go on in another folder"
    assert find_base("good/python") == f"{tmp_path}/good/python"


@pytest.mark.parametrize(
    ("words", "given"),
    [
        ([], {}),
        (["--system"], {"system": ""}),
        (["--system", "/opt/python"], {"system": "/opt/python"}),
        (["--cpu"], {"variant": "cpu"}),
        (["--gpu", "--engine", "torch"], {"variant": "gpu", "engine": "torch"}),
        (["--extra", "test", "--extra", "tensorboard"], {"extra": ["test", "tensorboard"]}),
        (["--without-hashes", "--quiet"], {"checks_files": False, "quiet": True}),
    ],
)
def test_each_option_of_set_up_asks_for_its_own_thing(words: list[str], given: dict[str, object]) -> None:
    usual: dict[str, object] = {
        "engine": None, "variant": None, "system": None, "extra": [], "checks_files": True, "quiet": False
    }  # fmt: skip
    assert vars(_parser().parse_args(words)) == usual | given


def test_an_environment_over_a_base_stays_one_until_another_is_asked_for() -> None:
    over, own = Kind(("mxnet",), "gpu", "/usr/bin/python3"), Kind(("mxnet",), "gpu")
    for wish in (Wish(), Wish(base=""), Wish(base="/usr/bin/python3"), Wish(engine="mxnet")):
        assert _remembered_kind(wish, over) == over
    for wish in (Wish(variant="gpu"), Wish(base="/opt/python"), Wish(engine="torch")):
        assert _remembered_kind(wish, over) is None
    assert _remembered_kind(Wish(base=""), own) is None
    assert _remembered_kind(Wish(), own) == own


def test_numpy_has_the_names_that_mxnet_uses_once_mxnet_is_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    numpy = ModuleType("numpy")
    monkeypatch.setitem(sys.modules, "numpy", numpy)
    monkeypatch.setattr(sys, "meta_path", list(sys.meta_path))
    numpy_names.watch_for_mxnet()
    (watcher,) = (each for each in sys.meta_path if type(each).__module__ == numpy_names.__name__)
    assert watcher.find_spec("scipy", None) is None
    assert not hasattr(numpy, "bool")
    assert watcher.find_spec("mxnet", None) is None
    assert (numpy.bool, numpy.object) == (bool, object)
    assert watcher not in sys.meta_path


def _hard_linked_base(folder: Path) -> Path:
    """Make the base in a folder; return its interpreter."""
    left_out = ["__editable__*", "resnet_records*", "pydantic*", "tqdm*", "*.log", "pins.txt", "setup.json"]
    left_out += ["test", "tests", "cmake*", "mypy*", "hypothesis*"]  # half of the files, which nothing here reads
    shutil.copytree(sys.prefix, folder, symlinks=True, copy_function=_link, ignore=shutil.ignore_patterns(*left_out))
    (package,) = folder.glob("lib/python3.*/site-packages/mxnet/__init__.py")
    text = package.read_text(encoding="utf-8")
    package.unlink()  # it is the file of this environment, too
    package.write_text(f"{text}\nfrom requests import Session\n", encoding="utf-8")
    return folder / "bin" / "python"


def _link(source: str, target: str) -> None:
    """Link a file, or copy it where temporary files lie on another disk."""
    try:
        os.link(source, target)
    except OSError:
        shutil.copy2(source, target)


def _files(folder: Path) -> dict[str, tuple[int, int]]:
    """Return size and time of each file but those that Python compiles."""
    found = (path for path in folder.rglob("*") if path.suffix != ".pyc" and path.is_file())
    return {str(path): (path.stat().st_size, path.stat().st_mtime_ns) for path in found}


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.skipif(installed_engine() != "mxnet", reason="the base needs MXNet, Horovod and DALI")
def test_an_environment_over_a_base_has_what_is_missing_and_changes_nothing_of_the_base(tmp_path: Path) -> None:
    base, tree = _hard_linked_base(tmp_path / "base"), tmp_path / "tree"
    tree.mkdir()
    for name in ("configs", "data", "launch", "logs", "train"):
        shutil.copytree(ROOT / name, tree / name, ignore=shutil.ignore_patterns("__pycache__"))
    for path in (*ROOT.glob("*.lock"), ROOT / "pyproject.toml"):
        shutil.copy2(path, tree)
    before = _files(tmp_path / "base")
    command = [sys.executable, "-m", "launch.setup", "--system", str(base)]
    done = subprocess.run(command, cwd=tree, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert f"setup: {base} has MXNet 1.9.1, Horovod 0.28.1, DALI 1.34.0" in done.stderr
    assert _files(tmp_path / "base") == before
    (packages,) = (tree / ".venv").glob("lib/python3.*/site-packages")
    assert {path.name for path in packages.iterdir()} >= {"pydantic", "tqdm"}
    assert not {path.name for path in packages.iterdir()} & {"mxnet", "horovod", "nvidia", "numpy", "scipy", "yaml"}
    assert json.loads((tree / ".venv" / "setup.json").read_text(encoding="utf-8"))["base"] == str(base)
    code = "import train.engine.mxnet.engine, mxnet; print(mxnet.nd.ones(3).sum().asscalar(), mxnet.__file__)"
    done = subprocess.run([tree / ".venv/bin/python", "-I", "-c", code], capture_output=True, text=True, check=False)
    package = tmp_path / "base/lib" / packages.parent.name / "site-packages/mxnet/__init__.py"
    assert done.stdout.strip() == f"3.0 {package}", done.stderr
