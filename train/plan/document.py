"""The plan of a run as one document of plain values, from which the text and the JSON of ``./run.sh plan`` are made.

Imports no framework, so that the plan is ready within a second on any machine.
"""

import textwrap
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from configs.arguments import counted, duration
from configs.errors import UserError
from configs.plan import RunPlan, plan_run, schedule_remarks
from configs.rank_variables import rank_environment
from configs.rules import broken_rules
from configs.schema import Cluster, Communication, Recipe
from configs.section import Section
from configs.templates import fill_template
from data.shards import shard_range
from train.comm.buckets import bucket_cap, plan_reductions
from train.networks.arch import Network, float32_gradients, gradient_bytes, network_of
from train.networks.stages import stages_of
from train.plan.before_run import slow_values
from train.plan.memory import BYTES_PER_NUMBER, available_bytes, estimate_input, estimate_memory, shortage_here
from train.schedule import LrSchedule, logged_hyperparameters, resolve_schedule
from train.sim.conditions import predict

_EVERY_STEP_UP_TO = 50_000
"""Steps up to which the schedule lists every step; a longer run lists about a thousand steps and the landmarks."""

_RULESETS = ("0.6.0", "4.0.0")

_TEMPLATE = Path(__file__).with_name("plan.txt.jinja")


def plan_document(recipe: Recipe, cluster: Cluster) -> dict[str, Any]:
    """Return everything that the run would do, in values that JSON can hold.

    Args:
        recipe: What to train, and how.
        cluster: The machine to train on.

    Raises:
        ConfigError: The recipe's global batch or durations do not fit the cluster's number of ranks.
    """
    plan = plan_run(recipe, cluster.world_size)
    schedule = resolve_schedule(recipe, plan)
    marks, simulated = _landmarks(plan), _simulated(recipe, cluster)
    epoch_s = simulated.pop("epoch_s", {})
    return {
        "recipe": recipe.name,
        "card": recipe.card.model_dump(),
        "cluster": cluster.name,
        "world_size": plan.world_size,
        "num_nodes": cluster.num_nodes,
        "ranks_per_node": cluster.ranks_per_node,
        **_arithmetic(plan),
        "eval_epochs": list(plan.eval_epochs),
        "image_sizes": _image_sizes(recipe, plan, epoch_s),
        "optimizer": recipe.optimizer.describe(),
        "schedule": _schedule(schedule, plan, marks),
        "schedule_remarks": schedule_remarks(recipe, plan),
        "landmarks": [{"at": at, "step": step, **asdict(schedule.at(step))} for step, at in marks.items()],
        **_tensors(recipe, cluster, plan),
        "shards": _shards(recipe, plan),
        "environment": rank_environment(cluster),
        "hyperparameters": logged_hyperparameters(recipe, plan, schedule, recipe.optimizer),
        "compliance": _compliance(recipe),
        "simulated": simulated,
        "slow_settings": slow_values(cluster),
    }


def _simulated(recipe: Recipe, cluster: Cluster) -> dict[str, Any]:
    """Return the simulator's forecast, each quantity with the ends of its interval; or why there is none."""
    try:
        one = predict(recipe, cluster)
    except UserError as error:
        return {"unknown": str(error)}
    return {
        "epoch_s": one.epoch_s,
        "images_per_s": [one.images_per_s, *one.rate_bounds],
        "run_s": [one.run.total_s, *one.run_bounds],
        "startup_s": [one.startup.total_s, *one.startup_bounds],
        "accelerator_hours": [one.accelerator_hours, *one.hours_bounds],
        "epochs": one.epochs,
        "is_time_to_train": one.reaches_target is True,
        "is_unmeasured": one.is_unmeasured,
    }


_ARITHMETIC = (
    "global_batch_size", "per_rank_batch_size", "accumulation_steps", "norm_ranks", "epochs", "steps_per_epoch",
    "total_steps", "warmup_steps", "decay_steps",
)  # fmt: skip


def _arithmetic(plan: RunPlan) -> dict[str, Any]:
    steps_of_epochs = [len(plan.epoch_steps(epoch)) for epoch in range(1, plan.last_epoch + 1)]
    return {
        **{name: getattr(plan, name) for name in _ARITHMETIC},
        "steps_per_epoch_real": {"fewest": min(steps_of_epochs), "most": max(steps_of_epochs)},
        "stepless_epochs": plan.stepless_epochs,
        "total_steps_nominal": plan.epochs * plan.steps_per_epoch,
    }


def _image_sizes(recipe: Recipe, plan: RunPlan, epoch_s: Mapping[int, float]) -> list[dict[str, Any]]:
    """Return a row for each size of the training images: its epochs, and what one of them takes if that is known."""
    return [
        {
            "side": taken.model.image_size,
            "first_epoch": epochs[0],
            "last_epoch": min(epochs[-1], plan.last_epoch),
            "steps": plan.steps_after(epochs[-1]) - plan.steps_after(epochs[0] - 1),
            "forward_macs_per_image": network_of(taken.model).macs,
            "epoch_s": epoch_s.get(taken.model.image_size),
        }
        for epochs, taken in recipe.spans
        if epochs[0] <= plan.last_epoch
    ]


def _landmarks(plan: RunPlan) -> dict[int, str]:
    """Return the steps that show the shape of the schedule, step -> name, in the order of the steps."""
    warm, decay = plan.warmup_steps, plan.decay_steps
    named = {0: "first step"}
    if warm:
        named |= {
            (warm - 1) // 2: "half of the warm-up",
            warm - 1: "last step of the warm-up",
            warm: "first step after the warm-up",
        }
    named |= {warm + decay * tenth // 10: f"{tenth}/10 of the decay" for tenth in range(1, 11)}
    named[plan.total_steps - 1] = "last step"
    return {step: named[step] for step in sorted(named) if step < plan.total_steps}


def _schedule(schedule: LrSchedule, plan: RunPlan, marks: Mapping[int, str]) -> list[list[float]]:
    """Return rows of [step, learning rate, momentum]."""
    stride = 1 if plan.total_steps <= _EVERY_STEP_UP_TO else plan.total_steps // 1000
    rows = []
    for step in sorted({*range(0, plan.total_steps, stride), *marks}):
        values = schedule.at(step)
        rows.append([step, values.lr, values.momentum])
    return rows


def _tensors(recipe: Recipe, cluster: Cluster, plan: RunPlan) -> dict[str, Any]:
    """Return the counts of parameters and gradients, the fused reductions, and the memory of a rank."""
    model, engine = recipe.model, cluster.engine
    network = network_of(model)
    # The sum of a gradient over micro-batches is float32, see train.engine.mxnet.network.
    summed = "float32" if plan.accumulation_steps > 1 else cluster.sum_precision
    width = BYTES_PER_NUMBER[summed]
    sizes = gradient_bytes(network.parameters, width)
    buffers = estimate_input(recipe, cluster, plan)
    return {
        "parameters": network.num_parameters,
        "frozen_numbers": network.num_constants,
        "tensors": len(sizes),
        "forward_macs_per_image": network.macs,
        "number_types": {"computed": engine.precision, "summed": summed, "kept": "float32"},
        "compiled_stages": len(stages_of(network, cluster, width)) if engine.compile else 0,
        "cuda_graphs": engine.cuda_graphs,
        "gradient_bytes": sum(sizes),
        "buckets": _buckets(network, width, cluster.communication),
        "memory": _memory(recipe, cluster, plan, cluster.ranks_per_node * buffers["pinned_bytes"]),
        "dali": buffers,
    }


def _memory(recipe: Recipe, cluster: Cluster, plan: RunPlan, pinned_bytes: int) -> dict[str, int | bool | str | None]:
    """Return the estimated bytes of a rank by purpose, the bytes that it may use, and whether the estimate fits."""
    estimate, available = estimate_memory(recipe, cluster, plan), available_bytes(cluster)
    return {
        **asdict(estimate),
        "total_bytes": estimate.total_bytes,
        "certain_bytes": estimate.certain_bytes,
        "pinned_bytes_per_node": pinned_bytes,
        "available_bytes": available,
        "fits": None if available is None else estimate.total_bytes <= available,
        "here": shortage_here(recipe, cluster),
    }


def _buckets(network: Network, width: int, communication: Communication) -> list[dict[str, Any]]:
    sizes, apart = gradient_bytes(network.parameters, width), float32_gradients(network.parameters, width)
    cap = bucket_cap(sizes, communication.bucket_bytes, communication.bucket_fraction)
    plan = plan_reductions(sizes, cap, communication.deferred_fraction, apart)
    return [
        {
            "tensors": len(bucket),
            "bytes": sum(sizes[index] for index in bucket),
            "first": network.parameters[bucket[0]].name,
            "last": network.parameters[bucket[-1]].name,
            "is_deferred": number > plan.last_prompt,
        }
        for number, bucket in enumerate(plan.order)
    ]


def _shards(recipe: Recipe, plan: RunPlan) -> dict[str, Any]:
    """Cut both image sets as the readers do."""
    shards: dict[str, Any] = {}
    for name, samples in (("train", recipe.data.train_samples), ("eval", recipe.data.eval_samples)):
        sizes = [len(shard_range(samples, rank, plan.world_size)) for rank in range(plan.world_size)]
        shards[name] = {
            "samples": samples,
            "smallest": min(sizes),
            "largest": max(sizes),
            # An epoch takes as many training images from each rank.
            "read_in_an_epoch": min(sizes) * plan.world_size if name == "train" else samples,
        }
    return shards


def _compliance(recipe: Recipe) -> dict[str, Any]:
    """Return the rules of the closed division that the recipe breaks, by ruleset.

    A recipe that breaks none may run in the closed or in the open division.
    """
    verdicts = {}
    for ruleset in _RULESETS:
        broken = [
            {
                "rule": rule.name,
                "key": rule.key,
                "got": value.model_dump(mode="json") if isinstance(value := recipe.at(rule.key), Section) else value,
                "allowed": rule.allowed,
                "source": rule.source,
            }
            for rule in broken_rules(recipe, ruleset)
        ]
        verdicts[ruleset] = {"closed_allowed": not broken, "broken_rules": broken}
    return {
        **recipe.mlperf.model_dump(include={"submits", "division", "ruleset"}),
        "rulesets": verdicts,
    }


def render(document: Mapping[str, Any]) -> str:
    """Return a document of `plan_document` as text for a terminal; it ends with a newline."""
    broken: dict[str, list[str]] = {}
    for ruleset, verdict in document["compliance"]["rulesets"].items():
        for rule in verdict["broken_rules"]:
            words = f"{rule['rule']}: {rule['key']} is {rule['got']}, allowed: {rule['allowed']}"
            broken.setdefault(words, []).append(ruleset)
    ways = {"counted": counted, "duration": duration, "wrapped": _wrapped}
    return fill_template(_TEMPLATE, **document, **ways, broken=broken)


def _wrapped(name: str, text: str) -> str:
    """Return a text of any length beside its name, in lines of at most 120 characters."""
    return textwrap.fill(f"{name:<11}{text}", 120, initial_indent="  ", subsequent_indent=" " * 13)
