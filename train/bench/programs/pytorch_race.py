"""One rank of ``bench race``: PyTorch's DistributedDataParallel over Gloo trains a recipe to its target.

The recipe arrives as a file of plain numbers: the learning rate of every step, and the weights to start from. So both
sides of the race train the same network from the same weights by the same schedule. Everything else is as people write
it for images that fit into memory: each rank decodes its share once, keeps it as one tensor of bytes, and cuts, flips
and normalises whole batches.

The program runs in an environment of its own. So of our modules, it imports only those that need nothing but NumPy and
the standard library.
"""

import argparse
import io
import json
import os
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import distributed, nn

from data.recordio import RecordFile, unpack_image
from data.shards import shard_range
from train.bench.programs.pytorch_network import TableNetwork
from train.bench.samples import end_peer, write_samples
from train.networks.arch import build_network
from train.rank.identity import Identity, read_identity

_EVALUATION_BATCH = 256
"""Images; beside 64 and 1,024, the fastest or nearly so for the networks of both recipes."""


def main(arguments: Sequence[str] | None = None) -> None:
    """Train to the target; rank 0 writes when it was reached."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--recipe", required=True, type=Path, help="file that the bench wrote")
    parser.add_argument("--meeting-file", required=True, help="file by which the ranks find each other; must not exist")
    parser.add_argument("--channels-last", action="store_true")
    options = parser.parse_args(arguments)
    identity = read_identity(os.environ)
    distributed.init_process_group(
        "gloo", init_method=f"file://{options.meeting_file}", rank=identity.rank, world_size=identity.world_size
    )
    recipe = json.loads(options.recipe.read_text(encoding="utf-8"))
    write_samples(identity, "PyTorch", [_Run(recipe, identity, is_channels_last=options.channels_last).train()])


class _Run:
    """The network, the images and the update of one rank."""

    def __init__(self, recipe: dict[str, Any], identity: Identity, *, is_channels_last: bool) -> None:
        self._recipe = recipe
        self._order = torch.channels_last if is_channels_last else torch.contiguous_format
        self._random = torch.Generator().manual_seed(1000 * recipe["seed"] + identity.rank)
        table = build_network(**recipe["network"])
        self._network = TableNetwork(table, **recipe["batch_norm"]).to(memory_format=self._order)
        with np.load(recipe["weights"]) as start, torch.no_grad():
            for number, parameter in enumerate(self._network.parameters()):
                parameter.copy_(torch.from_numpy(start[str(number)]))
        # Running statistics are averaged before an evaluation; sending them with every step would take longer.
        self._ddp = nn.parallel.DistributedDataParallel(
            self._network, forward_sync_buffers=False, gradient_as_bucket_view=True
        )
        kinds = [parameter.kind for parameter in table.parameters]
        self._update = MomentumUpdate(list(self._network.parameters()), kinds, **recipe["optimizer"])
        self._loss_of = nn.CrossEntropyLoss(label_smoothing=recipe["label_smoothing"])
        self._training, self._evaluation = (
            _decoded(Path(recipe["data"]) / split, recipe, identity) for split in ("train", "eval")
        )

    def train(self) -> dict[str, float]:
        """Return when the first step began and when the target was reached, in Unix seconds, and the epochs taken."""
        recipe, batches, done = self._recipe, self._batches(), 0
        begin, top1 = time.time(), 0.0
        for epoch, end in enumerate(recipe["epoch_ends"], start=1):
            self._ddp.train()
            while done < end:
                images, labels = next(batches)
                self._network.zero_grad()
                self._loss_of(self._ddp(images), labels).backward()
                self._update.step(*recipe["rates"][done])
                done += 1
            if epoch in recipe["eval_epochs"]:
                top1 = self._evaluate()
                if top1 >= recipe["target"]:
                    break
        reached = float(top1 >= recipe["target"])
        return {"begun_at": begin, "ended_at": time.time(), "epochs": epoch, "top1": top1, "reached": reached}

    def _batches(self) -> Iterator[tuple[Any, Any]]:
        """Yield batches of this rank's images for ever; each pass is in a new order."""
        images, labels = self._training
        size = self._recipe["batch"]
        order = torch.empty(0, dtype=torch.int64)
        while True:
            while len(order) < size:
                order = torch.cat([order, torch.randperm(len(images), generator=self._random)])
            chosen, order = order[:size], order[size:]
            batch = self._augmented(images[chosen])
            yield self._normalized(batch), labels[chosen]

    def _augmented(self, batch: Any) -> Any:
        """Return the batch, half of its images flipped if the recipe flips."""
        if not self._recipe["flip"]:
            return batch
        flips = torch.rand(len(batch), 1, 1, 1, generator=self._random) < 0.5  # noqa: PLR2004
        return torch.where(flips, batch.flip(3), batch)

    def _normalized(self, batch: Any) -> Any:
        mean, std = (torch.tensor(self._recipe[key]).view(1, -1, 1, 1) for key in ("mean", "std"))
        return ((batch.float() - mean) / std).contiguous(memory_format=self._order)

    def _evaluate(self) -> float:
        """Return top-1 over the images of all ranks."""
        statistics = [buffer for buffer in self._network.buffers() if buffer.is_floating_point()]
        if statistics:
            flat = torch.cat(statistics)
            distributed.all_reduce(flat)
            parts = (flat / distributed.get_world_size()).split([len(each) for each in statistics])
            for each, mean in zip(statistics, parts, strict=True):
                each.copy_(mean)
        self._network.eval()
        images, labels = self._evaluation
        with torch.inference_mode():
            parts = images.split(_EVALUATION_BATCH)
            found = torch.cat([self._network(self._normalized(part)).argmax(1) for part in parts])
            counts = torch.tensor([(found == labels).sum(), len(labels)])
            distributed.all_reduce(counts)
        return float(counts[0] / counts[1])


class MomentumUpdate:
    """LARS, or momentum SGD without ``trust``, on multi-tensor operators.

    T = eta |w| / (|g| + wd_T |w| + epsilon), v = m v - lr T (g + wd w), w = w + v; T is 1 where a norm is 0.

    Args:
        weights: The parameters, whose ``grad`` is the mean over the global batch.
        kinds: Of each parameter: weight, gamma, beta or bias.
        momentum: m.
        skip_weight_decay: Kinds without weight decay.
        trust: ``trust_coefficient``, ``epsilon``, ``trust_weight_decay`` (or None) and ``skip_trust_ratio`` of LARS; if
            None, no parameter has a trust ratio.

    *Source*: You, Gitman, Ginsburg, arXiv:1708.03888, equations 5 and 6.
    """

    def __init__(
        self,
        weights: Sequence[Any],
        kinds: Sequence[str],
        *,
        momentum: float,
        skip_weight_decay: Sequence[str],
        trust: dict[str, Any] | None,
    ) -> None:
        self._momentum, self._trust = momentum, trust
        groups: dict[tuple[bool, bool], list[Any]] = {}
        for weight, kind in zip(weights, kinds, strict=True):
            key = trust is not None and kind not in trust["skip_trust_ratio"], kind not in skip_weight_decay
            groups.setdefault(key, []).append(weight)
        self._groups = [
            (*key, members, [torch.zeros_like(each) for each in members]) for key, members in groups.items()
        ]

    def step(self, lr: float, weight_decay: float) -> None:
        """Update the weights."""
        with torch.no_grad():
            for group in self._groups:
                self._step(group, lr, weight_decay)

    def _step(self, group: tuple[bool, bool, list[Any], list[Any]], lr: float, weight_decay: float) -> None:
        is_trusted, decays, weights, momenta = group
        gradients = [weight.grad for weight in weights]
        decay = weight_decay if decays else 0.0
        torch._foreach_mul_(momenta, self._momentum)
        if is_trusted:
            rates = list((lr * self._ratios(weights, gradients, decay)).unbind())
            steps = torch._foreach_add(gradients, weights, alpha=decay)
            torch._foreach_addcmul_(momenta, steps, rates, value=-1)
        else:
            torch._foreach_add_(momenta, gradients, alpha=-lr)
            if decay:
                torch._foreach_add_(momenta, weights, alpha=-lr * decay)
        torch._foreach_add_(weights, momenta)

    def _ratios(self, weights: Sequence[Any], gradients: Sequence[Any], decay: float) -> Any:
        assert self._trust is not None
        own = self._trust["trust_weight_decay"]
        decay = decay if own is None or not decay else own
        w, g = torch.stack(torch._foreach_norm(weights)), torch.stack(torch._foreach_norm(gradients))
        ratios = self._trust["trust_coefficient"] * w / (g + decay * w + self._trust["epsilon"])
        return torch.where((w > 0) & (g > 0), ratios, 1.0)


def _decoded(stem: Path, recipe: dict[str, Any], identity: Identity) -> tuple[Any, Any]:
    """Return this rank's share of a packed data set: images as bytes [image, channel, row, column], and labels."""
    rows = stem.with_suffix(".idx").read_text(encoding="ascii").splitlines()
    share = shard_range(len(rows), identity.rank, identity.world_size)
    file = RecordFile(stem.with_suffix(".rec"))
    records = [unpack_image(file.read(int(row.split("\t")[1]))) for row in rows[share.start : share.stop]]
    mode = "L" if recipe["network"]["input_channels"] == 1 else "RGB"
    decoded = [np.asarray(Image.open(io.BytesIO(record.image)).convert(mode)) for record in records]
    images = torch.from_numpy(np.stack(decoded))
    images = images.unsqueeze(1) if mode == "L" else images.permute(0, 3, 1, 2)
    side = recipe["network"]["image_size"]
    if images.shape[2:] != (side, side):
        images = nn.functional.interpolate(images.float(), (side, side), mode="bilinear").round().byte()
    return images.contiguous(), torch.tensor([int(record.labels[0]) for record in records])


if __name__ == "__main__":
    main()
    end_peer(distributed.barrier)
