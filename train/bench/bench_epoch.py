"""The time between steps, epochs and evaluations in which the engine is idle, and Python's share of a step."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from configs.programs import Program
from train.bench.measure import Report, interleave, make_report
from train.bench.options import Bench, effort, option
from train.bench.samples import Figures

if TYPE_CHECKING:
    from train.bench.launching import Jobs

_RECIPE = "digits"
_SIDE, _BATCH, _EVAL_EVERY = 32, 32, 2


@dataclass(frozen=True)
class EpochOptions:
    """The options of ``bench epoch``."""

    rounds: int = effort("jobs of each alternative", quick=1, usual=6, thorough=12)
    epochs: int = option("epochs of a job; every second one ends with an evaluation", 4, metavar="N", type=int)


def measure(options: EpochOptions, jobs: "Jobs") -> Report:
    """See `train.bench.options.Bench`."""
    from configs.load import load_both
    from configs.plan import plan_run
    from train.bench.python_step import python_step

    overrides = [
        f"model.image_size={_SIDE}",
        f"run.epochs={options.epochs}",
        f"run.eval_every_epochs={_EVAL_EVERY}",
        f"run.eval_first_epoch={_EVAL_EVERY}",
    ]
    recipe, cluster = load_both(_RECIPE, "laptop", overrides)
    plan_run(recipe, cluster.world_size)  # Refuses a number of epochs that no run can have.
    shape = {"image_size": _SIDE, "batch_size": _BATCH, "epochs": options.epochs, "eval_every": _EVAL_EVERY}
    textbook = {"data": str(jobs.pack(recipe, cluster)), **shape}

    def measure_ours() -> Figures:
        return jobs.ranks(Program.EPOCH_OURS, {"recipe": _RECIPE, "overrides": overrides}).samples["gaps"][0]

    def measure_textbook() -> Figures:
        place = ["cluster.communication.kind=horovod"]
        return jobs.ranks(Program.EPOCH_TEXTBOOK, textbook, overrides=place).samples["gaps"][0]

    rows = interleave({"null network, tensors of ResNet-50": python_step}, n=options.rounds, warmup=1)
    rows += interleave(
        {"ours": measure_ours, "textbook": measure_textbook},
        n=options.rounds,
        reference="textbook",
        compared=["between_epochs_ms"],
    )
    notes = [
        "python_step_ms: the loop with all its parts on a network, an optimizer and arrays that do nothing",
        "between_steps_ms, between_epochs_ms: from the moment a step is queued to the moment the next step has a batch",
        "before_evaluation_ms: from the end of the last step; after_evaluation_ms: until the next step has a batch",
        "all gaps: medians over a job of two ranks, on rank 0; a round is a job of each",
        "ours: digits, 32 images per rank; textbook: the loop of Horovod's example on the same images, a small network",
    ]
    return make_report(rows, notes)


BENCH = Bench(
    "idle time between epochs and around an evaluation, seconds of an evaluation, and Python's share of a step",
    EpochOptions,
    measure,
    needs="mxnet",
    only_here="the gaps between epochs are those of Python on one machine",
)
