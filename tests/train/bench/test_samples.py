"""Samples on their way from the ranks of a bench to the bench."""

import subprocess
import sys

import pytest

from configs.load import ROOT
from train.bench.samples import MeasurementFailed, read_samples, write_samples
from train.rank.identity import Identity

PEER = """
import atexit, os
from train.bench.samples import end_peer, write_samples
from train.rank.identity import Identity
atexit.register(os.abort)
write_samples(Identity(0, 2, 0, 2, "here", "Horovod"), "peer", [{"rate": 1.5}])
end_peer(lambda: %s)
"""


@pytest.mark.parametrize("meeting", ["print('met')", "1 / 0"])
def test_a_peer_that_has_measured_succeeds_however_its_libraries_end(meeting: str) -> None:
    done = subprocess.run([sys.executable, "-c", PEER % meeting], cwd=ROOT, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert read_samples(done.stdout) == {"peer": [{"rate": 1.5}]}
    assert ("met\n" in done.stdout) == (meeting == "print('met')")


def test_a_job_without_samples_failed() -> None:
    with pytest.raises(MeasurementFailed, match=r"without a measurement:\n(?!line 0\n)(.*\n)+last words"):
        read_samples("".join(f"line {number}\n" for number in range(99)) + "last words\n")


@pytest.mark.parametrize(("rank", "local_rank", "is_told"), [(0, 0, True), (0, 1, True), (2, 0, False), (1, 1, False)])
def test_one_rank_of_all_nodes_tells(
    rank: int, local_rank: int, is_told: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    write_samples(Identity(rank, 4, local_rank, 2, "here", "Horovod"), "step", [{"step_ms": 1.0}])
    assert bool(capsys.readouterr().out) is is_told
