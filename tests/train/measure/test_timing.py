"""Neither the clock nor the order of reductions touches a bit: real runs of two ranks end in the same weights."""

from pathlib import Path

import pytest

from configs.registry import has_engine
from logs.folder import RunFolder, Summary
from logs.metrics import METRICS_FILE, read_metrics
from tests.runs import SHORT, FinishedRun, train


def _read(run: FinishedRun) -> tuple[list[float], Summary]:
    """Return the losses of a run, of which the clock sampled every other step, and its summary."""
    assert run.status == 0, run.errors
    rows = read_metrics(run.folder / METRICS_FILE)
    return [row["loss"] for row in rows if row["kind"] == "interval"], RunFolder(run.folder).summary()


@pytest.mark.ranks
def test_neither_timing_nor_gradients_that_travel_under_the_next_forward_change_a_bit(
    short_run: FinishedRun, packed_digits: Path, tmp_path: Path
) -> None:
    losses, timed = _read(short_run)
    assert "waiting for input" in short_run.output
    late = [
        "cluster.communication.bucket_bytes=65536", "cluster.communication.bucket_fraction=0",
        "cluster.engine.update_groups=3",
    ]  # fmt: skip
    if has_engine("mxnet"):
        late.append("cluster.communication.deferred_fraction=0.4")
    untimed_settings = [f"cluster.paths.data={packed_digits}", "cluster.engine.timing=false"]
    run = train(tmp_path / "untimed", *SHORT, *untimed_settings, *late)
    same_losses, untimed = _read(run)
    assert "waiting for input" not in run.output
    assert len(losses) == 4
    assert same_losses == losses
    assert untimed.weights_checksum == timed.weights_checksum
    assert timed.comm_exposed_fraction is not None
    assert (untimed.input_wait_fraction, untimed.comm_exposed_fraction) == (None, None)
    assert untimed.images_per_s is not None
