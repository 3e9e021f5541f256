"""Neither the clock nor the order of reductions touches a bit: real runs of two ranks end in the same weights."""

from __future__ import annotations

from pathlib import Path

import pytest

from launch.__main__ import main
from logs.folder import Summary, read_summary
from logs.metrics import METRICS_FILE, read_metrics

pytestmark = pytest.mark.ranks


def _run(folder: Path, *settings: str) -> tuple[list[float], Summary]:
    """Train a few steps, every other of them sampled by the clock; give the losses and the summary."""
    short = ["data.source=synthetic", "run.target_top1=null", "run.max_steps=8", "run.log_every_steps=2",
             "batch.global_size=16"]  # fmt: skip
    sets = [word for setting in (*short, *settings) for word in ("--set", setting)]
    main(["train", "digits", *sets, "--run-dir", str(folder)])
    rows = read_metrics(folder / METRICS_FILE)
    return [row["loss"] for row in rows if row["kind"] == "interval"], read_summary(folder)


def test_without_timing_the_loss_is_the_same_bit_for_bit_and_the_figures_are_missing(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    losses, timed = _run(tmp_path / "timed", "cluster.engine.timing=true")
    assert "waiting for input" in capfd.readouterr().out
    same_losses, untimed = _run(tmp_path / "untimed", "cluster.engine.timing=false")
    assert "waiting for input" not in capfd.readouterr().out
    assert len(losses) == 4
    assert same_losses == losses
    assert untimed.weights_checksum == timed.weights_checksum
    assert timed.comm_exposed_fraction is not None
    assert (untimed.input_wait_fraction, untimed.comm_exposed_fraction) == (None, None)
    assert untimed.images_per_s is not None


def test_gradients_that_travel_under_the_next_forward_change_no_bit(tmp_path: Path) -> None:
    small = "cluster.communication.bucket_bytes=65536"
    losses, prompt = _run(tmp_path / "prompt", small, "cluster.communication.deferred_fraction=0")
    groups = "cluster.engine.update_groups=3"
    late_losses, late = _run(tmp_path / "late", small, groups, "cluster.communication.deferred_fraction=0.4")
    assert late_losses == losses
    assert late.weights_checksum == prompt.weights_checksum
