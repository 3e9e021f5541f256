"""The benches that ``./run.sh bench`` offers: the question, the module and the options of each.

Imports the standard library only, so that ``--help`` works before anything is installed.
"""

from argparse import ArgumentParser
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

GPU_PARTS = ("steps", "run", "resume", "calibrate", "graphs", "batches")
"""The parts of ``bench gpu``, the most wanted first; ``calibrate`` takes the run of ``run``."""

RACES = ("digits", "fashion-mnist")
"""The recipes that ``bench race`` takes, the quickest first."""

STEP_CASES = (
    "resnet50:64:16:2x1",
    "resnet50:64:16:1x1",
    "resnet50:64:4:2x1",
    "resnet18:64:16:2x1",
    "resnet20:32:32:2x1",
)
"""What ``bench step`` measures by default, as network:pixels:batch a rank:ranks x threads of each."""
CLUSTER_CASES = ("resnet50:224:32", "resnet50:224:128")
"""What it measures on another cluster than ``laptop``."""


@dataclass(frozen=True)
class BenchEntry:
    """A bench, as ``./run.sh bench`` lists it.

    Attributes:
        question: What the bench measures, in one line.
        module: The module with the function ``measure(options)``, which returns a `train.bench.measure.Report`.
        add_options: Adds the options. The defaults answer the question in under six minutes on two cores.
        needs: The engine that the question is about; an environment without it cannot answer.
        only_here: Why the bench takes no ``--cluster``; empty if it takes one.
    """

    question: str
    module: str
    add_options: Callable[[ArgumentParser], None]
    needs: str | None = None
    only_here: str = ""


def _effort_options(
    parser: ArgumentParser,
    what: str,
    *,
    quick: float,
    usual: float | str,
    thorough: float,
    flag: str = "--rounds",
) -> None:
    """Add the options that say how much to measure: a number, or one of two words for it.

    Args:
        parser: The bench's parser.
        what: What the number counts.
        quick: The number for a first impression.
        usual: The number that answers the question in under six minutes on two cores; or, where the bench chooses it,
            words for it.
        thorough: The number for a narrow interval.
        flag: The option that takes the number.
    """
    effort = parser.add_mutually_exclusive_group()
    name, add = flag.strip("-"), effort.add_argument
    kind = type(quick)
    default = None if isinstance(usual, str) else usual
    add(flag, metavar="N" if kind is int else "S", type=kind, default=default, help=f"{what} (default: {usual})")
    for word, number in (("quick", quick), ("thorough", thorough)):
        add(f"--{word}", dest=name, action="store_const", const=number, help=f"{flag} {number}")


def _place_options(parser: ArgumentParser) -> None:
    """Add the options that say where to measure."""
    add = parser.add_argument
    add("--cluster", metavar="C", default="laptop", help="a name in configs/clusters or a YAML file (default: laptop)")
    add(
        "--set",
        dest="overrides",
        metavar="KEY=VALUE",
        action="append",
        default=[],
        help="change a value of the cluster (cluster.num_nodes=2); repeatable",
    )


def _allreduce_options(parser: ArgumentParser) -> None:
    add = parser.add_argument
    _place_options(parser)
    add(
        "--sizes",
        metavar="SIZE",
        nargs="+",
        default=["4K", "64K", "1M", "16M", "64M"],
        help="bytes of a rank's buffer (default: 4K 64K 1M 16M 64M)",
    )
    add("--ranks", metavar="N", type=int, nargs="+", help="ranks (default: 2 4 on this CPU, otherwise the cluster's)")
    add("--routes", metavar="R", nargs="+", help="flat, hierarchical or torus (default: the cluster's)")
    add(
        "--backends",
        metavar="B",
        nargs="+",
        help="gloo, mpi, nccl or shared_memory (default: gloo shared_memory on this CPU, otherwise the cluster's)",
    )
    _effort_options(parser, "starts of each alternative", quick=1, usual=6, thorough=20)


def _epoch_options(parser: ArgumentParser) -> None:
    _effort_options(parser, "jobs of each alternative", quick=1, usual=6, thorough=12)
    parser.add_argument(
        "--epochs",
        metavar="N",
        type=int,
        default=4,
        help="epochs of a job; every second one ends with an evaluation (default: %(default)s)",
    )


def _gpu_options(parser: ArgumentParser) -> None:
    add = parser.add_argument
    add("--gpu", metavar="NAME", default="H200", help="the GPU as the simulator knows it (default: %(default)s)")
    add("--only", metavar="PART", nargs="+", choices=GPU_PARTS, help=f"parts to measure: {', '.join(GPU_PARTS)}")
    add("--skip", metavar="PART", nargs="+", choices=GPU_PARTS, default=[], help="parts to leave out")
    add("--minutes", metavar="M", type=float, default=25, help="after which no measurement begins (default: 25)")
    add("--limit", metavar="S", type=float, default=300, help="seconds that one measurement may take (default: 300)")
    _effort_options(parser, "seconds of samples of a step", quick=2.0, usual=10.0, thorough=30.0, flag="--seconds")
    add("--folder", metavar="DIR", type=Path, help="for rows.jsonl and table.md (default: runs/bench/gpu-TIME)")
    add("--tiny", action="store_true", help="try everything at tiny shapes on the CPU")


def _input_options(parser: ArgumentParser) -> None:
    add = parser.add_argument
    _place_options(parser)
    _effort_options(parser, "rounds that count", quick=1, usual=7, thorough=20)
    add("--image-size", metavar="PX", type=int, default=224, help="side of a crop (default: %(default)s)")
    add("--batches", metavar="N", type=int, default=24, help="batches of 16 images in a round (default: %(default)s)")
    add("--steps", metavar="N", type=int, default=16, help="steps of each training run (default: %(default)s)")


def _overlap_options(parser: ArgumentParser) -> None:
    add = parser.add_argument
    _place_options(parser)
    add(
        "--compute",
        choices=["timed", "real"],
        help="timed: ranks on this CPU wait as long as a described GPU computes; real: ranks train (default: timed; "
        "real on a cluster that is not one machine's CPU)",
    )
    timed = "resnet50, 224 px, batch 42; real: resnet18, 64 px, batch 16"
    add("--model", metavar="M", help=f"a network of train.networks.arch (default: {timed})")
    add("--image-size", metavar="PX", type=int, help="side of an image")
    add("--batch", metavar="N", type=int, help="images a rank")
    add("--described", metavar="C", default="abci-v100", help="timed: the cluster with the GPU (default: %(default)s)")
    add("--ranks", metavar="N", type=int, nargs="+", help="timed: ranks on this machine (default: 2 4 8)")
    _effort_options(parser, "rounds that count", quick=5, usual="timed 15, real 7", thorough=40)
    add("--steps", metavar="N", type=int, help="steps of a sample (default: 1)")
    add(
        "--links",
        metavar="GBPS",
        nargs="*",
        help="Gb/s in each direction. timed: of the described machine, or backward, the speed at which communication "
        "takes as long as backward (default: backward); real: or doubling, the speed at which communication after "
        "backward makes a step take twice as long (default: doubling 1 10; on another cluster, its own network)",
    )
    add("--no-sweep", action="store_true", help="measure the links only, without the other settings")


def _peers_options(parser: ArgumentParser) -> None:
    add = parser.add_argument
    add("--model", metavar="M", default="resnet50", help="name of a network (default: %(default)s)")
    add("--image-size", metavar="PX", type=int, help="side of an image (default: 64, or what the network is made for)")
    add("--batch", metavar="N", type=int, default=16, help="images a rank (default: %(default)s)")
    add("--ranks", metavar="N", type=int, default=2, help="ranks of one thread each (default: %(default)s)")
    _effort_options(parser, "starts of each alternative", quick=1, usual="6; 2 from 128 px on", thorough=12)
    add("--steps", metavar="N", type=int, help="timed steps of each start (default: 4; 1 from 128 px on)")
    add("--gluon", action="store_true", help="also measure Horovod's example with --mode gluon")
    add("--install", action="store_true", help="first install PyTorch into .venv-peers if it is not there")


def _roofline_options(parser: ArgumentParser) -> None:
    add = parser.add_argument
    add("--set", dest="overrides", metavar="KEY=VALUE", action="append", default=[], help="change a value of laptop")
    add("--model", metavar="M", default="resnet50", help="name of a network (default: %(default)s)")
    add(
        "--image-sizes",
        metavar="PX",
        type=int,
        nargs="+",
        default=[64, 224],
        help="sides of an image (default: 64 224)",
    )
    add("--batch", metavar="N", type=int, default=16, help="images a rank (default: %(default)s)")
    _effort_options(parser, "steps of each variant", quick=3, usual=7, thorough=20)


def _race_options(parser: ArgumentParser) -> None:
    add = parser.add_argument
    add("recipe", nargs="?", choices=RACES, default=RACES[0], help=f"{', '.join(RACES)} (default: %(default)s)")
    _effort_options(parser, "seeds of each alternative, 1 to N", quick=1, usual=5, thorough=10, flag="--seeds")
    add("--install", action="store_true", help="first install PyTorch into .venv-peers if it is not there")


def _startup_options(parser: ArgumentParser) -> None:
    add = parser.add_argument
    _place_options(parser)
    _effort_options(parser, "starts of each alternative, after one that does not count", quick=1, usual=6, thorough=15)
    add("--image-size", metavar="PX", type=int, default=64, help="side of an image (default: %(default)s)")
    add("--batch-size", metavar="B", type=int, default=8, help="images a rank (default: %(default)s)")
    add("--ranks", metavar="R", type=int, help="ranks on each machine (default: the cluster's; 2 on laptop)")


def _step_options(parser: ArgumentParser) -> None:
    add = parser.add_argument
    _place_options(parser)
    add(
        "--cases",
        metavar="CASE",
        nargs="+",
        help="network:pixels:batch a rank, on the cluster's ranks; with :ranks of each machine x threads of each; with "
        ":precision after that; or all, every network at every precision that the engine has on the cluster's device, "
        f"for which --quick takes four minutes (default: {STEP_CASES[0]} and others; on other clusters "
        f"{' '.join(CLUSTER_CASES)})",
    )
    _effort_options(parser, "starts of each case", quick=1, usual=6, thorough=12)
    add("--seconds", metavar="S", type=float, default=2, help="seconds of samples of each start (default: %(default)s)")


BENCHES: dict[str, BenchEntry] = {
    "allreduce": BenchEntry(
        "milliseconds and bandwidth of an allreduce by size, ranks, route and library, beside the prediction",
        "train.bench.bench_allreduce",
        _allreduce_options,
    ),
    "epoch": BenchEntry(
        "idle time between epochs and around an evaluation, seconds of an evaluation, and Python's share of a step",
        "train.bench.bench_epoch",
        _epoch_options,
        needs="mxnet",
        only_here="the gaps between epochs are those of Python on one machine",
    ),
    "gpu": BenchEntry(
        "all of one GPU in 25 minutes: steps by precision and batch, graphs, a run, resuming, the simulator",
        "train.bench.bench_gpu",
        _gpu_options,
        needs="torch",
        only_here="it asks one GPU of this machine",
    ),
    "input": BenchEntry(
        "images a second and core of the input pipeline, MXNet's reader and Pillow; the input's share of a step",
        "train.bench.bench_input",
        _input_options,
        needs="mxnet",
    ),
    "overlap": BenchEntry(
        "how much of the communication a step hides behind backward, timed or real, over a link of a set speed",
        "train.bench.bench_overlap",
        _overlap_options,
        needs="mxnet",
    ),
    "peers": BenchEntry(
        "training images/s beside Horovod's own MXNet example, PyTorch's DistributedDataParallel and DataParallel",
        "train.bench.bench_peers",
        _peers_options,
        only_here="the other programs are started on this machine's CPU",
    ),
    "roofline": BenchEntry(
        "where the cores' time of a step goes, by kind of operator, beside the least that the cores allow",
        "train.bench.bench_roofline",
        _roofline_options,
        needs="mxnet",
        only_here="it asks the cores of this machine",
    ),
    "race": BenchEntry(
        "seconds from the command to the accuracy target of a recipe, beside PyTorch, seed by seed",
        "train.bench.bench_race",
        _race_options,
        only_here="the other program is started on this machine's CPU",
    ),
    "startup": BenchEntry(
        "seconds from the command to the first step and what bounds them, beside a script in the usual order",
        "train.bench.bench_startup",
        _startup_options,
        needs="mxnet",
    ),
    "step": BenchEntry(
        "first step, forward, backward, update, evaluation, images/s and share of the peak, by network and ranks",
        "train.bench.bench_step",
        _step_options,
    ),
}
"""Name -> bench."""
