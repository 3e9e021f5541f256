"""``python -m logs check RUN|LOG ...``: the official checker's verdict as an exit status."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from configs.errors import UserError
from logs.compliance import find_logs, judge_all


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line.

    Returns:
        0 when every log passes, 1 when one fails, 2 when the arguments are wrong.
    """
    options = _parser().parse_args(arguments)
    try:
        return check(options.paths, options.ruleset)
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2


def check(paths: Sequence[Path], ruleset: str | None) -> int:
    """Print a line for each log and ruleset, and under it the checker's words; give the exit status."""
    pairs = [pair for path in paths for pair in find_logs(path, ruleset)]
    verdicts = judge_all(pairs)
    for (log, _), verdict in zip(pairs, verdicts, strict=True):
        print("PASS" if verdict.passed else "FAIL", verdict.ruleset, log, sep="  ")
        for message in verdict.messages:
            print(f"      {message}")
    return 0 if all(verdict.passed for verdict in verdicts) else 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="./run.sh", description="What a run has written, judged.")
    verbs = parser.add_subparsers(required=True, metavar="VERB")
    verb = verbs.add_parser("check", help="the official MLPerf compliance checker's verdict")
    verb.add_argument("paths", nargs="+", type=Path, metavar="RUN|LOG", help="a run folder, or a log in either dialect")
    verb.add_argument("--ruleset", metavar="R", help="for example 4.0.0; by default each log's own, 4.0.0 or 0.6.0")
    return parser


if __name__ == "__main__":
    sys.exit(main())
