"""Rehearsed runs beside the predictions for them and for the described machine, in words."""

import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import mean

from configs.schema import Cluster, Recipe
from logs.disk import write_text
from logs.folder import REHEARSAL_FILE, STARTUP_FILE, RunFolder
from logs.usage import read_samples, read_usage
from train.sim.constants import load_calibration
from train.sim.forecast import make_scenario, time_step

_AGREES = 0.1
"""Largest difference between a rehearsed step and its prediction that counts as agreement."""
_BUSY = 0.7
"""Share of this machine's processors from which on ranks wait for them."""
_LONGEST_PHASES = 4


@dataclass(frozen=True)
class RehearsedSteps:
    """The steps of a rehearsal, times in seconds.

    Attributes:
        ranks: Number of ranks.
        step_s: Mean time of a step.
        compute_s: Waits of a step, on a rank that is not slow.
        negotiation_s: What Horovod's interval costs a step: the last bucket waits for half an interval, on average.
        busy: Share of this machine's processors that were busy, with ranks and with all else.
        cpu_s: Processor time of a rank and step.
    """

    ranks: int
    step_s: float
    compute_s: float
    negotiation_s: float
    busy: float
    cpu_s: float

    @property
    def predicted_s(self) -> float:
        """Return the step's time on a machine whose processors are not the limit."""
        return self.compute_s + self.negotiation_s

    @property
    def verdict(self) -> str:
        """Return whether prediction and rehearsal agree, and why not."""
        if abs(self.step_s / self.predicted_s - 1) <= _AGREES:
            return "agree"
        return "the CPU is the limit" if self.busy > _BUSY else "differ"


def rehearsed_steps(folder: Path, cluster: Cluster) -> RehearsedSteps:
    """Return what the steps of a rehearsal that has ended took, from its run folder and its cluster."""
    rehearsal, summary = cluster.rehearsal, RunFolder(folder).summary()
    assert rehearsal is not None
    assert summary.images_per_s is not None
    assert summary.global_batch_size is not None
    assert summary.world_size is not None
    assert summary.steps is not None
    waits = rehearsal.waits
    busy = [sample.machine_busy_cores for sample in read_samples(folder)]
    return RehearsedSteps(
        ranks=summary.world_size,
        step_s=summary.global_batch_size / summary.images_per_s,
        compute_s=(waits.forward_s + max(waits.gradients_s) + waits.update_s) / rehearsal.speed,
        negotiation_s=cluster.communication.cycle_time_ms / 2e3 if summary.world_size > 1 else 0.0,
        busy=mean(busy) / (os.cpu_count() or 1) if busy else 0.0,
        cpu_s=sum(read_usage(folder)["cpu_s"]) / summary.world_size / summary.steps,
    )


def outcome_text(folder: Path, steps: RehearsedSteps, recipe: Recipe, cluster: Cluster) -> str:
    """Return what a rehearsal took, beside its waits and its predictions; keep the part on steps for the run's page.

    Args:
        folder: The run folder of a rehearsal that has ended.
        steps: The steps of the rehearsal.
        recipe: The described recipe.
        cluster: The described machine.
    """
    summary, calibration = RunFolder(folder).summary(), load_calibration()
    described = time_step(make_scenario(recipe, cluster, calibration), calibration)
    exposed = "not measured"
    if summary.comm_exposed_fraction is not None:
        exposed = f"{1e3 * steps.step_s * summary.comm_exposed_fraction:.1f} ms"
    lines = [
        f"rehearsed: {summary.steps} steps of {1e3 * steps.step_s:.1f} ms on {steps.ranks} ranks of this machine: "
        f"sleeps {1e3 * steps.compute_s:.1f} ms, exposed communication {exposed}",
        f"predicted for these ranks: {1e3 * steps.predicted_s:.1f} ms, of which {1e3 * steps.negotiation_s:.1f} are "
        f"half a cycle of Horovod's negotiation: {steps.verdict}",
        f"CPU: {100 * steps.busy:.0f} % busy, {1e3 * steps.cpu_s:.1f} ms per rank and step",
        f"predicted for the described machine: {1e3 * described.total_s:.1f} ms per step, of which compute "
        f"{1e3 * described.compute_s:.1f} and exposed communication {1e3 * described.exposed_s:.1f}",
    ]
    if summary.slowest_rank is not None and summary.rank_excess is not None:
        excess = f"{100 * summary.rank_excess:.0f} % longer than the median rank"
        lines.insert(3, f"slowest rank: {summary.slowest_rank}, {excess}")
    compared = "\n".join(lines) + "\n"
    write_text(folder / REHEARSAL_FILE, compared)
    checkpoints = f"checkpoints: training waited {summary.checkpoint_s or 0:.2f} s for them"
    return f"{compared}{checkpoints}\nstart-up of rank 0: {_startup(folder)}\n"


def _startup(folder: Path) -> str:
    """Return the length of the start-up and its longest phases."""
    ledger = json.loads((folder / STARTUP_FILE).read_text(encoding="utf-8"))
    lengths = {row["phase"]: row["end_s"] - row["begin_s"] for row in ledger["phases"]}
    longest = sorted(lengths, key=lambda phase: -lengths[phase])[:_LONGEST_PHASES]
    words = ", ".join(f"{phase} {lengths[phase]:.1f}" for phase in longest)
    last = ledger["last"]
    ready = f"rank {last['rank']} was ready last, after {last['ready_s']:.1f} s"
    return f"{ledger['elapsed_s']:.1f} s, longest {words}; {ready}, the median rank after {last['median_s']:.1f} s"


def validation_text(rows: Sequence[RehearsedSteps]) -> str:
    """Return a table of rehearsals of the same run on different numbers of ranks, beside their predictions."""
    lines = ["ranks  predicted ms  rehearsed ms  difference  CPU busy  CPU ms per rank and step"]
    lines += [
        f"{row.ranks:5d}  {1e3 * row.predicted_s:12.1f}  {1e3 * row.step_s:12.1f}  "
        f"{100 * (row.step_s / row.predicted_s - 1):+9.0f} %  {100 * row.busy:6.0f} %  {1e3 * row.cpu_s:24.1f}  "
        f"{row.verdict}"
        for row in rows
    ]
    return "\n".join(lines) + "\n"
