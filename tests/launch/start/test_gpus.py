"""A cluster of GPUs is refused in one line where its ranks would fail one after another."""

import json
import os
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from configs.load import dump, load_both, load_cluster
from configs.programs import Program, command_of
from configs.registry import installed_engine
from launch.__main__ import main as train_verb
from launch.start.commands import without_cuda
from launch.start.ranks import main as ranks_verb
from tests.programs import run_program
from tests.runs import FinishedRun
from train.bench.__main__ import main as bench_verb

NO_GPU = "no GPU can be seen; take machines with GPUs and NVIDIA's driver, or --cluster laptop with cluster.device=cpu"


@dataclass(frozen=True)
class Machine:
    """A folder that is the environment of this process, and from which alone programs are taken."""

    folder: Path
    monkeypatch: pytest.MonkeyPatch

    def become(self, variant: str | None) -> None:
        """Take all GPUs from the machine, and give it an environment for them or for a CPU."""
        self.monkeypatch.setattr(sys, "prefix", str(self.folder))
        self.monkeypatch.setenv("PATH", str(self.folder))
        self.monkeypatch.setenv("LD_LIBRARY_PATH", str(self.folder))
        self.monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
        if variant is not None:
            state = json.dumps({"engines": ["mxnet"], "variant": variant})
            (self.folder / "setup.json").write_text(state, encoding="utf-8")


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Machine:
    return Machine(tmp_path, monkeypatch)


@pytest.mark.parametrize(
    ("variant", "changes", "is_refused"),
    [
        ("cpu", "", True),
        ("cpu", "launcher=srun", True),
        ("gpu", "", False),
        (None, "", False),  # Set-up did not make the environment, so what it can is not known.
        ("cpu", "device=cpu engine.precision=float32 engine.layout=NCHW", False),
    ],
)
def test_ranks_on_gpus_do_not_start_in_an_environment_for_a_cpu(
    machine: Machine, variant: str | None, changes: str, is_refused: bool
) -> None:
    machine.become(variant)
    cluster = load_cluster("a100-node", [f"cluster.{word}" for word in ["communication.backend=mpi", *changes.split()]])
    assert (without_cuda(cluster) is not None) == is_refused


@pytest.mark.ranks
def test_train_bench_and_what_starts_its_ranks_refuse_before_they_make_or_start_anything(
    machine: Machine, capsys: pytest.CaptureFixture[str]
) -> None:
    machine.become("cpu")
    runs = machine.folder / "runs"
    place = ["--cluster", "a100-node", "--set", f"cluster.paths.runs={runs}"]
    place += ["--set", f"cluster.engine.name={installed_engine()}"]
    assert train_verb(["digits", *place]) == 2
    assert ranks_verb([*place, "--", "touch", str(runs)]) == 2
    assert bench_verb(["step", *place, "--output", str(runs)]) == 2
    lines = capsys.readouterr().err.splitlines()
    assert [
        line.startswith("error: cluster a100-node is for GPUs: the environment is for a CPU") and "laptop" in line
        for line in lines
    ] == 3 * [True]
    assert not runs.exists()


@pytest.mark.ranks
def test_a_rank_that_a_scheduler_put_on_a_node_without_gpus_says_so_before_it_reads_images(
    machine: Machine, short_run: FinishedRun, tmp_path: Path
) -> None:
    machine.become("gpu")
    (tmp_path / "run").mkdir()
    recipe, cluster = load_both(
        str(short_run.folder / "config.yaml"), None, ["cluster.device=gpu", "cluster.communication={}"]
    )
    (tmp_path / "run" / "config.yaml").write_text(dump(recipe, cluster), encoding="utf-8")
    rank = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2"}
    done = run_program(*command_of(Program.RANK, str(tmp_path / "run")), env={**os.environ, **rank})
    assert done.returncode == 2, done.stderr
    (told,) = done.stderr.splitlines()
    assert told.startswith("error: ")
    assert told.endswith(f": {NO_GPU}")
