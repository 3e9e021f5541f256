"""From the command to ``run_start``: ours against the order that training scripts follow today."""

from __future__ import annotations

import argparse
import json
import logging
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from configs.load import load_both
from configs.programs import Program, command_of
from logs.mlperf import RESULT_FILES
from logs.read.lines import read_events
from train.bench.launching import pack_dataset, run
from train.bench.measure import Report, interleave, make_report

PURPOSE = "from the command to run_start, against imports, communicator, pipelines, weights by broadcast in turn"

_RECIPE = "imagenet-smoke"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """See `Bench`."""
    parser.add_argument("--rounds", metavar="N", type=int, default=3, help="rounds that count (default: 3)")
    parser.add_argument("--image-size", metavar="PX", type=int, default=64, help="(default: 64)")
    parser.add_argument("--batch-size", metavar="B", type=int, default=8, help="images a rank (default: 8)")
    parser.add_argument("--ranks", metavar="R", type=int, default=2, help="ranks on this machine (default: 2)")


def measure(arguments: argparse.Namespace) -> Report:
    """See `Bench`."""
    recipe, cluster = load_both(_RECIPE, "laptop")
    data = pack_dataset(recipe, cluster)
    with tempfile.TemporaryDirectory(prefix="bench-startup-") as name:
        folder = Path(name)
        rows = interleave(
            {
                "ours": lambda: _ours(arguments, folder / f"run-{time.time_ns()}"),
                "textbook": lambda: _textbook(arguments, "dali", data, folder / "ledger.json"),
                "textbook, MXNet's readers": lambda: _textbook(arguments, "mxnet", data, folder / "ledger.json"),
            },
            n=arguments.rounds, warmup=1, reference="textbook",
            compared=["command_to_run_start_s", "rank_to_run_start_s"], tell=logging.getLogger(__name__).info,
        )  # fmt: skip
    shape = f"{arguments.image_size} px, {arguments.batch_size} images a rank, {arguments.ranks} ranks"
    notes = [
        f"ResNet-50 at {shape}; phases are rank 0's; ours overlap",
        "command_: since the command was given (ours: what ./run.sh train runs; textbook: horovodrun)",
        "rank_: since the process of rank 0 began",
        "textbook: the order of Horovod's MXNet ImageNet example, with our DALI pipelines or, as there, MXNet's own",
    ]
    return make_report(rows, notes)


def _ours(arguments: argparse.Namespace, folder: Path) -> dict[str, float]:
    """Run one step by the command that users give."""
    settings = {
        "model.image_size": arguments.image_size, "batch.global_size": arguments.batch_size * arguments.ranks,
        "data.eval_resize": None, "run.max_steps": 1, "cluster.ranks_per_node": arguments.ranks,
    }  # fmt: skip
    sets = [word for key, value in settings.items() for word in ("--set", f"{key}={json.dumps(value)}")]
    begin = time.time()
    run(command_of(Program.TRAIN_VERB, "train", _RECIPE, *sets, "--run-dir", str(folder)))
    ledger = json.loads((folder / "startup.json").read_text(encoding="utf-8"))
    events = read_events(folder / RESULT_FILES["4.0.0"])
    run_start = next(event.time_s for event in events if event is not None and event.key == "run_start")
    assert run_start is not None
    return _figures(ledger, begin, run_start)


def _textbook(arguments: argparse.Namespace, readers: str, data: Path, output: Path) -> dict[str, float]:
    """Run `train.bench.programs.startup_textbook` by the launcher that its readers know."""
    horovodrun = Path(sys.executable).with_name("horovodrun")
    rank = command_of(
        Program.STARTUP_TEXTBOOK, "--recipe", _RECIPE,
        "--readers", readers, "--data", str(data), "--output", str(output),
        "--image-size", str(arguments.image_size), "--batch-size", str(arguments.batch_size),
    )  # fmt: skip
    begin = time.time()
    run([str(horovodrun), "-np", str(arguments.ranks), "--gloo", *rank], {"OMP_NUM_THREADS": "1"})
    ledger = json.loads(output.read_text(encoding="utf-8"))
    return _figures(ledger, begin, ledger["run_start_time"])


def _figures(ledger: Mapping[str, Any], begin: float, run_start: float) -> dict[str, float]:
    phases: dict[str, float] = {}
    for row in ledger["phases"]:
        name = f"{row['phase']}_s"
        phases[name] = phases.get(name, 0.0) + row["end_s"] - row["begin_s"]
    return {
        "command_to_run_start_s": run_start - begin,
        "rank_to_run_start_s": run_start - ledger["started_time"],
        **phases,
    }
