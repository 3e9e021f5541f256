"""Rows of a scaling study, for the tests of its tables, verdicts and pages."""

from dataclasses import replace

from launch.study.rows import ScalingRow

_USUAL = ScalingRow("", "n", "fast", "d", 8, 2, 0, "measured")


def scaling_row(rate: float | None, **values: object) -> ScalingRow:
    """Return a measured cell of two ranks with `rate` in images/s; `values` replace other fields."""
    return replace(_USUAL, images_per_s=rate, **values)  # type: ignore[arg-type]
