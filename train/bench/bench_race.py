"""Seconds from the command to the accuracy target: this program beside PyTorch, on the same recipe, seed by seed.

`train.bench.bench_options` has the question and the options.
"""

import argparse
import json
import logging
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np

from configs.errors import UserError
from configs.load import ROOT, load_both, resolve_path
from configs.optimizers import Lars
from configs.plan import plan_run
from configs.programs import Program, command_of
from configs.schema import Cluster, Recipe
from logs.read.lines import read_events
from train.bench.bench_peers import install_peers, peers_python
from train.bench.launching import pack_dataset, run, run_ranks
from train.bench.measure import Figures, MeasurementFailed, Report, interleave, make_report
from train.bench.samples import read_samples
from train.engine.init import initial_weights
from train.networks.arch import network_of
from train.schedule import resolve_schedule

_OURS = "ours"
_PYTORCH = "PyTorch DDP"
_SECONDS = "to_target_s"

_NOTES = (
    "to_target_s: from the command to the end of the evaluation that reaches the target, start-up, input and all "
    "evaluations included; high is the worst seed; of a seed that misses the target, until its last evaluation",
    "startup_s: from the command to the first step",
    "ours: ./run.sh train, which also writes logs and checkpoints; what follows the target is not counted",
    "PyTorch: DistributedDataParallel over Gloo on as many ranks of one thread each, without torchrun, which takes "
    "seconds; network, first weights, batch, learning rates, update, loss and share of each rank are ours; each rank "
    "decodes its JPEGs once and keeps them as one tensor of bytes, without worker processes",
)


def measure(options: argparse.Namespace) -> Report:
    """See `Bench`."""
    if options.seeds < 1:
        raise UserError(f"--seeds {options.seeds}: allowed: a whole number above 0")
    recipe, cluster = load_both(options.recipe, "laptop")
    plan_run(recipe, cluster.world_size)
    data = resolve_path(cluster.paths.data) / recipe.data.name
    if recipe.data.source == "digits":
        pack_dataset(recipe, cluster)
    elif not (data / "manifest.json").is_file():
        raise UserError(f"{data}: not packed yet; {recipe.card.command.partition(' && ')[0]}")
    if options.install:
        install_peers()
    missed: list[str] = []
    alternatives: dict[str, Callable[[], Figures]] = {_OURS: _seeds(_OURS, partial(_ours, options.recipe), missed)}
    notes = [f"{options.recipe}: top-1 of {recipe.run.target_top1:g}, seeds 1 to {options.seeds}", *_NOTES]
    if peers_python().exists():
        alternatives |= {
            name: _seeds(name, partial(_pytorch, options.recipe, extra), missed)
            for name, extra in ((_PYTORCH, ()), (f"{_PYTORCH}, channels last", ("--channels-last",)))
        }
    else:
        notes.append("PyTorch is not measured: it is not installed; --install puts it into .venv-peers (1 GB)")
    rows = interleave(
        alternatives, n=options.seeds, reference=_OURS, compared=[_SECONDS], announce=logging.getLogger(__name__).info
    )
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


def _ours(name: str, seed: int) -> Figures:
    with tempfile.TemporaryDirectory(prefix="bench-race-") as folder:
        out = Path(folder) / "run"
        begin = time.time()
        failure = None
        try:
            run([str(ROOT / "run.sh"), "train", name, "--set", f"run.seed={seed}", "--run-dir", str(out)])
        except MeasurementFailed as error:
            failure = error
        if failure and not _has_missed(out):
            raise failure
        return _finished(out, begin)


def _has_missed(folder: Path) -> bool:
    """Return whether a run took all of its epochs without reaching the target, which is no failure of the bench."""
    file = folder / "summary.json"
    failure = json.loads(file.read_text(encoding="utf-8"))["failure"] if file.is_file() else None
    return str(failure).startswith("target ")


def _finished(folder: Path, begin: float) -> Figures:
    """Return the figures of a run that began at ``begin``, Unix seconds."""
    summary = json.loads((folder / "summary.json").read_text(encoding="utf-8"))
    times = {event.key: event.time_s or 0.0 for event in read_events(folder / "result_0.txt") if event}
    reached = summary["status"] == "success"
    return _figures(begin, times["run_start"], times["run_stop"], summary["epochs"], reached=reached)


def _pytorch(name: str, extra: tuple[str, ...], seed: int) -> Figures:
    recipe, cluster = load_both(name, "laptop", [f"run.seed={seed}"])
    with tempfile.TemporaryDirectory(prefix="bench-race-") as folder:
        file = Path(folder, "recipe.json")
        file.write_text(json.dumps(peer_recipe(recipe, cluster, Path(folder, "weights.npz"))), encoding="utf-8")
        words = [f"--recipe={file}", f"--meeting-file={folder}/ranks", *extra]
        # This program is not installed in the environment of the peers, so Python must look in the current folder.
        program = command_of(Program.PYTORCH_RACE, *words, python=peers_python(), is_isolated=False)
        begin = time.time()
        ((found,),) = read_samples(run_ranks(program)).values()
    return _figures(begin, found["begun_at"], found["ended_at"], found["epochs"], reached=bool(found["reached"]))


def _figures(begin: float, started: float, ended: float, epochs: float, *, reached: bool) -> Figures:
    return {_SECONDS: ended - begin, "startup_s": started - begin, "epochs": epochs, "reached": float(reached)}


def peer_recipe(recipe: Recipe, cluster: Cluster, weights: Path) -> dict[str, Any]:
    """Return a recipe as the plain numbers that `train.bench.programs.pytorch_race` reads; write the first weights.

    Args:
        recipe: Images that are only resized and flipped, one micro-batch a step, LARS or momentum SGD.
        cluster: The ranks.
        weights: The file for the first weights, numbered in the order of the network's table.
    """
    plan, optimizer, data, model = plan_run(recipe, cluster.world_size), recipe.optimizer, recipe.data, recipe.model
    assert (data.crop.kind, data.plain_from_epoch, plan.accumulation_steps) == ("none", None, 1)
    table, schedule = network_of(model), resolve_schedule(recipe, plan)
    first = initial_weights(table, model, recipe.run.seed)
    np.savez(weights, **{str(number): first[each.name] for number, each in enumerate(table.parameters)})
    hypers = [schedule.at(step) for step in range(plan.total_steps)]
    wanted = {"trust_coefficient", "epsilon", "trust_weight_decay", "skip_trust_ratio"}
    return {
        "network": {
            "name": model.name,
            "num_classes": model.num_classes,
            "image_size": model.image_size,
            "input_channels": model.input_channels,
        },
        "batch_norm": {"bn_momentum": model.bn_momentum, "bn_epsilon": model.bn_epsilon},
        "weights": str(weights),
        "data": str(resolve_path(cluster.paths.data) / data.name),
        "flip": data.flip,
        "mean": data.mean[: model.input_channels],
        "std": data.std[: model.input_channels],
        "batch": plan.per_rank_batch_size,
        "label_smoothing": recipe.loss.label_smoothing,
        "optimizer": {
            "momentum": optimizer.momentum,
            "skip_weight_decay": optimizer.skip_weight_decay,
            "trust": optimizer.model_dump(include=wanted) if isinstance(optimizer, Lars) else None,
        },
        "rates": [[hyper.lr, hyper.weight_decay] for hyper in hypers],
        "epoch_ends": [plan.steps_after(epoch) for epoch in range(1, plan.epochs + 1)],
        "eval_epochs": plan.eval_epochs,
        "target": recipe.run.target_top1,
        "seed": recipe.run.seed,
    }
