"""All that one GPU can tell, in parts of at most eight minutes, from single kernels to whole runs.

Every row goes to a file of JSON lines as soon as it is measured, so that what was measured outlives an end before time.
A part that fails is a note in the same file, and the next part runs.
"""

import json
import logging
import sys
import time
from argparse import Action, ArgumentParser
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import datetime
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from configs.arguments import override_words
from configs.errors import STOPPED_STATUS
from configs.programs import Program, command_of
from train.bench.kernel_cases import ALLOWED_ERROR, EXECUTIONS, KERNEL_CASES
from train.bench.measure import BenchRow, Report, make_report, summarize
from train.bench.options import Bench, effort, generated_images, option
from train.bench.samples import Figures, MeasurementFailed

if TYPE_CHECKING:
    from logs.folder import Summary
    from train.bench.launching import Finished, Jobs

logger = logging.getLogger(__name__)

PARTS: Mapping[str, str] = {
    "kernels": "does a step on this GPU compute as float32 does on the CPU, in every type and way to compute it?",
    "digits": "do the digits, which NVIDIA DALI decodes, reach their target accuracy on this GPU?",
    "steps": "how many images/s of imagenet-b256 at 32, 128 and 256 images, in which type? is the plan's memory right?",
    "compiled": "what does torch.compile gain in these steps?",
    "graph": "what does a CUDA graph of the whole step gain, so what do launches cost?",
    "profile": "in which kernels does a step spend its time, and how many does it launch?",
    "nccl": "do NCCL's sums run on one rank, also within a CUDA graph, and what do they cost in a step?",
    "run": "do 1,000 steps with evaluations and checkpoints reach their end, stopped and resumed on the way?",
    "decoders": "which decoders of NVIDIA DALI work on this GPU, ten batches each, and how fast?",
    "simulator": "how far is the simulator from this GPU, before and after it knows the run of 'run'?",
}
"""Part -> the question that it answers; the most wanted first."""

_ON_GPU = (
    "cluster.engine.input_threads=14",
    "cluster.engine.prefetch_depth=3",
    "cluster.engine.update_groups=1",
    "cluster.communication.bucket_bytes=16777216",
    "cluster.communication.bucket_fraction=0",
)
_RECIPE = "imagenet-b256"
_OF_A_RUN = (
    "steps",
    "resumed_from_step",
    "init_s",
    "run_s",
    "images_per_s",
    "comm_exposed_fraction",
    "checkpoint_s",
)
"""What `run` tells of the summary."""
_TINY = ("model.name=resnet8", "model.image_size=16")
_LONGEST_S = 240.0
"""Seconds that one measurement may take: torch.compile takes one or two minutes of them."""


class _ListParts(Action):
    """Prints the parts, and ends the program."""

    def __call__(self, parser: ArgumentParser, *_: object) -> None:
        """See `argparse.Action`."""
        sys.stdout.write("".join(f"{name:<10} {question}\n" for name, question in PARTS.items()))
        parser.exit()


@dataclass(frozen=True)
class GpuBench(Bench):
    """See `train.bench.options.Bench`."""

    question = (
        "everything on one GPU, in parts of eight minutes (--list): kernels, runs, steps, NCCL, decoders, the simulator"
    )
    needs = "torch"
    only_here = "it asks one GPU of this machine"

    list_parts: bool = option("say what each part answers, and end", False, flag="--list", action=_ListParts, nargs=0)
    gpu: str = option("name of the GPU in the simulator", "H200", metavar="NAME")
    only: Sequence[str] | None = option(
        f"parts to measure: {', '.join(PARTS)}", metavar="PART", nargs="+", choices=PARTS
    )
    minutes: float = option("minutes that a part may take", 8.0, metavar="M", type=float)
    seconds: float = effort("seconds of samples of a step", quick=2.0, usual=10.0, thorough=30.0)
    folder: Path | None = option(  # noqa: RUF009 (it returns a field)
        "folder for rows.jsonl, table.md and the runs (default: runs/bench/gpu-TIME)", metavar="DIR", type=Path
    )  # fmt: skip
    tiny: bool = option("try everything at tiny shapes on the CPU", False, action="store_true")

    def measure(self, jobs: "Jobs") -> Report:
        """See `train.bench.options.Bench`."""
        from configs.load import ROOT
        from logs.disk import write_text

        folder = (self.folder or ROOT / "runs" / "bench" / f"gpu-{datetime.now():%Y%m%d-%H%M%S}").absolute()
        folder.mkdir(parents=True, exist_ok=True)
        file, machine = folder / "rows.jsonl", make_report([])
        rows: list[BenchRow] = []
        notes: list[str] = []

        def keep(**line: Any) -> None:
            with file.open("a", encoding="utf-8") as lines:
                lines.write(json.dumps(line) + "\n")

        keep(machine=machine.machine, versions=machine.versions)
        for part in self.only or PARTS:
            end = time.monotonic() + 60 * self.minutes
            for action in _tasks(_Part(self, folder, jobs, end))[part]:
                logger.info("%s, %.0f s left", part, end - time.monotonic())
                try:
                    for row in action():
                        rows.append(row)
                        keep(part=part, **asdict(row))
                except MeasurementFailed as error:
                    notes.append(f"{part}: {error.short}")
                    keep(part=part, note=error.short)
        write_text(folder / "table.md", _markdown(file))
        return make_report(rows, [f"rows as they came: {file}", *notes])


@dataclass(frozen=True)
class _Part:
    """The measurements of a part: the options, where files go, what starts programs, and when the part's time is over.

    Attributes:
        options: The bench with its options.
        folder: Takes the runs.
        jobs: Starts programs.
        end: A moment of the clock `time.monotonic`.
    """

    options: GpuBench
    folder: Path
    jobs: "Jobs"
    end: float

    @property
    def half(self) -> str:
        """Return the 16-bit type that is measured first."""
        return "bfloat16" if self.options.tiny else "float16"

    def left_s(self) -> float:
        """Return the seconds that a program may take from now on.

        Raises:
            MeasurementFailed: The part's time is over.
        """
        left_s = self.end - time.monotonic()
        if left_s <= 0:
            raise MeasurementFailed("not measured: the part's minutes were over")
        return min(left_s, _LONGEST_S)

    def settings(self, *more: str, communicates: bool = False) -> list[str]:
        """Return the changes that set one rank on this machine's GPU, or a tiny network on its CPU."""
        place = () if self.options.tiny else (*_ON_GPU, f"cluster.node.gpu={self.options.gpu}")
        network = _TINY if self.options.tiny else ()
        return [*self.alone(communicates=communicates), *place, "mlperf.division=open", *more, *network]

    def alone(self, *, communicates: bool = False) -> list[str]:
        """Return the changes that make a cluster of one rank, with a communicator or without."""
        device, backend = ("cpu", "gloo") if self.options.tiny else ("gpu", "nccl")
        words = [f"cluster.device={device}", "cluster.engine.name=torch", "cluster.ranks_per_node=1"]
        if not communicates:
            return [*words, "cluster.communication.kind=none"]
        return [*words, "cluster.communication.kind=torch_distributed", f"cluster.communication.backend={backend}"]

    def ranks(self, name: str, overrides: Sequence[str], **task: Any) -> dict[str, list[Figures]]:
        """Start a program on one rank; return alternative -> samples."""
        return self.jobs.ranks(name, {"overrides": overrides, **task}, timeout_s=self.left_s()).samples

    def train(self, *words: str, stop_when: Callable[[], bool] | None = None) -> "Finished":
        """Run ``./run.sh train``."""
        return self.jobs.run(command_of(Program.TRAIN_VERB, "train", *words), self.left_s(), stop_when)

    def kernels(self, execution: str, cases: Sequence[str]) -> Iterator[BenchRow]:
        """Compute cases as `KERNEL_CASES` describes them; the verdict is that of `ALLOWED_ERROR`."""
        kinds = ["float32", "bfloat16"] if self.options.tiny else list(ALLOWED_ERROR)
        device = "cpu" if self.options.tiny else "gpu"
        task = {"cases": cases, "place": [f"cluster.device={device}", *EXECUTIONS[execution]], "kinds": kinds}
        found = self.jobs.ranks("kernels", task, overrides=self.alone(), timeout_s=self.left_s()).samples
        for name, samples in found.items():
            most = ALLOWED_ERROR[name.rpartition(", ")[2]]
            for row in summarize(f"{name}, {execution}, against float32 on the CPU", samples):
                yield replace(row, verdict="as expected" if row.median <= most else "WRONG")

    def step(self, batch: int, kind: str, execution: str, *, communicates: bool = False) -> Iterator[BenchRow]:
        """Time a step of ``imagenet-b256`` on images in memory."""
        is_tf32 = kind == "TF32"
        sets = self.settings(
            "data.source=synthetic",
            f"batch.global_size={batch}",
            f"cluster.engine.precision={'float32' if is_tf32 else kind}",
            *EXECUTIONS[execution],
            communicates=communicates,
        )
        # cuDNN tries algorithms in the first steps.
        seconds = self.options.seconds
        samples = self.ranks("steps", sets, recipe=_RECIPE, is_tf32=is_tf32, warmup=3, seconds=seconds)
        words = [_RECIPE, f"batch {batch}", kind, *(["sums on one rank"] if communicates else [])]
        words += [execution] if execution != "eager" else []
        yield from summarize(", ".join(words), samples["steps"], 1)

    def profile(self, batch: int) -> Iterator[BenchRow]:
        """Name the kernels of a step of ``imagenet-b256`` that take the longest."""
        precision = f"cluster.engine.precision={self.half}"
        sets = self.settings("data.source=synthetic", f"batch.global_size={batch}", precision)
        for kernel, samples in self.ranks("profile", sets, recipe=_RECIPE, most=20).items():
            yield from summarize(f"batch {batch}, {self.half}: {kernel}", samples)

    def sums(self) -> Iterator[BenchRow]:
        """Time allreduces of one rank, by size."""
        sizes, place = [1 << 20, 1 << 24, 102_228_128], self.alone(communicates=True)
        for size, samples in self.ranks("allreduce", place, cluster="laptop", rounds=5, sizes=sizes).items():
            yield from summarize(f"allreduce of {int(size):,} bytes on one rank", samples, 1)

    def run(self) -> Iterator[BenchRow]:
        """Train on synthetic images, with sums, evaluations and checkpoints; stop the run, and resume it."""
        from logs.folder import RunFolder
        from logs.metrics import METRICS_FILE

        folder, (batch, steps) = self.folder / "run", (8, 60) if self.options.tiny else (256, 1000)
        sets = self.settings(
            "data.source=synthetic",
            f"data.train_samples={10 * batch}",
            f"data.eval_samples={4 * batch}",
            f"batch.global_size={batch}",
            f"cluster.engine.precision={self.half}",
            f"run.max_steps={steps}",
            f"run.epochs={steps}",
            "run.eval_every_epochs=2",
            "run.log_every_steps=5",
            communicates=True,
        )
        metrics = folder / METRICS_FILE

        def evaluations() -> int:
            return metrics.read_bytes().count(b'"evaluation"') if metrics.is_file() else 0

        words = ["imagenet-smoke", "--run-dir", str(folder), *override_words(sets)]
        stopped = self.train(*words, stop_when=lambda: evaluations() > 0)
        if stopped.status != STOPPED_STATUS:
            stopped.check()
            raise MeasurementFailed(f"{folder}: told to stop, ended with exit status {stopped.status}")
        resumed = self.train("--resume", str(folder)).check()
        figures = _figures(RunFolder(folder).summary(), *_OF_A_RUN)
        figures |= {"stop_s": stopped.stop_s, "command_s": resumed.took_s, "evaluations": float(evaluations())}
        yield from summarize(f"a run to {steps} steps on synthetic images, stopped and resumed", [figures])

    def digits(self) -> Iterator[BenchRow]:
        """Train the digits to their target; the verdict says whether they reached it."""
        from logs.folder import RunFolder

        _require_dali("digits")
        folder = self.folder / "digits"
        ended = self.train("digits", "--run-dir", str(folder), *override_words(self.alone(communicates=True)))
        if not RunFolder(folder).has_summary:
            ended.check()
        summary = RunFolder(folder).summary()
        figures = _figures(summary, "top1", "target", "epochs", "run_s")
        for row in summarize("the digits, decoded by NVIDIA DALI", [figures]):
            yield replace(row, verdict="as expected" if summary.status == "success" else "WRONG")

    def decoder(self, name: str, more: Sequence[str]) -> Iterator[BenchRow]:
        """Train ten batches of generated JPEGs that a decoder has read."""
        from configs.load import load_both

        _require_dali(name)
        batch = 8 if self.options.tiny else 128
        sets = self.settings(
            *generated_images(f"bench-gpu-{batch}", 2 * batch),
            f"batch.global_size={batch}",
            f"cluster.engine.precision={self.half}",
            *more,
        )
        self.jobs.pack(*load_both(_RECIPE, "laptop", sets))
        samples = self.ranks("steps", sets, recipe=_RECIPE, reads_images=True, warmup=2, steps=10)
        yield from summarize(f"decoder {name}, steps of batch {batch}", samples["steps"], 2)

    def simulator(self) -> Iterator[BenchRow]:
        """Predict a step, before and after the simulator is given the run's steps."""
        cpu = ["cluster.node.cpu=EPYC 7763"] if self.options.tiny else []  # one whose data sheet is known
        # A CPU's steps in 16 bits are forecast only where they were measured.
        place = self.settings(f"cluster.engine.precision={'float32' if cpu else self.half}", *cpu)
        ask = command_of(Program.SIMULATE_VERB, "simulate", _RECIPE, *override_words(place), "--json")
        learn = command_of(Program.SIMULATE_VERB, "--calibrate", str(self.folder / "run"))
        # The forecasts of this machine must not follow a tiny run.
        for title, command in (("predicted", None), ("predicted after --calibrate", learn))[: 1 if cpu else 2]:
            if command:
                self.jobs.run(command, timeout_s=self.left_s()).check()
            told = json.loads(self.jobs.run(ask, timeout_s=self.left_s()).check().output)
            yield from summarize(f"{_RECIPE}, {title}", [{key: told[key] for key in ("step_s", "images_per_s")}])


def _require_dali(name: str) -> None:
    """Raise MeasurementFailed if NVIDIA DALI is not installed."""
    if not (find_spec("nvidia") and find_spec("nvidia.dali")):
        raise MeasurementFailed(f"{name}: not tried, because NVIDIA DALI is not installed here")


def _figures(summary: "Summary", *names: str) -> dict[str, float]:
    """Return figures of a run's summary, those that it has."""
    found = {name: getattr(summary, name) for name in names}
    return {name: float(value) for name, value in found.items() if value is not None}


def _tasks(bench: _Part) -> Mapping[str, Sequence[Callable[[], Iterator[BenchRow]]]]:
    """Return the measurements of each part, the most wanted first."""
    sizes = (8,) if bench.options.tiny else (256, 32, 128)
    kinds = ("bfloat16", "float32") if bench.options.tiny else ("float16", "bfloat16", "TF32")
    steps = [(size, kind) for kind in kinds for size in sizes]
    # The largest and the smallest batch first, in the two types: a part may end before all are measured.
    by_size = sorted(steps, key=lambda step: (sizes.index(step[0]) > 1, kinds.index(step[1]) > 1))
    decoders = {
        "whole": ["cluster.engine.decoder=whole"],
        "region": ["cluster.engine.decoder=region"],
        "whole, no hardware": ["cluster.engine.decoder=whole", "cluster.engine.hw_decoder_load=0"],
    }
    if bench.options.tiny:
        del decoders["whole, no hardware"]
    kernels = []
    for execution in ["eager"] if bench.options.tiny else EXECUTIONS:
        cases = [name for name, case in KERNEL_CASES.items() if execution in case.executions]
        # A process for each case: a fault of a GPU ends the process. On a CPU, starting it would take most of the time.
        groups = [cases] if bench.options.tiny else [[name] for name in cases]
        kernels += [partial(bench.kernels, execution, group) for group in groups]
    return {
        "kernels": kernels,
        "digits": [bench.digits],
        "steps": [partial(bench.step, *step, "eager") for step in steps],
        "compiled": [partial(bench.step, *step, "compiled") for step in by_size],
        "graph": [
            *(partial(bench.step, *step, "graph") for step in by_size),
            *(partial(bench.step, *step, "compiled, graph") for step in by_size[:2]),
        ],
        "profile": [partial(bench.profile, size) for size in sizes[:2]],
        "nccl": [
            bench.sums,
            *(
                partial(bench.step, size, bench.half, execution, communicates=True)
                for size in sizes
                for execution in ("eager", "graph", "sums between graphs")
            ),
        ],
        "run": [bench.run],
        "decoders": [partial(bench.decoder, name, more) for name, more in decoders.items()],
        "simulator": [bench.simulator],
    }


def _markdown(file: Path) -> str:
    """Return all rows and notes of a file of rows as a table for ``docs/gpu.md``."""
    lines = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]
    head = [
        "| part | measured | figure | median | lowest | highest | n |",
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]
    rows = [
        [line["part"], line["alternative"].replace("|", "&#124;"), f"`{line['figure']}`"]
        + [f"{line[key]:.4g}" for key in ("median", "low", "high")]
        + [str(line["n"])]
        for line in lines
        if "figure" in line
    ]
    notes = [f"- {line['part']}: {line['note']}" for line in lines if "note" in line]
    return "\n".join([*head, *(f"| {' | '.join(row)} |" for row in rows), "", *notes, ""])
