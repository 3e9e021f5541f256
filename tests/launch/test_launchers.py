"""`./run.sh train` under horovodrun and mpirun, for real: two ranks, the same network as the local launcher's."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from configs.errors import STOPPED_STATUS, UserError
from configs.load import ROOT, load_cluster
from configs.rank_variables import rank_environment
from launch.start.commands import run_under
from tests.launch.disturbed import WAYS, Way, require
from tests.launch.scheduled import SHORT, has_begun, ranks, summary, wait_until

OTHERS = [way for way in WAYS if way.launcher in ("horovodrun", "mpirun") and way.nodes == 1]


def _command(way: Way, folder: Path, *overrides: str) -> list[str]:
    sets = [word for each in [*SHORT, *way.settings, *overrides] for word in ("--set", each)]
    return [sys.executable, "-I", "-m", "launch", "train", "digits", "--run-dir", str(folder), *sets]


@pytest.fixture(scope="module")
def local(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """Train under the local launcher."""
    folder = tmp_path_factory.mktemp("local") / "run"
    subprocess.run(_command(WAYS[0], folder, "run.max_steps=3"), cwd=ROOT, check=True, capture_output=True)
    yield summary(folder)


@pytest.mark.slow
@pytest.mark.parametrize("way", OTHERS, ids=str)
@pytest.mark.ranks
def test_every_launcher_s_two_ranks_come_to_the_same_weights(way: Way, local: Any, tmp_path: Path) -> None:
    require(way)
    done = subprocess.run(_command(way, tmp_path / "run", "run.max_steps=3"), cwd=ROOT, capture_output=True, text=True,
                          check=False)  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "rank 1 of 2 on " in done.stderr
    found = summary(tmp_path / "run")
    assert (found["status"], found["world_size"]) == ("success", 2)
    assert found["weights_checksum"] == local["weights_checksum"]


@pytest.mark.slow
@pytest.mark.parametrize("way", OTHERS, ids=str)
@pytest.mark.ranks
def test_told_to_stop_ranks_keep_their_state_under_every_launcher(way: Way, tmp_path: Path) -> None:
    require(way)
    folder = tmp_path / "run"
    with (tmp_path / "output").open("wb") as output:
        process = subprocess.Popen(_command(way, folder, "run.epochs=500"), cwd=ROOT, stdout=output, stderr=output)
    wait_until(lambda: has_begun(folder), tmp_path / "output")
    process.send_signal(signal.SIGTERM)
    assert process.wait(timeout=60) == STOPPED_STATUS, (tmp_path / "output").read_text(encoding="utf-8")
    assert "told to stop, state kept after step" in summary(folder)["failure"]
    assert not ranks(folder)


def test_horovodrun_on_machines_that_nobody_names_is_refused() -> None:
    cluster = load_cluster("laptop", ["cluster.launcher=horovodrun", "cluster.num_nodes=2"])
    with pytest.raises(UserError, match=r"would start all 4 ranks on this machine.*submit --hosts A,B"):
        run_under(cluster, ["true"], rank_environment(cluster))
