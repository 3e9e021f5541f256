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
_HOW = {"measured": "", "interpolated": " (interpolated)", "smallest": " (the point of the smallest batch)"}

Outcome = Literal["normal", "faster", "too fast", "slower", "no reference"]


@dataclass(frozen=True)
class Reference:
    """The number of epochs in which MLPerf's reference runs reach the target at one batch size.

    Attributes:
        mean: Mean over the reference runs; ``deviation`` is the standard deviation.
        least: The official checker rejects a submission if the mean of the five runs is below this number.
        how: ``measured``, ``interpolated``, or ``smallest`` for a batch below the smallest reference point.
    """

    batch_size: int
    mean: float
    deviation: float
    least: float
    how: Literal["measured", "interpolated", "smallest"]


@dataclass(frozen=True)
class ReferenceComparison:
    """How a run compares with the reference.

    Attributes:
        outcome: ``faster`` and ``slower`` are accepted by the official checker, ``too fast`` is not.
        epochs: The run's epochs.
        normalisation: Factor by which MLPerf multiplies the score (a time); 1 unless the run is faster.
        words: The comparison in one line.
    """

    outcome: Outcome
    epochs: float | None
    reference: Reference | None
    normalisation: float
    words: str


def reference_for(batch_size: int) -> Reference | None:
    """Return the reference at a global batch, as the official tool finds it; None above the largest point.

    The tool uses the pruned set of reference points, so this function does as well.
    """
    checker, points = _checker(), "pruned_rcps"
    if (found := checker._find_rcp(batch_size, points)) is not None:
        return _reference(batch_size, found, "measured")
    below, above = checker._find_top_min_rcp(batch_size, points), checker._find_bottom_max_rcp(batch_size, points)
    if below is not None and above is not None:
        return _reference(batch_size, checker._create_interp_rcp(batch_size, below, above)[1], "interpolated")
    return None if above is None else _reference(batch_size, checker._find_min_rcp(points), "smallest")


def compare_with_reference(record: RunRecord) -> ReferenceComparison:
    """Return how the epochs of a run compare with the reference at its batch size.

    The official checker tests five runs; the result is that of five runs with the same mean.
    """
    size = record.global_batch_size
    if size is None:
        return _no_reference("the log has no global_batch_size")
    if record.train_samples != IMAGENET_IMAGES:
        return _no_reference(
            f"the reference is for ImageNet ({IMAGENET_IMAGES} images), and this data set is another one"
        )
    reference = reference_for(size)
    if reference is None:
        remedy = "submit in the open division (recipe: mlperf.division: open)"
        return _no_reference(f"no reference reaches batch {size}: a closed submission fails as Missing RCP; {remedy}")
    if record.status != "success" or record.epochs is None:
        return _no_reference("the run did not reach the target", reference)
    if (record.final_accuracy or 0) < TARGET_TOP1:
        return _no_reference(f"the reference runs end at accuracy {TARGET_TOP1}, and this run ended below", reference)
    return _compare(float(record.epochs), reference)


def _compare(epochs: float, reference: Reference) -> ReferenceComparison:
    numbers = (
        f"{epochs:g} epochs, reference {reference.mean:.2f} ± {reference.deviation:.2f} at batch "
        f"{reference.batch_size}{_HOW[reference.how]}"
    )
    normalisation = 1.0
    outcome: Outcome = "normal"
    words = f"normal: {numbers}"
    if epochs < reference.least:
        outcome = "too fast"
        words = f"too fast: {numbers}, accepted: {reference.least:.2f} epochs or more"
        if reference.how == "smallest":
            words = f"too fast for a batch below the smallest reference point: {numbers}"
    elif epochs < reference.mean:
        outcome, normalisation = "faster", reference.mean / epochs
        words = f"faster: {numbers}; the score is multiplied by {normalisation:.4f}"
    elif epochs > reference.mean + _SLOW_DEVIATIONS * reference.deviation:
        outcome = "slower"
        words = f"slower than the reference, which the rules allow: {numbers}"
    return ReferenceComparison(outcome, epochs, reference, normalisation, words)


def _no_reference(words: str, reference: Reference | None = None) -> ReferenceComparison:
    return ReferenceComparison("no reference", None, reference, 1.0, words)


@cache
def _checker() -> Any:
    # This import takes half a second, most of it for SciPy, so it is done only for runs that have a reference.
    from mlperf_logging.rcp_checker.rcp_checker import RCP_Checker  # noqa: PLC0415

    return RCP_Checker("training", RULESET, "resnet", verbose=False)


def _reference(size: int, point: dict[str, Any], how: Literal["measured", "interpolated", "smallest"]) -> Reference:
    mean, least = float(point["RCP Mean"]), float(point["RCP Mean"] / point["Max Speedup"])
    return Reference(size, mean, float(point["RCP Stdev"]), least, how)
