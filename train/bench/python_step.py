"""Python's share of a step: the training loop with all its parts, on a network and arrays that do nothing."""

import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

from configs.load import load_both
from configs.plan import plan_run
from data.input.batches import TrainingBatch
from logs.metrics import NullMetrics
from logs.mlperf import NullLog
from train.bench.samples import Figures
from train.comm.buckets import plan_reductions
from train.comm.communicator import Communicator, SingleProcess
from train.evaluate import top1_score
from train.loop import TrainingRun, train
from train.measure.progress import Progress
from train.measure.timing import StepClock
from train.networks.arch import build_network
from train.schedule import resolve_schedule
from train.step import Step


class _Array:
    """An array with which nothing is computed."""

    def __add__(self, _other: object) -> "_Array":
        return self


_ARRAY = _Array()

_ENGINE: Any = SimpleNamespace(
    copy=lambda array: array,
    flag=lambda like, *, is_set: like if is_set else None,
    first_element=lambda array: array,
    wait=lambda *_: None,
    first_not_finite=lambda _: None,
    to_numbers=lambda arrays: [0.0 if array is None else 1.0 for array in arrays],
)
"""The methods of `train.engine.protocol.Engine` that the loop calls; each one takes only the time of the call."""


def _null_network(num_tensors: int) -> Any:
    """Return a network whose gradients arrive all at once, last layer first."""

    def backward(arrived: Callable[[int], None] | None = None) -> None:
        for index in reversed(range(num_tensors)) if arrived else ():
            arrived(index)  # type: ignore[misc]

    return SimpleNamespace(
        masters=(),
        statistics=(),
        gradients=[_ARRAY] * num_tensors,
        forward=lambda _images, _labels: _ARRAY,
        backward=backward,
        zero_gradients=lambda: None,
        seed_dropout=lambda _: None,
    )


def python_step(steps: int = 400, communicator: Communicator | None = None) -> Figures:
    """Return the milliseconds that Python takes for a step with the tensors of ResNet-50.

    Args:
        steps: Steps to take the mean of.
        communicator: Reduces the gradients. If None, that of a single process, which does nothing.
    """
    overrides = ["run.epochs=90", f"run.max_steps={steps}", "run.target_top1=null"]
    recipe, cluster = load_both("imagenet-b256", "laptop", overrides)
    plan = plan_run(recipe, 1)
    table = build_network("resnet50", num_classes=1000, image_size=224, input_channels=3)
    sizes = [4 * each.size for each in table.parameters]
    ahead, every = cluster.engine.run_ahead_steps, recipe.run.log_every_steps
    clock = StepClock(_ENGINE, ahead, every)
    optimizer: Any = SimpleNamespace(update=lambda _: None, reset=lambda: None, momenta=())
    source: Any = SimpleNamespace(
        begin_epoch=lambda _: None,
        next_batch=lambda: TrainingBatch(_ARRAY, _ARRAY),
        state=lambda: b"",
        close=lambda: None,
    )
    step = Step(
        engine=_ENGINE,
        network=_null_network(len(table.parameters)),
        optimizer=optimizer,
        communicator=communicator or SingleProcess(),
        buckets=plan_reductions(sizes, cluster.communication.bucket_bytes, 0.0),
        accumulation_steps=plan.accumulation_steps,
        clock=clock,
        on_step=lambda _: None,
    )
    batch_size, total = plan.global_batch_size, plan.total_steps
    progress = Progress(
        NullMetrics(), clock, global_batch_size=batch_size, total_steps=total, every_steps=every, visible=False
    )
    run = TrainingRun(
        plan=plan,
        schedule=resolve_schedule(recipe, plan),
        step=step,
        source=source,
        evaluate=lambda: top1_score(1, 1),
        target_top1=None,
        log_every_steps=every,
        run_ahead_steps=ahead,
    )
    begin = time.perf_counter()
    result = train(run, log=NullLog(), progress=progress)
    return {"python_step_ms": 1e3 * (time.perf_counter() - begin) / result.steps}
