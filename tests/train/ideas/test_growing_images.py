"""Runs whose training images grow from epoch to epoch, against runs of one size that are chained by hand."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any, cast

import pytest

from configs.load import dump, load_both
from configs.resume_check import fixed_settings
from logs.checkpoints import SavedState, read, step_of
from logs.folder import RunFolder
from tests.configs.test_progressive_resizing import GROWING
from tests.engines import ALONE, each_engine
from tests.train.test_session import Signals, watchdogs
from train.rank.signals import RunStopped
from train.rank.startup import Ledger
from train.session import run

SMALL = [
    "data={name: none, source: synthetic, train_samples: 64, eval_samples: 16, crop: {kind: none}, eval_size: 16}",
    "model.name=resnet8", "batch.global_size=16", "batch.accumulation_steps=2", "run.epochs=4", "run.target_top1=null",
    "run.eval_first_epoch=1", "run.eval_every_epochs=1", "run.log_every_steps=1", "cluster.checkpoint.every_epochs=1",
    "cluster.checkpoint.keep=9", "cluster.ranks_per_node=1", "cluster.communication.kind=none",
    "data.cutmix_alpha=1",
]  # fmt: skip
"""Four epochs of four steps; the images that grow have 8, 8, 12 and 16 px."""
STEPS = 4

__all__ = ["watchdogs"]  # of every test here: a run that is told to stop leaves its watchdog to the end of its process


def _train(folder: Path, *overrides: str, begun: SavedState | None = None, last: int | None = None) -> None:
    """Train from the beginning or from a checkpoint, whatever recipe wrote it."""
    recipe, cluster = load_both("digits", "laptop", [*SMALL, *overrides])
    folder.mkdir()
    (folder / "config.yaml").write_text(dump(recipe, cluster), encoding="utf-8")
    checkpoints = RunFolder(folder).checkpoints
    if begun is not None:
        settings = {**fixed_settings(recipe, cluster), "data set": {}}
        given = SavedState({**begun.meta, "settings": settings}, begun.arrays)
        checkpoints.resume_from(checkpoints.write(begun.meta["step"], given, keep=9))
    assert run(folder, ALONE, Ledger(), cast(Any, Signals(last))) == 0


def _after(folder: Path, epochs: int | None = None) -> SavedState:
    """Return the checkpoint that was written after some epochs; by default the newest."""
    files = RunFolder(folder).checkpoints.files()
    return read(next(path for path in files if epochs is None or step_of(path) == epochs * STEPS))


def _bits(state: SavedState) -> dict[str, bytes]:
    return {name: array.tobytes() for name, array in state.arrays.items() if not name.startswith("data/")}


@pytest.mark.medium
@each_engine
@pytest.mark.parametrize("more", [[], ["cluster.engine.cuda_graphs=step"]], ids=["", "fixed"])
def test_a_run_has_the_bits_of_chained_runs_of_one_size_also_if_it_is_resumed(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, name: str, more: list[str]
) -> None:
    if name == "mxnet" and more:
        pytest.skip("has no fixed step")
    caplog.set_level(logging.WARNING)
    engine = [f"cluster.engine.name={name}", *more]
    shares = [f"data.progressive_resizing.ramp_{end}_share={share}" for end, share in (("end", 1), ("start", 0.5))]
    growing = [*engine, "model.image_size=16", GROWING, *shares]
    _train(tmp_path / "whole", *growing)
    begun = None
    for side, epochs in ((8, 2), (12, 3), (16, 4)):
        _train(tmp_path / f"{side}", *engine, f"model.image_size={side}", begun=begun)
        begun = _after(tmp_path / f"{side}", epochs)
        assert _bits(_after(tmp_path / "whole", epochs)) == _bits(begun), f"{side} px"
    with pytest.raises(RunStopped) as stopped:
        _train(tmp_path / "begun", *growing, last=9)
    assert 8 < stopped.value.step < 12, "within the epoch of 12 px"
    _train(tmp_path / "again", *growing, begun=_after(tmp_path / "begun"))
    assert _bits(_after(tmp_path / "again")) == _bits(_after(tmp_path / "whole"))
    assert not caplog.records
