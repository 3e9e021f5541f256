"""Reference convergence: how many epochs the reference takes at a batch size, by the official RCP checker's own data.

The only importer of ``mlperf_logging.rcp_checker``, whose tables, pruning and interpolation are asked, never copied.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal

from configs.errors import UserError
from configs.rules import TARGET_TOP1
from logs.disk import write_json
from logs.read.record import RunRecord

__all__ = ["IMAGENET_SAMPLES", "Reference", "Standing", "custom_rcps", "reference_for", "standing"]

IMAGENET_SAMPLES = 1_281_167
_LEAST_RUNS = 10
"""Runs that a reference set needs: twice those of a submission. *Source*: the checker's table of submission runs."""
_SLOW_DEVIATIONS = 2.0
_HOW = {"measured": "", "interpolated": " (interpolated)", "smallest": " (that of the smallest batch which has one)"}

Outcome = Literal["normal", "faster", "too fast", "slower", "no reference"]


@dataclass(frozen=True)
class Reference:
    """Epochs to the target that the reference needs at one batch size.

    Attributes:
        least: Below this mean of a submission's five runs, the official checker rejects it.
        how: ``measured``, ``interpolated``, or ``smallest`` for batches below every reference.
    """

    batch_size: int
    mean: float
    deviation: float
    least: float
    how: Literal["measured", "interpolated", "smallest"]


@dataclass(frozen=True)
class Standing:
    """A run, or a submission's runs, against the reference.

    Attributes:
        epochs: Olympic mean where there are three or more runs, plain mean else.
        normalisation: Factor that the score (time) is multiplied by; 1 unless faster than the reference.
        words: One line for people.
    """

    outcome: Outcome
    epochs: float | None
    reference: Reference | None
    normalisation: float
    words: str


def reference_for(batch_size: int, ruleset: str = "4.0.0", custom: Path | None = None) -> Reference | None:
    """Find the reference at ``batch_size`` as the official tool does, from its pruned points; None above the largest.

    Args:
        batch_size: Global batch, images.
        ruleset: 1.0.0 to 4.0.0.
        custom: A file that `custom_rcps` made, in place of the official points.

    Raises:
        UserError: ``custom`` cannot be read.
    """
    checker, points = _checker(ruleset, custom), "pruned_rcps"
    if (found := checker._find_rcp(batch_size, points)) is not None:
        return _reference(batch_size, found, "measured")
    below, above = checker._find_top_min_rcp(batch_size, points), checker._find_bottom_max_rcp(batch_size, points)
    if below is not None and above is not None:
        return _reference(batch_size, checker._create_interp_rcp(batch_size, below, above)[1], "interpolated")
    return None if above is None else _reference(batch_size, checker._find_min_rcp(points), "smallest")


def standing(records: Sequence[RunRecord], ruleset: str = "4.0.0", custom: Path | None = None) -> Standing:
    """Compare the epochs to target of runs of one recipe with the reference of their batch.

    The official checker tests the olympic mean of five; of fewer runs this says what it would say of five like them.
    """
    sizes = {record.global_batch_size for record in records}
    size = next(iter(sizes))
    if len(sizes) != 1 or size is None:
        return _without("the logs do not agree on one global_batch_size")
    if any(record.train_samples != IMAGENET_SAMPLES for record in records) and custom is None:
        return _without(f"the reference runs are of ImageNet ({IMAGENET_SAMPLES} images), these are not")
    reference = reference_for(size, ruleset, custom)
    if reference is None:
        remedy = "ten or more runs of one's own can be made one: ./run.sh package --make-rcp FILE RUN ..."
        return _without(f"no reference reaches batch {size}: a closed submission fails as Missing RCP; {remedy}")
    epochs = sorted(record.epochs for record in records if record.status == "success" and record.epochs is not None)
    if len(epochs) < len(records):
        return _without(f"{len(records) - len(epochs)} of {len(records)} runs did not reach the target", reference)
    if custom is None and any((record.final_accuracy or 0) < TARGET_TOP1 for record in records):
        return _without(f"the reference ends at {TARGET_TOP1}, these runs ended below it", reference)
    kept = epochs[1:-1] if len(epochs) > 2 else epochs  # noqa: PLR2004 (an olympic mean needs three)
    return _compare(sum(kept) / len(kept), reference)


def custom_rcps(records: Sequence[RunRecord], destination: Path) -> None:
    """Write a reference set of our own runs for ``--custom-rcp`` and the official tool's ``--custom_rcps``.

    Raises:
        UserError: Fewer than ten runs, several batch sizes, a seed twice, or a run that did not reach its target.
    """
    sizes = {record.global_batch_size for record in records}
    if len(records) < _LEAST_RUNS:
        raise UserError(
            f"reference runs: got {len(records)}, allowed: {_LEAST_RUNS} or more of one batch; run more seeds"
        )
    if len(sizes) != 1 or None in sizes:
        raise UserError(
            f"reference runs: got batch sizes {sorted(map(str, sizes))}, allowed: one; give runs of one recipe"
        )
    if failed := [record.source for record in records if record.status != "success" or record.epochs is None]:
        raise UserError(f"{failed[0]}: did not reach its target; a reference is made of runs that all did")
    if len({record.seeds for record in records}) != len(records):
        raise UserError("reference runs: got two of one seed, allowed: another seed in each run; leave one out")
    size = sizes.pop()
    point = {
        "Benchmark": "resnet",
        "BS": size,
        "Hyperparams": records[0].settings,
        "Epochs to converge": [record.epochs for record in records],
    }
    write_json(destination, {f"resnet_ref_{size}": point})


def _compare(epochs: float, reference: Reference) -> Standing:
    told = (
        f"{epochs:g} epochs, reference {reference.mean:.2f} ± {reference.deviation:.2f} at batch {reference.batch_size}"
    )
    told += _HOW[reference.how]
    if reference.how == "smallest" and epochs < reference.least:
        return Standing("too fast", epochs, reference, 1.0, f"too fast for a batch without one of its own: {told}")
    if epochs < reference.least:
        return Standing(
            "too fast", epochs, reference, 1.0, f"too fast: {told}, at least {reference.least:.2f} is accepted"
        )
    if epochs < reference.mean:
        factor = reference.mean / epochs
        return Standing("faster", epochs, reference, factor, f"faster: {told}; the score is multiplied by {factor:.4f}")
    if epochs > reference.mean + _SLOW_DEVIATIONS * reference.deviation:
        return Standing("slower", epochs, reference, 1.0, f"slower than the reference, which is allowed: {told}")
    return Standing("normal", epochs, reference, 1.0, f"normal: {told}")


def _without(words: str, reference: Reference | None = None) -> Standing:
    return Standing("no reference", None, reference, 1.0, words)


@lru_cache
def _checker(ruleset: str, custom: Path | None) -> Any:
    # Half a second, most of it SciPy: only runs that have a reference wait for it.
    from mlperf_logging.rcp_checker.rcp_checker import RCP_Checker  # noqa: PLC0415

    if custom is None:
        return RCP_Checker("training", ruleset, "resnet", verbose=False)
    try:
        with custom.open(encoding="utf-8") as file:
            return RCP_Checker("training", ruleset, "resnet", verbose=False, rcp_file=file)
    except OSError as error:
        raise UserError(f"{custom}: cannot be read ({error.strerror}); give a file that --make-rcp wrote") from None
    except (json.JSONDecodeError, KeyError, TypeError, AttributeError, ValueError):
        raise UserError(f"{custom}: is no set of reference points; give a file that --make-rcp wrote") from None


def _reference(size: int, point: dict[str, Any], how: Literal["measured", "interpolated", "smallest"]) -> Reference:
    mean, least = float(point["RCP Mean"]), float(point["RCP Mean"] / point["Max Speedup"])
    return Reference(size, mean, float(point["RCP Stdev"]), least, how)
