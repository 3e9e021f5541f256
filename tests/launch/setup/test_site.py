"""Set-up over a Python that has the libraries of an engine already.

Whole set-ups over bases of small packages are in `test_whole.py`. What a site's own MXNet may import is in
`tests/train/engine/mxnet/test_mxnet_import.py`.
"""

import json
import sys
from importlib.metadata import version
from pathlib import Path
from types import ModuleType
from typing import Any, cast

import pytest

from configs.errors import UserError
from configs.registry import installed_engine
from launch.setup import numpy_names
from launch.setup.layout import ENGINES, Engine, Environment, Kind, Variant
from launch.setup.site import choose_base
from tests.launch.stand_in import write_program

_GOOD: dict[str, Any] = {
    "python": [3, 10], "problems": [], "lacks": [], "has_pip": True, "has_cuda": True,
    "parts": ["mpi", "nccl"], "MXNet": ["1.9.1", ""], "Horovod": ["0.28.1+nv24.4", ""], "DALI": ["1.36.0", ""],
}  # fmt: skip
_GOOD_TORCH: dict[str, Any] = {
    "python": [3, 14], "problems": [], "lacks": [], "has_pip": True, "has_cuda": True,
    "parts": ["gloo", "nccl"], "PyTorch": ["2.4.0a0+07cecf4168.nv24.05", ""], "cuda": "12.4",
}  # fmt: skip


def _python(path: Path, answer: dict[str, Any] | str) -> Path:
    """Make an interpreter that gives this answer to whatever it is asked."""
    words = f"echo Loading the modules of the site; echo '{json.dumps(answer)}'"
    return write_program(path, answer if isinstance(answer, str) else words)


@pytest.mark.parametrize(
    ("engine", "change", "problems"),
    [
        ("mxnet", {}, []),
        ("mxnet", {"python": [3, 15]}, ["it is Python 3.15, and this program needs 3.10 to 3.14"]),
        ("mxnet", {"MXNet": ["1.9.0", ""], "Horovod": ["0.28.0", ""], "DALI": ["1.34.0", ""]}, []),
        ("mxnet", {"MXNet": ["1.8.9", ""]}, ["MXNet is 1.8.9, and this program needs 1.9 or later"]),
        ("mxnet", {"has_cuda": False}, ["Horovod was built with mpi and nccl, and this program needs gloo here"]),
        ("mxnet", {"MXNet": ["1.10", ""]}, []),
        ("mxnet", {"parts": []},
         ["Horovod was built with none of Gloo, MPI and NCCL, and this program needs nccl here"]),
        ("mxnet", {"problems": ["DALI cannot be imported"]}, ["DALI cannot be imported"]),
        ("torch", {}, []),
        ("torch", {"PyTorch": ["2.3.1", ""]}, ["PyTorch is 2.3.1, and this program needs 2.4 or later"]),
        ("torch", {"parts": ["gloo"]}, ["torch.distributed was built with gloo, and this program needs nccl here"]),
        ("torch", {"python": [3, 9], "has_cuda": False}, ["it is Python 3.9, and this program needs 3.10 to 3.14"]),
    ],
    ids=str,
)  # fmt: skip
def test_a_base_is_good_or_each_reason_against_it_is_named(
    engine: Engine, change: dict[str, Any], problems: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = {**(_GOOD if engine == "mxnet" else _GOOD_TORCH), **change}
    python = str(_python(tmp_path / "python", found))
    if problems:
        with pytest.raises(UserError) as refusal:
            choose_base([engine], python)
        remedy = "name another interpreter, or leave --system out"
        assert str(refusal.value).splitlines() == [f"{python}: {problem}; {remedy}" for problem in problems]
        return
    variant: Variant = "gpu" if found["has_cuda"] else "cpu"
    assert choose_base([engine], python) == Kind((engine,), variant, python)
    versions = ", ".join(
        f"{title} {found[title][0]}" for title in ("MXNet", "Horovod", "DALI", "PyTorch") if title in found
    )
    assert capsys.readouterr().err == (
        f"setup: {python} has {versions}; set-up makes the {variant} environment over it\n"
    )


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (f'exec {sys.executable} -S "$@"', "lacks MXNet, Horovod, DALI"),
        ("printf 'Traceback:\\n  File\\nImportError: libx.so\\n' >&2; exit 3", "ImportError: libx.so"),
        ("exit 3", "exit status 3"),
        ("exec sleep 60", "timed out"),
    ],
)
def test_a_python_without_the_libraries_is_refused_with_the_reason(
    body: str, reason: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if "sleep" in body:
        monkeypatch.setattr("launch.setup.site._QUERY_TIMEOUT_S", 0.1)
    python = _python(tmp_path / "python", body)
    told = reason.removeprefix("lacks ")
    with pytest.raises(UserError, match=rf"DALI, or PyTorch: {python} lacks .*{told}.*; name the inter"):
        choose_base(list(ENGINES), str(python))
    with pytest.raises(UserError, match=r"PyTorch: there is no /no/python; name the interpreter \(--system"):
        choose_base(["torch"], "/no/python")


def test_a_library_that_cannot_be_imported_is_named_and_an_interpreter_that_ends_is_refused(tmp_path: Path) -> None:
    for name, text, told in (
        ("a", "import os; os.abort()", "lacks a working interpreter"),
        ("b", "import no_lib", "PyTorch cannot be imported: .*named 'no_lib'; name another"),
    ):
        folder = tmp_path / name
        python = _python(folder / "python", f'PYTHONPATH={folder} exec {sys.executable} -S "$@"')
        (folder / "torch").mkdir()
        (folder / "torch" / "__init__.py").write_text(text, encoding="utf-8")
        with pytest.raises(UserError, match=f"{python}:? {told}"):
            choose_base(["torch"], str(python))


def test_the_first_python_of_the_path_with_the_libraries_is_the_base_but_never_the_environment_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("launch.setup.site.CURRENT", Environment(tmp_path / "own"))
    monkeypatch.chdir(tmp_path)
    bad = _python(tmp_path / "bad" / "python3", {"lacks": ["Horovod", "DALI"]})
    monkeypatch.setenv("PATH", f"{tmp_path}/own/bin:bad:{tmp_path}/good")
    monkeypatch.setenv("PYTHONHOME", "/of/conda")
    _python(tmp_path / "own" / "bin" / "python", _GOOD)
    with pytest.raises(UserError, match=f"DALI: {bad} lacks Horovod, DALI; name the interpreter"):
        choose_base(["mxnet"], "")
    good = f"test -z \"$PYTHONHOME\" && echo '{json.dumps(_GOOD)}'"
    for name in ("python3.10", "python3.11", "python3.12"):
        _python(tmp_path / "good" / name, good)
        assert choose_base(["mxnet"], "").base == f"{tmp_path}/good/{name}"
    assert choose_base(["mxnet"], "good/python3.10").base == f"{tmp_path}/good/python3.10", (
        "set-up may go on in another folder"
    )
    assert choose_base(["mxnet"], "python3.11").base == f"{tmp_path}/good/python3.11"


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


@pytest.mark.ranks
def test_a_python_with_the_real_libraries_is_a_base_and_their_versions_are_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("launch.setup.site.CURRENT", Environment(tmp_path / "own"))
    engine = cast(Engine, installed_engine())
    kind = choose_base([engine], sys.executable)
    assert (kind.engines, kind.base) == ((engine,), sys.executable)
    packages = {"MXNet": "mxnet", "Horovod": "horovod"} if engine == "mxnet" else {"PyTorch": "torch"}
    told = capsys.readouterr().err
    assert all(f"{title} {version(package)}" in told for title, package in packages.items()), told
