"""`./run.sh train` under horovodrun and mpirun, for real: two ranks, the same network as the local launcher's."""

import signal
import subprocess
import time
from pathlib import Path

import pytest

from configs.errors import STOPPED_STATUS
from configs.load import ROOT
from tests.launch.faults.disturbed import WAYS, Way, require
from tests.launch.scheduled import SYNTHETIC, has_begun, ranks, wait_until
from tests.runs import FinishedRun, read_summary, train, train_command

_GONE_S = 10
"""Longest time that ranks outlive a launcher that was killed."""

OTHERS = [way for way in WAYS if way.launcher in ("horovodrun", "mpirun") and way.nodes == 1]


@pytest.mark.slow
@pytest.mark.parametrize("way", OTHERS, ids=str)
@pytest.mark.ranks
def test_the_resolved_config_runs_again_to_the_same_weights_under_every_launcher(
    way: Way, short_run: FinishedRun, packed_digits: Path, tmp_path: Path
) -> None:
    require(way)
    assert short_run.status == 0, short_run.errors
    settings = [f"cluster.paths.data={packed_digits}", *way.settings]
    done = train(tmp_path / "run", *settings, recipe=str(short_run.folder / "config.yaml"))
    assert done.status == 0, done.errors
    assert "rank 1 of 2 on " in done.errors
    found, local = read_summary(done.folder), read_summary(short_run.folder)
    assert (found["status"], found["world_size"]) == ("success", 2)
    assert found["weights_checksum"] == local["weights_checksum"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("number", "status", "way"),
    [
        *((signal.SIGKILL, -signal.SIGKILL, way) for way in (WAYS[0], *OTHERS)),
        *((signal.SIGHUP, STOPPED_STATUS, way) for way in OTHERS),  # test_resume sends it to the local launcher
    ],
    ids=str,
)
@pytest.mark.ranks
def test_a_killed_launcher_or_a_closed_terminal_takes_every_rank_with_it(
    number: int, status: int, way: Way, tmp_path: Path
) -> None:
    require(way)
    folder = tmp_path / "run"
    with (tmp_path / "output").open("wb") as output:
        engine = f"cluster.engine.name={way.engine}"
        command = train_command(folder, *SYNTHETIC, "run.epochs=500", engine, *way.settings)
        process = subprocess.Popen(command, cwd=ROOT, stdout=output, stderr=output)
    wait_until(lambda: has_begun(folder), tmp_path / "output")
    process.send_signal(number)
    since = time.monotonic()
    assert process.wait(timeout=30) == status, (tmp_path / "output").read_text(encoding="utf-8")
    wait_until(lambda: not ranks(folder), tmp_path / "output")
    if number == signal.SIGKILL:
        assert time.monotonic() - since < _GONE_S
    else:  # SIGHUP counts as the SIGTERM of a scheduler: other tests send that one
        assert "stopped, state saved after step" in read_summary(folder)["failure"]
