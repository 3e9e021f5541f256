"""A cluster of GPUs is refused in one line where its ranks would fail one after another."""

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from configs.errors import UserError
from configs.load import dump, load_both, load_cluster
from configs.programs import Program, command_of
from configs.registry import installed_engine
from launch.__main__ import main as train_verb
from launch.setup.checks import describe_gpus
from launch.setup.gpu import search_gpus
from launch.start.commands import require_gpus
from launch.start.ranks import main as ranks_verb
from tests.launch.setup.gpu_machines import GpuMachine
from tests.runs import FinishedRun
from train.bench.__main__ import main as bench_verb

NO_GPU = "no GPU can be seen; take machines with GPUs and NVIDIA's driver, or --cluster laptop with cluster.device=cpu"
FEWER = "{} for 8 ranks per node; ask for whole nodes, see CUDA_VISIBLE_DEVICES, or set cluster.ranks_per_node={}"
FOR_A_CPU = "the environment is for a CPU; ./run.sh setup --gpu"


@dataclass(frozen=True)
class Machine:
    """A folder that is the environment of this process, and from which alone programs are taken."""

    folder: Path
    monkeypatch: pytest.MonkeyPatch

    def become(self, gpus: int, visible: str | None, variant: str | None) -> None:
        """Give the machine GPUs, of which some are visible, and an environment for them or for a CPU."""
        self.monkeypatch.setattr(sys, "prefix", str(self.folder))
        self.monkeypatch.setenv("PATH", str(self.folder))
        self.monkeypatch.setenv("LD_LIBRARY_PATH", str(self.folder))
        if gpus:
            a100 = GpuMachine("A100", "NVIDIA A100-SXM4-80GB", (8, 0), "550.54.15", count=gpus)
            a100.install(self.folder)
        if visible is None:
            self.monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
        else:
            self.monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
        if variant is not None:
            state = json.dumps({"engines": ["mxnet"], "variant": variant})
            (self.folder / "setup.json").write_text(state, encoding="utf-8")


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Machine:
    return Machine(tmp_path, monkeypatch)


@pytest.mark.parametrize(
    ("gpus", "visible", "variant", "changes", "why"),
    [
        (0, None, "cpu", "", NO_GPU),
        (0, None, "gpu", "launcher=horovodrun", NO_GPU),
        (0, None, "gpu", "launcher=torchrun", NO_GPU),
        (8, "", "gpu", "", NO_GPU),
        (8, None, "cpu", "", FOR_A_CPU),
        (8, None, "gpu", "", None),
        (8, None, None, "", None),  # Set-up did not make the environment, so what it can is not known.
        (7, None, "gpu", "", FEWER.format("7 GPUs", 7)),
        (8, "3", "gpu", "", FEWER.format("1 GPU", 1)),
        (8, "0,1", "gpu", "ranks_per_node=2 node.rank_cores=[]", None),
        # These start ranks elsewhere: a login node needs no GPU.
        (0, None, "gpu", "launcher=srun", None),
        (0, None, "gpu", "launcher=mpirun", None),
        (0, None, "gpu", "launcher=horovodrun num_nodes=2", None),
        (0, None, "cpu", "launcher=srun", FOR_A_CPU),
        (0, None, "cpu", "device=cpu engine.precision=float32 engine.layout=NCHW", None),
    ],
)
def test_ranks_on_gpus_start_only_where_there_is_one_for_each_and_cuda(
    machine: Machine, gpus: int, visible: str | None, variant: str | None, changes: str, why: str | None
) -> None:
    machine.become(gpus, visible, variant)
    words = ["communication.backend=mpi", *changes.split()]
    cluster = load_cluster("a100-node", [f"cluster.{word}" for word in words])
    if cluster.engine.name == "torch":
        why = why and why.replace("setup --gpu", "setup --engine torch --gpu")
    if why is None:
        require_gpus(cluster)
    else:
        with pytest.raises(UserError) as refusal:
            require_gpus(cluster)
        assert str(refusal.value) == f"cluster a100-node is for GPUs: {why}"


def test_amd_gpus_are_counted_and_set_up_leads_them_to_the_sites_own_pytorch(machine: Machine) -> None:
    """A CPU is a node of the kernel's list, too: one without SIMD units."""
    machine.become(0, None, "gpu")
    machine.monkeypatch.setattr("launch.setup.gpu.KFD_NODES", machine.folder)
    for node, simd_count in enumerate((0, 440, 440)):
        (machine.folder / str(node)).mkdir()
        text = f"cpu_cores_count 64\nsimd_count {simd_count}\nmem_banks_count 1\n"
        (machine.folder / str(node) / "properties").write_text(text, encoding="utf-8")
    assert describe_gpus(search_gpus(), "cpu").startswith("2 AMD GPUs, which no package of the index is built for: ")
    words = ["communication.backend=mpi", "node.rank_cores=[]", "ranks_per_node={}"]
    require_gpus(load_cluster("a100-node", [f"cluster.{word}".format(2) for word in words]))
    with pytest.raises(UserError, match="2 GPUs"):
        require_gpus(load_cluster("a100-node", [f"cluster.{word}".format(3) for word in words]))


@pytest.mark.ranks
def test_train_bench_and_what_starts_its_ranks_refuse_before_they_make_or_start_anything(
    machine: Machine, capsys: pytest.CaptureFixture[str]
) -> None:
    machine.become(0, "", "cpu")
    runs = machine.folder / "runs"
    place = ["--cluster", "a100-node", "--set", f"cluster.paths.runs={runs}"]
    place += ["--set", f"cluster.engine.name={installed_engine()}"]
    assert train_verb(["digits", *place]) == 2
    assert ranks_verb([*place, "--", "touch", str(runs)]) == 2
    assert bench_verb(["step", *place, "--output", str(runs)]) == 2
    words = f"error: cluster a100-node is for GPUs: {NO_GPU}\n"
    assert capsys.readouterr().err == words * 3
    assert not runs.exists()


@pytest.mark.ranks
def test_a_rank_that_a_scheduler_put_on_a_node_without_gpus_says_so_before_it_reads_images(
    machine: Machine, short_run: FinishedRun, tmp_path: Path
) -> None:
    machine.become(0, "", "gpu")
    (tmp_path / "run").mkdir()
    recipe, cluster = load_both(
        str(short_run.folder / "config.yaml"), None, ["cluster.device=gpu", "cluster.communication={}"]
    )
    (tmp_path / "run" / "config.yaml").write_text(dump(recipe, cluster), encoding="utf-8")
    rank = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2"}
    done = subprocess.run(
        command_of(Program.RANK, str(tmp_path / "run")), env={**os.environ, **rank}, capture_output=True, text=True,
        check=False,
    )  # fmt: skip
    assert done.returncode == 2, done.stderr
    (told,) = done.stderr.splitlines()
    assert told.startswith("error: ")
    assert told.endswith(f": {NO_GPU}")
