"""The time between steps, epochs and evaluations in which the engine has nothing to do, and Python's share of a step.

`train.bench.bench_options` has the question and the options.
"""

from __future__ import annotations

import argparse
import json
import logging
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, cast

from configs.load import load_both
from configs.plan import plan_run
from configs.programs import Program, command_of
from data.input.batches import TrainingBatch
from logs.metrics import NullMetrics
from logs.mlperf import NullLog
from train.bench.launching import pack_dataset, run_ranks
from train.bench.measure import Report, interleave, make_report
from train.comm.buckets import plan_reductions
from train.comm.communicator import SingleProcess
from train.engine.protocol import Engine, Optimizer, TrainableNetwork
from train.evaluate import top1_score
from train.loop import TrainingRun, train
from train.measure.progress import Progress
from train.measure.timing import StepClock
from train.networks.arch import build_network
from train.schedule import HyperParameters, resolve_schedule
from train.step import Step

_STEPS = 400
_RECIPE = "digits"
_SIDE = "32"
"""Side of an image, px."""


def measure(options: argparse.Namespace) -> Report:
    """See `Bench`."""
    recipe, cluster = load_both(_RECIPE, "laptop", _overrides(options))
    plan_run(recipe, cluster.world_size)  # Refuses a number of epochs that no run can have.
    data = pack_dataset(recipe, cluster)
    rows = interleave({"null network, tensors of ResNet-50": _python_step}, n=options.rounds, warmup=1)
    with tempfile.TemporaryDirectory(prefix="bench-epoch-") as folder:
        output = Path(folder) / "gaps.json"
        rows += interleave(
            {"ours": lambda: _ours(options, output), "textbook": lambda: _textbook(options, data, output)},
            n=options.rounds,
            reference="textbook",
            compared=["between_epochs_ms"],
            announce=logging.getLogger(__name__).info,
        )
    notes = [
        "python_step_ms: the loop with all its parts on a network, an optimizer and arrays that do nothing",
        "between_steps_ms, between_epochs_ms: from the moment a step is queued to the moment the next step has a batch",
        "before_evaluation_ms: from the end of the last step; after_evaluation_ms: until the next step has a batch",
        "all gaps: medians over a job of two ranks, on rank 0; a round is a job of each",
        "ours: digits, 32 images a rank; textbook: the loop of Horovod's example on the same images, a small network",
    ]
    return make_report(rows, notes)


def _overrides(options: argparse.Namespace) -> list[str]:
    evaluations = ("run.eval_every_epochs=2", "run.eval_first_epoch=2")
    return [f"model.image_size={_SIDE}", f"run.epochs={options.epochs}", *evaluations]


def _ours(options: argparse.Namespace, output: Path) -> Mapping[str, float]:
    sets = [word for override in _overrides(options) for word in ("--set", override)]
    run_ranks(command_of(Program.EPOCH_OURS, _RECIPE, *sets, "--output", str(output)))
    return _read(output)


def _textbook(options: argparse.Namespace, data: Path, output: Path) -> Mapping[str, float]:
    shape = ["--image-size", _SIDE, "--batch-size", "32", "--epochs", str(options.epochs), "--eval-every", "2"]
    command = command_of(Program.EPOCH_TEXTBOOK, str(data), *shape, "--output", str(output))
    run_ranks(command, overrides=["cluster.communication.kind=horovod"])
    return _read(output)


def _read(output: Path) -> Mapping[str, float]:
    figures: Mapping[str, float] = json.loads(output.read_text(encoding="utf-8"))
    return figures


class _NoEngine:
    """The methods of `train.engine.protocol.Engine` that the loop calls; each one takes only the time of the call."""

    def copy(self, array: Any) -> Any:
        return array

    def flag(self, like: Any, *, is_set: bool) -> Any:
        return like if is_set else None

    def first_element(self, array: Any) -> Any:
        return array

    def wait(self, array: Any) -> None:
        """Nothing was queued."""

    def to_number(self, array: Any) -> float:
        return 0.0 if array is None else 1.0


class _Nothing:
    """An array, a network, an optimizer and a source of images; every method takes only the time of the call."""

    def __init__(self, num_tensors: int) -> None:
        self.gradients: Sequence[Any] = [self] * num_tensors

    def __add__(self, _other: object) -> _Nothing:
        return self

    def forward(self, _images: Any, _labels: Any) -> _Nothing:
        return self

    def backward(self, arrived: Callable[[int], None] | None = None) -> None:
        if arrived is not None:
            for index in reversed(range(len(self.gradients))):
                arrived(index)

    def zero_gradients(self) -> None:
        """There are none."""

    def seed_dropout(self, seed: int) -> None:
        """Nothing is dropped."""

    def update(self, hyper: HyperParameters) -> None:
        """Nothing is trained."""

    def reset(self) -> None:
        """Nothing was trained."""

    def begin_epoch(self, epoch: int) -> None:
        """There is one epoch."""

    def next_batch(self) -> TrainingBatch:
        return TrainingBatch(self, self)

    def state(self) -> bytes:
        return b""

    def close(self) -> None:
        """Nothing is open."""


def _python_step() -> dict[str, float]:
    """Return the milliseconds that Python takes for a step of the training loop, with parts that do nothing."""
    overrides = ["run.epochs=90", f"run.max_steps={_STEPS}", "run.target_top1=null"]
    recipe, cluster = load_both("imagenet-b256", "laptop", overrides)
    plan = plan_run(recipe, 1)
    table = build_network("resnet50", num_classes=1000, image_size=224, input_channels=3)
    nothing = _Nothing(len(table.parameters))
    sizes = [4 * each.size for each in table.parameters]
    buckets = plan_reductions(sizes, cluster.communication.bucket_bytes, 0.0)
    engine = cast(Engine, _NoEngine())
    clock = StepClock(engine, cluster.engine.run_ahead_steps, recipe.run.log_every_steps)
    step = Step(
        engine=engine,
        network=cast(TrainableNetwork, nothing),
        optimizer=cast(Optimizer, nothing),
        communicator=SingleProcess(),
        buckets=buckets,
        accumulation_steps=plan.accumulation_steps,
        clock=clock,
        on_step=lambda _: None,
    )
    progress = Progress(
        NullMetrics(),
        clock,
        global_batch_size=plan.global_batch_size,
        total_steps=plan.total_steps,
        every_steps=recipe.run.log_every_steps,
        visible=False,
    )
    run = TrainingRun(
        plan=plan,
        schedule=resolve_schedule(recipe, plan),
        step=step,
        source=nothing,
        evaluate=lambda: top1_score(1, 1),
        target_top1=None,
        log_every_steps=recipe.run.log_every_steps,
        run_ahead_steps=cluster.engine.run_ahead_steps,
    )
    begin = time.perf_counter()
    result = train(run, log=NullLog(), progress=progress)
    return {"python_step_ms": 1e3 * (time.perf_counter() - begin) / result.steps}
