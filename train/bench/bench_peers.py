"""Training images a second, beside the programs that people use today, on the same network, JPEGs, batch and ranks."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from configs.errors import UserError, nearest
from configs.networks import IMAGE_SIZES, NETWORKS
from configs.programs import Program
from train.bench.bench_step import GREY
from train.bench.forms import (
    ANY,
    NO_PYTORCH,
    Form,
    fastest,
    fastest_pytorch,
    forms_of,
    momentum_update,
    own_forms,
    own_place,
    place_of,
    places,
    start_pytorch,
    wanted_precisions,
)
from train.bench.measure import Report, interleave, make_report
from train.bench.options import Bench, effort, generated_images, option
from train.bench.samples import Figures

if TYPE_CHECKING:
    from train.bench.launching import Finished, Jobs

_OURS = "ours"
_HOROVOD = "Horovod's MXNet example"

_RECIPE = "imagenet-b256"
_LARS = "optimizer={name: lars, momentum: 0.9, weight_decay: 1e-4, trust_coefficient: 0.001}"
_LIBRARY_DEFAULTS = ("cluster.engine.backward_bulk_nodes=15", f"cluster.communication.bucket_bytes={128 << 20}")
"""The defaults of MXNet 1.9.1 and Horovod 0.28.1, which Horovod's example runs with."""

_ZOO = {name: f"{name}_v1" for name in NETWORKS if name in ("resnet18", "resnet34", "resnet50", "resnet101")}
_ZOO |= {"resnet152": "resnet152_v1", "alexnet": "alexnet", "densenet121": "densenet121"}
"""Our name of a network -> the name in MXNet's model zoo, which Horovod's example takes."""

_USUAL_SIZE = 64
_LARGE = 128
"""From this side on, px, a step takes seconds."""
_TRIED_STEPS = 2
"""Most steps of a start that only chooses a form."""


@dataclass(frozen=True)
class PeersOptions:
    """The options of ``bench peers``."""

    model: str = option("name of a network", "resnet50", metavar="M")
    image_size: int | None = option(
        "side of an image (default: 64, or the size that the network is made for)", metavar="PX", type=int
    )
    batch: int = option("images per core", 16, metavar="N", type=int)
    ranks: int = option("cores, each with a rank of its own or all in one process", 2, metavar="N", type=int)
    precision: str = option(
        "number type of all programs; any: of each program the fastest that this CPU has",
        ANY,
        choices=(ANY, "float32", "bfloat16"),
    )
    optimizer: str = option("update of all programs but Horovod's example", "sgd", choices=("sgd", "lars"))
    rounds: int | None = effort(
        "starts of the fastest forms", quick=1, usual=None, thorough=12, default="6; 2 from 128 px on"
    )
    steps: int | None = option("timed steps of each start (default: 4; 1 from 128 px on)", metavar="N", type=int)
    install: bool = option("install PyTorch into .venv-peers first if it is missing", False, action="store_true")


@dataclass(frozen=True)
class _Comparison:
    """The network, the images, the update and the cores, which are the same for all programs.

    Attributes:
        jobs: Starts the programs.
        network: Arguments of `train.networks.arch.build_network`.
        batch: Images a core.
        ranks: Cores.
        optimizer: Changes of the recipe's optimizer.
        steps: Timed steps of each start.
        rounds: Starts of each alternative.
        images: Number of generated images.
    """

    jobs: "Jobs"
    network: dict[str, Any]
    batch: int
    ranks: int
    optimizer: tuple[str, ...]
    steps: int
    rounds: int
    images: int

    @property
    def data(self) -> Path:
        """The folder of the packed images."""
        from configs.load import ROOT

        return ROOT / "runs" / "data" / f"bench-peers-{self.network['num_classes']}-{self.images}"

    @property
    def global_size(self) -> int:
        """Images of a step of all ranks."""
        return self.ranks * self.batch

    @property
    def overrides(self) -> list[str]:
        """The changes of the recipe for a run of this program."""
        return [
            *(GREY if self.network["input_channels"] == 1 else ()),
            *generated_images(self.data.name, self.images),
            *(f"model.{key}={value}" for key, value in self.network.items()),
            f"batch.global_size={self.global_size}",
            *self.optimizer,
            f"cluster.paths.data={self.data.parent}",
        ]

    def ours(self, form: Form) -> Figures:
        """Measure this program in a form of `own_forms`."""
        place = own_place(form)
        task = {"overrides": [*self.overrides, *place], **self._counted}
        return _only_sample(self.jobs.ranks(Program.PEER_OURS, task, overrides=place))

    def horovod(self, form: Form) -> Figures:
        """Measure Horovod's example; a form also has ``mode``, the interface of MXNet."""
        shape = {"model": _ZOO[self.network["name"]], "image_size": self.network["image_size"]}
        batch = {"batch_size": self.global_size // form["ranks"]}
        task = {**shape, "data": f"{self.data}/train", **batch, "mode": form["mode"], **self._counted}
        overrides = ("cluster.communication.kind=horovod", *_LIBRARY_DEFAULTS, *place_of(form))
        return _only_sample(self.jobs.ranks(Program.HOROVOD_EXAMPLE, task, overrides=overrides))

    def pytorch(self, form: Form) -> Figures:
        """Measure PyTorch in a form of `fastest_pytorch`."""
        from configs.load import load_both

        recipe, _ = load_both(_RECIPE, "laptop", self.overrides)
        rate = {
            "network": self.network,
            "data": f"{self.data}/train",
            "batch_size": self.global_size // form["ranks"],
            "update": momentum_update(recipe.optimizer) if self.optimizer else None,
            **self._counted,
        }
        return _only_sample(start_pytorch(self.jobs, form, rate=rate))

    @property
    def _counted(self) -> dict[str, int]:
        """The steps of a start that do not count, and those that do."""
        return {"warmup": 1 + self.steps // 4, "steps": self.steps}


def _only_sample(done: "Finished") -> Figures:
    ((sample,),) = done.samples.values()
    return sample


def _seconds(measure: Callable[[Form], Figures]) -> Callable[[Form], float]:
    """Return the function that measures the seconds an image takes in a form."""
    return lambda form: 1 / measure(form)["images_per_s"]


def measure(options: PeersOptions, jobs: "Jobs", fewest_images: int = 256) -> Report:
    """See `train.bench.options.Bench`; ``fewest_images`` are generated at least."""
    from configs.load import load_both

    comparison, wanted = _comparison(options, jobs, fewest_images), wanted_precisions(options.precision)
    if options.install:
        jobs.install_peers()
    jobs.pack(*load_both(_RECIPE, "laptop", comparison.overrides))
    short = replace(comparison, steps=min(comparison.steps, _TRIED_STEPS))
    model, cores, notes = options.model, comparison.ranks, list[str]()
    size, images = comparison.network["image_size"], comparison.global_size
    best, form = fastest(_OURS, own_forms(cores, wanted), _seconds(short.ours), notes)
    (default, *_) = own_forms(cores, ("float32",)).values()
    alternatives: dict[str, Callable[[], Figures]] = {
        _OURS: partial(comparison.ours, default),
        best: partial(comparison.ours, form),
    }
    if not find_spec("horovod"):
        notes.append("Horovod's example is not measured: Horovod is not installed")
    elif model in _ZOO:
        modes = {mode: {"mode": mode} for mode in ("module", "gluon")}
        name, form = fastest(_HOROVOD, forms_of(places(cores), modes), _seconds(short.horovod), notes)
        alternatives[name] = partial(comparison.horovod, form)
    else:
        notes.append(f"Horovod's example is not measured: MXNet's model zoo has no {model}")
    if jobs.peers_python.exists():
        name, form = fastest_pytorch(cores, wanted, _seconds(short.pytorch), notes)
        alternatives[name] = partial(comparison.pytorch, form)
    else:
        notes.append(NO_PYTORCH)
    rows = interleave(alternatives, n=comparison.rounds, reference=best)
    shape = f"{model}, {size} px, {images} images a step on {cores} cores, {options.optimizer}, JPEGs"
    own = f"{_OURS}: the form of a run that asks for nothing; the others: the fastest form of each program"
    return make_report(rows, [shape, own, *notes])


BENCH = Bench(
    "training images/s beside Horovod's own MXNet example and PyTorch, each in its fastest form",
    PeersOptions,
    measure,
    only_here="the other programs are started on this machine's CPU",
)


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
        optimizer=(_LARS,) if options.optimizer == "lars" else (),
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
