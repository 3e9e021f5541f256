"""Training images a second beside what people use today: the same JPEGs, batch, ranks and threads."""

from __future__ import annotations

import argparse
import logging
import shlex
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from configs.errors import UserError
from configs.load import ROOT
from train.bench.job import launch, run_ranks
from train.bench.measure import Figures, Report, interleave, make_report
from train.bench.samples import samples_of

__all__ = ["PURPOSE", "add_arguments", "measure"]

logger = logging.getLogger(__name__)

PURPOSE = "training images/s of ResNet-50 beside Horovod's own MXNet example and PyTorch's DistributedDataParallel"

_PYTORCH = ROOT / ".venv-peers" / "bin" / "python"
_REQUIREMENTS = "train/bench/programs/requirements.txt"
_INSTALL = f"python3 -m venv .venv-peers && .venv-peers/bin/pip install -r {_REQUIREMENTS}"

_OURS = "ours"
_IMAGES = 256
_LIBRARIES_OWN = ("cluster.engine.backward_bulk_nodes=15", f"cluster.communication.bucket_bytes={128 << 20}")
"""The example gets what MXNet 1.9.1 and Horovod 0.28.1 choose by themselves."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """See `Bench`."""
    parser.add_argument("--image-size", metavar="PX", type=int, default=64, help="64 or 224 (default: %(default)s)")
    parser.add_argument("--batch", metavar="N", type=int, default=16, help="images a rank (default: %(default)s)")
    parser.add_argument("--rounds", metavar="N", type=int, help="starts of each (default: 4, at 224 px 2)")
    parser.add_argument("--steps", metavar="N", type=int, help="of each start (default: 8, at 224 px 2)")
    parser.add_argument("--gluon", action="store_true", help="the example with --mode gluon, too")


@dataclass(frozen=True)
class _Contest:
    """What is the same for all."""

    data: Path
    image_size: int
    batch: int
    steps: int

    @property
    def _words(self) -> list[str]:
        return ["--warmup", str(1 + self.steps // 4), "--steps", str(self.steps)]

    @property
    def _peer_words(self) -> list[str]:
        sizes = ["--image-size", str(self.image_size), "--batch-size", str(self.batch)]
        return ["--data", str(self.data / "train"), *sizes, *self._words]

    def ours(self) -> Figures:
        """Run this program."""
        overrides = [
            f"data.name={self.data.name}", "data.source=generated", f"data.train_samples={_IMAGES}",
            "data.eval_samples=2", f"data.shuffle_buffer={_IMAGES}", f"model.image_size={self.image_size}",
            f"batch.global_size={2 * self.batch}", f"cluster.paths.data={self.data.parent}",
        ]  # fmt: skip
        words = [word for override in overrides for word in ("--set", override)]
        return _only_sample(run_ranks("train.bench.programs.ours", [*words, *self._words]))

    def horovod(self, mode: str) -> Figures:
        """Run Horovod's example."""
        words = [*self._peer_words, "--mode", mode]
        return _only_sample(run_ranks("train.bench.programs.horovod_example", words, overrides=_LIBRARIES_OWN))

    def pytorch(self, *extra: str) -> Figures:
        """Run DistributedDataParallel."""
        with tempfile.TemporaryDirectory() as folder:
            words = [*self._peer_words, "--meet", f"{folder}/ranks", *extra]
            return _only_sample(
                launch("launch.ranks", ["--", str(_PYTORCH), "-u", "-m", "train.bench.programs.pytorch_ddp", *words])
            )


def measure(options: argparse.Namespace) -> Report:
    """See `Bench`."""
    is_large = options.image_size >= 128  # noqa: PLR2004 (from here on a step takes seconds)
    contest = _Contest(
        _prepared(ROOT / "runs" / "data" / "bench-peers"), options.image_size, options.batch,
        _positive("--steps", options.steps, 2 if is_large else 8),
    )  # fmt: skip
    alternatives: dict[str, Callable[[], Figures]] = {
        _OURS: contest.ours, "Horovod's MXNet example": lambda: contest.horovod("module"),
    }  # fmt: skip
    if options.gluon:
        alternatives["Horovod's MXNet example, gluon"] = lambda: contest.horovod("gluon")
    notes = [f"ResNet-50, {options.image_size} px, batch {options.batch} a rank, two ranks of one thread, JPEGs"]
    if _PYTORCH.exists():
        alternatives["PyTorch DDP"] = contest.pytorch
        alternatives["PyTorch DDP, channels last"] = lambda: contest.pytorch("--channels-last")
    else:
        notes.append(f"without PyTorch; to have it beside: {_INSTALL}")
    rounds = _positive("--rounds", options.rounds, 2 if is_large else 4)
    rows = interleave(alternatives, n=rounds, reference=_OURS, tell=logger.info)
    return make_report(rows, notes)


def _positive(flag: str, given: int | None, default: int) -> int:
    if given is not None and given < 1:
        raise UserError(f"{flag} {given}: a whole number above 0")
    return given or default


def _prepared(folder: Path) -> Path:
    """Pack the images, once."""
    if not (folder / "manifest.json").is_file():
        counts = shlex.split(f"--train {_IMAGES} --eval 2 --classes 1000")
        launch("data", ["prepare", "generated", str(folder), *counts])
    return folder


def _only_sample(said: str) -> Figures:
    ((sample,),) = samples_of(said).values()
    return sample
