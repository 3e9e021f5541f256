"""The time from the command to the first step, and that of each phase."""

import json
import tempfile
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from configs.arguments import option
from logs.read.lines import read_events
from train.bench.measure import COUNT, Bench, PlaceOptions, Report, effort, interleave
from train.bench.samples import Figures

if TYPE_CHECKING:
    from configs.schema import Cluster
    from train.bench.launching import Jobs

_RECIPE = "imagenet-smoke"


@dataclass(frozen=True)
class StartupBench(PlaceOptions, Bench):
    """See `train.bench.measure.Bench`."""

    question = "seconds from the command to the first step, and of each phase of a start"

    rounds: int = effort("starts of each alternative, after one that is not measured", quick=1, usual=6, thorough=15)
    image_size: int = option("side of an image", 64, metavar="PX", type=COUNT)
    batch_size: int = option("images per rank", 8, metavar="B", type=COUNT)

    def measure(self, jobs: "Jobs") -> Report:
        """See `train.bench.measure.Bench`."""
        from configs.load import load_both

        recipe, cluster = load_both(_RECIPE, self.cluster, self.overrides)
        jobs.pack(recipe, cluster)
        rows = interleave({"ours": lambda: self._start(cluster, jobs)}, n=self.rounds, warmup=1)
        what = f"{self.image_size} px, {self.batch_size} images per rank, {cluster.world_size} ranks"
        notes = [
            f"ResNet-50 at {what}; the phases are those of rank 0, and overlap",
            "command_to_first_step_s: from ./run.sh train until the end of the first step, from JPEGs; the goal is 2 s",
            "command_to_run_start_s: since the command; rank_to_run_start_s: since the process of rank 0 began",
        ]
        return Report(rows, notes)

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
        changes = [*(f"{key}={json.dumps(value)}" for key, value in settings.items()), *self.overrides]
        with tempfile.TemporaryDirectory(prefix="bench-startup-") as name:
            folder = Path(name) / f"run-{time.time_ns()}"
            done = jobs.train(_RECIPE, changes, folder, "--cluster", self.cluster).check()
            ledger = json.loads((folder / STARTUP_FILE).read_text(encoding="utf-8"))
            times = {event.key: event.time_s or 0.0 for event in read_events(folder / RESULT_FILES["4.0.0"]) if event}
        # Phases may overlap.
        phases = Counter[str]()
        for row in ledger["phases"]:
            phases[f"{row['phase']}_s"] += row["end_s"] - row["begin_s"]
        return {
            # An evaluation begins when the losses of all steps, here one, have been read.
            "command_to_first_step_s": times["eval_start"] - done.begun_s,
            "command_to_run_start_s": times["run_start"] - done.begun_s,
            "rank_to_run_start_s": times["run_start"] - ledger["started_time"],
            **phases,
        }
