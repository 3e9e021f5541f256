"""Training images a second, beside the programs that people use today, on the same network, JPEGs, batch and ranks."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from configs.errors import UserError, nearest
from configs.networks import IMAGE_SIZES, NETWORKS
from train.bench.bench_step import GREY
from train.bench.forms import (
    Form,
    PeerOptions,
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
    from train.bench.launching import Jobs

_OURS, _RATE = "ours", "images_per_s"
_HOROVOD = "Horovod's MXNet example"

_RECIPE = "imagenet-b256"
_LARS = "optimizer={name: lars, momentum: 0.9, weight_decay: 1e-4, trust_coefficient: 0.001}"
_LIBRARY_DEFAULTS = ("cluster.engine.backward_bulk_nodes=15", f"cluster.communication.bucket_bytes={128 << 20}")
"""The defaults of MXNet 1.9.1 and Horovod 0.28.1, which Horovod's example runs with."""

_ZOO = {name: f"{name}_v1" for name in NETWORKS if name in ("resnet18", "resnet34", "resnet50", "resnet101")}
_ZOO |= {"resnet152": "resnet152_v1", "alexnet": "alexnet", "densenet121": "densenet121"}
"""Our name of a network -> the name in MXNet's model zoo, which Horovod's example takes."""

_FEWEST_IMAGES = 256
_USUAL_SIZE = 64
_LARGE = 128
"""From this side on, px, a step takes seconds."""
_TRIED_STEPS = 2
"""Most steps of a start that only chooses a form."""


@dataclass(frozen=True)
class PeersOptions(PeerOptions):
    """The options of ``bench peers``, and the work that they make the same for all programs."""

    model: str = option("name of a network", "resnet50", metavar="M")
    image_size: int | None = option(
        "side of an image (default: 64, or the size that the network is made for)", metavar="PX", type=int
    )
    batch: int = option("images per core", 16, metavar="N", type=int)
    ranks: int = option("cores, each with a rank of its own or all in one process", 2, metavar="N", type=int)
    optimizer: str = option("update of all programs but Horovod's example", "sgd", choices=("sgd", "lars"))
    rounds: int | None = effort(
        "starts of the fastest forms", quick=1, usual=None, thorough=12, default="6; 2 from 128 px on"
    )
    steps: int | None = option("timed steps of each start (default: 4; 1 from 128 px on)", metavar="N", type=int)

    def checked(self) -> "PeersOptions":
        """Return the options with a value for each default that depends on the others.

        Raises:
            UserError: An option is wrong, or no run can have the network, image size, batch and number of ranks.
        """
        from configs.load import load_both
        from configs.plan import plan_run

        if self.model not in NETWORKS:
            raise UserError(f"--model {self.model}: no such network; {nearest(self.model, NETWORKS)}")
        least, most = IMAGE_SIZES[self.model]
        size = min(max(_USUAL_SIZE, least), most) if self.image_size is None else self.image_size
        rounds, steps = (2, 1) if size >= _LARGE else (6, 4)
        given = {"batch": self.batch, "ranks": self.ranks, "rounds": self.rounds, "steps": self.steps}
        for name, value in given.items():
            if value is not None and value < 1:
                raise UserError(f"--{name} {value}: allowed: a whole number above 0")
        full = replace(self, image_size=size, rounds=self.rounds or rounds, steps=self.steps or steps)
        recipe, _ = load_both(_RECIPE, "laptop", full.overrides)
        plan_run(recipe, self.ranks)
        return full

    @property
    def network(self) -> dict[str, Any]:
        """Arguments of `train.networks.arch.build_network`."""
        classes, channels = (10, 1) if self.is_grey else (1000, 3)
        shape = {"image_size": self.image_size, "input_channels": channels}
        return {"name": self.model, "num_classes": classes, **shape}

    @property
    def is_grey(self) -> bool:
        """Whether the network is one of grey digits."""
        return self.model.startswith("mnist")

    @property
    def global_size(self) -> int:
        """Images of a step of all ranks."""
        return self.ranks * self.batch

    @property
    def data(self) -> Path:
        """The folder of the packed images."""
        from configs.load import ROOT

        return ROOT / "runs" / "data" / f"bench-peers-{self.network['num_classes']}-{self.images}"

    @property
    def images(self) -> int:
        """Number of generated images."""
        return max(_FEWEST_IMAGES, self.global_size)

    @property
    def overrides(self) -> list[str]:
        """The changes of the recipe for a run of this program."""
        return [
            *(GREY if self.is_grey else ()),
            *generated_images(self.data.name, self.images),
            *(f"model.{key}={value}" for key, value in self.network.items()),
            f"batch.global_size={self.global_size}",
            *((_LARS,) if self.optimizer == "lars" else ()),
            f"cluster.paths.data={self.data.parent}",
        ]

    @property
    def counted(self) -> dict[str, int]:
        """The steps of a start that do not count, and those that do."""
        assert self.steps is not None
        return {"warmup": 1 + self.steps // 4, "steps": self.steps}


def _ours(options: PeersOptions, jobs: "Jobs", form: Form) -> Figures:
    """Measure this program in a form of `own_forms`."""
    place = own_place(form)
    task = {"recipe": _RECIPE, "overrides": [*options.overrides, *place], "reads_images": True, **options.counted}
    return {_RATE: jobs.ranks("steps", task, overrides=place).sample[_RATE]}


def _horovod(options: PeersOptions, jobs: "Jobs", form: Form) -> Figures:
    """Measure Horovod's example; a form also has ``mode``, the interface of MXNet."""
    shape = {"model": _ZOO[options.model], "image_size": options.image_size, "mode": form["mode"]}
    batch = {"data": f"{options.data}/train", "batch_size": options.global_size // form["ranks"]}
    overrides = ("cluster.communication.kind=horovod", *_LIBRARY_DEFAULTS, *place_of(form))
    return jobs.ranks("horovod", {**shape, **batch, **options.counted}, overrides=overrides).sample


def _pytorch(options: PeersOptions, jobs: "Jobs", form: Form) -> Figures:
    """Measure PyTorch in a form of `fastest_pytorch`."""
    from configs.load import load_both

    recipe, _ = load_both(_RECIPE, "laptop", options.overrides)
    rate = {
        "network": options.network,
        "data": f"{options.data}/train",
        "batch_size": options.global_size // form["ranks"],
        "update": momentum_update(recipe.optimizer) if options.optimizer == "lars" else None,
        **options.counted,
    }
    return start_pytorch(jobs, form, rate=rate).sample


def measure(options: PeersOptions, jobs: "Jobs") -> Report:
    """See `train.bench.options.Bench`."""
    from configs.load import load_both

    options, wanted = options.checked(), wanted_precisions(options.precision)
    assert options.steps is not None
    assert options.rounds is not None
    options.prepare(jobs)
    jobs.pack(*load_both(_RECIPE, "laptop", options.overrides))
    short = replace(options, steps=min(options.steps, _TRIED_STEPS))
    cores, notes = options.ranks, list[str]()

    def seconds(program: Callable[..., Figures]) -> Callable[[Form], float]:
        return lambda form: 1 / program(short, jobs, form)[_RATE]

    best, form = fastest(_OURS, own_forms(cores, wanted), seconds(_ours), notes)
    (default, *_) = own_forms(cores, ("float32",)).values()
    alternatives: dict[str, Callable[[], Figures]] = {
        _OURS: partial(_ours, options, jobs, default),
        best: partial(_ours, options, jobs, form),
    }
    if not find_spec("horovod"):
        notes.append("Horovod's example is not measured: Horovod is not installed")
    elif options.model in _ZOO:
        modes = {mode: {"mode": mode} for mode in ("module", "gluon")}
        name, form = fastest(_HOROVOD, forms_of(places(cores), modes), seconds(_horovod), notes)
        alternatives[name] = partial(_horovod, options, jobs, form)
    else:
        notes.append(f"Horovod's example is not measured: MXNet's model zoo has no {options.model}")
    if found := fastest_pytorch(jobs, cores, wanted, seconds(_pytorch), notes):
        alternatives[found[0]] = partial(_pytorch, options, jobs, found[1])
    rows = interleave(alternatives, n=options.rounds, reference=best)
    work = f"{options.global_size} images a step on {cores} cores, {options.optimizer}, JPEGs"
    own = f"{_OURS}: the form of a run that asks for nothing; the others: the fastest form of each program"
    return make_report(rows, [f"{options.model}, {options.image_size} px, {work}", own, *notes])


BENCH = Bench(
    "training images/s beside Horovod's own MXNet example and PyTorch, each in its fastest form",
    PeersOptions,
    measure,
    only_here="the other programs are started on this machine's CPU",
)
