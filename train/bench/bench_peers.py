"""Training images a second, beside the programs that people use today, on the same network, JPEGs, batch and ranks."""

import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from configs.errors import UserError, nearest
from configs.networks import IMAGE_SIZES, NETWORKS
from configs.programs import Program
from configs.registry import ENGINES, has_engine, installed_engine, possible_precisions
from train.bench.bench_step import GREY
from train.bench.measure import Report, interleave, make_report
from train.bench.options import Bench, effort, generated_images, option
from train.bench.samples import Figures

if TYPE_CHECKING:
    from train.bench.launching import Finished, Jobs

_OURS = "ours"
_PRECISION = "float32"
"""That of the peers, which the names of our alternatives leave out."""

_RECIPE = "imagenet-b256"
_LIBRARY_DEFAULTS = ("cluster.engine.backward_bulk_nodes=15", f"cluster.communication.bucket_bytes={128 << 20}")
"""The defaults of MXNet 1.9.1 and Horovod 0.28.1, which Horovod's example runs with."""

_ZOO = {name: f"{name}_v1" for name in NETWORKS if name in ("resnet18", "resnet34", "resnet50", "resnet101")}
_ZOO |= {"resnet152": "resnet152_v1", "alexnet": "alexnet", "densenet121": "densenet121"}
"""Our name of a network -> the name in MXNet's model zoo, which Horovod's example takes."""

_USUAL_SIZE = 64
_LARGE = 128
"""From this side on, px, a step takes seconds."""

NO_PYTORCH = "PyTorch is not measured: it is not installed; --install puts it into .venv-peers (1 GB)"


@dataclass(frozen=True)
class PeersOptions:
    """The options of ``bench peers``."""

    model: str = option("name of a network", "resnet50", metavar="M")
    image_size: int | None = option(
        "side of an image (default: 64, or the size that the network is made for)", metavar="PX", type=int
    )
    batch: int = option("images per rank", 16, metavar="N", type=int)
    ranks: int = option("ranks of one thread each", 2, metavar="N", type=int)
    rounds: int | None = effort(
        "starts of each alternative", quick=1, usual=None, thorough=12, default="6; 2 from 128 px on"
    )
    steps: int | None = option("timed steps of each start (default: 4; 1 from 128 px on)", metavar="N", type=int)
    gluon: bool = option("also measure Horovod's example with --mode gluon", False, action="store_true")
    install: bool = option("install PyTorch into .venv-peers first if it is missing", False, action="store_true")


@dataclass(frozen=True)
class _Comparison:
    """The network, the images and the ranks, which are the same for all alternatives.

    Attributes:
        jobs: Starts the alternatives.
        network: Arguments of `train.networks.arch.build_network`.
        batch: Images a rank.
        ranks: Ranks of one thread each.
        steps: Timed steps of each start.
        rounds: Starts of each alternative.
        images: Number of generated images.
    """

    jobs: "Jobs"
    network: dict[str, Any]
    batch: int
    ranks: int
    steps: int
    rounds: int
    images: int

    @property
    def data(self) -> Path:
        """The folder of the packed images."""
        from configs.load import ROOT

        return ROOT / "runs" / "data" / f"bench-peers-{self.network['num_classes']}-{self.images}"

    @property
    def counted(self) -> dict[str, int]:
        """The steps of a start that do not count, and those that do."""
        return {"warmup": 1 + self.steps // 4, "steps": self.steps}

    @property
    def place(self) -> tuple[str, ...]:
        """The changes of the cluster."""
        return (f"cluster.ranks_per_node={self.ranks}",)

    @property
    def overrides(self) -> list[str]:
        """The changes of the recipe and of the cluster for a run of this program."""
        return [
            *(GREY if self.network["input_channels"] == 1 else ()),
            *generated_images(self.data.name, self.images),
            *(f"model.{key}={value}" for key, value in self.network.items()),
            f"batch.global_size={self.ranks * self.batch}",
            f"cluster.paths.data={self.data.parent}",
            *self.place,
        ]

    def ours(self, engine: str, precision: str) -> Figures:
        """Measure this program under one of its engines, at a precision."""
        chosen = (f"cluster.engine.name={engine}", f"cluster.engine.precision={precision}")
        task = {"overrides": [*self.overrides, *chosen], **self.counted}
        return _only_sample(self.jobs.ranks(Program.PEER_OURS, task, overrides=(*self.place, *chosen)))

    def horovod(self, mode: str) -> Figures:
        """Measure Horovod's example in the mode ``module`` or ``gluon``."""
        shape = {"model": _ZOO[self.network["name"]], "image_size": self.network["image_size"]}
        task = {**shape, "data": f"{self.data}/train", "batch_size": self.batch, "mode": mode, **self.counted}
        overrides = ("cluster.communication.kind=horovod", *_LIBRARY_DEFAULTS, *self.place)
        return _only_sample(self.jobs.ranks(Program.HOROVOD_EXAMPLE, task, overrides=overrides))

    def pytorch(self, *, is_channels_last: bool = False, is_one_process: bool = False) -> Figures:
        """Measure PyTorch's DistributedDataParallel, or DataParallel.

        Args:
            is_channels_last: Whether images and weights have that order in memory.
            is_one_process: Measure DataParallel: one process with the batches and the threads of all ranks.
        """
        ranks, batch = (1, self.ranks * self.batch) if is_one_process else (self.ranks, self.batch)
        with tempfile.TemporaryDirectory() as folder:
            rate = {
                "network": self.network,
                "data": f"{self.data}/train",
                "batch_size": batch,
                "threads": self.ranks if is_one_process else None,
                **self.counted,
            }
            task = {"rendezvous_file": f"{folder}/ranks", "is_channels_last": is_channels_last, "rate": rate}
            place = [f"cluster.ranks_per_node={ranks}"]
            return _only_sample(self.jobs.ranks(Program.PYTORCH_PEER, task, overrides=place, is_peer=True))


def _only_sample(done: "Finished") -> Figures:
    ((sample,),) = done.samples.values()
    return sample


def measure(options: PeersOptions, jobs: "Jobs", fewest_images: int = 256) -> Report:
    """See `train.bench.options.Bench`; ``fewest_images`` are generated at least."""
    from configs.load import load_both

    comparison = _comparison(options, jobs, fewest_images)
    if options.install:
        jobs.install_peers()
    jobs.pack(*load_both(_RECIPE, "laptop", comparison.overrides))
    model = options.model
    alternatives: dict[str, Callable[[], Figures]] = {
        name: partial(comparison.ours, engine, precision) for name, (engine, precision) in _own_engines().items()
    }
    shape = f"{model}, {comparison.network['image_size']} px, batch {comparison.batch} a rank"
    notes = [f"{shape}, {comparison.ranks} ranks of one thread, JPEGs"]
    if not find_spec("horovod"):
        notes.append("Horovod's example is not measured: Horovod is not installed")
    elif model in _ZOO:
        alternatives["Horovod's MXNet example"] = lambda: comparison.horovod("module")
        if options.gluon:
            alternatives["Horovod's MXNet example, gluon"] = lambda: comparison.horovod("gluon")
    else:
        notes.append(f"Horovod's example is not measured: MXNet's model zoo has no {model}")
    if jobs.peers_python.exists():
        alternatives["PyTorch DDP"] = comparison.pytorch
        alternatives["PyTorch DDP, channels last"] = lambda: comparison.pytorch(is_channels_last=True)
        alternatives["PyTorch DataParallel"] = lambda: comparison.pytorch(is_one_process=True)
        notes.append(
            "DataParallel splits a batch over GPUs; without GPUs it is one process that takes the images of all "
            f"{comparison.ranks} ranks on {comparison.ranks} threads"
        )
    else:
        notes.append(NO_PYTORCH)
    return make_report(interleave(alternatives, n=comparison.rounds, reference=_OURS), notes)


BENCH = Bench(
    "training images/s beside Horovod's own MXNet example and PyTorch's DistributedDataParallel and DataParallel",
    PeersOptions,
    measure,
    only_here="the other programs are started on this machine's CPU",
)


def _own_engines() -> dict[str, tuple[str, str]]:
    """Return the engines that this environment has, each at every precision of this CPU, by name; the default first."""
    from logs.environment import cpu_flags

    engines = {}
    for engine, entry in ENGINES.items():
        if entry.computes and has_engine(engine):
            title = _OURS if engine == installed_engine() else f"{_OURS}, {entry.title}"
            for precision in possible_precisions(engine, cpu_flags()):
                engines[title if precision == _PRECISION else f"{title}, {precision}"] = (engine, precision)
    return engines


def _comparison(options: PeersOptions, jobs: "Jobs", fewest_images: int) -> _Comparison:
    """Return the comparison that the options describe, checked before anything is installed, packed or run.

    Raises:
        UserError: An option is wrong, or no run can have the network, image size, batch and number of ranks.
    """
    from configs.load import load_both
    from configs.plan import plan_run

    model = options.model
    if model not in NETWORKS:
        raise UserError(f"--model {model}: no such network; {nearest(model, NETWORKS)}")
    least, most = IMAGE_SIZES[model]
    size = min(max(_USUAL_SIZE, least), most) if options.image_size is None else options.image_size
    classes, channels = (10, 1) if model.startswith("mnist") else (1000, 3)
    batch, ranks = _positive("--batch", options.batch, 1), _positive("--ranks", options.ranks, 1)
    comparison = _Comparison(
        jobs,
        {"name": model, "num_classes": classes, "image_size": size, "input_channels": channels},
        batch,
        ranks,
        steps=_positive("--steps", options.steps, 1 if size >= _LARGE else 4),
        rounds=_positive("--rounds", options.rounds, 2 if size >= _LARGE else 6),
        images=max(fewest_images, ranks * batch),
    )
    recipe, _ = load_both(_RECIPE, "laptop", comparison.overrides)
    plan_run(recipe, ranks)
    return comparison


def _positive(flag: str, given: int | None, default: int) -> int:
    """Return the value of an option, or the default if None; raise UserError if the value is below 1."""
    if given is not None and given < 1:
        raise UserError(f"{flag} {given}: allowed: a whole number above 0")
    return given or default
