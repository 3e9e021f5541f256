"""Training images a second, beside the programs that people use today, on the same network, JPEGs, batch and ranks.

`train.bench.bench_options` has the question and the options.
"""

import argparse
import logging
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from pathlib import Path

from configs.errors import UserError, nearest
from configs.load import ROOT, load_both
from configs.networks import IMAGE_SIZES, NETWORKS
from configs.plan import plan_run
from configs.programs import Program, command_of
from configs.registry import ENGINES, installed_engine, possible_precisions
from logs.environment import cpu_flags
from train.bench.launching import pack_dataset, run, run_ranks
from train.bench.measure import Figures, Report, interleave, make_report
from train.bench.samples import read_samples

logger = logging.getLogger(__name__)

_FOLDER = ROOT / ".venv-peers"
_REQUIREMENTS = "train/bench/programs/requirements.txt"

_OURS = "ours"
_PRECISION = "float32"
"""That of the peers, which the names of our alternatives leave out."""

_RECIPE = "imagenet-b256"
_FEWEST_IMAGES = 256
_LIBRARY_DEFAULTS = ("cluster.engine.backward_bulk_nodes=15", f"cluster.communication.bucket_bytes={128 << 20}")
"""The defaults of MXNet 1.9.1 and Horovod 0.28.1, which Horovod's example runs with."""

_ZOO = {name: f"{name}_v1" for name in NETWORKS if name in ("resnet18", "resnet34", "resnet50", "resnet101")}
_ZOO |= {"resnet152": "resnet152_v1", "alexnet": "alexnet", "densenet121": "densenet121"}
"""Our name of a network -> the name in MXNet's model zoo, which Horovod's example takes."""

_USUAL_SIZE = 64
_LARGE = 128
"""From this side on, px, a step takes seconds."""


@dataclass(frozen=True)
class _Contest:
    """The network, the images and the ranks, which are the same for all alternatives."""

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
    def _step_options(self) -> list[str]:
        return [f"--warmup={1 + self.steps // 4}", f"--steps={self.steps}"]

    @property
    def _peer_options(self) -> list[str]:
        return [f"--data={self.data / 'train'}", f"--image-size={self.image_size}", *self._step_options]

    @property
    def _cluster_overrides(self) -> tuple[str, ...]:
        return (f"cluster.ranks_per_node={self.ranks}",)

    @property
    def _overrides(self) -> list[str]:
        grey = ["data.mean=[123.675, 123.675, 123.675]", "data.std=[58.395, 58.395, 58.395]"] if self._is_grey else []
        return [
            *grey,
            f"data.name={self.data.name}",
            "data.source=generated",
            f"data.train_samples={self._images}",
            "data.eval_samples=2",
            f"data.shuffle_buffer={self._images}",
            f"model.image_size={self.image_size}",
            f"model.name={self.model}",
            f"model.num_classes={self._classes}",
            f"model.input_channels={self._channels}",
            f"batch.global_size={self.ranks * self.batch}",
            f"cluster.paths.data={self.data.parent}",
            *self._cluster_overrides,
        ]

    def check(self) -> None:
        """Raise ConfigError if no run can have this network, image size, batch and number of ranks."""
        recipe, _ = load_both(_RECIPE, "laptop", self._overrides)
        plan_run(recipe, self.ranks)

    def pack(self) -> None:
        """Pack the images if they are not packed yet."""
        pack_dataset(*load_both(_RECIPE, "laptop", self._overrides))

    def ours(self, engine: str, precision: str) -> Figures:
        """Measure this program under one of its engines, at a precision."""
        chosen = (f"cluster.engine.name={engine}", f"cluster.engine.precision={precision}")
        words = [word for override in (*self._overrides, *chosen) for word in ("--set", override)]
        command = command_of(Program.PEER_OURS, *words, *self._step_options)
        return _only_sample(run_ranks(command, overrides=(*self._cluster_overrides, *chosen)))

    def horovod(self, mode: str) -> Figures:
        """Measure Horovod's example in the mode ``module`` or ``gluon``."""
        words = [*self._peer_options, f"--batch-size={self.batch}", f"--model={_ZOO[self.model]}", f"--mode={mode}"]
        overrides = ("cluster.communication.kind=horovod", *_LIBRARY_DEFAULTS, *self._cluster_overrides)
        return _only_sample(run_ranks(command_of(Program.HOROVOD_EXAMPLE, *words), overrides=overrides))

    def pytorch(self, *extra: str) -> Figures:
        """Measure PyTorch's DistributedDataParallel, with ``extra`` options of `train.bench.programs.pytorch_peer`."""
        return self._pytorch(self.ranks, self.batch, *extra)

    def pytorch_data_parallel(self) -> Figures:
        """Measure PyTorch's DataParallel: one process with the batches and the threads of all ranks."""
        return self._pytorch(1, self.ranks * self.batch, "--threads", str(self.ranks))

    def _pytorch(self, ranks: int, batch: int, *extra: str) -> Figures:
        with tempfile.TemporaryDirectory() as folder:
            words = [
                *self._peer_options,
                f"--model={self.model}",
                f"--classes={self._classes}",
                f"--channels={self._channels}",
                f"--batch-size={batch}",
                f"--meeting-file={folder}/ranks",
                *extra,
            ]
            # This program is not installed in the environment of the peers, so Python must look in the current folder.
            program = command_of(Program.PYTORCH_PEER, *words, python=peers_python(), is_isolated=False)
            return _only_sample(run_ranks(program, overrides=[f"cluster.ranks_per_node={ranks}"]))


def measure(options: argparse.Namespace) -> Report:
    """See `Bench`."""
    contest = _contest(options)
    if options.install:
        install_peers()
    contest.pack()
    alternatives: dict[str, Callable[[], Figures]] = {
        name: partial(contest.ours, engine, precision) for name, (engine, precision) in _own_ways().items()
    }
    notes = [
        f"{contest.model}, {contest.image_size} px, batch {contest.batch} a rank, {contest.ranks} ranks of one thread, "
        "JPEGs"
    ]
    if not find_spec("horovod"):
        notes.append("Horovod's example is not measured: Horovod is not installed")
    elif contest.model in _ZOO:
        alternatives["Horovod's MXNet example"] = lambda: contest.horovod("module")
        if options.gluon:
            alternatives["Horovod's MXNet example, gluon"] = lambda: contest.horovod("gluon")
    else:
        notes.append(f"Horovod's example is not measured: MXNet's model zoo has no {contest.model}")
    if peers_python().exists():
        alternatives["PyTorch DDP"] = contest.pytorch
        alternatives["PyTorch DDP, channels last"] = lambda: contest.pytorch("--channels-last")
        alternatives["PyTorch DataParallel"] = contest.pytorch_data_parallel
        notes.append(
            "DataParallel splits a batch over GPUs; without GPUs it is one process that takes the images of all "
            f"{contest.ranks} ranks on {contest.ranks} threads"
        )
    else:
        notes.append("PyTorch is not measured: it is not installed; --install puts it into .venv-peers (1 GB)")
    rows = interleave(alternatives, n=_rounds(options, contest), reference=_OURS, announce=logger.info)
    return make_report(rows, notes)


def _own_ways() -> dict[str, tuple[str, str]]:
    """Return the engines that this environment has, each at every precision of this CPU, by name; the default first."""
    ways = {}
    for engine, entry in ENGINES.items():
        if entry.computes and find_spec(entry.package):
            title = _OURS if engine == installed_engine() else f"{_OURS}, {entry.title}"
            for precision in possible_precisions(engine, cpu_flags()):
                ways[title if precision == _PRECISION else f"{title}, {precision}"] = (engine, precision)
    return ways


def _contest(options: argparse.Namespace) -> _Contest:
    """Return the contest that the options describe, checked before anything is installed, packed or run.

    Raises:
        UserError: An option is wrong.
    """
    if options.model not in NETWORKS:
        raise UserError(f"--model {options.model}: no such network; {nearest(options.model, NETWORKS)}")
    least, most = IMAGE_SIZES[options.model]
    size = min(max(_USUAL_SIZE, least), most) if options.image_size is None else options.image_size
    steps = _positive("--steps", options.steps, 1 if size >= _LARGE else 4)
    contest = _Contest(
        model=options.model,
        image_size=size,
        batch=_positive("--batch", options.batch, 1),
        ranks=_positive("--ranks", options.ranks, 1),
        steps=steps,
    )
    _rounds(options, contest)
    contest.check()
    return contest


def _rounds(options: argparse.Namespace, contest: _Contest) -> int:
    return _positive("--rounds", options.rounds, 2 if contest.image_size >= _LARGE else 6)


def _positive(flag: str, given: int | None, default: int) -> int:
    """Return the value of an option, or the default if None; raise UserError if the value is below 1."""
    if given is not None and given < 1:
        raise UserError(f"{flag} {given}: allowed: a whole number above 0")
    return given or default


def peers_python() -> Path:
    """Return the interpreter of the environment of the peers, which is there once they are installed."""
    return _FOLDER / "bin" / "python"


def install_peers() -> None:
    """Make the environment of the peers, or complete it. It has NumPy 2, so it cannot be the one of this program."""
    logger.info("installing PyTorch into %s", _FOLDER)
    run([sys.executable, "-m", "venv", str(_FOLDER)])
    run([str(peers_python()), "-m", "pip", "install", "--quiet", "-r", _REQUIREMENTS])


def _only_sample(output: str) -> Figures:
    ((sample,),) = read_samples(output).values()
    return sample
