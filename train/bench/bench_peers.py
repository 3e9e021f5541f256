"""Training images a second beside what people use today: the same network, JPEGs, batch, ranks and threads."""

from __future__ import annotations

import argparse
import logging
import shlex
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from configs.errors import UserError, nearest
from configs.load import ROOT, load_both
from configs.networks import IMAGE_SIZES, NETWORKS
from configs.plan import plan_run
from configs.programs import Program, command_of
from train.bench.launching import run, run_ranks
from train.bench.measure import Figures, Report, interleave, make_report
from train.bench.samples import samples_of

__all__ = ["PURPOSE", "add_arguments", "measure"]

logger = logging.getLogger(__name__)

PURPOSE = "training images/s beside Horovod's own MXNet example, PyTorch's DistributedDataParallel and DataParallel"

_FOLDER = ROOT / ".venv-peers"
_REQUIREMENTS = "train/bench/programs/requirements.txt"

_OURS = "ours"
_RECIPE = "imagenet-b256"
_FEWEST_IMAGES = 256
_LIBRARIES_OWN = ("cluster.engine.backward_bulk_nodes=15", f"cluster.communication.bucket_bytes={128 << 20}")
"""The example gets what MXNet 1.9.1 and Horovod 0.28.1 choose by themselves."""

_ZOO = {name: f"{name}_v1" for name in NETWORKS if name in ("resnet18", "resnet34", "resnet50", "resnet101")}
_ZOO |= {"resnet152": "resnet152_v1", "alexnet": "alexnet", "densenet121": "densenet121"}
"""Our name -> the name in MXNet's model zoo, which Horovod's example takes."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """See `Bench`."""
    parser.add_argument("--model", metavar="M", default="resnet50", help="a network by name (default: %(default)s)")
    parser.add_argument("--image-size", metavar="PX", type=int, help="default: 64, or what the network is made for")
    parser.add_argument("--batch", metavar="N", type=int, default=16, help="images a rank (default: %(default)s)")
    parser.add_argument("--ranks", metavar="N", type=int, default=2, help="of one thread each (default: %(default)s)")
    parser.add_argument("--rounds", metavar="N", type=int, help="starts of each (default: 2, from 128 px on 1)")
    parser.add_argument("--steps", metavar="N", type=int, help="of each start (default: 8, from 128 px on 1)")
    parser.add_argument("--gluon", action="store_true", help="the example with --mode gluon, too")
    parser.add_argument("--install", action="store_true", help="first put PyTorch into .venv-peers, if it is not there")


@dataclass(frozen=True)
class _Contest:
    """What is the same for all."""

    model: str
    image_size: int
    batch: int
    ranks: int
    steps: int

    @property
    def _is_grey(self) -> bool:
        return self.model.startswith("mnist")

    @property
    def _classes(self) -> int:
        return 10 if self._is_grey else 1000

    @property
    def _channels(self) -> int:
        return 1 if self._is_grey else 3

    @property
    def _images(self) -> int:
        return max(_FEWEST_IMAGES, self.ranks * self.batch)

    @property
    def data(self) -> Path:
        """The folder of the packed images."""
        return ROOT / "runs" / "data" / f"bench-peers-{self._classes}-{self._images}"

    @property
    def _words(self) -> list[str]:
        return ["--warmup", str(1 + self.steps // 4), "--steps", str(self.steps)]

    @property
    def _peer_words(self) -> list[str]:
        return ["--data", str(self.data / "train"), "--image-size", str(self.image_size), *self._words]

    @property
    def _places(self) -> tuple[str, ...]:
        return (f"cluster.ranks_per_node={self.ranks}",)

    @property
    def _overrides(self) -> list[str]:
        grey = ["data.mean=[123.675, 123.675, 123.675]", "data.std=[58.395, 58.395, 58.395]"] if self._is_grey else []
        return [
            *grey,
            f"data.name={self.data.name}", "data.source=generated", f"data.train_samples={self._images}",
            "data.eval_samples=2", f"data.shuffle_buffer={self._images}", f"model.image_size={self.image_size}",
            f"model.name={self.model}", f"model.num_classes={self._classes}", f"model.input_channels={self._channels}",
            f"batch.global_size={self.ranks * self.batch}", f"cluster.paths.data={self.data.parent}", *self._places,
        ]  # fmt: skip

    def check(self) -> None:
        """See whether a run could be like this.

        Raises:
            ConfigError: It could not.
        """
        recipe, _ = load_both(_RECIPE, "laptop", self._overrides)
        plan_run(recipe, self.ranks)

    def pack(self) -> None:
        """Pack the images, once."""
        if not (self.data / "manifest.json").is_file():
            counts = shlex.split(f"--train {self._images} --eval 2 --classes {self._classes}")
            run(command_of(Program.PREPARE_VERB, "prepare", "generated", str(self.data), *counts))

    def ours(self) -> Figures:
        """Run this program."""
        words = [word for override in self._overrides for word in ("--set", override)]
        command = command_of(Program.PEER_OURS, *words, *self._words)
        return _only_sample(run_ranks(command, overrides=self._places))

    def horovod(self, mode: str) -> Figures:
        """Run Horovod's example."""
        words = [*self._peer_words, "--batch-size", str(self.batch), "--model", _ZOO[self.model], "--mode", mode]
        overrides = (*_LIBRARIES_OWN, *self._places)
        return _only_sample(run_ranks(command_of(Program.HOROVOD_EXAMPLE, *words), overrides=overrides))

    def pytorch(self, *extra: str) -> Figures:
        """Run DistributedDataParallel."""
        return self._pytorch(self.ranks, self.batch, *extra)

    def pytorch_alone(self) -> Figures:
        """Run DataParallel: one process for the batches and the threads of all ranks."""
        return self._pytorch(1, self.ranks * self.batch, "--threads", str(self.ranks))

    def _pytorch(self, ranks: int, batch: int, *extra: str) -> Figures:
        with tempfile.TemporaryDirectory() as folder:
            words = [
                *self._peer_words, "--model", self.model, "--classes", str(self._classes),
                "--channels", str(self._channels), "--batch-size", str(batch), "--meet", f"{folder}/ranks", *extra,
            ]  # fmt: skip
            # This program is not installed in the peers' environment, so Python must look in the current folder.
            program = command_of(Program.PYTORCH_PEER, *words, python=_python(), is_isolated=False)
            return _only_sample(run_ranks(program, overrides=[f"cluster.ranks_per_node={ranks}"]))


def measure(options: argparse.Namespace) -> Report:
    """See `Bench`."""
    contest = _contest(options)
    if options.install:
        _install()
    contest.pack()
    alternatives: dict[str, Callable[[], Figures]] = {_OURS: contest.ours}
    notes = [
        f"{contest.model}, {contest.image_size} px, batch {contest.batch} a rank, {contest.ranks} ranks of one thread, "
        "JPEGs"
    ]
    if contest.model in _ZOO:
        alternatives["Horovod's MXNet example"] = lambda: contest.horovod("module")
        if options.gluon:
            alternatives["Horovod's MXNet example, gluon"] = lambda: contest.horovod("gluon")
    else:
        notes.append(f"without Horovod's example: MXNet's model zoo has no {contest.model}")
    if _python().exists():
        alternatives["PyTorch DDP"] = contest.pytorch
        alternatives["PyTorch DDP, channels last"] = lambda: contest.pytorch("--channels-last")
        alternatives["PyTorch DataParallel"] = contest.pytorch_alone
        notes.append(
            f"DataParallel splits a batch over GPUs; without any it is one process that takes all {contest.ranks} "
            f"ranks' images on {contest.ranks} threads"
        )
    else:
        notes.append("without PyTorch; --install puts it into .venv-peers (1 GB)")
    rows = interleave(alternatives, n=_rounds(options, contest), reference=_OURS, tell=logger.info)
    return make_report(rows, notes)


def _contest(options: argparse.Namespace) -> _Contest:
    """Check the options, before anything is installed, packed or run.

    Raises:
        UserError: One is wrong.
    """
    if options.model not in NETWORKS:
        raise UserError(f"--model {options.model}: no such network; {nearest(options.model, NETWORKS)}")
    least, most = IMAGE_SIZES[options.model]
    size = min(max(_USUAL_SIZE, least), most) if options.image_size is None else options.image_size
    steps = _positive("--steps", options.steps, 1 if size >= _LARGE else 8)
    contest = _Contest(
        options.model, size, _positive("--batch", options.batch, 1), _positive("--ranks", options.ranks, 1), steps
    )
    _rounds(options, contest)
    contest.check()
    return contest


def _rounds(options: argparse.Namespace, contest: _Contest) -> int:
    return _positive("--rounds", options.rounds, 1 if contest.image_size >= _LARGE else 2)


_USUAL_SIZE = 64
_LARGE = 128
"""From this side on, px, a step takes seconds."""


def _positive(flag: str, given: int | None, default: int) -> int:
    if given is not None and given < 1:
        raise UserError(f"{flag} {given}: a whole number above 0")
    return given or default


def _python() -> Path:
    return _FOLDER / "bin" / "python"


def _install() -> None:
    """Make the peers' environment, which holds NumPy 2 and so cannot be ours; what is there already stays."""
    logger.info("installing PyTorch into %s", _FOLDER)
    run([sys.executable, "-m", "venv", str(_FOLDER)])
    run([str(_python()), "-m", "pip", "install", "--quiet", "-r", _REQUIREMENTS])


def _only_sample(said: str) -> Figures:
    ((sample,),) = samples_of(said).values()
    return sample
