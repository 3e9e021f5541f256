"""The words of launchers' command lines, and by which signal each is told that its ranks should save their state."""

from __future__ import annotations

import signal

import pytest

from configs.errors import ConfigError, UserError
from configs.load import load_cluster
from configs.rank_variables import rank_environment
from launch.start import link
from launch.start.commands import launcher_command, local_words, require_launchable, stop_signal_of
from launch.start.link import shaped

PLACES = ["cluster.num_nodes=3", "cluster.ranks_per_node=4", "cluster.communication.backend=mpi"]


def test_mpirun_places_a_nodes_ranks_on_each_node() -> None:
    cluster = load_cluster("laptop", [*PLACES, "cluster.launcher=mpirun"])
    words = launcher_command(cluster, ["rank"], rank_environment(cluster))
    assert words[:3] == ["mpirun", "-np", "12"]
    assert words[words.index("-map-by") + 1] == "ppr:4:node"
    assert words[words.index("-bind-to") + 1] == "none"
    assert {words[n + 1] for n, word in enumerate(words) if word == "-x"} >= {"PATH", *rank_environment(cluster)}


def test_srun_and_horovodrun_start_all_ranks() -> None:
    cluster = load_cluster("laptop", [*PLACES, "cluster.launcher=srun"])
    words = launcher_command(cluster, ["rank"], rank_environment(cluster))
    assert words[:5] == ["srun", "-K1", "--nodes=3", "--ntasks=12", "--ntasks-per-node=4"]
    assert "--mpi=pmix" in words
    cluster = load_cluster("laptop", ["cluster.num_nodes=3", "cluster.ranks_per_node=4", "cluster.launcher=horovodrun"])
    words = launcher_command(cluster, ["rank"], rank_environment(cluster))
    assert words == ["horovodrun", "-np", "12", "--gloo", "rank"]


@pytest.mark.parametrize(
    ("launcher", "number"),
    [("srun", signal.SIGUSR1), ("mpirun", signal.SIGUSR1), ("horovodrun", signal.SIGTERM), ("local", signal.SIGTERM)],
)
def test_launchers_that_end_their_ranks_at_a_sigterm_get_another_signal(launcher: str, number: signal.Signals) -> None:
    assert stop_signal_of(launcher) == number


def test_a_shaped_loopback_has_twice_the_rate_in_bits() -> None:
    (script,) = [word for word in shaped(1e6) if "tc qdisc" in word]
    assert " rate 16000000bit " in script


TORCH = ["cluster.engine.name=torch", "cluster.num_nodes=3", "cluster.ranks_per_node=4"]


def test_ranks_over_torch_distributed_are_told_where_their_store_is_and_nothing_of_horovod() -> None:
    cluster = load_cluster("laptop", [*TORCH, "cluster.launcher=mpirun"])
    variables = rank_environment(cluster)
    assert not [name for name in variables if name.startswith(("HOROVOD_", "MXNET_"))]
    words = launcher_command(cluster, ["rank"], variables)
    passed = {words[n + 1] for n, word in enumerate(words) if word == "-x"}
    assert passed >= {"MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_USE_AGENT_STORE", "OMP_NUM_THREADS"}
    assert "--mpi=pmix" not in launcher_command(load_cluster("laptop", [*TORCH, "cluster.launcher=srun"]), [], {})
    cluster = load_cluster("laptop", [*TORCH, "cluster.launcher=srun", "cluster.communication.backend=mpi"])
    assert "--mpi=pmix" in launcher_command(cluster, [], {})
    assert rank_environment(cluster)["OMPI_MCA_memory"] == "^patcher"


def test_a_launcher_that_cannot_start_a_kind_is_refused_with_those_that_can() -> None:
    cluster = load_cluster("laptop", ["cluster.engine.name=torch", "cluster.launcher=horovodrun"])
    with pytest.raises(ConfigError) as refusal:
        require_launchable(cluster)
    words = (
        "cluster.launcher: got 'horovodrun', allowed: local, mpirun, srun with communication.kind: torch_distributed"
    )
    assert words in str(refusal.value)


@pytest.mark.parametrize(
    ("sets", "words"),
    [
        ([], ["--kind", "horovod", "4"]),
        (["kind=devices"], ["--kind", "devices", "1"]),
        (["kind=parameter_server", "servers=3"], ["--kind", "parameter_server", "--servers", "3", "4"]),
        (["kind=parameter_server_async", "servers=2"], ["--kind", "parameter_server_async", "--servers", "2", "4"]),
    ],
)
def test_the_local_launcher_is_told_how_many_processes_and_servers_to_start(sets: list[str], words: list[str]) -> None:
    overrides = ["cluster.ranks_per_node=4", *(f"cluster.communication.{each}" for each in sets)]
    assert local_words(load_cluster("laptop", overrides)) == words


def test_a_link_that_cannot_be_shaped_is_refused_with_the_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(link, "can_shape", lambda: False)
    with pytest.raises(UserError, match=r"communication\.link_bytes_per_s: .*; leave the key out to use the plain"):
        link.require_link()
    monkeypatch.setattr(link, "can_shape", lambda: True)
    link.require_link()
