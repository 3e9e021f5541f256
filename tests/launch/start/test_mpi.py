"""Ranks that are to meet by MPI, in an environment whose Horovod was built with MPI or without."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from configs.errors import UserError
from configs.load import load_both, load_cluster
from configs.registry import has_engine, horovod_has_mpi
from launch.run import launch_run
from launch.start.commands import require_startable
from tests.libraries import find_horovod

pytestmark = pytest.mark.skipif(not has_engine("mxnet"), reason="mxnet is not installed")

each_launcher = pytest.mark.parametrize("launcher", ["mpirun", "srun", "horovodrun"])


def _settings(launcher: str) -> list[str]:
    settings = ["communication.kind=horovod", "communication.backend=mpi", f"launcher={launcher}"]
    return [f"cluster.{each}" for each in settings]


def _require_all_but_the_launcher(settings: list[str]) -> None:
    try:
        require_startable(load_cluster("laptop", settings))
    except UserError as error:
        assert "is not on this machine" in str(error), error


@each_launcher
def test_ranks_that_mpi_connects_are_refused_where_horovod_was_built_without(
    launcher: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    find_horovod(tmp_path / "packages", monkeypatch, has_mpi=False)
    monkeypatch.setenv("PATH", str(tmp_path))  # which has none of the launchers
    with pytest.raises(UserError) as refusal:
        launch_run(*load_both("digits", "laptop", _settings(launcher)), tmp_path / "run")
    words = str(refusal.value)
    assert "\n" not in words
    assert all(word in words for word in (launcher, "MPI", "./run.sh setup"))
    assert not (tmp_path / "run").exists()
    remedy = re.findall(r"cluster\.\S+=\w+", words)
    assert remedy
    _require_all_but_the_launcher([*_settings(launcher), *remedy])


@each_launcher
def test_ranks_that_mpi_connects_are_started_where_horovod_was_built_with_mpi(
    launcher: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    find_horovod(tmp_path / "packages", monkeypatch, has_mpi=True)
    monkeypatch.setenv("PATH", str(tmp_path))
    _require_all_but_the_launcher(_settings(launcher))


@pytest.mark.ranks
def test_what_this_environments_horovod_was_built_with_is_known_without_importing_it() -> None:
    code = "import horovod.mxnet as hvd; raise SystemExit(not hvd.mpi_built())"
    imported = subprocess.run([sys.executable, "-c", code], capture_output=True, check=False)
    assert horovod_has_mpi() == (imported.returncode == 0)
