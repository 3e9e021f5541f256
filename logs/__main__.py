"""``./run.sh check``, ``report``, ``package`` and ``watch``: judge and show the files that runs have written.

Exit status: 0, 1 if a log, a submission or the watched run fails, 2 for a wrong command line.
"""

import json
import os
import sys
from argparse import ArgumentTypeError
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from configs.arguments import Parser, Style, exit_status, painted, parse, printable
from configs.errors import UserError
from logs.judge.unverified import RETIRED

_SHORTEST_PAUSE_S, _LONGEST_PAUSE_S = 0.1, 3600.0


@dataclass(frozen=True)
class _CheckOptions:
    """The command line of ``./run.sh check``."""

    paths: list[Path]
    ruleset: str | None
    division: str | None
    raw: bool


@dataclass(frozen=True)
class _ReportOptions:
    """The command line of ``./run.sh report``."""

    paths: list[Path]
    out: Path | None
    json: bool
    plot: Path | None
    csv: Path | None
    tensorboard: Path | None


@dataclass(frozen=True)
class _PackageOptions:
    """The command line of ``./run.sh package``."""

    runs: list[Path]
    org: str | None
    out: Path | None
    system_file: Path | None
    field: list[str]
    custom_rcp: Path | None
    make_rcp: Path | None


@dataclass(frozen=True)
class _WatchOptions:
    """The command line of ``./run.sh watch``."""

    run_folder: Path
    every: float
    once: bool
    track: list[str]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one verb and return the exit status, see `configs.arguments.exit_status`.

    Args:
        arguments: The command line, from the verb on. If None, that of this process.
    """
    return exit_status(lambda: _run_verb(list(sys.argv[1:] if arguments is None else arguments)))


def _run_verb(arguments: Sequence[str]) -> int:
    if not arguments or arguments[0] not in _VERBS:
        raise UserError(f"got {' '.join(arguments[:1]) or 'no verb'}, allowed: {', '.join(_VERBS)}")
    parser, options_type, work = _VERBS[arguments[0]]
    return work(parse(parser(), options_type, arguments))


def _check(options: _CheckOptions) -> int:
    """Print a line for each run, log and ruleset, below it each complaint in words; keep the verdicts in run folders.

    A run folder whose log contradicts its other files fails too: the official checker reads the log alone.
    """
    # Imported here, as in the other verbs, so that --help works before anything is installed.
    from logs.folder import CONFIG_FILE, VERDICT_FILE
    from logs.judge.compliance import find_logs, judge_all, keep_verdicts
    from logs.judge.evidence import impossible_times, judge_run
    from logs.read.files import regular_file
    from logs.read.parse import parse_log

    paths = [regular_file(path) for path in options.paths]
    found = {path: find_logs(path, options.ruleset) for path in paths}
    pairs = [pair for logs in found.values() for pair in logs]
    verdicts = dict(zip(pairs, judge_all(pairs, options.division), strict=True))
    has_failed = False
    for path, logs in found.items():
        run = judge_run(path)
        # Without a run's own verdict, or if the user names the rules, every log decides.
        decides = None if run is None or options.ruleset or options.division else run.rulesets
        if run is not None:
            _print_verdict(run.passed, run.kind, path, run.words)
            has_failed |= not run.passed
        for pair in logs:
            verdict = verdicts[pair]
            counts = decides is None or verdict.ruleset in decides
            pairs_of_words = zip(verdict.explained, verdict.messages, strict=True)
            lines = [f"{words}\n  {message}" if options.raw else words for words, message in pairs_of_words]
            if run is not None and not run.passed and not counts:
                lines = []  # Why the log of a run that did not come to its end is incomplete, its own line says.
            _print_verdict(True if verdict.passed else False if counts else None, verdict.ruleset, pair[0], *lines)
            has_failed |= counts and not verdict.passed
        # Other people's run folders may be read-only; the verdict is then only printed.
        is_own = (path / CONFIG_FILE).is_file() and os.access(path, os.W_OK) and not (path / VERDICT_FILE).is_dir()
        if is_own and options.ruleset is None and options.division is None:
            keep_verdicts(path, [(log, verdicts[log, ruleset]) for log, ruleset in logs])
    for log in dict.fromkeys(log for log, _ in pairs):
        if words := impossible_times(parse_log(log)):
            _print_verdict(False, "times", log, words)
            has_failed = True
    return int(has_failed)


def _print_verdict(passed: bool | None, what: str, path: Path, *lines: str) -> None:
    """Print a verdict, and what it rests on; None is shown as dashes: the verdict decides nothing."""
    print(f"{_coloured(passed)}  {what:<5}  {printable(str(path))}")
    for line in lines:
        for each in line.splitlines():
            print(f"      {printable(each)}")


def _coloured(passed: bool | None) -> str:
    """Return PASS, FAIL or dashes, in colour on a terminal."""
    words: dict[bool | None, tuple[str, Style]] = {
        True: ("PASS", "good"),
        False: ("FAIL", "bad"),
        None: ("----", "faint"),
    }
    return painted(*words[passed], sys.stdout)


def _report(options: _ReportOptions) -> int:
    """Write the page, the picture or the curves and print the path, or print the figures as JSON."""
    from logs.show.report import figures_of, write_curves, write_events, write_picture, write_report

    if options.json:
        print(json.dumps(figures_of(options.paths), indent=2, allow_nan=False))
    elif options.plot:
        print(write_picture(options.paths, options.plot))
    elif options.csv:
        print(write_curves(options.paths, options.csv))
    elif options.tensorboard:
        print(write_events(options.paths, options.tensorboard))
    else:
        print(write_report(options.paths, options.out))
    return 0


def _package(options: _PackageOptions) -> int:
    """Write a submission tree and print the verdict of each official tool, or write a set of reference points."""
    from configs.load import ROOT
    from logs.judge.compliance import find_logs
    from logs.judge.package import package
    from logs.judge.rcp import custom_rcps
    from logs.judge.system import read_fields
    from logs.read.parse import parse_log

    if options.make_rcp:
        custom_rcps([parse_log(find_logs(run, "4.0.0")[0][0]) for run in options.runs], options.make_rcp)
        print(options.make_rcp)
        return 0
    if options.org is None:
        raise UserError("--org: got nothing, allowed: the submitter's name; give --org NAME")
    fields = read_fields(options.system_file, options.field)
    destination = options.out or ROOT / "runs" / "packages"
    packaged = package(options.runs, options.org, destination, fields=fields, custom_rcp=options.custom_rcp)
    for finding in packaged.findings:
        words = finding.words or ("",)
        print(f"{_coloured(finding.passed)}  {finding.tool:<18}  {words[0]}".rstrip())
        for line in words[1:]:
            print(f"{'':26}{line}")
    for note in packaged.notes:
        print(note)
    print(packaged.folder if packaged.passed else f"{packaged.folder}: not written, because a check failed")
    return 0 if packaged.passed else 1


def _watch(options: _WatchOptions) -> int:
    """Show a running job's figures until the run ends."""
    from logs.show.watch import watch

    return watch(options.run_folder, sys.stdout, every_s=options.every, once=options.once, trackers=options.track)


def _check_parser() -> Parser:
    words = (
        "Judge runs, and MLPerf logs with the official compliance checker, and explain each complaint. Exit status 0 "
        "if all pass. A run passes if it succeeded and its files agree; as in ./run.sh train, its log decides, too, if "
        "the recipe submits (mlperf.submits), or with --ruleset or --division."
    )
    parser = Parser(prog="./run.sh check", description=words)
    parser.add_argument("paths", nargs="+", type=Path, metavar="RUN|LOG", help="run folders, and logs of any submitter")
    parser.add_argument(
        "--ruleset", metavar="R", help="0.6.0 to 4.0.0 (default: the ruleset that each log was written for)"
    )
    parser.add_argument(
        "--division", choices=("open", "closed"), help="judge by this division's rules (default: the log's division)"
    )
    parser.add_argument("--raw", action="store_true", help="also print the checker's own messages")
    return parser


def _report_parser() -> Parser:
    words = "Write one HTML page that shows one or several runs side by side, with charts. The page needs no network."
    parser = Parser(prog="./run.sh report", description=words)
    parser.add_argument(
        "paths", nargs="+", type=Path, metavar="RUN|LOG", help="run folders, and any submitter's logs, v0.5 to v4.0"
    )
    parser.add_argument(
        "--out",
        type=Path,
        metavar="FILE",
        help="the page (default: report.html, in the run folder if there is only one, otherwise in the current folder)",
    )
    instead = parser.add_mutually_exclusive_group()
    instead.add_argument("--json", action="store_true", help="print each log's figures instead of writing a page")
    instead.add_argument(
        "--plot", type=Path, metavar="FILE", help="draw accuracy and loss by epoch, as SVG or PNG, instead of a page"
    )
    instead.add_argument(
        "--csv", type=Path, metavar="FILE", help="write the curves, one point per line, instead of a page"
    )
    instead.add_argument(
        "--tensorboard",
        type=Path,
        metavar="DIR",
        help="write the curves for TensorBoard (needs ./run.sh setup --extra tensorboard)",
    )
    return parser


def _package_parser() -> Parser:
    words = "Write an MLPerf submission tree from five runs of one recipe, and judge it with the official tools. "
    words += RETIRED
    parser = Parser(prog="./run.sh package", description=words)
    parser.add_argument("runs", nargs="+", type=Path, metavar="RUN", help="five run folders of one recipe")
    parser.add_argument("--org", metavar="NAME", help="name of the submitter, after which the tree is named")
    parser.add_argument("--out", type=Path, metavar="DIR", help="where to write the tree (default: runs/packages)")
    parser.add_argument(
        "--system-file", type=Path, metavar="FILE", help="YAML or JSON file with fields of the system description"
    )
    parser.add_argument(
        "--field",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="one field of the system description; overrides --system-file; repeatable",
    )
    parser.add_argument(
        "--custom-rcp", type=Path, metavar="FILE", help="reference points from --make-rcp, instead of MLPerf's"
    )
    parser.add_argument(
        "--make-rcp",
        type=Path,
        metavar="FILE",
        help="write reference convergence points (RCP) of ten or more runs to FILE instead of a tree",
    )
    return parser


def _watch_parser() -> Parser:
    words = "Show a running job's progress in the terminal until the run ends."
    parser = Parser(prog="./run.sh watch", description=words)
    parser.add_argument("run_folder", type=Path, metavar="RUN", help="a run folder, also one on a network file system")
    parser.add_argument("--every", type=_pause_s, default=2.0, metavar="S", help="seconds between updates (default: 2)")
    parser.add_argument("--once", action="store_true", help="print the progress once and exit")
    parser.add_argument(
        "--track",
        action="append",
        default=[],
        choices=("tensorboard", "wandb", "mlflow"),
        help="also send the run's numbers to this tracker, for example from a login node; repeatable",
    )
    return parser


def _pause_s(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not _SHORTEST_PAUSE_S <= seconds <= _LONGEST_PAUSE_S:
        raise ArgumentTypeError(f"got {text}, allowed: {_SHORTEST_PAUSE_S:g} to {_LONGEST_PAUSE_S:g} seconds")
    return seconds


_VERBS: dict[str, tuple[Callable[[], Parser], type, Callable[[Any], int]]] = {
    "check": (_check_parser, _CheckOptions, _check),
    "report": (_report_parser, _ReportOptions, _report),
    "package": (_package_parser, _PackageOptions, _package),
    "watch": (_watch_parser, _WatchOptions, _watch),
}
"""Verb -> its parser, the type of its options, and the function that does the work."""


if __name__ == "__main__":
    sys.exit(main())
