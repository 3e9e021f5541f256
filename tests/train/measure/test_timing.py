"""Neither the clock nor the order of reductions touches a bit: real runs of two ranks end in the same weights."""

import pytest

from logs.folder import RunFolder, Summary
from logs.metrics import METRICS_FILE, read_metrics
from tests.runs import FinishedRun


def _read(run: FinishedRun) -> tuple[list[float], Summary]:
    """Return the losses of a run, of which the clock sampled every other step, and its summary."""
    assert run.status == 0, run.errors
    rows = read_metrics(run.folder / METRICS_FILE)
    return [row["loss"] for row in rows if row["kind"] == "interval"], RunFolder(run.folder).summary()


@pytest.mark.ranks
def test_neither_timing_nor_a_trace_nor_gradients_that_travel_under_the_next_forward_change_a_bit(
    short_run: FinishedRun, other_run: FinishedRun
) -> None:
    losses, timed = _read(short_run)
    same_losses, untimed = _read(other_run)
    assert ["waiting for input" in run.output for run in (short_run, other_run)] == [True, False]
    assert len(losses) == 4
    assert same_losses == losses
    assert untimed.weights_checksum == timed.weights_checksum
    assert timed.comm_exposed_fraction is not None
    assert (untimed.input_wait_fraction, untimed.comm_exposed_fraction) == (None, None)
    assert untimed.images_per_s is not None
