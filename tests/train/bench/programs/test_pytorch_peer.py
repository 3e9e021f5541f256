"""The peer of ``bench peers``: its windows, its images, the steps that it counts, and the images a second."""

import argparse
import io
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from configs.load import load_recipe
from data.recordio import RecordWriter, pack_image
from tests.engines import ALONE
from train.bench.bench_rank import HYPER
from train.bench.samples import read_samples

torch = pytest.importorskip("torch")
pytest.importorskip("PIL")


@pytest.mark.parametrize(
    ("area", "aspect", "window"),
    [(0.25, 2.0, (20.0, 10.0)), (0.25, 0.5, (10.0, 20.0)), (1.0, 0.5, (20.0, 20.0)), (1.0, 8.0, (40.0, 10.0))],
)
def test_a_window_has_the_drawn_area_and_aspect_and_ends_at_the_edges(
    area: float, aspect: float, window: tuple[float, float], monkeypatch: pytest.MonkeyPatch
) -> None:
    from train.bench.programs import pytorch_peer

    asked: list[tuple[float, float]] = []
    drawn = iter([area, aspect, 0.5, 0.25])

    def uniform(low: float, high: float) -> float:
        asked.append((low, high))
        return next(drawn)

    monkeypatch.setattr(pytorch_peer, "random", SimpleNamespace(uniform=uniform))
    left, top, right, bottom = pytorch_peer._random_box(40, 20)
    assert (left, top) == (0.5, 0.25)
    assert (right - left, bottom - top) == pytest.approx(window)
    assert asked[:2] == [(0.08, 1), (3 / 4, 4 / 3)]
    assert asked[2] == pytest.approx((0, 40 - window[0]))
    assert asked[3] == pytest.approx((0, 20 - window[1]))


@pytest.mark.parametrize(("drawn", "is_flipped"), [(0.49, True), (0.5, False)])
@pytest.mark.parametrize("channels", [1, 3])
def test_an_image_is_cut_flipped_left_and_right_and_normalised(
    channels: int, drawn: float, is_flipped: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from PIL import Image

    from train.bench.programs import pytorch_peer

    image, file = Image.new("RGB", (32, 16), (200, 200, 200)), io.BytesIO()
    image.paste((40, 40, 40), (0, 8, 8, 16))  # below, on the left of the square that is cut
    image.save(file, "JPEG", quality=100, subsampling=0)
    with RecordWriter(tmp_path / "train.rec", tmp_path / "train.idx") as records:
        for number in range(3):
            records.write(pack_image(5 + number, number, file.getvalue()))
        records.finish()
    boxes: list[tuple[int, int]] = []

    def box(*size: int) -> tuple[float, float, float, float]:
        boxes.append((size[0], size[1]))
        return 0, 0, 16, 16

    monkeypatch.setattr(pytorch_peer, "_random_box", box)
    monkeypatch.setattr(pytorch_peer, "random", SimpleNamespace(random=lambda: drawn))
    images = pytorch_peer._Images(tmp_path / "train", 8, channels)
    pixels, label = images[1]
    assert (len(images), label, boxes) == (3, 6, [(32, 16)])
    levels = [200, 200, 200, 40] if is_flipped else [200, 200, 40, 200]
    mean, std = [123.675, 116.28, 103.53][:channels], [58.395, 57.12, 57.375][:channels]
    expected = [[(level - m) / s for level in levels] for m, s in zip(mean, std, strict=True)]
    corners = pixels[:, :: pixels.shape[1] - 1, :: pixels.shape[2] - 1]
    assert pixels.shape == (channels, 8, 8)
    assert torch.allclose(corners.flatten(1), torch.tensor(expected), atol=0.05)


def _options(**others: Any) -> argparse.Namespace:
    usual = {"data": "images", "model": "resnet8", "classes": 10, "channels": 3, "image_size": 8, "batch_size": 2}
    return argparse.Namespace(**{**usual, "channels_last": False, "threads": None, "warmup": 3, "steps": 4, **others})


@pytest.mark.parametrize(
    ("threads", "way", "is_channels_last"), [(None, "DistributedDataParallel", True), (5, "DataParallel", False)]
)
def test_the_steps_after_the_warm_up_are_timed_from_a_common_begin(
    threads: int | None, way: str, is_channels_last: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    from train.bench.programs import pytorch_peer

    told: list[Any] = []
    given: list[dict[str, float]] = []

    def parallel(name: str) -> Any:
        def wrapped(network: Any) -> Any:
            told.append(name)
            network.register_forward_pre_hook(
                lambda _, batch: told.append(batch[0].is_contiguous(memory_format=torch.channels_last))
            )
            return network

        return wrapped

    class Optimizer:
        def __init__(self, parameters: Any, **settings: float) -> None:
            self._parameters = list(parameters)
            given.append(settings)

        def step(self) -> None:
            assert all(each.grad is not None for each in self._parameters)
            told.append("step")

        def zero_grad(self) -> None:
            for each in self._parameters:
                each.grad = None
            told.append("zero")

    class Loss(torch.nn.CrossEntropyLoss):  # type: ignore[misc, name-defined]
        def __init__(self, **settings: float) -> None:
            super().__init__(**settings)
            given.append(settings)

    def loader(images: Any, batch_size: int, **settings: Any) -> list[Any]:
        assert (images, batch_size, settings["sampler"], settings["drop_last"]) == ("packed", 2, "share", True)
        return [(torch.zeros(2, 3, 8, 8), torch.tensor([0, 1]))] * 3

    moments = iter([100.0, 107.5])

    def now() -> float:
        told.append("clock")
        return next(moments)

    monkeypatch.setattr("torch.nn.parallel.DistributedDataParallel", parallel("DistributedDataParallel"))
    monkeypatch.setattr("torch.nn.DataParallel", parallel("DataParallel"))
    monkeypatch.setattr("torch.optim.SGD", Optimizer)
    monkeypatch.setattr("torch.nn.CrossEntropyLoss", Loss)
    monkeypatch.setattr("torch.set_num_threads", told.append)
    monkeypatch.setattr("torch.distributed.barrier", lambda: told.append("barrier"))
    monkeypatch.setattr(pytorch_peer, "_Images", lambda *words: words == (Path("images"), 8, 3) and "packed")
    monkeypatch.setattr(pytorch_peer, "DistributedSampler", lambda images: images == "packed" and "share")
    monkeypatch.setattr(pytorch_peer, "DataLoader", loader)
    monkeypatch.setattr(pytorch_peer, "time", SimpleNamespace(perf_counter=now))
    assert pytorch_peer._train(_options(threads=threads, channels_last=is_channels_last)) == 7.5
    begin = [way] if threads is None else [threads, way]
    step = ["zero", is_channels_last, "step"]
    assert told == [*begin, *3 * step, "barrier", "clock", *4 * step, "clock"]
    ours = {"lr": HYPER.lr, "momentum": HYPER.momentum, "weight_decay": HYPER.weight_decay}
    assert given == [ours, {"label_smoothing": load_recipe("imagenet-b256").loss.label_smoothing}]


def test_the_rate_is_that_of_all_ranks_by_the_slowest(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from train.bench.programs import pytorch_peer

    met: list[Any] = []

    def all_reduce(seconds: Any, kind: Any) -> None:
        assert kind == torch.distributed.ReduceOp.MAX
        seconds.clamp_(min=2.5)

    monkeypatch.setattr("torch.distributed.init_process_group", lambda kind, **others: met.append((kind, others)))
    monkeypatch.setattr("torch.distributed.all_reduce", all_reduce)
    monkeypatch.setattr(pytorch_peer, "read_identity", lambda _: replace(ALONE, world_size=4))
    monkeypatch.setattr(pytorch_peer, "_train", lambda options: options.steps / 8)
    words = "--data d --model resnet8 --classes 10 --channels 3 --image-size 8 --meeting-file /tmp/meet"
    pytorch_peer.main([*words.split(), "--batch-size=3", "--warmup=5", "--steps=10"])
    assert met == [("gloo", {"init_method": "file:///tmp/meet", "rank": 0, "world_size": 4})]
    # Four ranks of 3 images, ten steps, of which this rank took 1.25 s and the slowest 2.5 s.
    assert read_samples(capsys.readouterr().out) == {"pytorch": [{"images_per_s": 4 * 3 * 10 / 2.5}]}
