"""The recipe and the cluster of a rehearsal: the described run, on this machine, with waits from the simulator."""

import os
from collections.abc import Mapping, Sequence
from typing import Any

from configs.blocks.rehearsal import MOST_SLOW, Fault
from configs.errors import ConfigError, UserError
from configs.plan import plan_run
from configs.registry import ENGINES, communicators_of, installed_engine
from configs.schema import Cluster, Recipe
from configs.validate import validate
from train.rehearse.described_waits import waits_of

_PATIENCE_S = 600
"""Time that ranks wait for each other: many of them share few cores while they start."""
_CYCLE_MS_PER_RANK = 1.0
"""Interval of Horovod's negotiation, per rank. Every interval costs each rank an exchange over Gloo, also when nothing
is due: 0.3 to 0.6 ms of its processor for 2 to 8 ranks (measured; at 1 ms, 4 ranks spent 28 ms a step on it)."""
_RANKS_PER_CORE = 16
"""Where more ranks than this share a core, the interval grows with them once more: the exchanges of 64 ranks on two
cores would otherwise take as long as a step."""

_MPI_LAUNCHERS = ("mpirun", "srun")
_CROWDED = {"OMPI_MCA_rmaps_base_oversubscribe": "1", "OMPI_MCA_mpi_yield_when_idle": "1"}
"""Lets Open MPI start more ranks than cores; ranks that wait then leave the core to others."""


def rehearsed_run(  # noqa: PLR0913 (each is a flag)
    recipe: Recipe,
    cluster: Cluster,
    *,
    ranks: int,
    nodes: int = 1,
    launcher: str = "local",
    shrink: int = 256,
    speed: float = 1.0,
    slow_ranks: Sequence[str] = (),
    faults: Sequence[str] = (),
) -> tuple[Recipe, Cluster]:
    """Return what ``./run.sh train`` runs to rehearse a described run.

    The global batch, and with it every step, epoch and evaluation, stays that of the recipe; each rank takes the share
    of several described ranks in one micro-batch. The waits are those of one described rank.

    Args:
        recipe: The recipe.
        cluster: The described machine.
        ranks: Processes on this machine, over all nodes.
        nodes: Nodes of the launcher, for virtual nodes under srun.
        launcher: How the processes start.
        shrink: Factor by which tensors are shorter.
        speed: Factor by which waits are shorter.
        slow_ranks: ``RANK:FACTOR`` each.
        faults: ``WHAT@STEP:RANK`` each.

    Raises:
        UserError: The number of ranks does not divide the global batch or the nodes, the simulator does not know the
            described machine, or a slow rank or a fault has another form or lies outside the run.
    """
    if ranks < 1 or ranks % nodes:
        raise UserError(f"--ranks: got {ranks}, allowed: 1 or more, a multiple of --nodes {nodes}")
    if recipe.batch.global_size % ranks:
        raise UserError(f"--ranks: got {ranks}, allowed: a divisor of the global batch {recipe.batch.global_size}")
    settings = cluster.model_dump(mode="json")
    place = {
        **_kept(settings, "name", "purpose", "checkpoint", "submission", "trace_steps", "watchdog_s"),
        "num_nodes": nodes,
        "ranks_per_node": ranks // nodes,
        "launcher": launcher,
        "communication": _communication(settings["communication"], ranks, launcher),
        "environment": {
            **{name: value for name, value in settings["environment"].items() if name.startswith("HOROVOD_")},
            **(_CROWDED if launcher in _MPI_LAUNCHERS else {}),
        },
        "paths": _kept(settings["paths"], "data", "runs"),
    }
    return _waiting_run(recipe, cluster, place, _course(shrink, speed, slow_ranks, faults))


def rehearsed_job(
    recipe: Recipe,
    cluster: Cluster,
    *,
    shrink: int,
    speed: float,
    slow_ranks: Sequence[str] = (),
    faults: Sequence[str] = (),
) -> tuple[Recipe, Cluster]:
    """Return what ``./run.sh submit --rehearse`` submits: the described run on its own nodes, with waits.

    Nodes, ranks, launcher, scheduler, container, variables and folders stay those of the cluster. Without a GPU, MPI or
    Gloo takes NCCL's place.

    Args:
        recipe: The recipe.
        cluster: The cluster.
        shrink: Factor by which tensors are shorter.
        speed: Factor by which waits are shorter.
        slow_ranks: ``RANK:FACTOR`` each.
        faults: ``WHAT@STEP:RANK`` each.

    Raises:
        UserError: As for `rehearsed_run`.
    """
    settings = cluster.model_dump(mode="json")
    communication = settings["communication"]
    backend = communication["backend"]
    if backend == "nccl":
        backend = "mpi" if cluster.launcher in _MPI_LAUNCHERS else "gloo"
    kept = _kept(communication, "bucket_bytes", "bucket_fraction", "cycle_time_ms", "timeout_s")
    kind = communicators_of(installed_engine())[0]
    scheduler = {**settings["scheduler"], "check_first": False}  # the rehearsal is the check
    place = {**settings, "scheduler": scheduler, "communication": {"kind": kind, "backend": backend, **kept}}
    return _waiting_run(recipe, cluster, place, _course(shrink, speed, slow_ranks, faults))


def _course(shrink: int, speed: float, slow_ranks: Sequence[str], faults: Sequence[str]) -> dict[str, Any]:
    """Return the block ``rehearsal`` of a cluster file without its waits."""
    slow = dict(_slow(text) for text in slow_ranks)
    return {"shrink": shrink, "speed": speed, "slow_ranks": slow, "faults": list(faults)}


def _waiting_run(
    recipe: Recipe, cluster: Cluster, place: Mapping[str, Any], course: Mapping[str, Any]
) -> tuple[Recipe, Cluster]:
    """Return the recipe for the ranks of ``place``, and that cluster with waits in place of the engine."""
    ranks = place["num_nodes"] * place["ranks_per_node"]
    batch = recipe.batch.model_copy(update={"bn_span": None, "accumulation_steps": None})
    # An epoch leaves out what the described ranks leave out, so that it has as many steps.
    samples = recipe.data.train_samples // cluster.world_size * cluster.world_size
    data = recipe.data.model_copy(update={"train_samples": samples})
    tree = {
        **place,
        "device": "cpu",
        "sample_gpus": False,
        "engine": _engine(cluster.model_dump(mode="json")["engine"]),
        "rehearsal": {"waits": waits_of(recipe, cluster).model_dump(mode="json"), **course},
    }
    rehearsed = recipe.model_copy(update={"batch": batch, "data": data})
    _require_within_run(tree["rehearsal"], ranks, plan_run(rehearsed, ranks).total_steps)
    return rehearsed, validate(Cluster, tree, "cluster.")


def _require_within_run(rehearsal: Mapping[str, Any], ranks: int, total_steps: int) -> None:
    """Raise unless every slow rank and every fault has a rank and a step of the run."""
    for text in rehearsal["faults"]:
        try:
            fault = Fault.parse(text)
        except ConfigError as error:
            raise ConfigError("--fail", text, error.allowed) from None
        if fault.rank >= ranks or fault.step >= total_steps:
            raise ConfigError("--fail", text, f"a rank from 0 to {ranks - 1} and a step from 1 to {total_steps - 1}")
    for rank, factor in rehearsal["slow_ranks"].items():
        if not rank.isdecimal() or int(rank) >= ranks or not 0 < factor <= MOST_SLOW:
            allowed = f"RANK:FACTOR with a rank from 0 to {ranks - 1}, and a factor above 0 and at most {MOST_SLOW}"
            raise ConfigError("--slow", f"{rank}:{factor:g}", allowed)


def _kept(block: dict[str, Any], *names: str) -> dict[str, Any]:
    return {name: block[name] for name in names}


def _engine(described: dict[str, Any]) -> dict[str, Any]:
    """Return the engine of waits, which keeps the described number type and bookkeeping."""
    waiting = next(name for name, entry in ENGINES.items() if not entry.computes)
    return {"name": waiting, **_kept(described, "precision", "layout", "update_groups", "run_ahead_steps", "timing")}


def _communication(described: dict[str, Any], ranks: int, launcher: str) -> dict[str, Any]:
    """Return the communication of this machine's processors, with the described buckets."""
    crowding = ranks / (os.cpu_count() or 1) / _RANKS_PER_CORE
    # Ranks that MPI starts have met already; the other launchers' ranks need no MPI.
    return {
        "kind": communicators_of(installed_engine())[0],
        "backend": "mpi" if launcher in _MPI_LAUNCHERS else "gloo",
        **_kept(described, "bucket_bytes", "bucket_fraction"),
        "cycle_time_ms": max(described["cycle_time_ms"], _CYCLE_MS_PER_RANK * ranks * max(1.0, crowding)),
        "timeout_s": max(described["timeout_s"], _PATIENCE_S),
    }


def _slow(text: str) -> tuple[str, float]:
    """Return the rank and the factor of ``RANK:FACTOR``."""
    rank, _, factor = text.partition(":")
    try:
        return rank, float(factor)
    except ValueError:
        raise ConfigError("--slow", text, "RANK:FACTOR, as 7:1.5") from None
