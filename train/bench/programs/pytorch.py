"""One rank of PyTorch, alone or of DistributedDataParallel over Gloo: for ``bench peers`` and ``bench race``.

Network, batch, optimizer and images are those of this program. Its start is measured, so of our modules it imports only
those that need nothing but NumPy, Pillow and the standard library, and the table of PyTorch's operators of our engine.
"""

import io
import itertools
import os
import random
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import distributed, nn
from torch.nn import functional
from torch.utils.data import DataLoader, Dataset
from torch.utils.data.distributed import DistributedSampler

from data.recordio import RecordFile, index_rows, unpack_image
from data.shards import shard_range
from train.bench.samples import end_peer, write_samples
from train.engine.torch.layers import Layers
from train.networks.arch import Network, build_network
from train.networks.layer import Layer
from train.rank.identity import Identity, read_identity

_FLIP_SHARE = 0.5
_EVALUATION_BATCH = 256
"""Images; beside 64 and 1,024, the fastest or nearly so for the networks of both recipes."""


@dataclass(frozen=True)
class Form:
    """How people run PyTorch on a CPU; see `train.bench.bench_peers.fastest_pytorch`.

    Attributes:
        is_channels_last: Whether images and weights have that order in memory.
        is_bfloat16: Whether layers compute in bfloat16 where PyTorch's autocast finds that sound.
        is_compiled: Whether ``torch.compile`` makes the passes.
    """

    is_channels_last: bool = False
    is_bfloat16: bool = False
    is_compiled: bool = False

    @property
    def order(self) -> Any:
        """PyTorch's memory format of images and weights."""
        return torch.channels_last if self.is_channels_last else torch.contiguous_format

    def trained(self, network: Any) -> Any:
        """Return the network for training: with gradients of all ranks, and compiled, as the form says."""
        if distributed.get_world_size() > 1:
            # Running statistics are averaged before an evaluation; sending them with every step would take longer.
            network = nn.parallel.DistributedDataParallel(
                network, forward_sync_buffers=False, gradient_as_bucket_view=True
            )
        return torch.compile(network) if self.is_compiled else network

    def cast(self) -> Any:
        """Return the context of forward passes and loss."""
        return torch.autocast("cpu", torch.bfloat16, enabled=self.is_bfloat16)


def main(rendezvous_file: str, *, form: dict[str, bool], race: dict[str, Any]) -> None:
    """Train to the target, or for some steps, and tell when it was done.

    Args:
        rendezvous_file: File by which the ranks find each other; must not exist.
        form: Arguments of `Form`.
        race: What `Race` takes.
    """
    identity, chosen = read_identity(os.environ), Form(**form)
    distributed.init_process_group(
        "gloo", init_method=f"file://{rendezvous_file}", rank=identity.rank, world_size=identity.world_size
    )
    write_samples(identity, "PyTorch", [Race(race, identity, chosen).train()])
    end_peer(distributed.barrier)


class TableNetwork(nn.Module):  # type: ignore[misc]
    """The rows of `train.networks.arch` in order. The parameters have the same order, each bias after its weight.

    Args:
        network: The table.
        bn_momentum: Share of its running statistics that a batch norm keeps at each step; PyTorch's argument is the
            share that it takes from the batch.
        bn_epsilon: Added to the variance in batch norm.
    """

    def __init__(self, network: Network, *, bn_momentum: float = 0.9, bn_epsilon: float = 1e-5) -> None:
        super().__init__()
        self.norm = {"momentum": 1 - bn_momentum, "eps": bn_epsilon}
        self._layers = Layers(network.layers, {"bn": self._normalise, "dropout": self._drop})
        for each in network.parameters:
            self.register_parameter(each.name, nn.Parameter(torch.zeros(each.shape)))
        for layer in network.layers:
            for statistic, start in zip(layer.statistics, (0.0, 1.0), strict=False):
                self.register_buffer(statistic.name, torch.full(statistic.shape, start))
        self._tensors = dict(self.named_parameters())

    def forward(self, images: Any) -> Any:
        """Return logits of shape [batch, classes]."""
        return self._layers(images, self._tensors)

    def _normalise(self, row: Layer, tensors: Mapping[str, Any], values: Any) -> Any:
        mean, variance = (getattr(self, each.name) for each in row.statistics)
        gamma, beta = (tensors[each.name] for each in row.parameters)
        return functional.batch_norm(values, mean, variance, gamma, beta, self.training, **self.norm)

    def _drop(self, row: Layer, _: Mapping[str, Any], values: Any) -> Any:
        return functional.dropout(values, row.rate, self.training)


class _Records:
    """The JPEGs of a packed data set.

    Args:
        stem: The RecordIO files without their suffix.
        channels: Channels of the images: 1, or 3.
    """

    def __init__(self, stem: Path, channels: int) -> None:
        self.offsets = [offset for _, offset in index_rows(stem.with_suffix(".idx"))]
        self._file, self._mode = RecordFile(stem.with_suffix(".rec")), "L" if channels == 1 else "RGB"

    def read(self, index: int) -> tuple[Any, int]:
        """Return an image of Pillow's and its label."""
        record = unpack_image(self._file.read(self.offsets[index]))
        return Image.open(io.BytesIO(record.image)).convert(self._mode), int(record.labels[0])


class CroppedImages(Dataset):  # type: ignore[misc]
    """The packed JPEGs, cropped at random and resized to ``size`` px: bytes [C, H, W], and a label."""

    def __init__(self, stem: Path, size: int, channels: int) -> None:
        self._records, self._size = _Records(stem, channels), size

    def __len__(self) -> int:
        return len(self._records.offsets)

    def __getitem__(self, index: int) -> tuple[Any, int]:
        image, label = self._records.read(index)
        cut = image.resize((self._size, self._size), Image.Resampling.BILINEAR, box=random_box(*image.size))
        return torch.from_numpy(np.array(cut).reshape(self._size, self._size, -1).transpose(2, 0, 1)), label


def random_box(width: int, height: int) -> tuple[float, float, float, float]:
    """Return a random window of 8 to 100 % of the area with an aspect of 3/4 to 4/3, as for the ImageNet crop."""
    area = width * height * random.uniform(0.08, 1)
    aspect = random.uniform(3 / 4, 4 / 3)
    cut_width, cut_height = min(width, (area * aspect) ** 0.5), min(height, (area / aspect) ** 0.5)
    left, top = random.uniform(0, width - cut_width), random.uniform(0, height - cut_height)
    return left, top, left + cut_width, top + cut_height


class Race:
    """The network, the images and the update of one rank that trains to a target.

    Both sides of the race train the same network from the same weights by the same schedule. Everything else is as
    people write it: each rank decodes its share of images that fit into memory once, and keeps it as one tensor of
    bytes; images that are cropped come from a loader with one worker, which decodes with Pillow. Whole batches are
    flipped and normalised.

    Args:
        race: What `train.bench.bench_peers.race_numbers` returns.
        identity: This rank.
        form: How PyTorch runs.

    Attributes:
        race: The same.
        network: The network.
        update: The update of its weights.
        loss_of: The loss.
        training: This rank's images and labels, unless they are cropped.
        evaluation: The same of the evaluation.
    """

    def __init__(self, race: dict[str, Any], identity: Identity, form: Form) -> None:
        self.race, self._form = race, form
        self._random = torch.Generator().manual_seed(1000 * race["seed"] + identity.rank)
        table = build_network(**race["network"])
        self.network: Any = TableNetwork(table, **race["batch_norm"]).to(memory_format=form.order)
        with np.load(race["numbers"]) as numbers, torch.no_grad():
            for number, parameter in enumerate(self.network.parameters()):
                parameter.copy_(torch.from_numpy(numbers[str(number)]))
            self._rates = list(zip(numbers["lr"].tolist(), numbers["weight_decay"].tolist(), strict=True))
        self._trained = form.trained(self.network)
        kinds = [parameter.kind for parameter in table.parameters]
        self.update = make_update(list(self.network.parameters()), kinds, **race["optimizer"])
        self.loss_of = nn.CrossEntropyLoss(label_smoothing=race["label_smoothing"])
        if not race["is_cropped"]:
            self.training, self.evaluation = (self.share(split, identity) for split in ("train", "eval"))

    def train(self) -> dict[str, float]:
        """Return epochs and steps taken, and in Unix seconds: begin, end of the warm-up's steps, end of the race."""
        race, batches, done = self.race, self.batches(), 0
        begin, warm_at, top1 = time.time(), 0.0, 0.0
        for epoch, end in enumerate(race["epoch_ends"], start=1):
            self._trained.train()
            side = race["image_sizes"][epoch - 1]
            while done < end:
                images, labels = next(batches)
                if images.shape[-1] != side:
                    images = nn.functional.interpolate(images, (side, side), mode="bilinear", antialias=True)
                self.network.zero_grad()
                with self._form.cast():
                    loss = self.loss_of(self._trained(images), labels)
                loss.backward()
                self.update(*self._rates[done])
                done += 1
                if done == race["warmup"]:
                    warm_at = time.time()
            if epoch in race["eval_epochs"]:
                top1 = self.evaluate()
                if top1 >= race["target"]:
                    break
        reached = float(top1 >= race["target"])
        moments = {"begun_at": begin, "warm_at": warm_at, "ended_at": time.time()}
        return {**moments, "epochs": epoch, "steps": done, "top1": top1, "reached": reached}

    def batches(self) -> Iterator[tuple[Any, Any]]:
        """Yield batches of this rank's images for ever."""
        for batch, labels in self._cropped() if self.race["is_cropped"] else self._kept():
            if self.race["flip"]:
                flips = torch.rand(len(batch), 1, 1, 1, generator=self._random) < _FLIP_SHARE
                batch = torch.where(flips, batch.flip(3), batch)  # noqa: PLW2901
            yield self._normalized(batch), labels

    def _cropped(self) -> Iterator[tuple[Any, Any]]:
        network = self.race["network"]
        images = CroppedImages(Path(self.race["data"], "train"), network["image_size"], network["input_channels"])
        sampler = DistributedSampler(images)
        loader = DataLoader(images, self.race["batch_size"], sampler=sampler, num_workers=1, drop_last=True)
        return itertools.chain.from_iterable(itertools.repeat(loader))

    def _kept(self) -> Iterator[tuple[Any, Any]]:
        """Yield images and labels of `training`; each pass is in a new order."""
        images, labels = self.training
        size = self.race["batch_size"]
        order = torch.empty(0, dtype=torch.int64)
        while True:
            while len(order) < size:
                order = torch.cat([order, torch.randperm(len(images), generator=self._random)])
            chosen, order = order[:size], order[size:]
            yield images[chosen], labels[chosen]

    def _normalized(self, batch: Any) -> Any:
        mean, std = (torch.tensor(values).view(1, -1, 1, 1) for values in (self.race["mean"], self.race["std"]))
        return ((batch.float() - mean) / std).contiguous(memory_format=self._form.order)

    def evaluate(self) -> float:
        """Return top-1 over the images of all ranks."""
        statistics = [buffer for buffer in self.network.buffers() if buffer.is_floating_point()]
        if statistics:
            flat = torch.cat(statistics)
            distributed.all_reduce(flat)
            parts = (flat / distributed.get_world_size()).split([len(each) for each in statistics])
            for each, mean in zip(statistics, parts, strict=True):
                each.copy_(mean)
        self.network.eval()
        images, labels = self.evaluation
        with torch.inference_mode(), self._form.cast():
            parts = images.split(_EVALUATION_BATCH)
            found = torch.cat([self.network(self._normalized(part)).argmax(1) for part in parts])
            counts = torch.tensor([(found == labels).sum(), len(labels)])
            distributed.all_reduce(counts)
        return float(counts[0] / counts[1])

    def share(self, split: str, identity: Identity) -> tuple[Any, Any]:
        """Return this rank's share of a split: images as bytes [image, channel, row, column], and labels."""
        records = _Records(Path(self.race["data"]) / split, self.race["network"]["input_channels"])
        share = shard_range(len(records.offsets), identity.rank, identity.world_size)
        decoded, labels = zip(*map(records.read, range(share.start, share.stop)), strict=True)
        images = torch.from_numpy(np.stack([np.asarray(image) for image in decoded]))
        images = images[:, None] if images.dim() == 3 else images.permute(0, 3, 1, 2)  # noqa: PLR2004 (grey)
        side = self.race["network"]["image_size"]
        if images.shape[2:] != (side, side):
            images = nn.functional.interpolate(images.float(), (side, side), mode="bilinear").round().byte()
        return images.contiguous(), torch.tensor(labels)


Update = Callable[[float, float], object]
"""Updates the weights by a learning rate and a weight decay; the gradients, the means over the global batch, may go."""


def make_update(
    weights: Sequence[Any], kinds: Sequence[str], *, momentum: float, skip_weight_decay: Sequence[str],
    trust: dict[str, Any] | None,
) -> Update:  # fmt: skip
    """Return LARS on multi-tensor operators and PyTorch's fused SGD; without ``trust``, that SGD alone.

    T = eta |w| / (|g| + wd_T |w| + epsilon), v = m v - lr T (g + wd w), w = w + v; T is 1 where a norm is 0.

    Args:
        weights: The parameters.
        kinds: Of each parameter: weight, gamma, beta or bias.
        momentum: m.
        skip_weight_decay: Kinds without weight decay.
        trust: ``trust_coefficient``, ``epsilon``, ``trust_weight_decay`` (or None) and ``skip_trust_ratio`` of LARS.

    *Source*: You, Gitman, Ginsburg, arXiv:1708.03888, equations 5 and 6.
    """
    if trust is None:
        with_decay = [weight for weight, kind in zip(weights, kinds, strict=True) if kind not in skip_weight_decay]
        rest = [weight for weight, kind in zip(weights, kinds, strict=True) if kind in skip_weight_decay]
        plain = torch.optim.SGD([{"params": with_decay}, {"params": rest}], lr=1.0, momentum=momentum, fused=True)

        def update_plainly(lr: float, weight_decay: float) -> None:
            for group, decay in zip(plain.param_groups, (weight_decay, 0.0), strict=True):
                group |= {"lr": lr, "weight_decay": decay}
            plain.step()

        return update_plainly
    own_decay, coefficient, epsilon = (trust[key] for key in ("trust_weight_decay", "trust_coefficient", "epsilon"))
    decayed = torch.tensor([kind not in skip_weight_decay for kind in kinds], dtype=torch.float64)
    trusted = torch.tensor([kind not in trust["skip_trust_ratio"] for kind in kinds])
    # With a rate of 1, PyTorch adds the momentum of the gradients, which have the rates of this step already.
    optimizer = torch.optim.SGD(weights, lr=1.0, momentum=momentum, fused=True)

    def update(lr: float, weight_decay: float) -> None:
        with torch.no_grad():
            gradients = [weight.grad for weight in weights]
            decays = decayed * (weight_decay if own_decay is None or not weight_decay else own_decay)
            w, g = torch.stack(torch._foreach_norm(weights)), torch.stack(torch._foreach_norm(gradients))
            ratios = torch.where(trusted & (w > 0) & (g > 0), coefficient * w / (g + decays * w + epsilon), 1.0)
            torch._foreach_add_(gradients, torch._foreach_mul(weights, (weight_decay * decayed).tolist()))
            torch._foreach_mul_(gradients, (lr * ratios).tolist())
        optimizer.step()

    return update
