"""All that one GPU can tell in 25 minutes: steps, precisions, batches, graphs, a whole run, resuming, the simulator.

Every row goes to a file of JSON lines as soon as it is measured, so that what was measured outlives an end before time.
A part that fails is a note, and the next part runs.
"""

import json
import logging
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from configs.arguments import override_words
from configs.errors import STOPPED_STATUS
from configs.programs import Program, command_of
from train.bench.measure import BenchRow, Report, make_report, summarize
from train.bench.options import Bench, effort, option
from train.bench.samples import MeasurementFailed, short_cause

if TYPE_CHECKING:
    from train.bench.launching import Jobs

logger = logging.getLogger(__name__)

_PARTS = ("steps", "run", "resume", "calibrate", "graphs", "batches")
"""The most wanted first; ``calibrate`` takes the run of ``run``."""

_ON_GPU = (
    "cluster.device=gpu",
    "cluster.engine.layout=NHWC",
    "cluster.engine.input_threads=14",
    "cluster.engine.prefetch_depth=3",
)
_TINY = ("model.name=resnet8", "model.image_size=16")
_MLPERF_BATCH = 204
"""Images of a GPU in a run of `mlperf-b3264` on 16 GPUs."""


@dataclass(frozen=True)
class GpuOptions:
    """The options of ``bench gpu``."""

    gpu: str = option("name of the GPU in the simulator", "H200", metavar="NAME")
    only: Sequence[str] | None = option(
        f"parts to measure: {', '.join(_PARTS)}", metavar="PART", nargs="+", choices=_PARTS
    )
    skip: Sequence[str] = option("parts to leave out", (), metavar="PART", nargs="+", choices=_PARTS)
    minutes: float = option("start no measurement after this many minutes", 25.0, metavar="M", type=float)
    limit: float = option("seconds that one measurement may take", 300.0, metavar="S", type=float)
    seconds: float = effort("seconds of samples of a step", quick=2.0, usual=10.0, thorough=30.0)
    folder: Path | None = option(  # noqa: RUF009 (it returns a field)
        "folder for rows.jsonl and table.md (default: runs/bench/gpu-TIME)", metavar="DIR", type=Path
    )  # fmt: skip
    tiny: bool = option("try everything at tiny shapes on the CPU", False, action="store_true")


@dataclass(frozen=True)
class _Parts:
    """The parts of the bench: the options, where files go, and what starts programs."""

    options: GpuOptions
    folder: Path
    jobs: "Jobs"

    def settings(self, *more: str) -> list[str]:
        """Return the changes that set one rank on this machine's GPU, or a tiny network on its CPU."""
        place = ("cluster.device=cpu",) if self.options.tiny else (*_ON_GPU, f"cluster.node.gpu={self.options.gpu}")
        alone = ("cluster.engine.name=torch", "cluster.ranks_per_node=1", "cluster.communication.kind=none")
        return [*place, *alone, *more, *(_TINY if self.options.tiny else ())]

    def step(self, recipe: str, batch: int, precision: str, variant: str = "eager") -> Iterator[BenchRow]:
        """Time a step of a recipe on images in memory."""
        batch = 8 if self.options.tiny else batch
        sets = self.settings(
            "mlperf.division=open",
            "data.source=synthetic",
            f"batch.global_size={batch}",
            "batch.bn_span=null",
            f"cluster.engine.precision={precision}",
        )
        done = self.jobs.ranks(
            Program.GPU_STEP,
            {"recipe": recipe, "overrides": sets, "variant": variant, "seconds": self.options.seconds},
            overrides=["cluster.engine.name=torch", "cluster.ranks_per_node=1"],
            timeout_s=self.options.limit,
        )
        title = f"{recipe}, batch {batch}, {'TF32' if variant == 'tf32' else precision}"
        yield from summarize(title if variant in {"eager", "tf32"} else f"{title}, {variant}", done.samples["step"], 1)

    def train(self, folder: Path, *more: str) -> list[str]:
        """Return the command of a run on generated JPEGs."""
        images = 64 if self.options.tiny else 4096
        sets = self.settings(
            f"data.train_samples={images}",
            f"data.eval_samples={images // 8}",
            "data.name=bench-gpu" + ("-tiny" if self.options.tiny else ""),
            f"batch.global_size={8 if self.options.tiny else 256}",
            f"cluster.engine.precision={'float32' if self.options.tiny else 'bfloat16'}",
            "run.epochs=2000",
            "run.eval_every_epochs=20",
            "run.log_every_steps=5",
            *more,
        )
        return command_of(
            Program.TRAIN_VERB, "train", "imagenet-smoke", "--run-dir", str(folder), *override_words(sets)
        )

    def whole_run(self) -> Iterator[BenchRow]:
        """Train on generated JPEGs: decoder, checkpoints, evaluations, a trace."""
        folder, steps = self.folder / "run", 12 if self.options.tiny else 1000
        command = [*self.train(folder, f"run.max_steps={steps}"), "--trace"]
        done = self.jobs.run(command, timeout_s=self.options.limit).check()
        summary = json.loads((folder / "summary.json").read_text(encoding="utf-8"))
        wanted = ("steps", "init_s", "run_s", "images_per_s", "input_wait_fraction")
        figures = {key: float(summary[key]) for key in wanted if summary.get(key) is not None}
        figures |= {"command_s": done.took_s, "trace_bytes": float((folder / "trace.json").stat().st_size)}
        yield from summarize(f"a run of {steps} steps on generated JPEGs", [figures])

    def stop_and_resume(self) -> Iterator[BenchRow]:
        """Tell a run to stop by SIGTERM, and resume it."""
        folder, limit_s = self.folder / "resumed", self.options.limit
        command = self.train(folder, f"run.max_steps={400 if self.options.tiny else 600}")
        metrics = folder / "metrics.jsonl"

        def has_stepped() -> bool:
            return metrics.is_file() and b'"step"' in metrics.read_bytes()

        stopped = self.jobs.stop_when(has_stepped, command, self.folder / "resumed.log", limit_s)
        if stopped.status != STOPPED_STATUS:
            raise MeasurementFailed(f"{folder}: told to stop, ended with exit status {stopped.status}")
        resume = command_of(Program.TRAIN_VERB, "train", "--resume", str(folder))
        resumed = self.jobs.run(resume, timeout_s=limit_s).check()
        figures = {"stop_s": stopped.took_s, "resumed_run_s": resumed.took_s}
        yield from summarize("a run told to stop, then resumed", [figures])

    def calibrate(self) -> Iterator[BenchRow]:
        """Give the run's steps to the simulator, and predict a step before and after."""
        place = self.settings("cluster.engine.precision=" + ("float32" if self.options.tiny else "bfloat16"))
        ask = command_of(Program.SIMULATE_VERB, "simulate", "imagenet-b256", *override_words(place), "--json")
        learn = command_of(Program.SIMULATE_VERB, "--calibrate", str(self.folder / "run"))
        for title, command in (("predicted", None), ("predicted after --calibrate", learn)):
            if command:
                self.jobs.run(command, timeout_s=self.options.limit).check()
            told = json.loads(self.jobs.run(ask, timeout_s=self.options.limit).check().output)
            yield from summarize(f"imagenet-b256, {title}", [{key: told[key] for key in ("step_s", "images_per_s")}])


def measure(options: GpuOptions, jobs: "Jobs") -> Report:
    """See `train.bench.options.Bench`."""
    from configs.load import ROOT
    from logs.disk import write_text

    folder = options.folder or ROOT / "runs" / "bench" / f"gpu-{datetime.now():%Y%m%d-%H%M%S}"
    folder.mkdir(parents=True, exist_ok=True)
    rows: list[BenchRow] = []
    notes = [f"rows as they came: {folder}/rows.jsonl"]
    end = time.monotonic() + 60 * options.minutes
    with (folder / "rows.jsonl").open("a", encoding="utf-8") as lines:
        for part, action in _tasks(_Parts(options, folder, jobs)):
            if time.monotonic() > end:
                notes.append(f"{part}: not measured, {options.minutes:g} minutes were over")
                continue
            logger.info("%s, %.0f s left", part, end - time.monotonic())
            try:
                for row in action():
                    rows.append(row)
                    lines.write(json.dumps({"part": part, **asdict(row)}) + "\n")
                    lines.flush()
            except MeasurementFailed as error:
                notes.append(f"{part}: {short_cause(error)}")
    report = make_report(rows, notes)
    write_text(folder / "table.md", _markdown(report))
    return report


BENCH = Bench(
    "everything on one GPU in 25 minutes: steps by precision and batch, graphs, a run, a resumed run, the simulator",
    GpuOptions,
    measure,
    needs="torch",
    only_here="it asks one GPU of this machine",
)


def _tasks(bench: _Parts) -> Iterator[tuple[str, Callable[[], Iterator[BenchRow]]]]:
    """Yield each measurement and its part, the most wanted first."""
    full = [("imagenet-b256", 256), ("mlperf-b3264", _MLPERF_BATCH)]
    half = ("bfloat16",) if bench.options.tiny else ("bfloat16", "float16")
    tasks: dict[str, list[Callable[[], Iterator[BenchRow]]]] = {
        "steps": [partial(bench.step, recipe, batch, kind) for recipe, batch in full for kind in (*half, "float32")],
        "run": [bench.whole_run],
        "resume": [bench.stop_and_resume],
        "calibrate": [bench.calibrate],
        "graphs": [
            partial(bench.step, "imagenet-b256", 256, kind, variant)
            for kind, variant in (("float32", "tf32"), ("bfloat16", "graph"), ("bfloat16", "compiled"))
        ],
        "batches": [partial(bench.step, "imagenet-b256", size, "bfloat16") for size in (32, 64, 128, 512, 1024)],
    }
    for part in bench.options.only or _PARTS:
        for task in tasks[part] if part not in bench.options.skip else ():
            yield part, task


def _markdown(report: Report) -> str:
    """Return the rows as a table for ``docs/gpu.md``."""
    head = ["| measured | figure | median | lowest | highest | n |", "| --- | --- | --- | --- | --- | --- |"]
    rows = [
        f"| {row.alternative} | `{row.figure}` | {row.median:.4g} | {row.low:.4g} | {row.high:.4g} | {row.n} |"
        for row in report.rows
    ]
    return "\n".join([*head, *rows, "", *(f"- {note}" for note in report.notes), ""])
