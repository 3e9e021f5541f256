"""``./run.sh simulate``: predict a run on a described machine, and compare such predictions with measured runs.

The module itself needs only the standard library and `configs.arguments`, so that ``--help`` works before anything is
installed. Every other import comes after the arguments are parsed.
"""

import argparse
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

from configs.arguments import Parser
from configs.errors import UserError
from train.sim.fit.hiding import KINDS

_DESCRIPTION = "Predict a run on a described machine, and compare such predictions with measured runs."
_EXAMPLES = """\
examples:
  ./run.sh simulate abci-b86016 --cluster abci-v100                   a run, its parts, and the causes of lost time
  ./run.sh simulate abci-b86016 --cluster abci-v100 --as-recorded --round 0.6   the 2019 record
  ./run.sh simulate abci-b86016 --cluster abci-v100 --sweep ranks=64..4096/100 --json
  ./run.sh simulate abci-b86016 --cluster abci-v100 --optimize --deadline 70.4
  ./run.sh simulate abci-b86016 --cluster abci-v100 --collectives     the fastest allreduce by ranks and bytes
  ./run.sh simulate --points points.csv --json                        predictions for the rows of a points file
  ./run.sh simulate --validate points.csv                             predicted against measured rates
  ./run.sh simulate --validate points.csv --held-out largest          the same by fits that have not seen the row
  ./run.sh simulate --validate points.csv --worth                     what each fitted constant buys
  ./run.sh simulate --calibrate points.csv                            fit the constants, with held-out errors
  ./run.sh simulate --calibrate runs/digits-20261121-044500           measured steps of this program, on CPU or GPU
  ./run.sh simulate --calibrate-here && ./run.sh simulate digits      a run on this machine
exit status: 0 done, 2 wrong input
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Answer the command line.

    Args:
        arguments: The words after ``./run.sh``; the first one may be the verb ``simulate``. If None, `sys.argv` holds
            them.

    Returns:
        The exit status: 0, 2 if the input is wrong, or 130 if interrupted.
    """
    words = list(sys.argv[1:] if arguments is None else arguments)
    try:
        options = _parser().parse_args(words[words[:1] == ["simulate"] :])
        from train.sim.simulate import answer

        sys.stdout.write(answer(options) + "\n")
    except UserError as error:
        sys.stderr.write(f"error: {error}\n")
        return 2
    except KeyboardInterrupt:
        return 130
    return 0


def _parser() -> Parser:
    parser = Parser(
        prog="./run.sh simulate",
        description=_DESCRIPTION,
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("recipe", metavar="RECIPE", nargs="?", help="a name in configs/recipes or a YAML file")
    parser.add_argument("--cluster", metavar="C", help="a name in configs/clusters or a YAML file (default: laptop)")
    parser.add_argument(
        "--set",
        metavar="KEY=VALUE",
        dest="overrides",
        action="append",
        default=[],
        help="change a value of the recipe or, as cluster.KEY=VALUE, of the cluster; repeatable",
    )
    parser.add_argument("--json", action="store_true", help="print JSON instead of text")
    _add_software(parser)
    _add_several_forecasts(parser)
    _add_files(parser)
    return parser


def _add_software(parser: Parser) -> None:
    group = parser.add_argument_group("the simulated program")
    group.add_argument("--round", metavar="R", help="MLPerf round of the software (default: the chip's newest known)")
    group.add_argument("--algorithm", metavar="A", help="allreduce algorithm (default: by the cluster file)")
    group.add_argument(
        "--as-recorded",
        action="store_true",
        help="the buckets and the allreduce of the program that set a record on this cluster",
    )
    group.add_argument("--input-rate", metavar="X", type=float, help="images/s of one rank's input pipeline")


def _add_several_forecasts(parser: Parser) -> None:
    group = parser.add_argument_group("more than one forecast")
    group.add_argument(
        "--sweep",
        metavar="KEY=VALUES",
        action="append",
        default=[],
        help="vary ranks, batch, bucket_bytes, algorithm, nics or uplink_share; repeatable",
    )
    group.add_argument("--optimize", action="store_true", help="best batch, buckets, algorithm and number of nodes")
    group.add_argument("--deadline", metavar="S", type=float, help="with --optimize: cheapest run within S seconds")
    group.add_argument("--budget", metavar="H", type=float, help="with --optimize: at most H accelerator hours")
    group.add_argument("--price", metavar="P", type=float, help="price of an accelerator hour")
    group.add_argument("--collectives", action="store_true", help="time of every allreduce by ranks and bytes")
    group.add_argument("--startup", action="store_true", help="start-up by ranks, with seeded or broadcast weights")


def _add_files(parser: Parser) -> None:
    group = parser.add_argument_group("files")
    group.add_argument("--trace", metavar="FILE", type=Path, help="write the step for chrome://tracing")
    group.add_argument("--plot", metavar="FILE", type=Path, help="plot --sweep, --collectives or --validate as PNG")
    group.add_argument("--points", metavar="CSV", type=Path, help="predict each row of a points file")
    group.add_argument("--validate", metavar="CSV", type=Path, help="compare each row's predicted and measured rate")
    group.add_argument(
        "--held-out",
        metavar="KIND",
        choices=[*KINDS, "all"],
        help=f"with --validate: predict by fits that have not seen the row ({', '.join(KINDS)} or all; minutes)",
    )
    group.add_argument(
        "--worth",
        action="store_true",
        help="with --validate: what each fitted constant buys, by nested fits without it (minutes)",
    )
    group.add_argument(
        "--calibrate",
        metavar="PATH",
        type=Path,
        nargs="+",
        help="folders of runs: their measured steps rule all later forecasts on their machines; or a points file: fit "
        "the constants to it",
    )
    group.add_argument("--calibrate-here", action="store_true", help="measure this machine, for clusters of CPUs")
    group.add_argument("--out", metavar="FILE", type=Path, help="file of the calibration, or of the held-out rows")


if __name__ == "__main__":
    # "./run.sh simulate ... --json | head" ends quietly when head closes the pipe.
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    sys.exit(main())
