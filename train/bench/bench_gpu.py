"""All that one GPU can tell, in parts of at most eight minutes, from single kernels to whole runs.

Every row goes to a file of JSON lines as soon as it is measured, so that what was measured outlives an end before time.
A part that fails is a note in the same file, and the next part runs.
"""

import itertools
import json
import logging
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import datetime
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from configs.arguments import option, override_words
from configs.programs import Program, command_of
from train.bench.measure import Bench, BenchRow, Report, effort, summarize, surroundings
from train.bench.samples import Figures, MeasurementFailed, read_samples

if TYPE_CHECKING:
    from train.bench.launching import Jobs

logger = logging.getLogger(__name__)

ALLOWED_ERROR: Mapping[str, float] = {"float32": 0.01, "float16": 0.02, "bfloat16": 0.05}
"""Number type -> largest error of any case (`train.bench.programs.gpu.errors`).

On a CPU, bfloat16 is up to 0.037 away, and float32 in another layout up to 0.0012 (AMD EPYC). float16 has three more
bits of fraction than bfloat16.
"""

EXECUTIONS: Mapping[str, Sequence[str]] = {
    "eager": (),
    "graph": ("cluster.engine.cuda_graphs=step",),
    "sums between graphs": ("cluster.engine.cuda_graphs=compute",),
    "fused": ("cluster.engine.batch_norm=fused",),
    "fused, graph": ("cluster.engine.batch_norm=fused", "cluster.engine.cuda_graphs=step"),
    "compiled": ("cluster.engine.compile=true",),
    "compiled, graph": ("cluster.engine.compile=true", "cluster.engine.cuda_graphs=step"),
}
"""Name -> changes of the cluster, by which a step is queued in another way; the most wanted first."""

_SMALL = (
    "model.name=resnet8",
    "model.num_classes=10",
    "model.image_size=32",
    "batch.global_size=32",
    "batch.bn_span=null",
    "data.source=synthetic",
    "data.train_samples=64",
    "data.eval_samples=40",  # The second batch is padded.
    "run.target_top1=null",
    "mlperf.division=open",
    "mlperf.submits=false",
    "cluster.engine.name=torch",
    "cluster.engine.layout=NHWC",
    "cluster.ranks_per_node=1",
    "cluster.communication.kind=torch_distributed",
)
"""A network that is small enough for errors of rounding to stay small, on one rank."""


@dataclass(frozen=True)
class KernelCase:
    """Something that a device computes as the CPU does in float32.

    Attributes:
        recipe: A name in ``configs/recipes``.
        changes: Changes of the recipe and of the cluster ``laptop``, after `_SMALL`.
        lr: The learning rate of the steps.
        kinds: The number types in which the case differs from the others.
        check: What is computed: two steps and two evaluations of a run, or a network of every kind of layer.
    """

    recipe: str = "imagenet-b256"
    changes: tuple[str, ...] = ()
    lr: float = 0.1
    kinds: tuple[str, ...] = tuple(ALLOWED_ERROR)
    check: Literal["steps", "layers"] = "steps"

    @property
    def executions(self) -> list[str]:
        """Return the keys of `EXECUTIONS` that the case is tried in: graphs are made of steps."""
        tried = list(EXECUTIONS) if self.check == "steps" else ["eager", "fused", "compiled"]
        is_nchw = "cluster.engine.layout=NCHW" in self.changes
        return [each for each in tried if not (is_nchw and each.startswith("fused"))]

    @property
    def overrides(self) -> list[str]:
        """Return all changes but those that choose the device and the number type."""
        return [*_SMALL, *self.changes]


KERNEL_CASES: Mapping[str, KernelCase] = {
    "SGD": KernelCase(),
    "NCHW": KernelCase(changes=("cluster.engine.layout=NCHW",)),
    "LARS": KernelCase("mlperf-b3264", lr=10.0),
    # An epsilon as large as gradients, because the division by their size makes errors of rounding large.
    "Adam": KernelCase(changes=("optimizer={name: adam, weight_decay: 1e-4, epsilon: 0.1}",)),
    "sigmoid loss": KernelCase(changes=("loss={kind: sigmoid}",)),
    # Without batch norm, micro-batches add up to the one batch that the CPU takes.
    "micro-batches": KernelCase(
        changes=("model.name=mnist_small_cnn", "model.image_size=28", "batch.accumulation_steps=2")
    ),
    "float32 sums": KernelCase(changes=("cluster.num_nodes=128", "cluster.launcher=mpirun"), kinds=("bfloat16",)),
    "layers": KernelCase(check="layers"),
}
"""Name -> case."""

_ON_GPU = (
    "cluster.engine.input_threads=14",
    "cluster.engine.prefetch_depth=3",
    "cluster.engine.update_groups=1",
    "cluster.communication.bucket_bytes=16777216",
    "cluster.communication.bucket_fraction=0",
)
_RECIPE = "imagenet-b256"
_TINY = ("model.name=resnet8", "model.image_size=16")
_JPEGS = ("cluster.engine.prefetch_depth=5", "cluster.engine.hw_decoder_load=0.99", "cluster.engine.file_access=read")
_CACHE = ("cluster.engine.stick_to_shard=true", f"cluster.engine.decoded_cache_bytes={12 << 30}")

_LONGEST_S = 240.0
"""Seconds that a program with one measurement may take."""

T = TypeVar("T")

Judge = Callable[[BenchRow], bool]
"""Tells whether a row is as it should be."""


@dataclass(frozen=True)
class _Part:
    """The measurements, a method for each part, whose docstring is the question that it answers.

    Attributes:
        options: The bench with its options.
        folder: Takes the runs.
        jobs: Starts programs.
        end: When the part's time is over, a moment of the clock `time.monotonic`.
        measured: Alternatives that have rows already.
        tell: Takes each row, and why something could not be measured.
    """

    options: "GpuBench"
    folder: Path
    jobs: "Jobs"
    end: float
    measured: Collection[str]
    tell: Callable[[BenchRow | str], None]

    def of(self, real: T, tiny: T) -> T:
        """Return what a GPU gets, or what a CPU gets on which everything is only tried."""
        return tiny if self.options.tiny else real

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
        # A GPU computes in NHWC, unless told.
        place = self.of([*_ON_GPU, f"cluster.node.gpu={self.options.gpu}"], ["cluster.engine.layout=NHWC"])
        alone = self.alone(communicates=communicates)
        return [*alone, *place, "mlperf.division=open", *more, *self.of((), _TINY)]

    def alone(self, *, communicates: bool = False) -> list[str]:
        """Return the changes that make a cluster of one rank, with a communicator or without."""
        device, backend = self.of(("gpu", "nccl"), ("cpu", "gloo"))
        words = [f"cluster.device={device}", "cluster.engine.name=torch", "cluster.ranks_per_node=1"]
        if not communicates:
            return [*words, "cluster.communication.kind=none"]
        return [*words, "cluster.communication.kind=torch_distributed", f"cluster.communication.backend={backend}"]

    def tell_all(self, title: str, samples: Sequence[Figures], judge: Judge | None = None) -> None:
        """Tell a row for each figure, with a verdict."""
        for row in summarize(title, samples):
            self.tell(replace(row, verdict="as expected" if judge(row) else "WRONG") if judge else row)

    def ranks(self, name: str, task: Mapping[str, Any], title: str = "{}", place: Sequence[str] = ()) -> None:
        """Start a program on one rank, and tell what it measures; ``title`` has a place for its own title."""
        for own, samples in self.jobs.ranks(name, task, overrides=place, timeout_s=self.left_s()).samples.items():
            self.tell_all(title.format(own), samples)

    def in_turn(
        self, name: str, cases: Mapping[str, Mapping[str, Any]], *, communicates: bool = False,
        judge: Judge | None = None,
    ) -> None:  # fmt: skip
        """Measure cases in one process; if one of them ends it, the next ones are measured in another process."""
        left = {title: task for title, task in cases.items() if title not in self.measured}

        def take(output: str) -> None:
            for title, samples in read_samples(output).items():
                if left.pop(title, None):
                    self.tell_all(title, samples, judge)

        while left:
            self.left_s()
            try:
                place, time_s = self.alone(communicates=communicates), self.end - time.monotonic()
                self.jobs.ranks(name, {"cases": dict(left)}, overrides=place, timeout_s=time_s, tell=take)
            except MeasurementFailed as error:
                self.left_s()
                title = next(iter(left), "after the last case")
                self.tell(f"{title}: {error.short}")
                left.pop(title, None)

    def step(
        self, batch: int, kind: str, execution: str, *more: str, communicates: bool = False
    ) -> tuple[str, dict[str, Any]]:
        """Return the title and the task of a step of ``imagenet-b256`` on images in memory."""
        sets = self.settings(
            "data.source=synthetic",
            f"batch.global_size={batch}",
            f"cluster.engine.precision={kind}",
            *EXECUTIONS[execution],
            *more,
            communicates=communicates,
        )
        words = [_RECIPE, f"batch {batch}", kind, *(["sums on one rank"] if communicates else []), *more]
        words += [execution] if execution != "eager" else []
        # cuDNN tries algorithms in the first steps.
        seconds = self.options.seconds
        task = {"recipe": _RECIPE, "overrides": sets, "warmup": 3, "seconds": seconds}
        return ", ".join(words).replace("cluster.engine.", ""), task

    def timed(self, cases: Iterable[tuple[Any, ...]], *, communicates: bool = False) -> None:
        """Time steps in one process; a case has the batch, the type, the execution, and perhaps further changes."""
        found = dict(self.step(*case, communicates=communicates) for case in cases)
        self.in_turn("steps", found, communicates=communicates)

    @property
    def batches(self) -> Sequence[int]:
        """Return the images of a step, the most wanted first."""
        return self.of((256, 32, 128), (8,))

    @property
    def kinds(self) -> Sequence[str]:
        """Return the number types of steps, the most wanted first; most CPUs have no instructions for 16 bits."""
        return self.of(("float16", "bfloat16", "float32"), ("float32", "bfloat16"))

    def machine(self) -> None:
        """How fast does this GPU copy and multiply, and at which clock?"""
        device, copy_bytes, side = self.of(("cuda", 4 << 30, 8192), ("cpu", 1 << 20, 64))
        task = {"device": device, "copy_bytes": copy_bytes, "side": side}
        self.ranks("gpu.machine", task, place=self.alone())

    def verdict(self) -> None:
        """Does ResNet-50 learn 1,000 classes of JPEGs at 224 px, with a log that the official checker accepts?"""
        network, classes = self.of(("ResNet-50", "1,000"), ("resnet8", "10"))
        sets = [
            *self._images(),
            f"batch.global_size={self.of(400, 16)}",
            "run.max_steps=null",
            f"run.epochs={self.of(16, 12)}",
            "run.target_top1=0.5",
            "run.eval_every_epochs=2",
            "mlperf.submits=true",
            f"cluster.engine.precision={self.kinds[0]}",
            *self.settings(*self.of((*_JPEGS, *_CACHE), ()), communicates=True),  # as h100-node reads
            *self.of((), ("model.image_size=32", "data.eval_resize=36")),
        ]
        self._train_to_target("imagenet-smoke", f"{network} on JPEGs of {classes} generated classes", sets)

    def digits(self) -> None:
        """Do the digits, which NVIDIA DALI decodes, reach their target accuracy on this GPU?"""
        soon = (*_TINY, "run.epochs=2", "run.eval_first_epoch=1", "run.target_top1=0.05")
        sets = [*self.alone(communicates=True), *self.of((), soon)]
        self._train_to_target("digits", "the digits, decoded by NVIDIA DALI", sets)

    def _train_to_target(self, recipe: str, title: str, sets: Sequence[str]) -> None:
        """Train on images that NVIDIA DALI decodes; the verdict says whether the run succeeded, its log too."""
        from logs.folder import RunFolder

        _require_dali(recipe)
        folder = self.folder / recipe
        words = [recipe, "--run-dir", str(folder), *override_words(sets)]
        ended = self.jobs.run(command_of(Program.TRAIN_VERB, "train", *words), self.left_s())
        if not RunFolder(folder).has_summary:
            ended.check()
        summary, figures = RunFolder(folder).summary(), {"command_s": ended.took_s}
        for name in ("top1", "target", "epochs", "run_s", "images_per_s", "input_wait_fraction"):
            if (value := getattr(summary, name)) is not None:
                figures[name] = float(value)
        self.tell_all(title, [figures], lambda _: not ended.status)

    def kernels(self) -> None:
        """Does a step on this GPU compute as float32 does on the CPU, in every type and way to compute it?"""
        # A CPU tries a case of each kind, because tests try all of them there.
        one_of_each = {case.check: name for name, case in KERNEL_CASES.items()}.values()
        kinds = self.of([*ALLOWED_ERROR], ["float32", "bfloat16"])
        place = self.of("cluster.device=gpu", "cluster.device=cpu")
        cases = {
            f"{name}, {execution}, {kind}": {"case": name, "place": [place, *EXECUTIONS[execution]], "kind": kind}
            for execution in self.of([*EXECUTIONS], ["eager"])
            for name in self.of([*KERNEL_CASES], [*one_of_each]) if execution in KERNEL_CASES[name].executions
            for kind in kinds if kind in KERNEL_CASES[name].kinds
        }  # fmt: skip
        self.in_turn(
            "gpu.kernels", cases, judge=lambda row: row.median <= ALLOWED_ERROR[str(cases[row.alternative]["kind"])]
        )

    def profile(self) -> None:
        """In which kernels, and groups of kernels, does a step spend its time, and how many does it launch?"""
        precision = f"cluster.engine.precision={self.kinds[0]}"
        for batch in self.batches[:2]:
            sets = self.settings("data.source=synthetic", f"batch.global_size={batch}", precision)
            task = {"recipe": _RECIPE, "overrides": sets, "most": 20}
            self.ranks("gpu.profile", task, f"batch {batch}, {self.kinds[0]}: {{}}")

    def levers(self) -> None:
        """What do four input channels, batch 400 and fused batch norms gain in a step?"""
        batch, larger = self.of((256, 400), (8, 12))
        changes = ((), ("cluster.engine.batch_norm=fused",), ("model.input_channels=4",))
        self.timed([*((batch, self.kinds[0], "eager", *each) for each in changes), (larger, self.kinds[0], "eager")])

    def compiled(self) -> None:
        """What does torch.compile gain in a step, also as a CUDA graph?"""
        # There may be no time to compile smaller batches than the first one.
        self.timed(itertools.product(self.batches, self.kinds, ("compiled", "compiled, graph")))

    def _images(self) -> list[str]:
        """Return the changes that make generated JPEGs the data set: the same for all parts."""
        train, evaluation, classes = self.of((16_000, 2_000, 1000), (160, 40, 10))
        counts = [f"data.train_samples={train}", f"data.eval_samples={evaluation}", "data.shuffle_buffer=4000"]
        return ["data.source=generated", f"data.name=bench-gpu-{train}", *counts, f"model.num_classes={classes}"]

    def _read(self, batch: int, cases: Mapping[str, Sequence[str]], **task: Any) -> None:
        """Measure cases that read the generated JPEGs: title -> changes of the cluster."""
        from configs.load import load_both

        _require_dali("JPEGs")
        sets = self.settings(*self._images(), f"batch.global_size={batch}", f"cluster.engine.precision={self.kinds[0]}")
        self.jobs.pack(*load_both(_RECIPE, "laptop", sets))
        task = {"recipe": _RECIPE, "reads_images": True, **task}
        self.in_turn("steps", {title: {**task, "overrides": [*sets, *cases[title]]} for title in cases})

    def decoding(self) -> None:
        """How many images/s does NVIDIA DALI decode alone, by decoder, hardware's share, threads and cache?"""
        batch, images = self.of((256, 16_000), (8, 160))
        whole, region = (f"cluster.engine.decoder={name}" for name in ("whole", "region"))
        cases = {
            f"whole, {threads} threads, load {load}": [
                whole, f"cluster.engine.input_threads={threads}", f"cluster.engine.hw_decoder_load={load}",
            ] for threads in (14, 6) for load in (0.99, 0.65, 0.9, 0)
        } | {
            "whole, 14 threads, load 0.99, plain reads": [whole, *_JPEGS],
            "region, 14 threads, load 0.99": [region, *_JPEGS],
        }  # fmt: skip
        task = {"trains": False, "steps": self.of(24, 4), "seconds": self.options.seconds}
        self._read(batch, self.of(cases, {"whole": [whole], "region": [region]}), warmup=8, **task)
        if self.options.tiny:
            self.tell("the hardware decoder, and its share, and a cache: not tried, because a CPU has none")
        else:
            cached = {"whole, all images cached": [whole, *_JPEGS, *_CACHE]}
            self._read(batch, cached, warmup=-(-images // batch), **task)

    def jpegs(self) -> None:
        """What do steps on JPEGs take, launched and as a CUDA graph, and how long does the host wait for images?"""
        batch, warmup, steps, place = self.of((256, 20, 100, [*_JPEGS]), (8, 2, 5, []))
        cases = {f"batch {batch} of JPEGs, {way}": [*place, *EXECUTIONS[way]] for way in ("eager", "graph")}
        self._read(batch, cases, warmup=warmup, steps=steps)

    def steps(self) -> None:
        """How many images/s of imagenet-b256 at 32, 128 and 256 images, in which type? is the plan's memory right?"""
        self.timed(itertools.product(self.batches, self.kinds, ["eager"]))

    def graph(self) -> None:
        """What does a CUDA graph of the whole step gain, so what do launches cost?"""
        self.timed(itertools.product(sorted(self.batches), self.kinds, ["graph"]))

    def nccl(self) -> None:
        """Do NCCL's sums run on one rank, also within a CUDA graph, and what do they cost in a step?"""
        ways = self.of(("eager", "graph", "sums between graphs"), ("graph",))
        self.timed(itertools.product(self.batches, [self.kinds[0]], ways), communicates=True)
        place = {"cluster": "laptop", "overrides": self.alone(communicates=True)}
        task = {**place, "rounds": 5, "sizes": [1 << 20, 1 << 24, 102_228_128]}
        self.ranks("steps.allreduce", task, "allreduce of {} bytes on one rank")


PARTS: Mapping[str, str] = {
    name: str(getattr(_Part, name).__doc__)
    for name in (
        "machine", "verdict", "digits", "kernels", "profile", "levers", "compiled", "decoding", "jpegs",
        "steps", "graph", "nccl",
    )
}  # fmt: skip
"""Part -> the question that it answers; the most wanted first."""


@dataclass(frozen=True)
class GpuBench(Bench):
    """See `train.bench.measure.Bench`."""

    question = "everything on one GPU, in parts of eight minutes: runs, kernels, steps, decoding, NCCL"
    needs = "torch"

    gpu: str = option("name of the GPU in the simulator", "H200", metavar="NAME")
    only: Sequence[str] | None = option(
        f"parts to measure (default: all): {'; '.join(f'{name}: {question}' for name, question in PARTS.items())}",
        metavar="PART",
        nargs="+",
        choices=PARTS,
    )
    minutes: float = option("minutes that a part may take", 8.0, metavar="M", type=float)
    seconds: float = effort("seconds of samples of a step", quick=2.0, usual=10.0, thorough=30.0)
    folder: Path | None = option(  # noqa: RUF009 (it returns a field)
        "folder for rows.jsonl, table.md and the runs (default: runs/bench/gpu-TIME); what has a row there is not "
        "measured again", metavar="DIR", type=Path
    )  # fmt: skip
    tiny: bool = option("try everything at tiny shapes on the CPU", False)

    def measure(self, jobs: "Jobs") -> Report:
        """See `train.bench.measure.Bench`."""
        from configs.load import ROOT
        from logs.disk import write_text
        from logs.metrics import MetricsFollower

        folder = (self.folder or ROOT / "runs" / "bench" / f"gpu-{datetime.now():%Y%m%d-%H%M%S}").absolute()
        folder.mkdir(parents=True, exist_ok=True)
        file = folder / "rows.jsonl"
        lines = MetricsFollower(file).read()
        ended = {line["part"] for line in lines if "ended" in line}
        measured = {line["alternative"] for line in lines if "figure" in line}
        rows: list[BenchRow] = []
        notes = [f"rows as they came: {file}"]

        def keep(*, begin: str = "", **line: Any) -> None:
            with file.open("a", encoding="utf-8") as lines:
                lines.write(f"{begin}{json.dumps(line)}\n")

        def tell(part: str, row: BenchRow | str) -> None:
            if isinstance(row, str):
                notes.append(f"{part}: {row}")
                keep(part=part, note=row)
            else:
                rows.append(row)
                keep(part=part, **asdict(row))

        # A machine that was taken away may have left half a line.
        keep(begin="\n" * bool(lines), **surroundings())
        for part in self.only or PARTS:
            if part in ended:
                continue
            logger.info("%s", part)
            ends = time.monotonic() + 60 * self.minutes
            try:
                getattr(_Part(self, folder, jobs, ends, measured, partial(tell, part)), part)()
                keep(part=part, ended=True)
            except MeasurementFailed as error:
                tell(part, error.short)
        write_text(folder / "table.md", _markdown(MetricsFollower(file).read()))
        return Report(rows, notes)


def _require_dali(name: str) -> None:
    """Raise MeasurementFailed if NVIDIA DALI is not installed."""
    if not (find_spec("nvidia") and find_spec("nvidia.dali")):
        raise MeasurementFailed(f"{name}: not tried, because NVIDIA DALI is not installed here")


def _markdown(lines: Sequence[Mapping[str, Any]]) -> str:
    """Return all rows and notes of a file of rows as a table for ``docs/gpu.md``."""
    rows = [
        [line["part"], line["alternative"].replace("|", "&#124;"), f"`{line['figure']}`"]
        + [f"{line[key]:.4g}" for key in ("median", "low", "high")]
        + [str(line["n"])]
        for line in lines
        if "figure" in line
    ]
    titles = ["part", "measured", "figure", "median", "lowest", "highest", "n"]
    notes = [f"- {line['part']}: {line['note']}" for line in lines if "note" in line]
    table = [titles, ["---"] * len(titles), *rows]
    return "\n".join([*(f"| {' | '.join(row)} |" for row in table), "", *notes, ""])
