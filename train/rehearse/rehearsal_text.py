"""A rehearsed run beside the prediction for the described machine, in words."""

from __future__ import annotations

from pathlib import Path

from configs.schema import Cluster, Recipe
from logs.folder import read_summary
from train.sim.constants import load_calibration
from train.sim.forecast import make_scenario, time_step
from train.sim.step_time import StepTime

__all__ = ["comparison_text", "described_step"]


def described_step(recipe: Recipe, cluster: Cluster) -> StepTime:
    """Return the predicted step of the described machine."""
    calibration = load_calibration()
    return time_step(make_scenario(recipe, cluster, calibration), calibration)


def comparison_text(folder: Path, cluster: Cluster, described: StepTime) -> str:
    """Return what a rehearsal's steps took, beside its waits and beside the described machine's prediction.

    Args:
        folder: The run folder of a rehearsal that has ended.
        cluster: The rehearsal's cluster.
        described: The predicted step of the described machine.
    """
    assert cluster.rehearsal is not None
    summary, rehearsal = read_summary(folder), cluster.rehearsal
    assert summary.images_per_s is not None
    assert summary.global_batch_size is not None
    waits = rehearsal.waits
    compute_ms = 1e3 * (waits.forward_s + max(waits.gradients_s) + waits.update_s) / rehearsal.speed
    step_ms = 1e3 * summary.global_batch_size / summary.images_per_s
    exposed = "not measured"
    if summary.comm_exposed_fraction is not None:
        exposed = f"{100 * summary.comm_exposed_fraction:.0f} % of the step"
    return (
        f"rehearsed: {summary.steps} steps of {step_ms:.1f} ms on {summary.world_size} ranks of this machine; "
        f"{compute_ms:.1f} ms of them are the described GPU's compute at speed {rehearsal.speed:g}; "
        f"exposed communication {exposed}\n"
        f"predicted for the described machine: {1e3 * described.total_s:.1f} ms a step, of which compute "
        f"{1e3 * described.compute_s:.1f} and exposed communication {1e3 * described.exposed_s:.1f}\n"
        "The accuracies are invented: this run is a rehearsal and no result.\n"
    )
