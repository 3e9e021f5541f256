"""The loop of the peer in a race, with a network that learns nothing and a clock of the test's own."""

import itertools
from types import SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip("torch")


class _Told:
    """Notes what the loop asks of its parts."""

    def __init__(self, top1: list[float]) -> None:
        self.lines: list[Any] = []
        self._top1 = iter(top1)

    def loss_of(self, output: str, labels: str) -> Any:
        self.lines.append((output, labels))
        return SimpleNamespace(backward=lambda: self.lines.append("backward"))

    def evaluate(self) -> float:
        self.lines.append("evaluation")
        return next(self._top1)


def _trained(told: _Told, monkeypatch: pytest.MonkeyPatch) -> dict[str, float]:
    from train.bench.programs import pytorch_race

    class Network:
        def __call__(self, images: str) -> str:
            return f"network of {images}"

        def train(self) -> None:
            told.lines.append("training")

    numbers = itertools.count()
    run: Any = SimpleNamespace(
        _recipe={
            "epoch_ends": [1, 3, 4], "eval_epochs": [2, 3], "target": 0.75,
            "rates": [[0.1, 0.01], [0.2, 0.02], [0.3, 0.03], [0.4, 0.04]],
        },
        _batches=lambda: ((f"images {number}", f"labels {number}") for number in numbers),
        _ddp=Network(), _network=SimpleNamespace(zero_grad=lambda: told.lines.append("zero")), _loss_of=told.loss_of,
        _update=SimpleNamespace(step=lambda *rates: told.lines.append(rates)), _evaluate=told.evaluate,
    )  # fmt: skip
    moments = iter([100.0, 130.0])
    monkeypatch.setattr(pytorch_race, "time", SimpleNamespace(time=lambda: next(moments)))
    return pytorch_race._Run.train(run)


def _step(number: int) -> list[Any]:
    rates = ((0.1, 0.01), (0.2, 0.02), (0.3, 0.03), (0.4, 0.04))[number]
    return ["zero", (f"network of images {number}", f"labels {number}"), "backward", rates]


def test_the_peer_ends_with_the_evaluation_that_reaches_the_target(monkeypatch: pytest.MonkeyPatch) -> None:
    told = _Told([0.75])
    found = _trained(told, monkeypatch)
    assert found == {"begun_at": 100.0, "ended_at": 130.0, "epochs": 2, "top1": 0.75, "reached": 1.0}
    assert told.lines == ["training", *_step(0), "training", *_step(1), *_step(2), "evaluation"]


def test_the_peer_that_misses_the_target_takes_all_epochs(monkeypatch: pytest.MonkeyPatch) -> None:
    told = _Told([0.5, 0.74])
    found = _trained(told, monkeypatch)
    assert (found["epochs"], found["top1"], found["reached"]) == (3, 0.74, 0.0)
    assert told.lines[-6:] == ["training", *_step(3), "evaluation"]


def test_each_pass_over_the_images_is_in_a_new_order_and_no_image_is_left_out() -> None:
    from train.bench.programs.pytorch_race import _Run

    images, labels = torch.arange(5).view(5, 1, 1, 1), torch.arange(5) + 10
    run: Any = SimpleNamespace(
        _training=(images, labels), _recipe={"batch": 2}, _random=torch.Generator().manual_seed(3),
        _augmented=lambda batch: batch + 100, _normalized=lambda batch: 2 * batch,
    )  # fmt: skip
    batches = list(itertools.islice(_Run._batches(run), 10))
    drawn = torch.cat([batch.flatten() for batch, _ in batches])
    assert [len(batch) for batch, _ in batches] == [2] * 10
    assert torch.equal(drawn, 2 * (torch.cat([each for _, each in batches]) - 10 + 100))
    passes = (drawn // 2 - 100).view(4, 5).tolist()
    assert [sorted(each) for each in passes] == [[0, 1, 2, 3, 4]] * 4
    assert len({tuple(each) for each in passes}) > 1
