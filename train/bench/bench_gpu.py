"""All that one GPU can tell in 25 minutes: steps, precisions, batches, graphs, a whole run, resuming, the simulator.

`train.bench.bench_options` has the question and the options. Every row goes to a file of JSON lines as soon as it is
measured, so that what was measured outlives an end before time. A part that fails is a note, and the next part runs.
"""

import argparse
import json
import logging
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from functools import partial
from pathlib import Path

from configs.errors import STOPPED_STATUS
from configs.load import ROOT
from configs.programs import Program, command_of
from logs.disk import write_text
from train.bench.bench_options import GPU_PARTS
from train.bench.launching import run, run_ranks
from train.bench.measure import BenchRow, Figures, MeasurementFailed, Report, make_report, summarize
from train.bench.samples import read_samples

logger = logging.getLogger(__name__)

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
class _Bench:
    """The options, and where rows go."""

    options: argparse.Namespace
    folder: Path

    def settings(self, *more: str) -> list[str]:
        """Return the words that set one rank on this machine's GPU, or a tiny network on its CPU."""
        place = ("cluster.device=cpu",) if self.options.tiny else (*_ON_GPU, f"cluster.node.gpu={self.options.gpu}")
        alone = ("cluster.engine.name=torch", "cluster.ranks_per_node=1", "cluster.communication.kind=none")
        overrides = [*place, *alone, *more, *(_TINY if self.options.tiny else ())]
        return [word for override in overrides for word in ("--set", override)]

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
        seconds = str(self.options.seconds)
        words = ("--recipe", recipe, *sets, "--variant", variant, "--seconds", seconds)
        output = run_ranks(
            command_of(Program.GPU_STEP, *words),
            overrides=["cluster.engine.name=torch", "cluster.ranks_per_node=1"],
            timeout_s=self.options.limit,
        )
        title = f"{recipe}, batch {batch}, {'TF32' if variant == 'tf32' else precision}"
        yield from summarize(title if variant in {"eager", "tf32"} else f"{title}, {variant}", _samples(output), 1)

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
        return command_of(Program.TRAIN_VERB, "train", "imagenet-smoke", "--run-dir", str(folder), *sets)


def measure(options: argparse.Namespace) -> Report:
    """See `Bench`."""
    folder = options.folder or ROOT / "runs" / "bench" / f"gpu-{datetime.now():%Y%m%d-%H%M%S}"
    folder.mkdir(parents=True, exist_ok=True)
    bench, rows, notes = _Bench(options, folder), [], [f"rows as they came: {folder}/rows.jsonl"]
    end = time.monotonic() + 60 * options.minutes
    wanted = [part for part in options.only or GPU_PARTS if part not in options.skip]
    with (folder / "rows.jsonl").open("a", encoding="utf-8") as lines:
        for part, action in _tasks(bench, wanted):
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
                notes.append(f"{part}: {' / '.join(str(error).splitlines()[-3:])}")
    report = make_report(rows, notes)
    write_text(folder / "table.md", _markdown(report))
    return report


def _tasks(bench: _Bench, parts: Sequence[str]) -> Iterator[tuple[str, Callable[[], Iterator[BenchRow]]]]:
    """Yield each measurement and its part, the most wanted first."""
    full = [("imagenet-b256", 256), ("mlperf-b3264", _MLPERF_BATCH)]
    half = ("bfloat16",) if bench.options.tiny else ("bfloat16", "float16")
    tasks: dict[str, list[Callable[[], Iterator[BenchRow]]]] = {
        "steps": [partial(bench.step, recipe, batch, kind) for recipe, batch in full for kind in (*half, "float32")],
        "run": [partial(_whole_run, bench)],
        "resume": [partial(_stop_and_resume, bench)],
        "calibrate": [partial(_calibrate, bench)],
        "graphs": [
            partial(bench.step, "imagenet-b256", 256, kind, variant)
            for kind, variant in (("float32", "tf32"), ("bfloat16", "graph"), ("bfloat16", "compiled"))
        ],
        "batches": [partial(bench.step, "imagenet-b256", size, "bfloat16") for size in (32, 64, 128, 512, 1024)],
    }
    for part in parts:
        for task in tasks[part]:
            yield part, task


def _samples(output: str) -> Sequence[Figures]:
    return read_samples(output)["step"]


def _whole_run(bench: _Bench) -> Iterator[BenchRow]:
    """Train on generated JPEGs: decoder, checkpoints, evaluations, a trace."""
    folder, steps = bench.folder / "run", 12 if bench.options.tiny else 1000
    begin = time.monotonic()
    run([*bench.train(folder, f"run.max_steps={steps}"), "--trace"], timeout_s=bench.options.limit)
    summary = json.loads((folder / "summary.json").read_text(encoding="utf-8"))
    wanted = ("steps", "init_s", "run_s", "images_per_s", "input_wait_fraction")
    figures = {key: float(summary[key]) for key in wanted if summary.get(key) is not None}
    figures |= {"command_s": time.monotonic() - begin, "trace_bytes": float((folder / "trace.json").stat().st_size)}
    yield from summarize(f"a run of {steps} steps on generated JPEGs", [figures])


def _stop_and_resume(bench: _Bench) -> Iterator[BenchRow]:
    """Tell a run to stop by SIGTERM, and resume it."""
    folder, limit_s = bench.folder / "resumed", bench.options.limit
    command = bench.train(folder, f"run.max_steps={400 if bench.options.tiny else 600}")
    with (bench.folder / "resumed.log").open("wb") as log:
        running = subprocess.Popen(command, cwd=ROOT, stdout=log, stderr=log)
        try:
            end = time.monotonic() + limit_s
            while running.poll() is None and time.monotonic() < end and not _has_stepped(folder):
                time.sleep(0.1)
            begin = time.monotonic()
            running.send_signal(signal.SIGTERM)
            status = running.wait(timeout=limit_s)
            stopped_s = time.monotonic() - begin
        except subprocess.TimeoutExpired:
            raise MeasurementFailed(f"{folder}: the run did not stop in {limit_s:g} s") from None
        finally:
            running.kill()
    if status != STOPPED_STATUS:
        raise MeasurementFailed(f"{folder}: told to stop, ended with exit status {status}")
    begin = time.monotonic()
    run(command_of(Program.TRAIN_VERB, "train", "--resume", str(folder)), timeout_s=limit_s)
    figures = {"stop_s": stopped_s, "resumed_run_s": time.monotonic() - begin}
    yield from summarize("a run told to stop, then resumed", [figures])


def _has_stepped(folder: Path) -> bool:
    metrics = folder / "metrics.jsonl"
    return metrics.is_file() and b'"step"' in metrics.read_bytes()


def _calibrate(bench: _Bench) -> Iterator[BenchRow]:
    """Give the run's steps to the simulator, and predict a step before and after."""
    place = bench.settings("cluster.engine.precision=" + ("float32" if bench.options.tiny else "bfloat16"))
    ask = command_of(Program.SIMULATE_VERB, "simulate", "imagenet-b256", *place, "--json")
    for title, command in (
        ("predicted", None),
        ("predicted after --calibrate", command_of(Program.SIMULATE_VERB, "--calibrate", str(bench.folder / "run"))),
    ):
        if command:
            run(command, timeout_s=bench.options.limit)
        told = json.loads(run(ask, timeout_s=bench.options.limit))
        yield from summarize(f"imagenet-b256, {title}", [{key: told[key] for key in ("step_s", "images_per_s")}])


def _markdown(report: Report) -> str:
    """Return the rows as a table for ``docs/gpu.md``."""
    head = ["| measured | figure | median | lowest | highest | n |", "| --- | --- | --- | --- | --- | --- |"]
    rows = [
        f"| {row.alternative} | `{row.figure}` | {row.median:.4g} | {row.low:.4g} | {row.high:.4g} | {row.n} |"
        for row in report.rows
    ]
    return "\n".join([*head, *rows, "", *(f"- {note}" for note in report.notes), ""])
