"""One step's calls, in their order and with their arguments, on parts that only remember."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, cast

from configs.ideas.part import Part
from configs.optimizers import HyperParameters
from data.input.batches import TrainingBatch
from train.comm.buckets import BucketPlan
from train.engine.protocol import Engine
from train.step import Step, StepArrays

HYPER = HyperParameters(0.1, 0.9, 1e-4, 7)


class Remembering:
    """Engine, network, optimizer, communicator, clock and source in one; arrays are words."""

    def __init__(self, arrivals: Sequence[int]) -> None:
        self.arrivals = arrivals
        self.gradients: Sequence[str] = ("g0", "g1", "g2", "g3")
        self.calls: list[Any] = []
        self.losses = iter([1.0, 20.0, 300.0])

    def copy(self, array: Any) -> Any:
        return f"sum of {array}"

    def flag(self, like: Any, *, is_set: bool) -> Any:
        return f"flag {is_set}"

    def seed(self, seed: int) -> None:
        self.calls.append(("seed", seed))

    def zero_gradients(self) -> None:
        self.calls.append("zero")

    @contextmanager
    def input(self) -> Iterator[None]:
        self.calls.append("input")
        yield
        self.calls.append("input over")

    def next_batch(self) -> TrainingBatch:
        self.calls.append("batch")
        return TrainingBatch("images", "labels")

    def forward(self, images: Any, labels: Any) -> Any:
        self.calls.append((images, labels))
        return next(self.losses)

    def backward(self, arrived: Callable[[int], None] | None = None) -> None:
        self.calls.append("backward")
        if arrived is not None:
            for index in self.arrivals:
                self.calls.append(index)
                arrived(index)

    def first_layer_arrived(self, step: int, gradient: Any) -> None:
        self.calls.append(("first layer", step, gradient))

    @contextmanager
    def reductions(self, gradients: Any) -> Iterator[None]:
        self.calls.append(("reductions", gradients))
        yield
        self.calls.append("reduced")

    def complete(self) -> None:
        self.calls.append("complete")

    def reduce(self, name: str, arrays: Sequence[Any], priority: int = 0) -> None:
        self.calls.append((name, list(arrays), priority))

    def update(self, hyper: HyperParameters) -> str:
        self.calls.append(hyper)
        return "not skipped"

    def exchange(self, *, settled: bool = False) -> None:
        self.calls.append(("exchange", settled))

    def step_queued(self, loss: Any) -> None:
        self.calls.append(("queued", loss))


def _take(
    buckets: BucketPlan,
    *,
    accumulation: int = 1,
    told_to_stop: bool = False,
    arrivals: Sequence[int] = (3, 2, 1, 0),
    ideas: Sequence[Any] = (),
) -> tuple[list[Any], StepArrays]:
    parts = Remembering(arrivals)
    each = cast(Any, parts)
    step = Step(
        cast(Engine, parts), each, each, each, buckets, accumulation, each,
        on_step=lambda step: parts.calls.append(("on step", step)), layer_seed=lambda step: 100 + step,
        told_to_stop=lambda: told_to_stop, parts=ideas,
    )  # fmt: skip
    arrays = step(7, each, HYPER)
    return parts.calls, arrays


FETCH = ["input", "batch", "input over", ("images", "labels")]
GRADIENTS = ("g0", "g1", "g2", "g3")


def test_a_step_is_forward_reductions_last_layer_first_update_and_exchange() -> None:
    calls, arrays = _take(BucketPlan(((3, 2), (1,), (0,))))
    assert calls == [
        ("seed", 107),
        *FETCH,
        "backward",
        3,
        2,
        ("bucket_0", ["g3", "g2", "sum of 1.0", "flag False"], 0),
        1,
        ("bucket_1", ["g1"], -1),
        0,
        ("first layer", 7, "g0"),
        ("bucket_2", ["g0"], -2),
        ("reductions", GRADIENTS),
        "complete",
        "reduced",
        HYPER,
        ("exchange", False),
        ("queued", "sum of 1.0"),
        ("on step", 7),
    ]
    assert arrays == StepArrays(own=1.0, summed="sum of 1.0", stops="flag False", skipped="not skipped")


class _Named(Part):
    """A part that adds its name to the images."""

    def __init__(self, name: str) -> None:
        self._name = name

    def batch(self, step: int, number: int, batch: TrainingBatch) -> TrainingBatch:
        return TrainingBatch(f"{batch.images} {self._name}{step, number}", "new labels")


def test_each_idea_changes_every_micro_batch_in_the_order_of_the_ideas() -> None:
    calls, _ = _take(BucketPlan(((3, 2, 1, 0),)), accumulation=2, ideas=(_Named("a"), _Named("b")))
    seen = [call for call in calls if isinstance(call, tuple) and call[-1] == "new labels"]
    assert seen == [(f"images a(7, {number}) b(7, {number})", "new labels") for number in (0, 1)]


def test_buckets_leave_in_the_order_of_the_plan_whatever_the_order_of_arrival() -> None:
    calls, _ = _take(BucketPlan(((3, 2), (1,), (0,))), arrivals=(1, 3, 0, 2))
    names = [call[0] if isinstance(call, tuple) else call for call in calls]
    begin = names.index("backward") + 1
    assert names[begin : begin + 8] == [1, 3, 0, "first layer", 2, "bucket_0", "bucket_1", "bucket_2"]


def test_deferred_buckets_and_the_one_before_them_share_an_array_that_orders_them() -> None:
    calls, _ = _take(BucketPlan(((3,), (0,), (1,), (2,)), num_deferred=2))
    reductions = [call for call in calls if isinstance(call, tuple) and str(call[0]).startswith("bucket")]
    assert reductions == [
        ("bucket_0", ["g3", "sum of 1.0", "flag False"], 0),
        ("bucket_1", ["g0", "flag False"], -1),
        ("bucket_2", ["g1", "flag False"], -2),
        ("bucket_3", ["g2", "flag False"], -3),
    ]
