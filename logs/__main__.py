"""``./run.sh check``, ``report``, ``package`` and ``watch``: judge and show the files that runs have written.

Exit status: 0, 1 if a log, a submission or the watched run fails, 2 for a wrong command line.
"""

from __future__ import annotations

import json
import math
import os
import signal
import sys
from argparse import ArgumentTypeError, Namespace, _SubParsersAction
from collections.abc import Callable, Sequence
from pathlib import Path

from configs.arguments import Parser, Style, painted, printable
from configs.errors import UserError

_SHORTEST_PAUSE_S, _LONGEST_PAUSE_S = 0.1, 3600.0


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one verb.

    Args:
        arguments: The words of the command line, from the verb on. If None, the process's own.

    Returns:
        The exit status: 0, 1 if a log, a submission or the watched run fails, 2 for a wrong command line, 130 after
        Ctrl-C.
    """
    try:
        options = _parser().parse_args(arguments)
        run: Callable[[Namespace], int] = options.run
        return run(options)
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        # The program that reads the output, as `head` or a pager, has ended. Closing stderr keeps Python from
        # reporting the broken pipe once more at exit.
        sys.stderr.close()
        return 1


def _check(options: Namespace) -> int:
    """Print a line for each log and ruleset, below it each complaint in words; keep the verdicts in run folders.

    A run folder whose log contradicts its summary or its metrics fails too: the official checker reads the log alone.
    """
    # Imported here, as in the other verbs, so that --help works before anything is installed.
    from logs.folder import CONFIG_FILE
    from logs.judge.compliance import VERDICT_FILE, find_logs, judge_all, keep_verdicts
    from logs.judge.explain import explain
    from logs.read.files import regular_file

    paths = [regular_file(path) for path in options.paths]
    pairs = [pair for path in paths for pair in find_logs(path, options.ruleset)]
    verdicts = judge_all(pairs, options.division)
    for (log, _), verdict in zip(pairs, verdicts, strict=True):
        print(f"{_coloured(verdict.passed)}  {verdict.ruleset}  {printable(str(log))}")
        for message in verdict.messages:
            print(f"      {printable(explain(message))}")
            if options.raw:
                print(f"        {printable(message)}")
    if options.ruleset is None and options.division is None:
        judged = [(log, verdict) for (log, _), verdict in zip(pairs, verdicts, strict=True)]
        for path in paths:
            # Other people's run folders may be read-only; the verdict is then only printed.
            if (path / CONFIG_FILE).is_file() and os.access(path, os.W_OK) and not (path / VERDICT_FILE).is_dir():
                keep_verdicts(path, judged)
    agree = [_files_agree(path) for path in paths]
    possible = [_times_are_possible(log) for log in dict.fromkeys(log for log, _ in pairs)]
    return 0 if all(verdict.passed for verdict in verdicts) and all(agree + possible) else 1


def _times_are_possible(log: Path) -> bool:
    """Return whether the times of a log can be true, which the official checker does not ask; print why not."""
    from logs.judge.eligible import impossible_times
    from logs.read.parse import parse_log

    words = impossible_times(parse_log(log))
    if words:
        print(f"{_coloured(False)}  times  {printable(str(log))}\n      {words}")
    return not words


def _files_agree(path: Path) -> bool:
    """Return whether the files of a run folder agree; print how they do not, or which one is missing or damaged."""
    from logs.judge.evidence import flaw_of

    flaw = flaw_of(path)
    if flaw:
        print(f"{_coloured(False)}  files  {printable(str(path))}\n      {printable(flaw.words)}")
    return not flaw


def _coloured(passed: bool | None) -> str:
    """Return PASS, FAIL or dashes, in colour on a terminal."""
    words: dict[bool | None, tuple[str, Style]] = {
        True: ("PASS", "good"),
        False: ("FAIL", "bad"),
        None: ("----", "faint"),
    }
    return painted(*words[passed], sys.stdout)


def _report(options: Namespace) -> int:
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


def _package(options: Namespace) -> int:
    """Write a submission tree and print the verdict of each official tool, or write a set of reference points."""
    from configs.load import ROOT
    from logs.judge.package import package
    from logs.judge.system import read_fields

    if options.make_rcp:
        return _make_reference_points(options.runs, options.make_rcp)
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
    print(packaged.folder if packaged.passed else f"{packaged.folder}: not written, because a check failed")
    return 0 if packaged.passed else 1


def _make_reference_points(runs: Sequence[Path], destination: Path) -> int:
    from logs.judge.compliance import find_logs
    from logs.judge.rcp import custom_rcps
    from logs.read.parse import parse_log

    custom_rcps([parse_log(find_logs(run, "4.0.0")[0][0]) for run in runs], destination)
    print(destination)
    return 0


def _watch(options: Namespace) -> int:
    """Show a running job's figures until the run ends."""
    from logs.show.watch import watch

    return watch(options.run_folder, sys.stdout, every_s=options.every, once=options.once)


def _parser() -> Parser:
    parser = Parser(prog="./run.sh", description="Judge and show the files that runs have written.")
    verbs = parser.add_subparsers(required=True, metavar="VERB")
    _add_check(verbs)
    _add_report(verbs)
    _add_package(verbs)
    verb = verbs.add_parser(
        "watch",
        description="Show a running job's progress in the terminal until the run ends.",
        help="a running job's progress, live in the terminal",
    )
    verb.add_argument("run_folder", type=Path, metavar="RUN", help="a run folder, also one on a network file system")
    verb.add_argument("--every", type=_pause_s, default=2.0, metavar="S", help="seconds between updates (default: 2)")
    verb.add_argument("--once", action="store_true", help="print the progress once and exit")
    verb.set_defaults(run=_watch)
    return parser


def _add_check(verbs: _SubParsersAction[Parser]) -> None:
    words = "Judge MLPerf logs with the official compliance checker, and explain each complaint."
    verb = verbs.add_parser("check", help="the official MLPerf compliance checker's verdict", description=words)
    verb.add_argument("paths", nargs="+", type=Path, metavar="RUN|LOG", help="run folders, and logs of any submitter")
    verb.add_argument(
        "--ruleset", metavar="R", help="0.6.0 to 4.0.0 (default: the ruleset that each log was written for)"
    )
    verb.add_argument(
        "--division", choices=("open", "closed"), help="judge by this division's rules (default: the log's division)"
    )
    verb.add_argument("--raw", action="store_true", help="print the checker's own words too")
    verb.set_defaults(run=_check)


def _add_report(verbs: _SubParsersAction[Parser]) -> None:
    words = "Write one HTML page that shows one or several runs side by side, with charts. The page needs no network."
    verb = verbs.add_parser("report", help="one HTML page of one or several runs", description=words)
    verb.add_argument(
        "paths", nargs="+", type=Path, metavar="RUN|LOG", help="run folders, and any submitter's logs, v0.5 to v4.0"
    )
    verb.add_argument(
        "--out",
        type=Path,
        metavar="FILE",
        help="the page (default: report.html, in the run folder if there is only one, otherwise in this folder)",
    )
    instead = verb.add_mutually_exclusive_group()
    instead.add_argument("--json", action="store_true", help="print each log's figures instead of writing a page")
    instead.add_argument(
        "--plot", type=Path, metavar="FILE", help="draw accuracy and loss by epoch, as SVG or PNG, instead of a page"
    )
    instead.add_argument("--csv", type=Path, metavar="FILE", help="write the curves, a point a line, instead of a page")
    instead.add_argument(
        "--tensorboard",
        type=Path,
        metavar="DIR",
        help="write the curves for TensorBoard (needs ./run.sh setup --extra tensorboard)",
    )
    verb.set_defaults(run=_report)


def _add_package(verbs: _SubParsersAction[Parser]) -> None:
    words = "Write an MLPerf submission tree from five runs of one recipe, and judge it with the official tools."
    verb = verbs.add_parser("package", help="a submission tree from five runs", description=words)
    verb.add_argument("runs", nargs="+", type=Path, metavar="RUN", help="five run folders of one recipe")
    verb.add_argument("--org", metavar="NAME", help="the submitter, who names the tree")
    verb.add_argument("--out", type=Path, metavar="DIR", help="where to write the tree (default: runs/packages)")
    verb.add_argument(
        "--system-file", type=Path, metavar="FILE", help="YAML or JSON file with fields of the system description"
    )
    verb.add_argument(
        "--field",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="one field of the system description, which replaces the file's; repeatable",
    )
    verb.add_argument(
        "--custom-rcp", type=Path, metavar="FILE", help="reference points from --make-rcp, in place of MLPerf's"
    )
    verb.add_argument(
        "--make-rcp",
        type=Path,
        metavar="FILE",
        help="write reference points (RCP) from ten or more runs into FILE, and no tree",
    )
    verb.set_defaults(run=_package)


def _pause_s(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = math.nan
    if not _SHORTEST_PAUSE_S <= seconds <= _LONGEST_PAUSE_S:
        raise ArgumentTypeError(f"got {text}, allowed: {_SHORTEST_PAUSE_S:g} to {_LONGEST_PAUSE_S:g} seconds")
    return seconds


if __name__ == "__main__":
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # `./run.sh report --json RUN | head` ends silently
    sys.exit(main())
