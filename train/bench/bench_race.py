"""Seconds from the command to the accuracy target: this program beside PyTorch, on the same recipe, seed by seed."""

import json
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any

from configs.arguments import option
from configs.errors import UserError
from logs.read.lines import read_events
from train.bench.forms import (
    ANY,
    Form,
    PeerOptions,
    fastest_pytorch,
    place_of,
    start_pytorch,
    wanted_precisions,
)
from train.bench.measure import Report, interleave, make_report
from train.bench.options import Bench, effort
from train.bench.samples import Figures

if TYPE_CHECKING:
    from configs.optimizers import Optimizer
    from configs.schema import Cluster, Recipe
    from train.bench.launching import Jobs

_RACES = ("digits", "fashion-mnist")
"""The recipes to choose from, the quickest first."""

_OURS = "ours"
_SECONDS = "to_target_s"
_TRIED_STEPS = 48
"""Steps of a start that only chooses a form of PyTorch, divided among the epochs."""

_NOTES = (
    "to_target_s: from the command to the end of the evaluation that reaches the target, start-up, input and all "
    "evaluations included; high is the worst seed; of a seed that misses the target, until its last evaluation",
    "startup_s: from the command to the first step",
    "ours: ./run.sh train, which also writes logs and checkpoints; what follows the target is not counted",
    "PyTorch: in its fastest form, on as many cores; several processes by DistributedDataParallel over Gloo, without "
    "torchrun, which takes seconds; network, first weights, batch, learning rates, update, loss and share of each rank "
    "are ours; each rank decodes its JPEGs once and keeps them as one tensor of bytes, without worker processes",
)


@dataclass(frozen=True)
class RaceBench(PeerOptions, Bench):
    """See `train.bench.options.Bench`."""

    question = "seconds from the command to the accuracy target of a recipe, beside PyTorch, seed by seed"

    recipe: str = option(", ".join(_RACES), _RACES[0], flag="recipe", nargs="?", choices=_RACES)
    seeds: int = effort("seeds of each alternative, 1 to N", quick=1, usual=5, thorough=10)

    def measure(self, jobs: "Jobs") -> Report:
        """See `train.bench.options.Bench`."""
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
        if found := fastest_pytorch(jobs, cluster.world_size, wanted, tried, notes):
            attempts[found[0]] = partial(_train_pytorch, jobs, self.recipe, found[1])
        missed: list[str] = []
        alternatives = {name: _seeds(name, attempt, missed) for name, attempt in attempts.items()}
        rows = interleave(alternatives, n=self.seeds, reference=_OURS, compared=[_SECONDS])
        return make_report(rows, [*notes, *missed])


def _seeds(name: str, attempt: Callable[[int], Figures], missed: list[str]) -> Callable[[], Figures]:
    """Return a function that tries the next seed at each call, and notes the seeds that miss the target."""
    numbers: Iterator[int] = count(1)

    def measure_next() -> Figures:
        seed = next(numbers)
        figures = attempt(seed)
        if not figures["reached"]:
            missed.append(f"{name}, seed {seed}: the target was not reached")
        return figures

    return measure_next


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
    return _figures(done.begun_s, times["run_start"], times["run_stop"], summary["epochs"], reached=reached)


def _train_pytorch(jobs: "Jobs", name: str, form: Form, seed: int) -> Figures:
    begun_s, found = _race(jobs, name, form, seed)
    return _figures(begun_s, found["begun_at"], found["ended_at"], found["epochs"], reached=bool(found["reached"]))


def _seconds_of_all_epochs(jobs: "Jobs", name: str, form: Form) -> float:
    """Return the seconds that the recipe's epochs would take without evaluations, by some steps of each."""
    begun_s, found = _race(jobs, name, form, seed=1, most_steps=_TRIED_STEPS)
    step_s = (found["ended_at"] - found["warm_at"]) / (found["steps"] - 1)
    return float(found["warm_at"] - begun_s + step_s * (found["all_steps"] - 1))


def _race(jobs: "Jobs", name: str, form: Form, seed: int, most_steps: int | None = None) -> tuple[float, Figures]:
    """Train with PyTorch; return when the command was given, and what `train.bench.programs.pytorch` tells.

    Args:
        jobs: Starts it.
        name: The recipe.
        form: A form of `fastest_pytorch`.
        seed: The recipe's seed.
        most_steps: Steps after which the race is given up, without an evaluation; if None, all.
    """
    from configs.load import load_both

    recipe, cluster = load_both(name, "laptop", [f"run.seed={seed}", *place_of(form)])
    with tempfile.TemporaryDirectory(prefix="bench-race-") as folder:
        race = race_numbers(recipe, cluster, Path(folder, "numbers.npz"))
        all_steps = race["epoch_ends"][-1]
        if most_steps is not None:
            share = min(1, most_steps / all_steps)
            race |= {"epoch_ends": [round(share * end) for end in race["epoch_ends"]], "eval_epochs": []}
        done = start_pytorch(jobs, form, race=race)
    return done.begun_s, {**done.sample, "all_steps": all_steps}


def _figures(begun_s: float, started: float, ended: float, epochs: float, *, reached: bool) -> Figures:
    return {_SECONDS: ended - begun_s, "startup_s": started - begun_s, "epochs": epochs, "reached": float(reached)}


def race_numbers(recipe: "Recipe", cluster: "Cluster", numbers: Path) -> dict[str, Any]:
    """Return a recipe as the plain values with which PyTorch trains, see `train.bench.programs.pytorch.Race`.

    Args:
        recipe: Images that are only resized and flipped, one micro-batch a step, LARS or momentum SGD.
        cluster: The ranks.
        numbers: File that takes the first weights, under their numbers in the network's table, and the learning rate
            and the weight decay of every step, under ``lr`` and ``weight_decay``.
    """
    import numpy as np

    from configs.load import resolve_path
    from configs.plan import plan_run
    from train.engine.init import initial_weights
    from train.networks.arch import network_arguments, network_of
    from train.schedule import resolve_schedule

    plan, data, model = plan_run(recipe, cluster.world_size), recipe.data, recipe.model
    assert (data.crop.kind, data.plain_from_epoch, plan.accumulation_steps) == ("none", None, 1)
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
        "mean": data.mean[: model.input_channels],
        "std": data.std[: model.input_channels],
        "batch_size": plan.per_rank_batch_size,
        "label_smoothing": recipe.loss.label_smoothing,
        "optimizer": _momentum_update(recipe.optimizer),
        "epoch_ends": [plan.steps_after(epoch) for epoch in range(1, plan.epochs + 1)],
        "image_sizes": [span.recipe.model.image_size for span in recipe.spans for _ in span.epochs],
        "eval_epochs": plan.eval_epochs,
        "target": recipe.run.target_top1,
        "seed": recipe.run.seed,
    }


def _momentum_update(optimizer: "Optimizer") -> dict[str, Any]:
    """Return LARS or SGD of a recipe as arguments of `train.bench.programs.pytorch.MomentumUpdate`."""
    from configs.optimizers import Lars

    wanted = {"trust_coefficient", "epsilon", "trust_weight_decay", "skip_trust_ratio"}
    return {
        "momentum": optimizer.momentum,
        "skip_weight_decay": optimizer.skip_weight_decay,
        "trust": optimizer.model_dump(include=wanted) if isinstance(optimizer, Lars) else None,
    }
