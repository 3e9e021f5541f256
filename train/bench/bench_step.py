"""The times of the parts of a training step and of an evaluation, and the fastest form of a network on this CPU."""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from statistics import median
from typing import TYPE_CHECKING

from configs.arguments import option
from configs.errors import UserError
from train.bench.bench_peers import own_forms, own_place, precisions
from train.bench.measure import Bench, PlaceOptions, Report, effort, interleave, is_local_cpu
from train.bench.samples import Figures

if TYPE_CHECKING:
    from configs.schema import Cluster
    from train.bench.launching import Jobs

STEP_CASES = (
    "resnet50:64:16:2x1",
    "resnet50:64:16:1x1",
    "resnet50:64:4:2x1",
    "resnet18:64:16:2x1",
    "resnet20:32:32:2x1",
)
"""What is measured by default, as network:pixels:batch a rank:ranks x threads of each."""
CLUSTER_CASES = ("resnet50:224:32", "resnet50:224:128")
"""What is measured on another cluster than ``laptop``."""

_GIVEN, _RATE = "as given", "images_per_s"


@dataclass(frozen=True)
class StepBench(PlaceOptions, Bench):
    """See `train.bench.measure.Bench`."""

    question = "first step, forward, backward, update, evaluation and images/s, by network and ranks"

    cases: Sequence[str] | None = option(
        "network:pixels:batch a rank, on the cluster's ranks; with :ranks of each machine x threads of each "
        f"(default: {STEP_CASES[0]} and others; on other clusters {' '.join(CLUSTER_CASES)})",
        metavar="CASE",
        nargs="+",
    )
    advise: bool = option(
        "measure the first case in every form that uses the same cores: one process or several, each engine, layout "
        "and precision; and say how to set the fastest",
        False,
    )
    rounds: int = effort("starts of each case", quick=1, usual=6, thorough=12)
    seconds: float = option("seconds of samples of each start", 2.0, metavar="S", type=float)

    def measure(self, jobs: "Jobs") -> Report:
        """See `train.bench.measure.Bench`."""
        if self.advise:
            return self._advice(jobs)
        starts = dict(self._start(case, jobs) for case in self._cases())
        rows = interleave(starts, n=self.rounds)
        notes = [
            "a figure of a start is the median of its steps; forward, backward and update: one after another; step_ms "
            "and images_per_s: as a run queues them",
            "warm_up_ms: the synthetic step of a start-up; first_step_ms: the step after it, the first one of a run",
            "evaluation_ms: inference of a batch, with batch norm folded into the convolutions (fold_ms, once an "
            "evaluation)",
        ]
        return Report(rows, notes)

    def _start(self, case: "_StepCase", jobs: "Jobs") -> tuple[str, Callable[[], Figures]]:
        """Return the title of a case, and the function that starts its ranks and returns the medians of their steps."""
        from configs.load import load_both, load_cluster
        from configs.plan import plan_run

        place = [*self.overrides, *case.place]
        cluster = load_cluster(self.cluster, place)
        images = cluster.world_size * case.batch
        recipe = [
            f"model.name={case.model}",
            f"model.image_size={case.image_size}",
            f"batch.global_size={images}",
            f"data.train_samples={images}",  # an epoch of the recipe's own 32 is no step of many ranks
        ]
        what = {"recipe": "imagenet-smoke", "cluster": self.cluster, "overrides": [*recipe, *place]}
        # A mistake in --set is told before a rank starts.
        plan_run(load_both("imagenet-smoke", self.cluster, [*recipe, *place])[0], cluster.world_size)
        task = {**what, "steps": 2, "seconds": self.seconds, "has_parts": True}

        def start() -> Figures:
            found = jobs.ranks("steps", task).samples
            steps = found["steps"]
            return {**found["start"][0], **{each: median(sample[each] for sample in steps) for each in steps[0]}}

        return case.title(cluster), start

    def _advice(self, jobs: "Jobs") -> Report:
        """Return the images/s of the first case in every form; as notes, what to set for the fastest of each precision.

        Raises:
            UserError: The cluster is not the CPU of one machine.
        """
        from configs.arguments import override_words
        from configs.load import load_cluster

        case, *_ = self._cases()
        given = load_cluster(self.cluster, [*self.overrides, *case.place])
        if not is_local_cpu(given) or given.num_nodes > 1:
            raise UserError(f"--advise: got --cluster {self.cluster}, allowed: the CPU of one machine, such as laptop")
        images = given.world_size * case.batch
        forms = own_forms(given.world_size * given.engine.threads, precisions())

        def rate(bench: StepBench, shaped: _StepCase) -> Figures:
            return {_RATE: bench._start(shaped, jobs)[1]()[_RATE]}

        starts = {_GIVEN: partial(rate, self, case)}
        for title, form in forms.items():
            shaped = _StepCase(case.model, case.image_size, images // form["ranks"])
            starts[title] = partial(rate, replace(self, overrides=[*self.overrides, *own_place(form)]), shaped)
        rows = interleave(starts, n=self.rounds, reference=_GIVEN)
        factors = {row.alternative: row for row in rows if row.figure == f"{_RATE} / {_GIVEN}"}
        notes = [f"{case.title(given)}: {images} images a step in every form"]
        for precision in precisions():
            own = [factors[title] for title in forms if forms[title]["precision"] == precision]
            best = max(own, key=lambda row: row.median)
            words = " ".join(override_words(own_place(forms[best.alternative])))
            notes.append(f"fastest in {precision}, {best.median:.2f} times as fast as given ({best.verdict}): {words}")
        return Report(rows, notes)

    def _cases(self) -> "list[_StepCase]":
        """Return the cases that the options ask for, each once."""
        usual = STEP_CASES if self.cluster == "laptop" else CLUSTER_CASES
        return list(dict.fromkeys(map(_StepCase.read, self.cases or usual)))


@dataclass(frozen=True)
class _StepCase:
    """A network, an image size and a batch a rank; ranks of a machine and threads, if None the cluster's."""

    model: str
    image_size: int
    batch: int
    ranks: int | None = None
    threads: int | None = None

    @classmethod
    def read(cls, text: str) -> "_StepCase":
        """Return the case of a value of ``--cases``.

        Raises:
            UserError: The value has another form than network:pixels:batch, with or without :ranks x threads.
        """
        found = re.fullmatch(r"([^:]+):(\d+):(\d+)(?::(\d+)x(\d+))?", text)
        if found is None:
            allowed = "network:pixels:batch or network:pixels:batch:ranks x threads"
            raise UserError(f"--cases {text}: allowed: {allowed}, as {STEP_CASES[0]}")
        model, *numbers = found.groups()
        return cls(model, *(int(number) for number in numbers if number is not None))

    @property
    def place(self) -> list[str]:
        """The case's own changes of the cluster."""
        own = {"ranks_per_node": self.ranks, "engine.threads": self.threads}
        return [f"cluster.{key}={value}" for key, value in own.items() if value is not None]

    def title(self, cluster: "Cluster") -> str:
        """Return the name of the case in the table."""
        ranks, threads = cluster.world_size, cluster.engine.threads
        workers = f"{ranks} rank{'s' * (ranks > 1)}"
        if cluster.device == "cpu":
            workers += f" of {threads} thread{'s' * (threads > 1)}"
        return f"{self.model}, {self.image_size} px, batch {self.batch}, {workers}"
