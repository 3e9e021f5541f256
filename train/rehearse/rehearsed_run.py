"""The recipe and the cluster of a rehearsal, the described run with waits from the simulator; and what it took.

Imports no framework, so that `launch` may import it.
"""

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import mean
from typing import Any

import numpy as np

from configs.blocks.rehearsal import Fault, Waits
from configs.errors import ConfigError, UserError
from configs.machine_limits import usable_cores
from configs.plan import plan_run
from configs.registry import ENGINES, communicators_of, installed_engine
from configs.schema import Cluster, Recipe
from configs.templates import fill_template
from configs.validate import validate
from logs.disk import write_text
from logs.folder import REHEARSAL_FILE, STARTUP_FILE, RunFolder
from logs.nodes import NodeScore, choose_nodes, why_left_out
from logs.usage import read_samples, read_usage
from train.comm.links import LINK_BYTES
from train.networks.arch import network_arguments
from train.sim.forecast import forecast, make_scenario, time_step
from train.sim.step_time import step_model, update_time
from train.sim.time_to_train import evaluation_time

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

_SLEEPING = "shared_memory"
"""The communicator whose ranks sleep while they wait; it sums in float32."""

_COPY_BYTES_PER_S = 12e9
"""From the host to a GPU: PCIe of the third generation with 16 lanes."""

_ABOVE_TARGET = 0.005
_BELOW_TARGET = 0.0005
_STEEPNESS = 3
"""Power by which the invented accuracy approaches its end; the published curves rise as steeply."""
_NO_TARGET = 0.9

_AGREES = 0.1
"""Largest difference between a rehearsed step and its prediction that counts as agreement."""
_BUSY = 0.7
"""Share of this machine's processors from which on ranks wait for them."""
_LONGEST_PHASES = 4
_TEMPLATE = Path(__file__).with_name("rehearsal.txt.jinja")


def rehearsed_run(  # noqa: PLR0913 (each says another part of the place)
    recipe: Recipe,
    cluster: Cluster,
    course: Mapping[str, Any],
    *,
    ranks: int,
    nodes: int = 1,
    launcher: str = "local",
    times_own_work: bool = False,
) -> tuple[Recipe, Cluster]:
    """Return what ``./run.sh train`` runs to rehearse a described run.

    The global batch, and with it every step, epoch and evaluation, stays that of the recipe; each rank takes the share
    of several described ranks in one micro-batch. The waits are those of one described rank.

    Args:
        recipe: The recipe.
        cluster: The described machine.
        course: Keys of the block ``rehearsal``: what is shorter, slower or goes wrong.
        ranks: Processes on this machine, over all nodes.
        nodes: Nodes of the launcher, for virtual nodes under srun.
        launcher: How the processes start.
        times_own_work: Whether the ranks' own work is what counts, which many ranks that wait in MPI or Gloo would
            disturb: they use every core meanwhile. Ranks of one machine then sum in shared memory, where they sleep.

    Raises:
        UserError: The number of ranks does not divide the global batch or the nodes, the simulator does not know the
            described machine, or a slow rank or a fault has another form or lies outside the run.
    """
    if min(ranks, nodes) < 1 or ranks % nodes:
        raise UserError(f"--ranks: got {ranks} with --nodes {nodes}, allowed: 1 or more nodes, with as many ranks each")
    if recipe.batch.global_size % ranks:
        raise UserError(f"--ranks: got {ranks}, allowed: a divisor of the global batch {recipe.batch.global_size}")
    settings = cluster.model_dump(mode="json")
    communication = _communication(settings["communication"], ranks, launcher)
    if times_own_work and nodes == 1:
        communication["kind"] = _SLEEPING
    place = {
        **_kept(settings, "name", "purpose", "checkpoint", "submission", "trace_steps", "watchdog_s"),
        "num_nodes": nodes,
        "ranks_per_node": ranks // nodes,
        "launcher": launcher,
        "scheduler": _kept(settings["scheduler"], "max_restarts", "spare_nodes"),
        "communication": communication,
        "environment": {
            **{name: value for name, value in settings["environment"].items() if name.startswith("HOROVOD_")},
            **(_CROWDED if launcher in _MPI_LAUNCHERS else {}),
        },
        "paths": _kept(settings["paths"], "data", "runs"),
    }
    # PyTorch's rank 0 inherits a socket from the local launcher; srun gives each rank a control group.
    forked = nodes == 1 and launcher != "srun" and communication["kind"] in ("horovod", _SLEEPING)
    return _waiting_run(recipe, cluster, place, course, forked=forked)


def without_slow_ranks(cluster: Cluster, scores: Sequence[NodeScore]) -> tuple[Cluster, list[str]]:
    """Return the cluster of a rehearsal whose ranks are the best ones after a check, and why others are left out.

    Args:
        cluster: The rehearsed cluster, whose ranks are nodes of their own: ``node0`` and so on, spare ones last.
        scores: What the check of all of them found.
    """
    assert cluster.rehearsal is not None
    names = [f"node{rank}" for rank in range(cluster.world_size + cluster.scheduler.spare_nodes)]
    chosen = choose_nodes(names, cluster.world_size, scores=scores)
    numbers = {name.removeprefix("node"): str(rank) for rank, name in enumerate(chosen)}
    slow = [(*place.partition(":"), factor) for place, factor in cluster.rehearsal.slow_ranks.items()]
    kept = {f"{numbers[rank]}{colon}{part}": factor for rank, colon, part, factor in slow if rank in numbers}
    why = [words for each in scores if each.host not in chosen and (words := why_left_out(each))]
    rehearsal = cluster.rehearsal.model_copy(update={"slow_ranks": kept})
    return cluster.model_copy(update={"rehearsal": rehearsal}), why


def rehearsed_job(recipe: Recipe, cluster: Cluster) -> tuple[Recipe, Cluster]:
    """Return what ``./run.sh submit --rehearse`` submits: the described run on its own nodes, with waits.

    Nodes, ranks, launcher, scheduler, container, variables and folders stay those of the cluster. Without a GPU, MPI or
    Gloo takes NCCL's place. Tensors have their real sizes.

    Raises:
        UserError: The simulator does not know the described machine.
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
    return _waiting_run(recipe, cluster, place, {"shrink": 1})


def _waiting_run(
    recipe: Recipe, cluster: Cluster, place: Mapping[str, Any], course: Mapping[str, Any], *, forked: bool = False
) -> tuple[Recipe, Cluster]:
    """Return the recipe for the ranks of ``place``, and that cluster with waits in place of the engine."""
    ranks, spares = place["num_nodes"] * place["ranks_per_node"], place["scheduler"].get("spare_nodes", 0)
    batch = recipe.batch.model_copy(update={"bn_span": None, "accumulation_steps": None})
    # An epoch leaves out what the described ranks leave out, so that it has as many steps.
    samples = recipe.data.train_samples // cluster.world_size * cluster.world_size
    data = recipe.data.model_copy(update={"train_samples": samples})
    rehearsed = recipe.model_copy(update={"batch": batch, "data": data})
    described = cluster.engine.model_dump(mode="json")
    kept = _kept(described, "precision", "layout", "update_groups", "run_ahead_steps", "timing")
    if place["communication"]["kind"] == _SLEEPING:
        kept["precision"] = "float32"
    tree = {
        **place,
        "device": "cpu",
        "sample_gpus": False,
        "engine": {"name": next(name for name, entry in ENGINES.items() if not entry.computes), **kept},
        "rehearsal": {"waits": waits_of(recipe, cluster).model_dump(mode="json"), "forked": forked, **course},
    }
    waiting = validate(Cluster, tree, "cluster.")
    assert waiting.rehearsal is not None
    steps = plan_run(rehearsed, ranks).total_steps
    for text in waiting.rehearsal.faults:
        fault = Fault.parse(text)
        if fault.rank >= ranks or fault.step >= steps:
            raise ConfigError("--fail", text, f"a rank from 0 to {ranks - 1} and a step from 1 to {steps - 1}")
    for rank in waiting.rehearsal.slow_ranks:
        if int(rank.partition(":")[0]) >= ranks + spares:
            raise ConfigError("--slow", rank, f"a rank from 0 to {ranks + spares - 1}")
    return rehearsed, waiting


def _kept(block: dict[str, Any], *names: str) -> dict[str, Any]:
    return {name: block[name] for name in names}


def _communication(described: dict[str, Any], ranks: int, launcher: str) -> dict[str, Any]:
    """Return the communication of this machine's processors, with the described buckets."""
    crowding = ranks / usable_cores() / _RANKS_PER_CORE
    # Ranks that MPI starts have met already; the other launchers' ranks need no MPI.
    return {
        "kind": communicators_of(installed_engine())[0],
        "backend": "mpi" if launcher in _MPI_LAUNCHERS else "gloo",
        **_kept(described, "bucket_bytes", "bucket_fraction"),
        "cycle_time_ms": max(described["cycle_time_ms"], _CYCLE_MS_PER_RANK * ranks * max(1.0, crowding)),
        "timeout_s": max(described["timeout_s"], _PATIENCE_S),
    }


def waits_of(recipe: Recipe, cluster: Cluster) -> Waits:
    """Return how long one rank of a described machine computes, layer by layer, and its invented accuracies.

    Args:
        recipe: The recipe, with the described machine's share of the batch.
        cluster: The described machine.

    Raises:
        UserError: The simulator does not know the machine, or the recipe does not fit it.
    """
    scenario = make_scenario(recipe, cluster)
    machine, constants, software = scenario.machine, scenario.calibration.constants, scenario.software
    timed = step_model(**network_arguments(recipe.model))
    accumulation = scenario.accumulation
    forward, kernels = timed.kernels(machine, scenario.batch, constants, software)
    backward = np.cumsum(kernels)
    # Only the last micro-batch's gradients are reduced; the ones before lengthen the step's forward.
    forward_s = accumulation * float(forward.sum()) + (accumulation - 1) * float(backward[-1])
    topology = machine.topology(constants.network_efficiency)
    return Waits(
        forward_s=forward_s,
        gradients_s=tuple(float(backward[kernel if software.overlaps else -1]) for kernel in timed.kernel_of_gradient),
        copy_s=4 * recipe.model.image_size**2 * recipe.model.input_channels * scenario.batch / _COPY_BYTES_PER_S,
        swap_s=LINK_BYTES / topology.rank_bytes_per_s,
        update_s=update_time(timed.network.num_parameters, machine, constants),
        evaluation_s=evaluation_time(forecast(scenario).images_per_s, scenario.mlperf_round, recipe.eval_passes),
        top1=invented_top1(recipe.run.epochs, recipe.run.target_top1),
    )


def invented_top1(epochs: int, target: float | None) -> tuple[float, ...]:
    """Return an accuracy for each epoch that rises towards the target and passes it with the last epoch."""
    end = _NO_TARGET if target is None else min(1.0, target + _ABOVE_TARGET)
    curve = [end * (1 - (1 - epoch / epochs) ** _STEEPNESS) for epoch in range(1, epochs + 1)]
    most = end if target is None else target - _BELOW_TARGET
    return (*(min(value, most) for value in curve[:-1]), curve[-1])


def outcome_text(folder: Path, rehearsed: Cluster, recipe: Recipe, described: Cluster) -> str:
    """Return what a rehearsal took, beside its waits and its predictions; keep the part on steps for the run's page.

    A step should take the waits of a rank that is not slow, and half of Horovod's interval, which the last bucket waits
    for on average.

    Args:
        folder: The run folder of a rehearsal that has ended.
        rehearsed: The cluster of the rehearsal.
        recipe: The described recipe.
        described: The described machine.
    """
    startup = json.loads((folder / STARTUP_FILE).read_text(encoding="utf-8"))
    lengths = [(row["phase"], row["end_s"] - row["begin_s"]) for row in startup["phases"]]
    rehearsal, summary = rehearsed.rehearsal, RunFolder(folder).summary()
    assert rehearsal is not None
    assert summary.steps
    ranks, waits = rehearsed.world_size, rehearsal.waits
    step_s = (summary.global_batch_size or 0) / (summary.images_per_s or 1.0)
    sleeps_s = (waits.forward_s + max(waits.gradients_s) + waits.update_s) / rehearsal.speed
    negotiation_s = rehearsed.communication.cycle_time_ms / 2e3 if ranks > 1 else 0.0
    cores, machine = usable_cores(), os.cpu_count() or 1  # A job or a container may use few of the machine's.
    busy = [max(each.busy_cores / cores, each.machine_busy_cores / machine) for each in read_samples(folder)]
    told = fill_template(
        _TEMPLATE,
        ranks=ranks,
        step_s=step_s,
        sleeps_s=sleeps_s,
        negotiation_s=negotiation_s,
        agrees=abs(step_s / (sleeps_s + negotiation_s) - 1) <= _AGREES,
        busy=min(1.0, mean(busy or [0.0])),
        most_busy=_BUSY,
        cpu_s=sum(read_usage(folder)["cpu_s"]) / ranks / summary.steps,
        summary=summary,
        described=time_step(make_scenario(recipe, described)),
        startup=startup,
        longest=sorted(lengths, key=lambda each: -each[1])[:_LONGEST_PHASES],
    )
    write_text(folder / REHEARSAL_FILE, told.partition("checkpoints: ")[0])
    return told
