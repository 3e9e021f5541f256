"""One rank of ``bench peers``: PyTorch's DistributedDataParallel over Gloo, or DataParallel, with a plain loader.

Network, batch, optimizer and images are those of this program; the loader has one worker, which decodes with Pillow.
The program runs in an environment of its own. So of our modules, it imports only those that need nothing but NumPy and
the standard library.
"""

import argparse
import io
import os
import random
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
from train.bench.programs.pytorch_network import TableNetwork
from train.bench.samples import end_peer, write_samples
from train.networks.arch import build_network
from train.rank.identity import read_identity

_FLIP_SHARE = 0.5

_MEAN, _STD = np.array([123.675, 116.28, 103.53], np.float32), np.array([58.395, 57.12, 57.375], np.float32)


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure the images/s of all ranks."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", required=True, help="RecordIO files without their suffix")
    parser.add_argument("--model", required=True)
    parser.add_argument("--classes", type=int, required=True)
    parser.add_argument("--channels", type=int, required=True, help="channels of the images")
    parser.add_argument("--image-size", type=int, required=True)
    parser.add_argument("--batch-size", type=int, required=True)
    parser.add_argument("--meeting-file", required=True, help="file by which the ranks find each other; must not exist")
    parser.add_argument("--channels-last", action="store_true")
    parser.add_argument("--threads", type=int, help="measure DataParallel, with this number of threads")
    parser.add_argument("--warmup", type=int, required=True, help="steps that do not count")
    parser.add_argument("--steps", type=int, required=True, help="steps that count, after those")
    options = parser.parse_args(arguments)
    identity = read_identity(os.environ)
    distributed.init_process_group(
        "gloo", init_method=f"file://{options.meeting_file}", rank=identity.rank, world_size=identity.world_size
    )
    slowest_s = torch.tensor(_train(options))
    distributed.all_reduce(slowest_s, distributed.ReduceOp.MAX)
    images_per_s = identity.world_size * options.batch_size * options.steps / float(slowest_s)
    write_samples(identity, "pytorch", [{"images_per_s": images_per_s}])


def _train(options: argparse.Namespace) -> float:
    """Return the seconds of the steps that count."""
    order = torch.channels_last if options.channels_last else torch.contiguous_format
    table = build_network(
        options.model, num_classes=options.classes, image_size=options.image_size, input_channels=options.channels
    )
    network = TableNetwork(table).to(memory_format=order)
    if options.threads is None:
        network = nn.parallel.DistributedDataParallel(network)
    else:
        torch.set_num_threads(options.threads)
        network = nn.DataParallel(network)
    optimizer = torch.optim.SGD(network.parameters(), lr=1e-4, momentum=0.9, weight_decay=1e-4)
    loss_of = nn.CrossEntropyLoss(label_smoothing=0.1)
    images = _Images(Path(options.data), options.image_size, options.channels)
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
    """The packed JPEGs, cropped and flipped at random."""

    def __init__(self, stem: Path, size: int, channels: int) -> None:
        rows = stem.with_suffix(".idx").read_text(encoding="ascii").splitlines()
        self._offsets = [int(row.split("\t")[1]) for row in rows]
        self._file, self._size = RecordFile(stem.with_suffix(".rec")), size
        self._mode, self._mean, self._std = ("L", _MEAN[:1], _STD[:1]) if channels == 1 else ("RGB", _MEAN, _STD)

    def __len__(self) -> int:
        return len(self._offsets)

    def __getitem__(self, index: int) -> tuple[Any, int]:
        record = unpack_image(self._file.read(self._offsets[index]))
        image = Image.open(io.BytesIO(record.image)).convert(self._mode)
        cut = image.resize((self._size, self._size), Image.Resampling.BILINEAR, box=_random_box(*image.size))
        pixels = (np.asarray(cut, np.float32).reshape(self._size, self._size, -1) - self._mean) / self._std
        if random.random() < _FLIP_SHARE:
            pixels = pixels[:, ::-1]
        return torch.from_numpy(np.ascontiguousarray(pixels.transpose(2, 0, 1))), int(record.labels[0])


def _random_box(width: int, height: int) -> tuple[float, float, float, float]:
    """Return a random window of 8 to 100 % of the area with an aspect of 3/4 to 4/3, as for the ImageNet crop."""
    area = width * height * random.uniform(0.08, 1)
    aspect = random.uniform(3 / 4, 4 / 3)
    cut_width, cut_height = min(width, (area * aspect) ** 0.5), min(height, (area / aspect) ** 0.5)
    left, top = random.uniform(0, width - cut_width), random.uniform(0, height - cut_height)
    return left, top, left + cut_width, top + cut_height


if __name__ == "__main__":
    main()
    end_peer(distributed.barrier)
