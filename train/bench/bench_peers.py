"""Training images a second, beside the programs that people use today, on the same network, JPEGs, batch and ranks."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from configs.arguments import option
from configs.errors import UserError, nearest
from configs.networks import NETWORKS
from train.bench.bench_step import GREY
from train.bench.forms import (
    Form,
    PeerOptions,
    fastest,
    fastest_pytorch,
    forms_of,
    own_forms,
    own_place,
    place_of,
    places,
    start_pytorch,
    wanted_precisions,
)
from train.bench.measure import Report, interleave, make_report
from train.bench.options import COUNT, Bench, effort
from train.bench.samples import Figures

if TYPE_CHECKING:
    from train.bench.launching import Jobs

_OURS, _RATE = "ours", "images_per_s"
_HOROVOD = "Horovod's MXNet example"

_RECIPE = "imagenet-b256"
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
class PeersBench(PeerOptions, Bench):
    """See `train.bench.options.Bench`; the options make the same work for all programs."""

    question = "training images/s beside Horovod's own MXNet example and PyTorch, each in its fastest form"

    model: str = option("name of a network", "resnet50", metavar="M")
    image_size: int | None = option(
        "side of an image (default: 64, or the size that the network is made for)", metavar="PX", type=COUNT
    )
    batch: int = option("images per core", 16, metavar="N", type=COUNT)
    ranks: int = option("cores, each with a rank of its own or all in one process", 2, metavar="N", type=COUNT)
    rounds: int | None = effort(
        "starts of the fastest forms (default: 6; 2 from 128 px on)", quick=1, usual=None, thorough=12
    )
    steps: int | None = option("timed steps of each start (default: 4; 1 from 128 px on)", metavar="N", type=COUNT)

    def measure(self, jobs: "Jobs") -> Report:
        """See `train.bench.options.Bench`."""
        from configs.load import load_both
        from configs.plan import plan_run

        if self.model not in NETWORKS:
            raise UserError(f"--model {self.model}: no such network; {nearest(self.model, NETWORKS)}")
        recipe, cluster = load_both(_RECIPE, "laptop", self.overrides)
        plan_run(recipe, self.ranks)
        wanted = wanted_precisions(self.precision)
        jobs.pack(recipe, cluster)
        rounds, steps = (2, 1) if self.side >= _LARGE else (6, 4)
        steps = self.steps or steps
        notes = list[str]()

        def seconds(program: Callable[..., Figures]) -> Callable[[Form], float]:
            return lambda form: 1 / program(jobs, min(steps, _TRIED_STEPS), form)[_RATE]

        best, form = fastest(_OURS, own_forms(self.ranks, wanted), seconds(self._ours), notes)
        (default, *_) = own_forms(self.ranks, ("float32",)).values()
        alternatives: dict[str, Callable[[], Figures]] = {
            _OURS: partial(self._ours, jobs, steps, default),
            best: partial(self._ours, jobs, steps, form),
        }
        if not find_spec("horovod"):
            notes.append("Horovod's example is not measured: Horovod is not installed")
        elif self.model in _ZOO:
            modes = {mode: {"mode": mode} for mode in ("module", "gluon")}
            name, form = fastest(_HOROVOD, forms_of(places(self.ranks), modes), seconds(self._horovod), notes)
            alternatives[name] = partial(self._horovod, jobs, steps, form)
        else:
            notes.append(f"Horovod's example is not measured: MXNet's model zoo has no {self.model}")
        if found := fastest_pytorch(jobs, self.ranks, wanted, seconds(self._pytorch), notes):
            alternatives[found[0]] = partial(self._pytorch, jobs, steps, found[1])
        rows = interleave(alternatives, n=self.rounds or rounds, reference=best)
        work = f"{self.global_size} images a step on {self.ranks} cores, SGD, JPEGs"
        own = f"{_OURS}: the form of a run that asks for nothing; the others: the fastest form of each program"
        return make_report(rows, [f"{self.model}, {self.side} px, {work}", own, *notes])

    @property
    def side(self) -> int:
        """Side of an image, px."""
        network = NETWORKS[self.model]
        return min(max(_USUAL_SIZE, network.smallest), network.largest) if self.image_size is None else self.image_size

    @property
    def global_size(self) -> int:
        """Images of a step of all ranks."""
        return self.ranks * self.batch

    @property
    def images(self) -> int:
        """Images of the data set."""
        return max(_FEWEST_IMAGES, self.global_size)

    @property
    def network(self) -> dict[str, Any]:
        """Arguments of `train.networks.arch.build_network`."""
        classes, channels = (10, 1) if self.model.startswith("mnist") else (1000, 3)
        return {"name": self.model, "num_classes": classes, "image_size": self.side, "input_channels": channels}

    @property
    def data(self) -> Path:
        """The folder of the packed images."""
        from configs.load import ROOT

        return ROOT / "runs" / "data" / f"bench-peers-{self.network['num_classes']}-{self.images}"

    @property
    def overrides(self) -> list[str]:
        """The changes of the recipe for a run of this program."""
        return [
            *(GREY if self.model.startswith("mnist") else ()),
            f"data.name={self.data.name}",
            "data.source=generated",
            f"data.train_samples={self.images}",
            "data.eval_samples=2",
            f"data.shuffle_buffer={self.images}",
            *(f"model.{key}={value}" for key, value in self.network.items()),
            f"batch.global_size={self.global_size}",
            f"cluster.paths.data={self.data.parent}",
        ]

    def _ours(self, jobs: "Jobs", steps: int, form: Form) -> Figures:
        """Measure this program in a form of `own_forms`."""
        overrides = [*self.overrides, *own_place(form)]
        task = {"recipe": _RECIPE, "overrides": overrides, "reads_images": True, **_counted(steps)}
        return {_RATE: jobs.ranks("steps", task).sample[_RATE]}

    def _horovod(self, jobs: "Jobs", steps: int, form: Form) -> Figures:
        """Measure Horovod's example; a form also has ``mode``, the interface of MXNet."""
        shape = {"model": _ZOO[self.model], "image_size": self.side, "mode": form["mode"]}
        batch = {"data": f"{self.data}/train", "batch_size": self.global_size // form["ranks"]}
        overrides = ("cluster.communication.kind=horovod", *_LIBRARY_DEFAULTS, *place_of(form))
        found = jobs.ranks("horovod", {**shape, **batch, **_counted(steps)}, overrides=overrides).sample
        return {_RATE: found[_RATE]}

    def _pytorch(self, jobs: "Jobs", steps: int, form: Form) -> Figures:
        """Measure PyTorch in a form of `fastest_pytorch`."""
        rate = {
            "network": self.network,
            "data": f"{self.data}/train",
            "batch_size": self.global_size // form["ranks"],
            **_counted(steps),
        }
        return start_pytorch(jobs, form, rate=rate).sample


def _counted(steps: int) -> dict[str, int]:
    """Return the steps of a start that do not count, and those that do."""
    return {"warmup": 1 + steps // 4, "steps": steps}
