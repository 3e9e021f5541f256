"""The time from the command to the first step, and to ``run_start`` beside a script in the order that is usual today.

`train.bench.bench_options` has the question and the options.
"""

import argparse
import itertools
import json
import logging
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from configs.load import ROOT, load_both
from configs.programs import Program, command_of
from configs.schema import Cluster
from logs.folder import STARTUP_FILE
from logs.mlperf import RESULT_FILES
from logs.read.lines import read_events
from train.bench.launching import is_local_cpu, pack_dataset, run
from train.bench.measure import BenchRow, Report, interleave, make_report, verdict_of
from train.rank.startup import WAITING

_RECIPE = "imagenet-smoke"
_GOAL_S = 2.0
"""From the command to the end of the first step, with the libraries in the page cache."""
_TO_FIRST_STEP = "command_to_first_step_s"
_CRITICAL = "critical path: "
_MAIN = "MainThread"
_BOUNDING = 6
"""Parts of the critical path that a note names."""


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
    rows = [_judged(row) for row in rows]
    shape = f"{options.image_size} px, {options.batch_size} images a rank, {cluster.world_size} ranks"
    notes = [
        f"ResNet-50 at {shape}; the phases are those of rank 0; in ours, phases overlap",
        "command_to_run_start_s: since the command was given (ours: ./run.sh train; textbook: horovodrun)",
        f"command_to_first_step_s: until the loss of the first step, from JPEGs; the goal is {_GOAL_S:g} s",
        _bounds(rows),
        "rank_to_run_start_s: since the process of rank 0 began",
        "textbook: the order of Horovod's MXNet ImageNet example, with our DALI pipelines or with MXNet's readers, "
        "which the example uses",
    ]
    if not is_local_cpu(cluster):
        notes[-1:] = ["the usual order is measured on the CPU of one machine only, so nothing stands beside ours here"]
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
    run([str(ROOT / "run.sh"), "train", _RECIPE, "--cluster", options.cluster, *sets, "--run-dir", str(folder)])
    ledger = json.loads((folder / STARTUP_FILE).read_text(encoding="utf-8"))
    # An evaluation begins when the losses of all steps, here one, have been read.
    run_start, first_step = (_time_of(folder, key) for key in ("run_start", "eval_start"))
    path = {
        "before the rank's process": ledger["started_time"] - begin,
        **critical_path(ledger["phases"], run_start - ledger["started_time"]),
        "first step": first_step - run_start,
    }
    return {
        _TO_FIRST_STEP: first_step - begin,
        **_figures(ledger, begin, run_start),
        **{f"{_CRITICAL}{name}_s": seconds for name, seconds in path.items()},
    }


def _time_of(folder: Path, key: str) -> float:
    """Return when a run's log has the first event of a key, in seconds since the epoch."""
    events = read_events(folder / RESULT_FILES["4.0.0"])
    time_s = next(event.time_s for event in events if event is not None and event.key == key)
    assert time_s is not None
    return time_s


def critical_path(phases: Sequence[Mapping[str, Any]], until_s: float) -> dict[str, float]:
    """Return the seconds that each phase adds to a start-up, which are ``until_s`` together.

    The main thread composes the rank and waits for the communicator's thread alone. Hence a phase of the main thread
    counts while it lasts, a phase of the other thread while the main thread waits for it, and what is left is between
    the phases.

    Args:
        phases: Rows of a ledger (`train.rank.startup.Ledger`), each with a phase, its thread, begin and end.
        until_s: The end of the start-up, since the process began.
    """
    waits = [row for row in phases if row["phase"] == WAITING]
    others = [row for row in phases if row["thread"] != _MAIN]
    parts = {row["phase"]: 0.0 for row in phases if row["phase"] != WAITING}
    for row in phases:
        if row["thread"] == _MAIN and row["phase"] != WAITING:
            parts[row["phase"]] += row["end_s"] - row["begin_s"]
    for row, wait in itertools.product(others, waits):
        parts[row["phase"]] += max(0.0, min(row["end_s"], wait["end_s"]) - max(row["begin_s"], wait["begin_s"]))
    return {**parts, "between phases": until_s - sum(parts.values())}


def _bounds(rows: Sequence[BenchRow]) -> str:
    """Return the longest parts of our critical path in words."""
    parts = [row for row in rows if row.figure.startswith(_CRITICAL)]
    longest = sorted(parts, key=lambda row: -row.median)[:_BOUNDING]
    named = (f"{row.figure.removeprefix(_CRITICAL).removesuffix('_s')} {row.median:.2f} s" for row in longest)
    return f"what bounds it, on rank 0's critical path: {', '.join(named)}"


def _judged(row: BenchRow) -> BenchRow:
    """Return the row with the answer to the question whether the first step ends in time."""
    if row.figure != _TO_FIRST_STEP:
        return row
    verdict = verdict_of(row.interval, _GOAL_S, below=f"under {_GOAL_S:g} s", above=f"over {_GOAL_S:g} s")
    return replace(row, verdict=verdict)


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
    """Return the seconds until ``run_start``, and the seconds of each phase of rank 0, also of phases that overlap.

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
