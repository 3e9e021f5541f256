"""Logs and run folders with known times and accuracies, in the log formats of all rounds."""

import json
from collections.abc import Sequence
from dataclasses import asdict
from functools import lru_cache
from pathlib import Path
from typing import Any

from configs.load import ROOT, dump, load_cluster, load_recipe
from configs.schema import Recipe
from logs.disk import digest_of, write_json
from logs.judge.compliance import Verdict
from logs.mlperf import RESULT_FILES
from tests.programs import run_program

BEGIN_S = 1_790_000_000.0
"""A time in 2026, so that a `:::MLLOG` log is one of ruleset 4.0.0, by its date."""

CHARACTERS = "".join(map(chr, [*range(0x180), 0x2028, 0x4E2D, 0xFEFF, 0xFFFD, 0x1F600]))
"""All kinds of characters. Without a list, Hypothesis looks at all of Unicode for three seconds in a fresh clone."""

LoggedEvent = tuple[float, str, Any, dict[str, Any]]


def run_events(  # noqa: PLR0913 (each test changes one or two of many properties)
    *, epochs: int = 8, every: int = 4, epoch_s: float = 10.0, eval_s: float = 1.0, init_s: float = 20.0,
    begin_s: float = BEGIN_S, batch: int = 3264, seed: int = 17, best: float = 0.76, status: str = "success",
    org: str = "Anyone", samples: int = 1281167, division: str = "open",
) -> list[LoggedEvent]:  # fmt: skip
    """Return the events of a run, as (Unix seconds, key, value, metadata).

    An evaluation follows every ``every`` epochs; the last one has accuracy ``best``.
    """
    now = begin_s
    events: list[LoggedEvent] = [
        (now, f"submission_{key}", value, {})
        for key, value in {
            "benchmark": "resnet", "org": org, "division": division, "status": "research", "platform": "made up",
            "poc_name": "nobody", "entry": "none",
        }.items()
    ]  # fmt: skip
    events += [(now, "cache_clear", True, {}), (now, "init_start", None, {}), (now, "seed", seed, {})]
    values = {
        "global_batch_size": batch, "train_samples": samples, "eval_samples": 50000, "opt_name": "lars",
        "gradient_accumulation_steps": 1, "model_bn_span": 32, "opt_base_learning_rate": 10.5,
        "opt_learning_rate_warmup_epochs": 2, "lars_opt_learning_rate_decay_steps": 100, "lars_epsilon": 0.0,
        "lars_opt_learning_rate_decay_poly_power": 2, "lars_opt_weight_decay": 5e-5, "lars_opt_momentum": 0.9,
        "lars_opt_base_learning_rate": 10.5, "lars_opt_end_learning_rate": 1e-4,
        "lars_opt_learning_rate_warmup_epochs": 2,
    }  # fmt: skip
    events += [(now, key, value, {}) for key, value in values.items()]
    now += init_s
    events += [(now, "init_stop", None, {}), (now, "run_start", None, {})]
    for epoch in range(1, epochs + 1):
        if (epoch - 1) % every == 0:
            events.append((now, "block_start", None, {"first_epoch_num": epoch, "epoch_count": every}))
        events.append((now, "epoch_start", None, {"epoch_num": epoch}))
        now += epoch_s
        events.append((now, "epoch_stop", None, {"epoch_num": epoch}))
        if epoch % every == 0:
            events.append((now, "eval_start", None, {"epoch_num": epoch}))
            now += eval_s
            events.append((now, "eval_accuracy", best * epoch / epochs, {"epoch_num": epoch}))
            events.append((now, "eval_stop", None, {"epoch_num": epoch}))
            events.append((now, "block_stop", None, {"first_epoch_num": epoch + 1 - every}))
    return [*events, (now, "run_stop", None, {"status": status})]


def mllog(events: list[LoggedEvent]) -> str:
    """Return a log in the format of v0.7 to v4.0."""
    rows = (
        {"namespace": "", "time_ms": round(1000 * at), "event_type": "POINT_IN_TIME", "key": key, "value": value,
         "metadata": {"file": "made.py", "lineno": 1, **metadata}}
        for at, key, value, metadata in events
    )  # fmt: skip
    return "".join(f":::MLLOG {json.dumps(row)}\n" for row in rows)


def mll(events: list[LoggedEvent]) -> str:
    """Return a log in the format of v0.6."""
    rows = ((at, key, json.dumps({"value": value, "metadata": metadata})) for at, key, value, metadata in events)
    return "".join(f":::MLL {at:.3f} {key}: {text}\n" for at, key, text in rows)


def mlp(events: list[LoggedEvent], first_epoch: int = 0) -> str:
    """Return a log in the format of v0.5.

    v0.5 has no submission and init events, marks only the begin of epochs, and usually numbers epochs from 0.
    """
    lines = [":::MLPv0.5.0 resnet 1541720273.929 (<string>:1) run_clear_caches"]
    names = {"global_batch_size": "input_batch_size", "train_samples": "preproc_num_train_examples"}
    for at, key, value, metadata in events:
        shift = first_epoch - 1
        if key.startswith(("submission", "init", "block", "epoch_stop", "cache")):
            continue
        text = names.get(key, key)
        if key == "epoch_start":
            text = f"train_epoch: {metadata['epoch_num'] + shift}"
        elif key == "eval_accuracy":
            text += f": {json.dumps({'value': value, 'epoch': metadata['epoch_num'] + shift})}"
        elif key == "run_stop":
            text += f": {json.dumps({'success': metadata['status'] == 'success'})}"
        elif value is not None:
            text += f": {json.dumps(value)}"
        lines.append(f":::MLPv0.5.0 resnet {at:.9f} (fit.py:49) {text}")
    return "\n".join(lines) + "\n"


@lru_cache
def _commit() -> str | None:
    asked = run_program("git", "-C", str(ROOT), "rev-parse", "HEAD")
    return asked.stdout.strip() or None


def write_ranks(folder: Path, computing_s: Sequence[float]) -> None:
    """Write a run's ``ranks.json``, in which all ranks wait for the slowest."""
    rows = [
        {"rank": rank, "compute_median_s": own_s, "input_wait_median_s": 0.001,
         "comm_wait_median_s": max(computing_s) - own_s + 0.02}
        for rank, own_s in enumerate(computing_s)
    ]  # fmt: skip
    write_json(folder / "ranks.json", {"ranks": rows})


@lru_cache
def _config(recipe_name: str, overrides: tuple[str, ...]) -> tuple[Recipe, str]:
    """Return a recipe, and the text of its ``config.yaml`` on a laptop; reading and writing YAML takes 30 ms."""
    recipe = load_recipe(recipe_name, overrides)
    return recipe, dump(recipe, load_cluster("laptop", ["cluster.engine.name=mxnet"]))


def passed(log: Path, ruleset: str, _division: str | None = None) -> Verdict:
    """Pass a log, in place of the official checker, which takes 0.14 s of CPU time."""
    return Verdict(ruleset, passed=True, messages=(), log_sha256=digest_of(log))


def run_folder(folder: Path, seed: int = 1, recipe_name: str = "digits", overrides: Any = (), **run: Any) -> Path:
    """Write the folder of a finished run, as training writes it."""
    recipe, config = _config(recipe_name, (f"run.seed={seed}", *overrides))
    size, samples = recipe.batch.global_size, recipe.data.train_samples
    run = {"best": max(0.76, recipe.run.target_top1 or 0.0), **run}
    events = run_events(**{"batch": size, "seed": seed, "samples": samples, "division": recipe.mlperf.division, **run})
    folder.mkdir(parents=True)
    (folder / "config.yaml").write_text(config)
    (folder / "result_0.txt").write_text(mllog(events))
    (folder / "result_0.mll.txt").write_text(mll(events))
    start = next(at for at, key, *_ in events if key == "run_start")
    epochs = [(at, metadata["epoch_num"]) for at, key, _, metadata in events if key == "epoch_stop"]
    with (folder / "metrics.jsonl").open("w") as file:
        for at, epoch in epochs:
            step = epoch * samples // size - 1
            row = {
                "kind": "interval", "step": step, "epoch": epoch, "loss": 2.3 / epoch, "lr": 0.1 * (1 - epoch / 20),
                "images_per_s": samples / 10 + 3 * epoch, "time": at, "input_wait_fraction": 0.08,
                "comm_exposed_fraction": 0.21,
            }  # fmt: skip
            file.write(json.dumps(row) + "\n")
    with (folder / "metrics.jsonl").open("a") as file:
        evaluations = [(value, metadata["epoch_num"]) for _, key, value, metadata in events if key == "eval_accuracy"]
        for top1, epoch in evaluations:
            file.write(json.dumps({"kind": "evaluation", "step": epoch, "epoch": epoch, "top1": top1}) + "\n")
    phases = (("interpreter", "MainThread", 0, 0.4), ("communicator", "bring-up", 0.5, 3.2),
              ("data set", "MainThread", 0.5, 1.1), ("network and weights", "MainThread", 1.1, 2.9),
              ("wait for communicator", "MainThread", 2.9, 3.2))  # fmt: skip
    rows = [dict(zip(("phase", "thread", "begin_s", "end_s"), phase, strict=True)) for phase in phases]
    write_json(folder / "startup.json", {"phases": rows, "elapsed_s": 3.2})
    write_ranks(folder, [0.40, 0.44])
    write_json(
        folder / "summary.json",
        {"recipe": recipe.name, "status": events[-1][-1]["status"], "top1": evaluations[-1][0],
         "target": recipe.run.target_top1, "epochs": epochs[-1][1],
         "run_s": events[-1][0] - start, "input_wait_fraction": 0.08, "comm_exposed_fraction": 0.21, "seed": seed},
    )  # fmt: skip
    environment = {
        "packages": {"mxnet": "1.9.1", "horovod": "0.28.1"}, "cpu": "A CPU", "cores": 2, "memory_bytes": 8 << 30,
        "gpus": None, "platform": "Linux", "git": {"commit": _commit(), "diff_sha256": None, "diff": None},
    }  # fmt: skip
    write_json(folder / "environment.json", environment)
    for_ruleset = {
        ruleset: Verdict(ruleset, passed=True, messages=(), log_sha256=digest_of(folder / name))
        for ruleset, name in RESULT_FILES.items()
    }
    write_json(folder / "verdict.json", {ruleset: asdict(verdict) for ruleset, verdict in for_ruleset.items()})
    return folder
