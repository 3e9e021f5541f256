"""Runs in which one rank updates the weights in another way than the other rank."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from configs.registry import has_engine
from logs.environment import cpu_flags
from logs.metrics import METRICS_FILE, read_metrics
from tests.launch.stand_in import write_program
from tests.runs import SHORT, FinishedRun, read_summary, train

pytestmark = pytest.mark.ranks

_COMPILER = """if [ "$RANK" = 1 ]; then
  touch '{met}'
  echo 'no licence for this compiler' >&2
  exit 3
fi
# Else rank 1 would load what rank 0 has compiled.
while [ ! -e '{met}' ]; do sleep 0.1; done
exec cc "$@"
"""


def _trained(folder: Path, *settings: str) -> FinishedRun:
    return train(folder / "run", *SHORT, *settings, "data.source=synthetic")


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler")
@pytest.mark.skipif(not has_engine("torch"), reason="torch is not installed; MXNet compiles nothing")
def test_a_rank_whose_compiler_fails_keeps_the_weights_of_the_others_and_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiler = write_program(tmp_path / "compiler", _COMPILER.format(met=tmp_path / "met"))
    monkeypatch.setenv("CC", str(compiler))
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    adam = ["optimizer.name=adam", "schedule.base_lr=0.001"]
    done = _trained(tmp_path, "cluster.engine.name=torch", *adam)
    assert done.status == 0, done.errors
    assert read_summary(done.folder)["steps"] == 8, "after which the run has compared the weights"
    assert (tmp_path / "met").exists()
    (line,) = [line for line in done.errors.splitlines() if "licence" in line]
    assert line.startswith("[rank 1 ")
    assert all(word in line for word in (os.uname().nodename, str(compiler), "status 3", "longer", "CC"))


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("g++") is None, reason="no C++ compiler")
@pytest.mark.skipif("avx2" not in cpu_flags(), reason="the CPU is as old as the one that is played")
def test_ranks_that_round_an_update_differently_are_told_before_the_first_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    library = tmp_path / "unlike_rank.so"
    source = Path(__file__).with_name("unlike_rank.cc")
    subprocess.run(["g++", "-shared", "-fPIC", "-o", library, source], check=True)
    monkeypatch.setenv("LD_PRELOAD", str(library))
    monkeypatch.setenv("CC", "none")  # Compiled updates are alike on both types of CPU.
    done = _trained(tmp_path)
    assert done.status == 1, done.errors
    (failure,) = {line for line in done.errors.splitlines() if line.startswith("failed: ")}
    for word in ("of 2 ranks", "before the first step", os.uname().nodename, "CPU"):
        assert word in failure
    metrics = done.folder / METRICS_FILE
    assert not metrics.exists() or not read_metrics(metrics)
