"""The time from the command to ``run_start``, of this program and of a script in the order that is usual today.

`train.bench.bench_options` has the question and the options.
"""

from __future__ import annotations

import argparse
import json
import logging
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from configs.load import load_both
from configs.programs import Program, command_of
from configs.schema import Cluster
from logs.mlperf import RESULT_FILES
from logs.read.lines import read_events
from train.bench.launching import is_local_cpu, pack_dataset, run
from train.bench.measure import Report, interleave, make_report

__all__ = ["measure"]

_RECIPE = "imagenet-smoke"


def measure(options: argparse.Namespace) -> Report:
    """See `Bench`."""
    overrides = _place(options)
    recipe, cluster = load_both(_RECIPE, options.cluster, overrides)
    data = pack_dataset(recipe, cluster)
    with tempfile.TemporaryDirectory(prefix="bench-startup-") as name:
        folder = Path(name)
        usual = partial(_textbook, options, cluster.world_size, data=data, output=folder / "ledger.json")
        beside = {"textbook": partial(usual, "dali"), "textbook, MXNet's readers": partial(usual, "mxnet")}
        rows = interleave(
            {
                "ours": lambda: _ours(options, cluster, overrides, folder / f"run-{time.time_ns()}"),
                **(beside if is_local_cpu(cluster) else {}),
            },
            n=options.rounds,
            warmup=1,
            reference="textbook" if is_local_cpu(cluster) else "ours",
            compared=["command_to_run_start_s", "rank_to_run_start_s"],
            announce=logging.getLogger(__name__).info,
        )
    shape = f"{options.image_size} px, {options.batch_size} images a rank, {cluster.world_size} ranks"
    notes = [
        f"ResNet-50 at {shape}; the phases are those of rank 0; in ours, phases overlap",
        "command_to_run_start_s: since the command was given (ours: what ./run.sh train runs; textbook: horovodrun)",
        "rank_to_run_start_s: since the process of rank 0 began",
        "textbook: the order of Horovod's MXNet ImageNet example, with our DALI pipelines or with MXNet's readers, "
        "which the example uses",
    ]
    if not is_local_cpu(cluster):
        notes[2:] = ["the usual order is measured on the CPU of one machine only, so nothing stands beside ours here"]
    return make_report(rows, notes)


def _place(options: argparse.Namespace) -> list[str]:
    """Return the changes of the cluster that the options ask for."""
    return [*options.overrides, *([f"cluster.ranks_per_node={options.ranks}"] if options.ranks else [])]


def _ours(options: argparse.Namespace, cluster: Cluster, overrides: Sequence[str], folder: Path) -> dict[str, float]:
    """Run one step by the command that users give, and return the figures of its start."""
    settings = {
        "model.image_size": options.image_size,
        "batch.global_size": options.batch_size * cluster.world_size,
        "data.eval_resize": None,
        "run.max_steps": 1,
    }
    changes = [*(f"{key}={json.dumps(value)}" for key, value in settings.items()), *overrides]
    sets = [word for change in changes for word in ("--set", change)]
    begin = time.time()
    run(command_of(Program.TRAIN_VERB, "train", _RECIPE, "--cluster", options.cluster, *sets, "--run-dir", str(folder)))
    ledger = json.loads((folder / "startup.json").read_text(encoding="utf-8"))
    events = read_events(folder / RESULT_FILES["4.0.0"])
    run_start = next(event.time_s for event in events if event is not None and event.key == "run_start")
    assert run_start is not None
    return _figures(ledger, begin, run_start)


def _textbook(options: argparse.Namespace, ranks: int, readers: str, data: Path, output: Path) -> dict[str, float]:
    """Run `train.bench.programs.startup_textbook` under horovodrun, and return the figures of its start."""
    horovodrun = Path(sys.executable).with_name("horovodrun")
    rank = command_of(
        Program.STARTUP_TEXTBOOK,
        f"--recipe={_RECIPE}",
        f"--readers={readers}",
        f"--data={data}",
        f"--output={output}",
        f"--image-size={options.image_size}",
        f"--batch-size={options.batch_size}",
    )
    begin = time.time()
    run([str(horovodrun), "-np", str(ranks), "--gloo", *rank], {"OMP_NUM_THREADS": "1"})
    ledger = json.loads(output.read_text(encoding="utf-8"))
    return _figures(ledger, begin, ledger["run_start_time"])


def _figures(ledger: Mapping[str, Any], begin: float, run_start: float) -> dict[str, float]:
    """Return the seconds until ``run_start``, and the seconds of each phase of rank 0.

    Args:
        ledger: The content of ``startup.json``.
        begin: When the command was given, in seconds since the epoch.
        run_start: When the run started, in seconds since the epoch.
    """
    phases: dict[str, float] = {}
    for row in ledger["phases"]:
        name = f"{row['phase']}_s"
        phases[name] = phases.get(name, 0.0) + row["end_s"] - row["begin_s"]
    return {
        "command_to_run_start_s": run_start - begin,
        "rank_to_run_start_s": run_start - ledger["started_time"],
        **phases,
    }
