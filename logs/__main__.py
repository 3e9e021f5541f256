"""``./run.sh check``, ``report``, ``package`` and ``watch``: judge and show the files that runs have written.

Exit status: 0, 1 if a log, a submission or the watched run fails, 2 for a wrong command line.
"""

import os
import sys
from argparse import ArgumentTypeError
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from configs.arguments import Parser, Style, exit_status, file_name, painted, parse, picture, printable
from configs.errors import UserError
from logs.judge.unverified import RETIRED

_SHORTEST_PAUSE_S, _LONGEST_PAUSE_S = 0.1, 3600.0


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one verb and return the exit status, see `configs.arguments.exit_status`.

    Args:
        arguments: The command line, from the verb on. If None, that of this process.
    """
    return exit_status(lambda: _run_verb(list(sys.argv[1:] if arguments is None else arguments)))


def _run_verb(arguments: Sequence[str]) -> int:
    if not arguments or arguments[0] not in _VERBS:
        raise UserError(f"got {' '.join(arguments[:1]) or 'no verb'}, allowed: {', '.join(_VERBS)}")
    parser, work = _VERBS[arguments[0]]
    return parse(parser(), work, arguments)


def _check(*, paths: list[Path], ruleset: str | None, division: str | None) -> int:
    """Print a line for each run, log and ruleset, below it each complaint; keep the verdicts in run folders.

    A run folder whose log contradicts its other files fails too: the official checker reads the log alone.
    """
    # Imported here, as in the other verbs, so that --help works before anything is installed.
    from logs.folder import CONFIG_FILE, VERDICT_FILE
    from logs.judge.compliance import find_logs, judge_all, keep_verdicts
    from logs.judge.evidence import judge_run, members

    runs = {each: judge_run(each) for path in paths for each in members(path)}
    # A run that failed early, or waits for its job, may have no log; its verdict needs none.
    found = {path: find_logs(path, ruleset, may_lack=run is not None and not run.passed) for path, run in runs.items()}
    pairs = [pair for logs in found.values() for pair in logs]
    verdicts = dict(zip(pairs, judge_all(pairs, division), strict=True))
    has_failed = False
    for path, logs in found.items():
        run = runs[path]
        # Without a run's own verdict, or if the user names the rules, every log decides.
        decides = None if run is None or ruleset or division else run.rulesets
        if run is not None:
            _print_verdict(run.passed, run.kind, path, run.words)
            has_failed |= not run.passed
        for log, own in logs:
            verdict = verdicts[log, own]
            counts = decides is None or verdict.ruleset in decides
            # Why the log of a run that did not come to its end is incomplete, its own line says.
            lines = () if run is not None and not run.passed and not counts else verdict.messages
            passed = True if verdict.passed else False if counts else None
            _print_verdict(passed, verdict.ruleset, log, *lines)
            has_failed |= counts and not verdict.passed
        # Other people's run folders may be read-only; the verdict is then only printed.
        is_own = (path / CONFIG_FILE).is_file() and os.access(path, os.W_OK) and not (path / VERDICT_FILE).is_dir()
        if is_own and ruleset is None and division is None:
            keep_verdicts(path, [(pair[0], verdicts[pair]) for pair in logs])
    return int(has_failed)


def _print_verdict(passed: bool | None, what: str, path: Path, *lines: str) -> None:
    """Print a verdict, and what it rests on; None is shown as dashes: the verdict decides nothing."""
    print(f"{_coloured(passed)}  {what:<5}  {printable(str(path))}")
    for line in lines:
        for each in line.splitlines():
            print(f"      {printable(each)}")


def _coloured(passed: bool | None) -> str:
    """Return PASS, FAIL or dashes, in colour on a terminal."""
    words: tuple[str, Style] = ("----", "faint") if passed is None else ("PASS", "good") if passed else ("FAIL", "bad")
    return painted(*words, sys.stdout)


def _report(**options: Any) -> int:
    """Write the page, the picture or the curves and print the path, or print the figures as JSON."""
    from logs.show.report import report

    print(report(**options))
    return 0


def _package(**options: Any) -> int:
    """Write a submission tree and print the verdict of each official tool."""
    from logs.judge.package import package

    packaged = package(**options)
    for finding in packaged.findings:
        words = finding.words or ("",)
        print(f"{_coloured(finding.passed)}  {finding.tool:<18}  {words[0]}".rstrip())
        for line in words[1:]:
            print(f"{'':26}{line}")
    for note in packaged.notes:
        print(note)
    print(packaged.folder if packaged.passed else f"{packaged.folder}: not written, because a check failed")
    return 0 if packaged.passed else 1


def _watch(*, run_folder: Path, every: float, once: bool, track: list[str]) -> int:
    """Show a running job's figures until the run ends."""
    from logs.show.watch import watch

    return watch(run_folder, sys.stdout, every_s=every, once=once, trackers=track)


def _check_parser() -> Parser:
    words = (
        "Judge runs, and MLPerf logs with the official compliance checker. Exit status 0 if all pass. A run passes if "
        "it succeeded and its files agree; as in ./run.sh train, its log decides, too, if the recipe submits "
        "(mlperf.submits), or with --ruleset or --division."
    )
    parser = Parser(prog="./run.sh check", description=words)
    parser.add_argument("paths", nargs="+", type=Path, metavar="RUN|LOG", help="run folders, and logs of any submitter")
    words = "0.6.0 to 4.0.0 (default: the ruleset that each log was written for)"
    parser.add_argument("--ruleset", metavar="R", help=words)
    words = "judge by this division's rules (default: the log's division)"
    parser.add_argument("--division", choices=("open", "closed"), help=words)
    return parser


def _report_parser() -> Parser:
    words = "Write one HTML page that shows one or several runs side by side, with charts. The page needs no network."
    parser = Parser(prog="./run.sh report", description=words)
    words = "run folders, and any submitter's logs, v0.5 to v4.0"
    parser.add_argument("paths", nargs="+", type=Path, metavar="RUN|LOG", help=words)
    words = "the page (default: report.html, in the run folder if there is only one, otherwise in the current folder)"
    parser.add_argument("--out", type=file_name("", ".html", ".htm"), metavar="FILE", help=words)
    instead = parser.add_mutually_exclusive_group()
    instead.add_argument("--json", action="store_true", help="print each log's figures instead of writing a page")
    words = "draw accuracy and loss by epoch, as SVG or PNG, instead of a page"
    instead.add_argument("--plot", type=picture, metavar="FILE", help=words)
    words = "write the curves, one point per line, instead of a page"
    instead.add_argument("--csv", type=file_name("", ".csv"), metavar="FILE", help=words)
    return parser


def _package_parser() -> Parser:
    words = "Write an MLPerf submission tree from five runs of one recipe, and judge it with the official tools. "
    parser = Parser(prog="./run.sh package", description=words + RETIRED)
    parser.add_argument("runs", nargs="+", type=Path, metavar="RUN", help="five run folders of one recipe")
    words = "name of the submitter, after which the tree is named"
    parser.add_argument("--org", required=True, metavar="NAME", help=words)
    parser.add_argument("--out", type=Path, metavar="DIR", help="where to write the tree (default: runs/packages)")
    words = "YAML or JSON file with fields of the system description"
    parser.add_argument("--system-file", type=Path, metavar="FILE", help=words)
    words = "one field of the system description; overrides --system-file; repeatable"
    parser.add_argument("--field", action="append", default=[], metavar="NAME=VALUE", help=words)
    return parser


def _watch_parser() -> Parser:
    words = "Show a running job's progress in the terminal until the run ends."
    parser = Parser(prog="./run.sh watch", description=words)
    parser.add_argument("run_folder", type=Path, metavar="RUN", help="a run folder, also one on a network file system")
    parser.add_argument("--every", type=_pause_s, default=2.0, metavar="S", help="seconds between updates (default: 2)")
    parser.add_argument("--once", action="store_true", help="print the progress once and exit")
    words = "also send the run's numbers to this tracker, for example from a login node; repeatable"
    choices = ("tensorboard", "wandb", "mlflow")
    parser.add_argument("--track", action="append", default=[], choices=choices, help=words)
    return parser


def _pause_s(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not _SHORTEST_PAUSE_S <= seconds <= _LONGEST_PAUSE_S:
        raise ArgumentTypeError(f"got {text}, allowed: {_SHORTEST_PAUSE_S:g} to {_LONGEST_PAUSE_S:g} seconds")
    return seconds


_VERBS: dict[str, tuple[Callable[[], Parser], Callable[..., int]]] = {
    "check": (_check_parser, _check),
    "report": (_report_parser, _report),
    "package": (_package_parser, _package),
    "watch": (_watch_parser, _watch),
}
"""Verb -> its parser, and the function that does the work, which takes the parser's options."""


if __name__ == "__main__":
    sys.exit(main())
