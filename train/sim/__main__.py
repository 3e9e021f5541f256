"""``./run.sh simulate``: predict a run on a described machine, and compare such predictions with measured runs.

The module itself needs only the standard library and `configs.arguments`, so that ``--help`` works before anything is
installed. Every other import comes after the arguments are parsed.
"""

import math
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from configs.arguments import Parser, add_place, add_recipe, exit_status, flag, option, parse
from configs.errors import ConfigError, UserError, near

_DESCRIPTION = "Predict a run on a described machine, and compare such predictions with measured runs."
_EXAMPLES = """\
examples:
  ./run.sh simulate abci-b86016 --cluster abci-v100                   a run, its parts, and the causes of lost time
  ./run.sh simulate abci-b86016 --cluster abci-v100 --as-recorded --round 0.6   the 2019 record
  ./run.sh simulate abci-b86016 --cluster abci-v100 --optimize --deadline 70.4
  ./run.sh simulate --points points.csv --json                        predictions for the rows of a points file
  ./run.sh simulate --validate points.csv                             predicted against measured rates
  ./run.sh simulate --validate points.csv --held-out                  the same by fits that have not seen the row
  ./run.sh simulate --calibrate points.csv                            fit the constants, with held-out errors
  ./run.sh simulate --calibrate runs/digits-20261121-044500           measured steps of this program, on CPU or GPU
  ./run.sh simulate --calibrate-here && ./run.sh simulate digits      a run on this machine
exit status: 0 done, 2 wrong input
"""
_ROUNDS = ("0.5", "0.6", "0.7", "1.0", "1.1", "2.0", "2.1", "3.0", "3.1", "4.0")
"""MLPerf's rounds with ResNet-50."""

_QUESTIONS = ("calibrate_here", "calibrate", "points", "validate", "startup", "optimize")
"""Options of which a command answers one."""
_WITHOUT_RECIPE = _QUESTIONS[:-1]
_NEEDED: dict[str, tuple[str, ...]] = {
    "deadline": ("optimize",),
    "budget": ("optimize",),
    "price": ("recipe",),
    "json": ("recipe", "points"),
    "held_out": ("validate",),
    "out": ("calibrate", "calibrate_here"),
}
"""Option -> those of which it needs one."""
_ALLOWED = {
    "input_rate": "images/s above 0",
    "deadline": "seconds above 0",
    "budget": "accelerator hours above 0",
    "price": "the price of an accelerator hour, 0 or more",
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
    json: bool = option("print JSON instead of text", default=False)
    round: str | None = option(
        "MLPerf round of the software (default: the chip's newest known)", group="the simulated program", metavar="R"
    )
    algorithm: str | None = option("allreduce algorithm (default: by the cluster file)", metavar="A")
    as_recorded: bool = option(
        "the buckets and the allreduce of the program that set a record on this cluster", default=False
    )
    input_rate: float | None = option("images/s of one rank's input pipeline", metavar="X", type=float)
    optimize: bool = option(
        "find the best batch, buckets, algorithm and number of nodes", default=False, group="several forecasts"
    )
    deadline: float | None = option("with --optimize: cheapest run within S seconds", metavar="S", type=float)
    budget: float | None = option("with --optimize: at most H accelerator hours", metavar="H", type=float)
    price: float | None = option("price of an accelerator hour", metavar="P", type=float)
    startup: bool = option("time of the start-up by ranks", default=False)
    points: Path | None = option("predict each row of a points file", group="files", metavar="CSV", type=Path)
    validate: Path | None = option("compare each row's predicted and measured rate", metavar="CSV", type=Path)
    held_out: bool = option("with --validate: predict by fits that have not seen the row (minutes)", default=False)
    calibrate: list[Path] | None = option(
        "folders of runs, whose measured steps are used in all later forecasts on their machines; or a points file, "
        "to which the constants are fitted",
        metavar="PATH",
        type=Path,
        nargs="+",
    )
    calibrate_here: bool = option("measure this machine, for clusters of CPUs", default=False)
    out: Path | None = option("file of the calibration", metavar="FILE", type=Path)

    def __post_init__(self) -> None:
        if self.round is not None and self.round not in _ROUNDS:
            raise ConfigError("--round", self.round, f"one of {', '.join(_ROUNDS)}", near(self.round, _ROUNDS))
        for name, allowed in _ALLOWED.items():
            value = getattr(self, name)
            if value is not None and not (0 < value < math.inf or (value == 0 and name == "price")):
                raise ConfigError(flag(name), value, allowed)
        self._require_one_question()

    def _require_one_question(self) -> None:
        given = {name for name, value in vars(self).items() if value not in (None, False, [])}
        asked = [name for name in _QUESTIONS if name in given]
        if "recipe" in given and set(asked) & set(_WITHOUT_RECIPE):
            asked.append("recipe")
        if len(asked) > 1:
            raise UserError(f"got {' and '.join(map(_flag, asked))}, allowed: one of them at a time")
        for name, needed in _NEEDED.items():
            if name in given and not set(needed) & given:
                raise UserError(f"{_flag(name)}: allowed only together with {' or '.join(map(_flag, needed))}")


def _flag(name: str) -> str:
    return "RECIPE" if name == "recipe" else flag(name)


def make_parser() -> Parser:
    """Return the parser of ``./run.sh simulate``; `configs.arguments.parse` makes `Options` by it."""
    parser = Parser(prog="./run.sh simulate", description=_DESCRIPTION, epilog=_EXAMPLES)
    add_recipe(parser, is_optional=True)
    add_place(parser)
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Answer the command line and return the exit status, see `configs.arguments.exit_status`."""
    return exit_status(lambda: _answer(parse(make_parser(), Options, arguments)))


def _answer(options: Options) -> int:
    from train.sim.answers import answer

    sys.stdout.write(answer(options) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
