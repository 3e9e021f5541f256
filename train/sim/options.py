"""The command line of ``./run.sh simulate`` as one typed object, and the combinations that it refuses.

Needs only the standard library and `configs.arguments`, so that ``--help`` works before anything is installed.
"""

import argparse
import math
from dataclasses import dataclass
from pathlib import Path

from configs.arguments import Parser, add_place, add_recipe
from configs.errors import ConfigError, UserError, nearest

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
  ./run.sh simulate --validate points.csv --worth                     what each fitted constant contributes
  ./run.sh simulate --calibrate points.csv                            fit the constants, with held-out errors
  ./run.sh simulate --calibrate runs/digits-20261121-044500           measured steps of this program, on CPU or GPU
  ./run.sh simulate --calibrate-here && ./run.sh simulate digits      a run on this machine
exit status: 0 done, 2 wrong input
"""
_HELD_OUT = ("nested", "row", "campaign", "largest", "larger", "family", "all")
"""The ways of hiding points, `train.sim.fit.heldout.KINDS`, and all of them."""
_ROUNDS = ("0.5", "0.6", "0.7", "1.0", "1.1", "2.0", "2.1", "3.0", "3.1", "4.0")
"""MLPerf's rounds with ResNet-50."""

_QUESTIONS = ("calibrate_here", "calibrate", "points", "validate", "startup", "collectives", "sweep", "optimize")
"""Options of which a command answers one."""
_WITHOUT_RECIPE = _QUESTIONS[:5]
_NEEDED: dict[str, tuple[str, ...]] = {
    "deadline": ("optimize",),
    "budget": ("optimize",),
    "held_out": ("validate",),
    "worth": ("validate",),
    "plot": ("sweep", "optimize", "collectives", "validate"),
    "out": ("calibrate", "calibrate_here", "held_out"),
    "trace": ("recipe",),
}
"""Option -> those of which it needs one."""
_ABOVE_ZERO = {
    "input_rate": "images/s above 0",
    "deadline": "seconds above 0",
    "budget": "accelerator hours above 0",
}


@dataclass(frozen=True)
class Options:
    """The command line of ``./run.sh simulate``.

    Raises:
        UserError: A value makes no sense, two questions are asked at once, or an option would change nothing.
    """

    recipe: str | None
    cluster: str | None
    overrides: list[str]
    json: bool
    round: str | None
    algorithm: str | None
    as_recorded: bool
    input_rate: float | None
    sweep: list[str]
    optimize: bool
    deadline: float | None
    budget: float | None
    price: float | None
    collectives: bool
    startup: bool
    trace: Path | None
    plot: Path | None
    points: Path | None
    validate: Path | None
    held_out: str | None
    worth: bool
    calibrate: list[Path] | None
    calibrate_here: bool
    out: Path | None

    def __post_init__(self) -> None:
        if self.round is not None and self.round not in _ROUNDS:
            raise ConfigError("--round", self.round, f"one of {', '.join(_ROUNDS)}", nearest(self.round, _ROUNDS))
        for name, allowed in _ABOVE_ZERO.items():
            value = getattr(self, name)
            if value is not None and not (math.isfinite(value) and value > 0):
                raise ConfigError(_flag(name), value, allowed)
        if self.price is not None and not (math.isfinite(self.price) and self.price >= 0):
            raise ConfigError("--price", self.price, "the price of an accelerator hour, 0 or more")
        self._require_one_question()
        if self.out is not None and not self.calibrate_here and not self.out.parent.is_dir():
            raise ConfigError("--out", str(self.out), f"a file in a folder that exists, not in {self.out.parent}")

    def _require_one_question(self) -> None:
        given = {name for name, value in vars(self).items() if value not in (None, False, [])}
        asked = [name for name in _QUESTIONS if name in given]
        if "recipe" in given and set(asked) & set(_WITHOUT_RECIPE):
            asked.append("recipe")
        if {"held_out", "worth"} <= given:
            asked = ["held_out", "worth"]
        if len(asked) > 1:
            raise UserError(f"got {' and '.join(map(_flag, asked))}, allowed: one of them at a time")
        for name, needed in _NEEDED.items():
            if name in given and not set(needed) & given:
                raise UserError(f"{_flag(name)}: allowed only together with {' or '.join(map(_flag, needed))}")


def _flag(name: str) -> str:
    return "RECIPE" if name == "recipe" else f"--{name.replace('_', '-')}"


def write_file(option: str, path: Path, text: str, *, makes_folder: bool = False) -> None:
    """Write a file that an option names, as it is.

    Args:
        option: The option, for the error.
        path: The file.
        text: Its content.
        makes_folder: Whether to make its folder, too.

    Raises:
        UserError: The file cannot be written.
    """
    try:
        if makes_folder:
            path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8", newline="")
    except OSError as error:
        raise UserError(f"{path}: cannot be written: {error.strerror}; choose another {option}") from None


def make_parser() -> Parser:
    """Return the parser of ``./run.sh simulate``; `configs.arguments.parse` makes `Options` by it."""
    parser = Parser(
        prog="./run.sh simulate",
        description=_DESCRIPTION,
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add_recipe(parser, is_optional=True)
    add_place(parser)
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
    group = parser.add_argument_group("several forecasts")
    group.add_argument(
        "--sweep",
        metavar="KEY=VALUES",
        action="append",
        default=[],
        help="vary ranks, batch, bucket_bytes, algorithm, nics or uplink_share; repeatable",
    )
    group.add_argument(
        "--optimize", action="store_true", help="find the best batch, buckets, algorithm and number of nodes"
    )
    group.add_argument("--deadline", metavar="S", type=float, help="with --optimize: cheapest run within S seconds")
    group.add_argument("--budget", metavar="H", type=float, help="with --optimize: at most H accelerator hours")
    group.add_argument("--price", metavar="P", type=float, help="price of an accelerator hour")
    group.add_argument("--collectives", action="store_true", help="time of every allreduce by ranks and bytes")
    group.add_argument(
        "--startup", action="store_true", help="time of the start-up by ranks, with seeded or broadcast weights"
    )


def _add_files(parser: Parser) -> None:
    group = parser.add_argument_group("files")
    group.add_argument("--trace", metavar="FILE", type=Path, help="write the step for chrome://tracing")
    group.add_argument("--plot", metavar="FILE", type=Path, help="plot --sweep, --collectives or --validate as PNG")
    group.add_argument("--points", metavar="CSV", type=Path, help="predict each row of a points file")
    group.add_argument("--validate", metavar="CSV", type=Path, help="compare each row's predicted and measured rate")
    group.add_argument(
        "--held-out",
        metavar="KIND",
        choices=_HELD_OUT,
        help=f"with --validate: predict by fits that have not seen the row ({', '.join(_HELD_OUT[:-1])} or all; "
        "minutes)",
    )
    group.add_argument(
        "--worth",
        action="store_true",
        help="with --validate: what each fitted constant contributes, by nested fits without it (minutes)",
    )
    group.add_argument(
        "--calibrate",
        metavar="PATH",
        type=Path,
        nargs="+",
        help="folders of runs, whose measured steps are used in all later forecasts on their machines; or a points "
        "file, to which the constants are fitted",
    )
    group.add_argument("--calibrate-here", action="store_true", help="measure this machine, for clusters of CPUs")
    group.add_argument("--out", metavar="FILE", type=Path, help="file of the calibration, or of the held-out rows")
