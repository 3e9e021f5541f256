"""What a session hands to the loop: who hears of steps, batches and checkpoints, and what is closed after an error."""

from pathlib import Path
from typing import Any, cast

import pytest

from configs.load import dump, load_both
from tests.engines import ALONE
from train import session
from train.checkpoint import CheckpointWriter
from train.comm.communicator import SingleProcess
from train.compose import compose
from train.rank.startup import Ledger

SMALL = [
    "data={name: none, source: synthetic, train_samples: 64, eval_samples: 16, crop: {kind: none}}",
    "model.name=resnet8", "model.image_size=8", "batch.global_size=16", "run.epochs=2", "run.eval_every_epochs=1",
    "run.eval_first_epoch=1", "run.target_top1=null", "run.log_every_steps=3", "schedule.warmup_epochs=1",
    "cluster.communication.kind=none", "cluster.ranks_per_node=1", "cluster.engine.name=mxnet",
    "cluster.engine.run_ahead_steps=4", "cluster.checkpoint.keep=7", "cluster.checkpoint.every_epochs=3",
]  # fmt: skip


class _Told:
    """Stands for a watchdog, a tracer and signals; remembers what it was told."""

    stops = False

    def __init__(self, *_: Any) -> None:
        self.words: list[Any] = []

    def __call__(self, step: int | None = None) -> None:
        self.words.append(("progress", step))

    def told_to_stop(self) -> bool:
        return self.stops

    def __getattr__(self, word: str) -> Any:
        return lambda *_: self.words.append(word)


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> tuple[_Told, _Told]:
    """Give a session a watchdog and a tracer that remember."""
    watchdog, tracer = _Told(), _Told()
    monkeypatch.setattr(session, "Watchdog", lambda *_: watchdog)
    monkeypatch.setattr(session, "tracer_of", lambda *_: tracer)
    return watchdog, tracer


def _run(folder: Path, *, stops: bool = False) -> int:
    recipe, cluster = load_both("digits", "laptop", SMALL)
    (folder / "config.yaml").write_text(dump(recipe, cluster), encoding="utf-8")
    signals = _Told()
    signals.stops = stops
    return session.run(folder, ALONE, Ledger(), cast(Any, signals))


def test_the_loop_gets_the_cluster_files_numbers_and_the_watchdog_hears_of_everything(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, told: tuple[_Told, _Told]
) -> None:
    watchdog, tracer = told
    seen: dict[str, Any] = {}

    def composed(*given: Any, **parts: Any) -> Any:
        seen["rank"] = compose(*given, **parts)
        return seen["rank"]

    def train(run: Any, *, log: Any, progress: Any) -> None:
        seen.update(run=run, log=log, progress=progress)
        raise RuntimeError("enough")

    monkeypatch.setattr(session, "compose", composed)
    monkeypatch.setattr("train.loop.train", train)
    with pytest.raises(RuntimeError, match="enough"):
        _run(tmp_path, stops=True)
    run, rank = seen["run"], seen["rank"]
    assert (run.log_every_steps, run.run_ahead_steps, run.target_top1) == (3, 4, None)
    assert (run.plan, run.source, run.step.network) == (rank.plan, rank.training, rank.model.network)
    assert isinstance(run.step.communicator, SingleProcess)
    assert run.step.told_to_stop()
    assert rank.model.weights == {}, "0.1 GB of ResNet-50"
    keeper = run.checkpoints
    assert (keeper.on_save, run.evaluate._on_batch, keeper.every_epochs) == (watchdog, watchdog, 3)
    assert isinstance(keeper.writer, CheckpointWriter)
    assert keeper.writer._keep == 7
    assert tracer.words == ["close"], "the file of an operator trace would be torn"
    run.step.on_step(41)
    assert (watchdog.words[-1], tracer.words[-1]) == (("progress", 41), "step_queued")
    assert all(file.closed for _, file in seen["log"]._files.values()), (
        "the last lines of a run that fails are on the disk"
    )


def test_a_run_that_succeeds_traces_each_step_and_joins_the_traces_of_its_ranks(
    tmp_path: Path, told: tuple[_Told, _Told]
) -> None:
    assert _run(tmp_path) == 0
    watchdog, tracer = told
    assert tracer.words == [*["step_queued"] * 8, "close", "merge"]
    assert [words for words in watchdog.words if isinstance(words, str)] == ["expect", "rest"]
    # Eight steps, then one batch of evaluation after each of two epochs, and the last checkpoint.
    steps = [step for words in watchdog.words if not isinstance(words, str) for step in words[1:]]
    assert [step for step in steps if step is not None] == [*range(8)]
    assert steps.count(None) == 3
