"""The clock looks and does not touch: real runs of two ranks with and without it end in the same weights."""

from __future__ import annotations

from pathlib import Path

import pytest

from launch.__main__ import main
from logs.folder import Summary, read_summary
from logs.metrics import METRICS_FILE, read_metrics


def _run(folder: Path, *, timing: bool) -> tuple[list[float], Summary]:
    """Train a few steps, every other of them sampled by the clock; give the losses and the summary."""
    settings = ["data.source=synthetic", "run.target_top1=null", "run.max_steps=8", "run.log_every_steps=2",
                "batch.global_size=16", f"cluster.engine.timing={str(timing).lower()}"]  # fmt: skip
    sets = [word for setting in settings for word in ("--set", setting)]
    main(["train", "digits", *sets, "--run-dir", str(folder)])
    rows = read_metrics(folder / METRICS_FILE)
    return [row["loss"] for row in rows if row["kind"] == "interval"], read_summary(folder)


def test_without_timing_the_loss_is_the_same_bit_for_bit_and_the_figures_are_missing(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    losses, timed = _run(tmp_path / "timed", timing=True)
    assert "waiting for input" in capfd.readouterr().out
    same_losses, untimed = _run(tmp_path / "untimed", timing=False)
    assert "waiting for input" not in capfd.readouterr().out
    assert len(losses) == 4
    assert same_losses == losses
    assert untimed.weights_checksum == timed.weights_checksum
    assert timed.comm_exposed_fraction is not None
    assert (untimed.input_wait_fraction, untimed.comm_exposed_fraction) == (None, None)
    assert untimed.images_per_s is not None
