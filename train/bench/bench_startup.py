"""The time from the command to the first step, and to ``run_start`` beside a script in the usual order."""

import json
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from configs.arguments import option
from configs.programs import Program, command_of
from logs.read.lines import read_events
from train.bench.measure import Report, interleave, make_report
from train.bench.options import COUNT, Bench, PlaceOptions, effort, is_local_cpu
from train.bench.samples import Figures

if TYPE_CHECKING:
    from configs.schema import Cluster
    from train.bench.launching import Jobs

_RECIPE = "imagenet-smoke"
_OURS, _TEXTBOOK = "ours", "textbook"
_GOAL_S = 2.0
"""From the command to the end of the first step, with the libraries in the page cache."""
_TO_FIRST_STEP = "command_to_first_step_s"


@dataclass(frozen=True)
class StartupBench(PlaceOptions, Bench):
    """See `train.bench.options.Bench`."""

    question = "seconds from the command to the first step and of each phase, beside a script in the usual order"
    needs = "mxnet"

    rounds: int = effort("starts of each alternative, after one that is not measured", quick=1, usual=6, thorough=15)
    image_size: int = option("side of an image", 64, metavar="PX", type=COUNT)
    batch_size: int = option("images per rank", 8, metavar="B", type=COUNT)
    ranks: int | None = option("ranks on each machine (default: the cluster's; 2 on laptop)", metavar="R", type=COUNT)

    def measure(self, jobs: "Jobs") -> Report:
        """See `train.bench.options.Bench`."""
        from configs.load import load_both

        recipe, cluster = load_both(_RECIPE, self.cluster, self._place)
        data, ranks, is_local = str(jobs.pack(recipe, cluster)), cluster.world_size, is_local_cpu(cluster)
        task = {"recipe": _RECIPE, "data": data, "image_size": self.image_size, "batch_size": self.batch_size}
        alternatives = {_OURS: lambda: self._start(cluster, jobs)}
        if is_local:
            alternatives[_TEXTBOOK] = lambda: _start_textbook(task, ranks, jobs)
        rows = interleave(
            alternatives,
            n=self.rounds,
            warmup=1,
            reference=_TEXTBOOK if is_local else _OURS,
            compared=["command_to_run_start_s", "rank_to_run_start_s"],
        )
        rows = [
            row.judged(_GOAL_S, below=f"under {_GOAL_S:g} s", above=f"over {_GOAL_S:g} s")
            if row.figure == _TO_FIRST_STEP
            else row
            for row in rows
        ]
        what = f"{self.image_size} px, {self.batch_size} images per rank, {ranks} ranks"
        notes = [
            f"ResNet-50 at {what}; the phases are those of rank 0; in ours, phases overlap",
            "command_to_run_start_s: since the command was given (ours: ./run.sh train; textbook: horovodrun)",
            f"command_to_first_step_s: until the loss of the first step, from JPEGs; the goal is {_GOAL_S:g} s",
            "rank_to_run_start_s: since the process of rank 0 began",
            "textbook: the order of Horovod's MXNet ImageNet example, with our DALI pipelines in the place of its "
            "readers"
            if is_local
            else "the usual order is measured on the CPU of one machine only, so nothing stands beside ours here",
        ]
        return make_report(rows, notes)

    @property
    def _place(self) -> tuple[str, ...]:
        """The changes of the cluster."""
        return (*self.overrides, *([f"cluster.ranks_per_node={self.ranks}"] if self.ranks else []))

    def _start(self, cluster: "Cluster", jobs: "Jobs") -> Figures:
        """Run one step by the command that users give, and return the figures of its start."""
        from logs.folder import STARTUP_FILE
        from logs.mlperf import RESULT_FILES

        settings = {
            "model.image_size": self.image_size,
            "batch.global_size": self.batch_size * cluster.world_size,
            "data.eval_resize": None,
            "run.max_steps": 1,
        }
        changes = [*(f"{key}={json.dumps(value)}" for key, value in settings.items()), *self._place]
        with tempfile.TemporaryDirectory(prefix="bench-startup-") as name:
            folder = Path(name) / f"run-{time.time_ns()}"
            done = jobs.train(_RECIPE, changes, folder, "--cluster", self.cluster).check()
            ledger = json.loads((folder / STARTUP_FILE).read_text(encoding="utf-8"))
            times = {event.key: event.time_s or 0.0 for event in read_events(folder / RESULT_FILES["4.0.0"]) if event}
        # An evaluation begins when the losses of all steps, here one, have been read.
        return {
            _TO_FIRST_STEP: times["eval_start"] - done.begun_s,
            **_figures(ledger, done.begun_s, times["run_start"]),
        }


def _start_textbook(task: Mapping[str, Any], ranks: int, jobs: "Jobs") -> Figures:
    """Run `train.bench.programs.startup` under horovodrun, and return the figures of its start."""
    launcher = ["env", "OMP_NUM_THREADS=1", str(Path(sys.executable).with_name("horovodrun"))]
    rank = command_of(Program.BENCH_RANK, "startup", json.dumps(task))
    done = jobs.run([*launcher, "-np", str(ranks), "--gloo", *rank]).check()
    ledger: Any = done.sample
    return _figures(ledger, done.begun_s, ledger["run_start_time"])


def _figures(ledger: Mapping[str, Any], begun_s: float, run_start: float) -> dict[str, float]:
    """Return the seconds until ``run_start``, and the seconds of each phase of rank 0, also of phases that overlap.

    Args:
        ledger: What `train.rank.startup.Ledger.to_json` returns.
        begun_s: When the command was given, Unix seconds.
        run_start: When the run started, Unix seconds.
    """
    phases: dict[str, float] = {}
    for row in ledger["phases"]:
        name = f"{row['phase']}_s"
        phases[name] = phases.get(name, 0.0) + row["end_s"] - row["begin_s"]
    return {
        "command_to_run_start_s": run_start - begun_s,
        "rank_to_run_start_s": run_start - ledger["started_time"],
        **phases,
    }
