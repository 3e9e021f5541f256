"""What the local launcher is started with, and the transports that mpirun takes on machines with and without GPUs."""

import os
import signal
from pathlib import Path
from typing import Any

import pytest

from configs.load import ROOT, load_cluster
from configs.rank_variables import binding_environment
from launch.start import commands
from launch.start.commands import launcher_command, require_launchable, require_startable, run_under
from launch.start.launcher import run_launcher
from launch.start.local import Outcome

pytestmark = pytest.mark.usefixtures("with_mxnet")

RANK = ["rank", "/runs/a"]


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Any, ...]]:
    """Return the list to which each start of the local launcher is added."""
    found: list[tuple[Any, ...]] = []

    def note(*words: Any, **options: Any) -> Outcome:
        found.append((*words, options))
        return Outcome(7)

    for name in ("run_ranks", "run_ranks_on_link"):
        monkeypatch.setattr(commands, name, note)
    return found


@pytest.mark.parametrize(
    ("sets", "processes", "options"),
    [
        (["ranks_per_node=3"], 3, {"kind": "shared_memory", "servers": 0}),
        (["ranks_per_node=3", "communication.kind=devices"], 1, {"kind": "devices", "servers": 0}),
        (["ranks_per_node=3", "communication.kind=parameter_server", "communication.servers=2"], 3,
         {"kind": "parameter_server", "servers": 2}),
        (["ranks_per_node=3", "communication.kind=parameter_server", "communication.servers=2",
          "communication.link_bytes_per_s=1000000"], 3,
         {"kind": "parameter_server", "servers": 2, "bytes_per_s": 1e6}),
    ],
)  # fmt: skip
def test_ranks_of_this_machine_get_their_command_number_variables_and_servers(
    sets: list[str], processes: int, options: dict[str, Any], told: list[tuple[Any, ...]]
) -> None:
    cluster = load_cluster("laptop", [f"cluster.{each}" for each in sets])
    assert run_under(cluster, RANK, {"OWN": "1"}) == Outcome(7)
    assert told == [(RANK, processes, {"OWN": "1"}, options)]


def test_ranks_on_gpus_are_started_by_the_script_with_the_cores_of_their_node(told: list[tuple[Any, ...]]) -> None:
    cluster = load_cluster("a100-node", ["cluster.ranks_per_node=2"])
    assert run_under(cluster, RANK, {"OWN": "1"}) == Outcome(7)
    ((command, processes, variables, _),) = told
    assert (command, processes) == ([f"{ROOT}/launch/rank.sh", *RANK], 2)
    assert variables == {"OWN": "1", **binding_environment(cluster), "RANK_GROUP_SIGNALLED": "1"}


@pytest.mark.parametrize(
    ("place", "sets", "layer", "transports"),
    [
        ("laptop", ["node.hcas=[mlx5_0]"], True, "self,vader"),
        ("laptop", ["node.hcas=[mlx5_0]", "num_nodes=2"], True, "^openib"),
        ("abci-v100", ["num_nodes=1"], False, "^openib"),
        ("abci-v100", ["num_nodes=1", "node.hcas=[]"], True, "self,vader"),
        ("abci-v100", ["num_nodes=2", "node.hcas=[]"], True, "^openib"),
    ],
)
def test_mpirun_takes_adapters_for_gpus_shared_memory_on_one_machine_and_else_tcp(
    place: str, sets: list[str], layer: bool, transports: str
) -> None:
    changes = ["launcher=mpirun", *(["communication.backend=mpi"] if place == "laptop" else []), *sets]
    words = launcher_command(load_cluster(place, [f"cluster.{each}" for each in changes]), ["x"], {})
    assert (words[words.index("-map-by") + 2 :][:3] == ["-mca", "pml", "ob1"]) is layer
    assert words[words.index("btl") + 1] == transports


@pytest.mark.parametrize("kind", ["devices", "parameter_server", "shared_memory", "horovod"])
def test_the_local_launcher_starts_every_kind(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(commands, "require_engine", lambda *_: None)
    monkeypatch.setenv("PATH", "/nowhere")
    cluster = load_cluster("laptop", [f"cluster.communication.kind={kind}"])
    require_launchable(cluster)
    require_startable(cluster)


@pytest.mark.parametrize("has_guard", [True, False])
def test_the_kernel_ends_a_launcher_with_this_process_where_there_is_a_command_for_it(
    has_guard: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "setpriv").write_text(f'#!/bin/sh\necho "$1 $2" >"{tmp_path}/guarded"\nshift 2\nexec "$@"\n')
    (tmp_path / "setpriv").chmod(0o755)
    path = f"{tmp_path}{os.pathsep}{os.environ['PATH']}"
    monkeypatch.setenv("PATH", path)
    monkeypatch.setenv("LEFT", "here")
    monkeypatch.setattr("shutil.which", lambda name: f"{tmp_path}/{name}" if has_guard else None)
    script = f'echo "$LEFT $OWN" >"{tmp_path}/told"'
    assert run_launcher(["sh", "-c", script, str(tmp_path)], {"OWN": "1"}, signal.SIGTERM, None) == Outcome(0)
    assert (tmp_path / "told").read_text(encoding="utf-8") == "here 1\n"
    assert (tmp_path / "guarded").exists() == has_guard
    assert not has_guard or (tmp_path / "guarded").read_text(encoding="utf-8") == "--pdeathsig TERM\n"


def test_ranks_whose_run_folder_is_gone_are_told_to_stop_by_the_signal(tmp_path: Path) -> None:
    script = "trap 'exit 75' USR1; kill -TERM $PPID; while true; do sleep 0.01; done"
    command = ["bash", "-c", script, str(tmp_path)]
    outcome = run_launcher(command, {}, signal.SIGUSR1, tmp_path / "gone" / "stop")
    assert outcome == Outcome(75, stopped_by=signal.SIGTERM)
