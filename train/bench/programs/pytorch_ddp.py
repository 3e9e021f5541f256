"""One rank of ``bench peers``: PyTorch's DistributedDataParallel over Gloo, with a plain loader.

The same network (v1.5), batch, optimizer and images as ours; a loader of one worker that decodes with Pillow. Runs in
an environment of its own, so it imports of ours only what needs nothing but NumPy and the standard library.
"""

from __future__ import annotations

import argparse
import io
import os
import random
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import distributed, nn
from torch.utils.data import DataLoader, Dataset
from torch.utils.data.distributed import DistributedSampler

from data.recordio import RecordFile, unpack_image
from train.bench.samples import tell
from train.identity import read_identity

__all__ = ["main"]

_CLASSES = 1000
_MEAN, _STD = np.array([123.675, 116.28, 103.53], np.float32), np.array([58.395, 57.12, 57.375], np.float32)


def main(arguments: Sequence[str] | None = None) -> int:
    """Tell images/s of all ranks."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", required=True, help="RecordIO files without their suffix")
    parser.add_argument("--image-size", type=int, required=True)
    parser.add_argument("--batch-size", type=int, required=True)
    parser.add_argument("--meet", required=True, help="file by which the ranks meet; not there yet")
    parser.add_argument("--channels-last", action="store_true")
    parser.add_argument("--warmup", type=int, required=True, help="steps before those that count")
    parser.add_argument("--steps", type=int, required=True)
    options = parser.parse_args(arguments)
    identity = read_identity(os.environ)
    distributed.init_process_group(
        "gloo", init_method=f"file://{options.meet}", rank=identity.rank, world_size=identity.world_size
    )
    slowest_s = torch.tensor(_train(options))
    distributed.all_reduce(slowest_s, distributed.ReduceOp.MAX)
    images_per_s = identity.world_size * options.batch_size * options.steps / float(slowest_s)
    tell(identity, "ddp", [{"images_per_s": images_per_s}])
    distributed.destroy_process_group()
    return 0


def _train(options: argparse.Namespace) -> float:
    """Give the seconds of the steps that count."""
    order = torch.channels_last if options.channels_last else torch.contiguous_format
    network = nn.parallel.DistributedDataParallel(_resnet50().to(memory_format=order))
    optimizer = torch.optim.SGD(network.parameters(), lr=0.1, momentum=0.9, weight_decay=1e-4)
    loss_of = nn.CrossEntropyLoss(label_smoothing=0.1)
    images = _Images(Path(options.data), options.image_size)
    loader = DataLoader(images, options.batch_size, sampler=DistributedSampler(images), num_workers=1, drop_last=True)
    done = 0
    while True:
        for batch, labels in loader:
            if done == options.warmup:
                distributed.barrier()
                begin = time.perf_counter()
            if done == options.warmup + options.steps:
                return time.perf_counter() - begin
            optimizer.zero_grad()
            loss_of(network(batch.to(memory_format=order)), labels).backward()
            optimizer.step()
            done += 1


class _Images(Dataset):  # type: ignore[misc]
    """The packed JPEGs, cut and flipped at random."""

    def __init__(self, stem: Path, size: int) -> None:
        rows = stem.with_suffix(".idx").read_text(encoding="ascii").splitlines()
        self._offsets = [int(row.split("\t")[1]) for row in rows]
        self._file, self._size = RecordFile(stem.with_suffix(".rec")), size

    def __len__(self) -> int:
        return len(self._offsets)

    def __getitem__(self, index: int) -> tuple[Any, int]:
        record = unpack_image(self._file.read(self._offsets[index]))
        image = Image.open(io.BytesIO(record.image)).convert("RGB")
        cut = image.resize((self._size, self._size), Image.Resampling.BILINEAR, box=_random_box(*image.size))
        pixels = (np.asarray(cut, np.float32) - _MEAN) / _STD
        if random.random() < 0.5:  # noqa: PLR2004 (a coin)
            pixels = pixels[:, ::-1]
        return torch.from_numpy(np.ascontiguousarray(pixels.transpose(2, 0, 1))), int(record.labels[0])


def _random_box(width: int, height: int) -> tuple[float, float, float, float]:
    """Choose 8 to 100 % of the area at an aspect of 3/4 to 4/3, as the ImageNet crop does."""
    area = width * height * random.uniform(0.08, 1)
    aspect = random.uniform(3 / 4, 4 / 3)
    cut_width, cut_height = min(width, (area * aspect) ** 0.5), min(height, (area / aspect) ** 0.5)
    left, top = random.uniform(0, width - cut_width), random.uniform(0, height - cut_height)
    return left, top, left + cut_width, top + cut_height


def _convolution(channels: int, width: int, kernel: int, stride: int = 1) -> list[nn.Module]:
    return [nn.Conv2d(channels, width, kernel, stride, kernel // 2, bias=False), nn.BatchNorm2d(width)]


class _Bottleneck(nn.Module):  # type: ignore[misc]
    """1x1, 3x3 with the stride, 1x1, around a shortcut."""

    def __init__(self, channels: int, width: int, stride: int) -> None:
        super().__init__()
        self.inner = nn.Sequential(
            *_convolution(channels, width, 1), nn.ReLU(inplace=True),
            *_convolution(width, width, 3, stride), nn.ReLU(inplace=True),
            *_convolution(width, 4 * width, 1),
        )  # fmt: skip
        fits = stride == 1 and channels == 4 * width
        self.shortcut = nn.Identity() if fits else nn.Sequential(*_convolution(channels, 4 * width, 1, stride))
        self.relu = nn.ReLU(inplace=True)

    def forward(self, images: Any) -> Any:
        return self.relu(self.inner(images) + self.shortcut(images))


def _resnet50() -> nn.Module:
    layers = [*_convolution(3, 64, 7, 2), nn.ReLU(inplace=True), nn.MaxPool2d(3, 2, 1)]
    channels = 64
    for width, blocks in ((64, 3), (128, 4), (256, 6), (512, 3)):
        for block in range(blocks):
            layers.append(_Bottleneck(channels, width, 2 if block == 0 and width > 64 else 1))  # noqa: PLR2004
            channels = 4 * width
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, _CLASSES))


if __name__ == "__main__":
    sys.exit(main())
