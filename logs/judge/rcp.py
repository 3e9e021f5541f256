"""Compares the epochs that a run needs with MLPerf's reference convergence points (RCP).

The reference's tables, pruning and interpolation are those of ``mlperf_logging.rcp_checker``, and are not copied. No
other module imports that package.
"""

from dataclasses import dataclass
from functools import cache
from typing import Any, Literal

from configs.rules import TARGET_TOP1
from logs.judge.official import RULESET
from logs.read.record import IMAGENET_IMAGES, RunRecord

_SLOW_DEVIATIONS = 2.0

Outcome = Literal["normal", "faster", "too fast", "slower", "no reference"]


@dataclass(frozen=True)
class Reference:
    """The number of epochs in which MLPerf's reference runs reach the target at one batch size.

    Attributes:
        mean: Mean over the reference runs; ``deviation`` is the standard deviation.
        least: The official checker rejects a submission if the mean of the five runs is below this number.
    """

    batch_size: int
    mean: float
    deviation: float
    least: float


@dataclass(frozen=True)
class ReferenceComparison:
    """How a run compares with the reference.

    Attributes:
        outcome: ``faster`` and ``slower`` are accepted by the official checker, ``too fast`` is not.
        words: The comparison in one line.
    """

    outcome: Outcome
    reference: Reference | None
    words: str


def reference_for(batch_size: int) -> Reference | None:
    """Return the reference at a global batch, as the official tool finds it; None above the largest point.

    The tool uses the pruned set of reference points, so this function does as well. Between two points it interpolates;
    below the smallest one it takes that one.
    """
    checker, points = _checker(), "pruned_rcps"
    point = checker._find_rcp(batch_size, points)
    if point is None:
        below, above = checker._find_top_min_rcp(batch_size, points), checker._find_bottom_max_rcp(batch_size, points)
        if above is None:
            return None
        is_smallest = below is None
        point = (
            checker._find_min_rcp(points) if is_smallest else checker._create_interp_rcp(batch_size, below, above)[1]
        )
    mean = float(point["RCP Mean"])
    return Reference(batch_size, mean, float(point["RCP Stdev"]), float(mean / point["Max Speedup"]))


def compare_with_reference(record: RunRecord) -> ReferenceComparison:
    """Return how the epochs of a run compare with the reference at its batch size.

    The official checker tests five runs; the result is that of five runs with the same mean.
    """
    size, reference = record.global_batch_size, None
    if size is None or record.train_samples != IMAGENET_IMAGES:
        words = (
            f"the reference is for ImageNet ({IMAGENET_IMAGES} images), and this log has no batch or another data set"
        )
    elif (reference := reference_for(size)) is None:
        remedy = "submit in the open division (recipe: mlperf.division: open)"
        words = f"no reference reaches batch {size}: a closed submission fails as Missing RCP; {remedy}"
    elif record.status != "success" or record.epochs is None or (record.final_accuracy or 0) < TARGET_TOP1:
        words = f"the run did not reach the accuracy {TARGET_TOP1} of the reference runs"
    else:
        return _compare(float(record.epochs), reference)
    return ReferenceComparison("no reference", reference, words)


def _compare(epochs: float, reference: Reference) -> ReferenceComparison:
    outcome: Outcome = "normal"
    more = ""
    if epochs < reference.least:
        outcome, more = "too fast", f", accepted: {reference.least:.2f} epochs or more"
    elif epochs < reference.mean:
        outcome, more = "faster", f"; the score is multiplied by {reference.mean / epochs:.4f}"
    elif epochs > reference.mean + _SLOW_DEVIATIONS * reference.deviation:
        outcome, more = "slower", ", which the rules allow"
    numbers = f"reference {reference.mean:.2f} ± {reference.deviation:.2f} at batch {reference.batch_size}"
    return ReferenceComparison(outcome, reference, f"{outcome}: {epochs:g} epochs, {numbers}{more}")


@cache
def _checker() -> Any:
    # This import takes half a second, most of it for SciPy, so it is done only for runs that have a reference.
    from mlperf_logging.rcp_checker.rcp_checker import RCP_Checker  # noqa: PLC0415

    return RCP_Checker("training", RULESET, "resnet", verbose=False)
