"""Training beside the programs that people use today: images a second, and seconds to the accuracy target.

A comparison with another program holds only against that program's fastest form: how many processes, in which order of
memory, precision and interface. So a bench starts every form for a short time. It measures the fastest one beside ours,
on the same network, JPEGs, batch and ranks.
"""

import itertools
import json
import logging
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from configs.arguments import option
from configs.errors import UserError, nearest
from configs.networks import NETWORKS
from configs.registry import ENGINES, has_engine, possible_precisions
from logs.read.lines import read_events
from train.bench.measure import COUNT, Bench, Report, effort, interleave
from train.bench.samples import Figures

if TYPE_CHECKING:
    from configs.schema import Cluster, Recipe
    from train.bench.launching import Jobs

logger = logging.getLogger(__name__)

Form = Mapping[str, Any]
"""What a form sets: ``ranks``, their ``threads``, and further values of the program's own."""

BFLOAT16_FLAGS = frozenset({"avx512_bf16", "amx_bf16"})
"""Instructions of which a CPU needs one to compute in bfloat16. Without them, a step takes 16 times as long."""

ANY = "any"
"""``--precision``: of each program the fastest that this CPU has."""

_OURS, _RATE = "ours", "images_per_s"
_HOROVOD = "Horovod's MXNet example"

_RECIPE = "imagenet-b256"
_LIBRARY_DEFAULTS = ("cluster.engine.backward_bulk_nodes=15", f"cluster.communication.bucket_bytes={128 << 20}")
"""The defaults of MXNet 1.9.1 and Horovod 0.28.1, which Horovod's example runs with."""

_ZOO = {name: f"{name}_v1" for name in NETWORKS if name in ("resnet18", "resnet34", "resnet50", "resnet101")}
_ZOO |= {"resnet152": "resnet152_v1", "alexnet": "alexnet", "densenet121": "densenet121"}
"""Our name of a network -> the name in MXNet's model zoo, which Horovod's example takes."""

_CLASSES, _FEWEST_IMAGES = 1000, 256
_USUAL_SIZE = 64
_LARGE = 128
"""From this side on, px, a step takes seconds."""
_TRIED_STEPS = 2
"""Most steps of a start that only chooses a form."""

_TRUST = {"trust_coefficient", "epsilon", "trust_weight_decay", "skip_trust_ratio"}
"""Keys of LARS that `train.bench.programs.pytorch.make_update` takes."""

_RACES = ("digits", "fashion-mnist")
"""The recipes to choose from, the quickest first."""

_SECONDS = "to_target_s"
_TRIED_RACE_STEPS = 48
"""Steps of a start that only chooses a form of PyTorch, divided among the epochs."""

_NOTES = (
    "to_target_s: from the command to the end of the evaluation that reaches the target, start-up, input and all "
    "evaluations included; high is the worst seed; of a seed that misses the target, until its last evaluation",
    "startup_s: from the command to the first step; reached: 1 for a seed that reaches the target, 0 for another one",
    "ours: ./run.sh train, which also writes logs and checkpoints; what follows the target is not counted",
    "PyTorch: in its fastest form, on as many cores; several processes by DistributedDataParallel over Gloo, without "
    "torchrun, which takes seconds; network, first weights, batch, learning rates, update, loss and share of each rank "
    "are ours; each rank decodes its JPEGs once and keeps them as one tensor of bytes, without worker processes",
)


@dataclass(frozen=True)
class PeerOptions:
    """The options of a bench that measures other programs."""

    precision: str = option(
        "number type of all programs; any: of each program the fastest that this CPU has, and in a race ours as in a "
        "plain run",
        ANY,
        choices=(ANY, "float32", "bfloat16"),
    )


def forms_of(*axes: Mapping[str, Form]) -> dict[str, Form]:
    """Return every combination of a value of each axis, by its title; a value without a title adds none."""
    combined: dict[str, Form] = {}
    for values in itertools.product(*(axis.items() for axis in axes)):
        title = ", ".join(name for name, _ in values if name)
        combined[title] = {key: value for _, settings in values for key, value in settings.items()}
    return combined


def places(ranks: int) -> dict[str, Form]:
    """Return the ways to use the cores of ``ranks`` ranks: that many processes of one thread, or one of all threads."""
    several: dict[str, Form] = {f"{ranks} processes": {"ranks": ranks, "threads": 1}} if ranks > 1 else {}
    return {**several, "one process": {"ranks": 1, "threads": ranks}}


def precisions() -> tuple[str, ...]:
    """Return the precisions in which this CPU computes."""
    from logs.environment import cpu_flags

    return ("float32", "bfloat16") if BFLOAT16_FLAGS & cpu_flags() else ("float32",)


def wanted_precisions(asked: str) -> tuple[str, ...]:
    """Return the precisions that ``--precision`` asks for.

    Raises:
        UserError: This CPU does not compute in that precision.
    """
    possible = precisions()
    if asked not in (ANY, *possible):
        allowed = ", ".join((ANY, *possible))
        raise UserError(f"--precision {asked}: allowed: {allowed}, because this CPU has no instructions for it")
    return possible if asked == ANY else (asked,)


def place_of(form: Form) -> list[str]:
    """Return the changes of the cluster for the ranks of a form."""
    return [f"cluster.ranks_per_node={form['ranks']}", f"cluster.engine.threads={form['threads']}"]


def own_forms(ranks: int, wanted: tuple[str, ...]) -> dict[str, Form]:
    """Return the forms of this program under every engine of this environment, that of a plain run first.

    Args:
        ranks: Cores to use.
        wanted: Values of ``engine.precision``; those that an engine does not have here are left out.
    """
    from logs.environment import cpu_flags

    forms: dict[str, Form] = {}
    for engine, entry in ENGINES.items():
        if entry.computes and has_engine(engine):
            layouts = {layout: {"layout": layout} for layout in entry.cpu_layouts}
            possible = possible_precisions(engine, cpu_flags())
            types = {name: {"precision": name} for name in wanted if name in possible}
            forms |= forms_of(places(ranks), {entry.title: {"name": engine}}, layouts, types)
    return forms


def own_place(form: Form) -> list[str]:
    """Return the changes of the cluster for a form of `own_forms`."""
    return [*place_of(form), *(f"cluster.engine.{key}={form[key]}" for key in ("name", "layout", "precision"))]


def fastest(
    program: str, forms: Mapping[str, Form], seconds: Callable[[Form], float], notes: list[str]
) -> tuple[str, Form]:
    """Try every form once.

    Args:
        program: The program's name.
        forms: The forms, by title.
        seconds: Returns the seconds of a form, of an image or of a run.
        notes: Takes how the forms compare.

    Returns:
        The program's name with the title of the fastest form, and that form.
    """
    taken_s = {}
    for title, form in forms.items():
        logger.info("trying %s, %s", program, title)  # A compiled form takes a minute.
        taken_s[title] = seconds(form)
    ranking = sorted(taken_s, key=lambda title: taken_s[title])
    title = ranking[0]
    listed = "; ".join(f"{each}: {taken_s[each] / taken_s[title]:.2f}" for each in ranking)
    notes.append(f"{program}, seconds of each form in a short start, as multiples of the fastest: {listed}")
    return f"{program}, {title}", forms[title]


def fastest_pytorch(
    ranks: int, wanted: tuple[str, ...], seconds: Callable[[Form], float], notes: list[str]
) -> tuple[str, Form] | None:
    """Return the fastest form of PyTorch: of all eager ones, and of the fastest eager one compiled; None without it.

    Args:
        ranks: Cores to use.
        wanted: Precisions to try.
        seconds: As for `fastest`.
        notes: As for `fastest`; it also takes the reason why nothing is measured or compiled.
    """
    from configs.compilers import compiler_shortage
    from configs.load import load_cluster

    if not find_spec("torch"):
        notes.append("PyTorch is not measured: it is not installed; ./run.sh setup --engine torch adds it")
        return None
    orders = {f"channels {end}": {"is_channels_last": end == "last"} for end in ("first", "last")}
    types = {name: {"is_bfloat16": name == "bfloat16"} for name in wanted}
    forms = forms_of(places(ranks), orders, types, {"": {"is_compiled": False}})
    name, form = fastest("PyTorch", forms, seconds, notes)
    if shortage := compiler_shortage(
        load_cluster("laptop", ["cluster.engine.name=torch", "cluster.engine.compile=true"])
    ):
        notes.append(f"torch.compile is not tried: this machine has {shortage[0]}; {shortage[1]}")
        return name, form
    compiled = {**form, "is_compiled": True}
    seconds(compiled)  # Makes the kernels, which takes a minute; later starts find them in Inductor's cache.
    return fastest(name, {"eager": form, "compiled": compiled}, seconds, notes)


def start_pytorch(
    jobs: "Jobs", form: Form, name: str, overrides: Sequence[str], *, most_steps: int | None = None, warmup: int = 1
) -> tuple[float, Figures]:
    """Train with PyTorch; return when the command was given, and what `train.bench.programs.pytorch` tells.

    Args:
        jobs: Starts it.
        form: A form of `fastest_pytorch`.
        name: The recipe.
        overrides: Changes of the recipe.
        most_steps: Steps, spread over all epochs, after which training is given up, without an evaluation; if None,
            all.
        warmup: Steps at whose end the program reads the time.
    """
    from configs.load import load_both

    recipe, cluster = load_both(name, "laptop", [*overrides, *place_of(form)])
    own = {key: value for key, value in form.items() if key.startswith("is_")}
    with tempfile.TemporaryDirectory(prefix="bench-pytorch-") as folder:
        race = race_numbers(recipe, cluster, Path(folder, "numbers.npz"))
        all_steps = race["epoch_ends"][-1]
        if most_steps is not None:
            share = min(1, most_steps / all_steps)
            race |= {"epoch_ends": [round(share * end) for end in race["epoch_ends"]], "eval_epochs": []}
        task = {"rendezvous_file": f"{folder}/ranks", "form": own, "race": {**race, "warmup": warmup}}
        done = jobs.ranks("pytorch", task, overrides=place_of(form))
    return done.begun_s, {**done.sample, "all_steps": all_steps}


@dataclass(frozen=True)
class PeersBench(PeerOptions, Bench):
    """See `train.bench.measure.Bench`; the options make the same work for all programs."""

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
        """See `train.bench.measure.Bench`."""
        from configs.load import load_both
        from configs.plan import plan_run

        if self.model not in NETWORKS:
            raise UserError(f"--model {self.model}: no such network; {nearest(self.model, NETWORKS)}")
        recipe, cluster = load_both(_RECIPE, "laptop", self.overrides)
        plan_run(recipe, self.ranks)
        wanted = wanted_precisions(self.precision)
        horovod = partial(self._horovod, jobs.pack(recipe, cluster))
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
            name, form = fastest(_HOROVOD, places(self.ranks), seconds(horovod), notes)
            alternatives[name] = partial(horovod, jobs, steps, form)
        else:
            notes.append(f"Horovod's example is not measured: MXNet's model zoo has no {self.model}")
        if found := fastest_pytorch(self.ranks, wanted, seconds(self._pytorch), notes):
            alternatives[found[0]] = partial(self._pytorch, jobs, steps, found[1])
        rows = interleave(alternatives, n=self.rounds or rounds, reference=best)
        work = f"{self.global_size} images a step on {self.ranks} cores, SGD, JPEGs"
        own = f"{_OURS}: the form of a run that asks for nothing; the others: the fastest form of each program"
        return Report(rows, [f"{self.model}, {self.side} px, {work}", own, *notes])

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
    def overrides(self) -> list[str]:
        """The changes of the recipe for a run of this program."""
        images = max(_FEWEST_IMAGES, self.global_size)
        return [
            f"data.name=bench-peers-{_CLASSES}-{images}",
            "data.source=generated",
            f"data.train_samples={images}",
            "data.eval_samples=2",
            f"data.shuffle_buffer={images}",
            f"model.name={self.model}",
            f"model.num_classes={_CLASSES}",
            f"model.image_size={self.side}",
            "model.input_channels=3",
            f"batch.global_size={self.global_size}",
        ]

    def _ours(self, jobs: "Jobs", steps: int, form: Form) -> Figures:
        """Measure this program in a form of `own_forms`."""
        overrides = [*self.overrides, *own_place(form)]
        task = {"recipe": _RECIPE, "overrides": overrides, "reads_images": True, **_counted(steps)}
        return {_RATE: jobs.ranks("steps", task).sample[_RATE]}

    def _horovod(self, data: Path, jobs: "Jobs", steps: int, form: Form) -> Figures:
        """Measure Horovod's example."""
        shape = {"model": _ZOO[self.model], "image_size": self.side}
        batch = {"data": f"{data}/train", "batch_size": self.global_size // form["ranks"]}
        overrides = ("cluster.communication.kind=horovod", *_LIBRARY_DEFAULTS, *place_of(form))
        found = jobs.ranks("horovod", {**shape, **batch, **_counted(steps)}, overrides=overrides).sample
        return {_RATE: found[_RATE]}

    def _pytorch(self, jobs: "Jobs", steps: int, form: Form) -> Figures:
        """Measure PyTorch in a form of `fastest_pytorch`."""
        warmup = _counted(steps)["warmup"]
        _, found = start_pytorch(jobs, form, _RECIPE, self.overrides, most_steps=warmup + steps, warmup=warmup)
        return {_RATE: self.global_size * (found["steps"] - warmup) / (found["ended_at"] - found["warm_at"])}


def _counted(steps: int) -> dict[str, int]:
    """Return the steps of a start that do not count, and those that do."""
    return {"warmup": 1 + steps // 4, "steps": steps}


@dataclass(frozen=True)
class RaceBench(PeerOptions, Bench):
    """See `train.bench.measure.Bench`."""

    question = "seconds from the command to the accuracy target of a recipe, beside PyTorch, seed by seed"

    recipe: str = option(", ".join(_RACES), _RACES[0], flag="recipe", nargs="?", choices=_RACES)
    seeds: int = effort("seeds of each alternative, 1 to N", quick=1, usual=5, thorough=10)

    def measure(self, jobs: "Jobs") -> Report:
        """See `train.bench.measure.Bench`."""
        from configs.load import load_both, resolve_path
        from configs.plan import plan_run

        wanted = wanted_precisions(self.precision)
        own = [] if self.precision == ANY else [f"cluster.engine.precision={self.precision}"]
        recipe, cluster = load_both(self.recipe, "laptop", own)
        plan_run(recipe, cluster.world_size)
        data = resolve_path(cluster.paths.data) / recipe.data.name
        if recipe.data.source == "digits":
            jobs.pack(recipe, cluster)
        elif not (data / "manifest.json").is_file():
            raise UserError(f"{data}: not packed yet; {recipe.card.command.partition(' && ')[0]}")
        attempts: dict[str, Callable[[int], Figures]] = {_OURS: partial(_train_ours, jobs, self.recipe, own)}
        notes = [f"{self.recipe}: top-1 of {recipe.run.target_top1:g}, seeds 1 to {self.seeds}", *_NOTES]
        tried = partial(_seconds_of_all_epochs, jobs, self.recipe)
        if found := fastest_pytorch(cluster.world_size, wanted, tried, notes):
            attempts[found[0]] = partial(_train_pytorch, jobs, self.recipe, found[1])
        alternatives = {name: partial(next, map(attempt, itertools.count(1))) for name, attempt in attempts.items()}
        rows = interleave(alternatives, n=self.seeds, reference=_OURS, compared=[_SECONDS])
        return Report(rows, notes)


def _train_ours(jobs: "Jobs", name: str, own: list[str], seed: int) -> Figures:
    with tempfile.TemporaryDirectory(prefix="bench-race-") as path:
        folder = Path(path) / "run"
        done = jobs.train(name, [f"run.seed={seed}", *own], folder)
        file = folder / "summary.json"
        summary: dict[str, Any] = json.loads(file.read_text(encoding="utf-8")) if file.is_file() else {}
        # A run that takes all of its epochs without reaching the target ends with status 1; that fails no bench.
        if not str(summary.get("failure")).startswith("target "):
            done.check()
        times = {event.key: event.time_s or 0.0 for event in read_events(folder / "result_0.txt") if event}
    reached = summary["status"] == "success"
    return _race_figures(done.begun_s, times["run_start"], times["run_stop"], summary["epochs"], reached=reached)


def _train_pytorch(jobs: "Jobs", name: str, form: Form, seed: int) -> Figures:
    begun_s, found = start_pytorch(jobs, form, name, [f"run.seed={seed}"])
    return _race_figures(begun_s, found["begun_at"], found["ended_at"], found["epochs"], reached=bool(found["reached"]))


def _seconds_of_all_epochs(jobs: "Jobs", name: str, form: Form) -> float:
    """Return the seconds that the recipe's epochs would take without evaluations, by some steps of each."""
    begun_s, found = start_pytorch(jobs, form, name, ["run.seed=1"], most_steps=_TRIED_RACE_STEPS)
    step_s = (found["ended_at"] - found["warm_at"]) / (found["steps"] - 1)
    return float(found["warm_at"] - begun_s + step_s * (found["all_steps"] - 1))


def _race_figures(begun_s: float, started: float, ended: float, epochs: float, *, reached: bool) -> Figures:
    return {_SECONDS: ended - begun_s, "startup_s": started - begun_s, "epochs": epochs, "reached": float(reached)}


def race_numbers(recipe: "Recipe", cluster: "Cluster", numbers: Path) -> dict[str, Any]:
    """Return a recipe as the plain values with which PyTorch trains, see `train.bench.programs.pytorch.Race`.

    Args:
        recipe: Images that are resized or cropped, and flipped; one micro-batch a step; LARS or momentum SGD.
        cluster: The ranks.
        numbers: File that takes the first weights, under their numbers in the network's table, and the learning rate
            and the weight decay of every step, under ``lr`` and ``weight_decay``.
    """
    import numpy as np

    from configs.load import resolve_path
    from configs.optimizers import Lars
    from configs.plan import plan_run
    from train.engine.init import initial_weights
    from train.networks.arch import network_arguments, network_of
    from train.schedule import resolve_schedule

    plan, data, model, optimizer = plan_run(recipe, cluster.world_size), recipe.data, recipe.model, recipe.optimizer
    assert (data.plain_from_epoch, plan.accumulation_steps) == (None, 1)
    table, schedule = network_of(model), resolve_schedule(recipe, plan)
    first = initial_weights(table, model, recipe.run.seed)
    hypers = [schedule.at(step) for step in range(plan.total_steps)]
    rates = {"lr": [hyper.lr for hyper in hypers], "weight_decay": [hyper.weight_decay for hyper in hypers]}
    np.savez(numbers, **rates, **{str(number): first[each.name] for number, each in enumerate(table.parameters)})
    return {
        "network": network_arguments(model),
        "batch_norm": {"bn_momentum": model.bn_momentum, "bn_epsilon": model.bn_epsilon},
        "numbers": str(numbers),
        "data": str(resolve_path(cluster.paths.data) / data.name),
        "flip": data.flip,
        "is_cropped": data.crop.kind != "none",
        "mean": data.mean[: model.input_channels],
        "std": data.std[: model.input_channels],
        "batch_size": plan.per_rank_batch_size,
        "label_smoothing": recipe.loss.label_smoothing,
        "optimizer": {
            "momentum": optimizer.momentum,
            "skip_weight_decay": optimizer.skip_weight_decay,
            "trust": optimizer.model_dump(include=_TRUST) if isinstance(optimizer, Lars) else None,
        },
        "epoch_ends": [plan.steps_after(epoch) for epoch in range(1, plan.epochs + 1)],
        "image_sizes": [span.recipe.model.image_size for span in recipe.spans for _ in span.epochs],
        "eval_epochs": plan.eval_epochs,
        "warmup": 1,
        "target": recipe.run.target_top1,
        "seed": recipe.run.seed,
    }
