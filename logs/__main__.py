"""The verbs that read what runs have written: check, report, package, watch."""

from __future__ import annotations

import argparse
import json
import signal
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from configs.errors import UserError
from configs.load import ROOT
from logs.judge.compliance import find_logs, judge_all
from logs.judge.explain import explain


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line.

    Returns:
        0 when everything judged passes, 1 when something fails, 2 when the arguments are wrong.
    """
    options = _parser().parse_args(arguments)
    run: Callable[[argparse.Namespace], int] = options.run
    try:
        return run(options)
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        # The reader, a pager or head, has seen enough.
        sys.stderr.close()
        return 1


def check(options: argparse.Namespace) -> int:
    """Print a line for each log and ruleset, under it the checker's words and ours; give the exit status."""
    pairs = [pair for path in options.paths for pair in find_logs(path, options.ruleset)]
    verdicts = judge_all(pairs, options.division)
    for (log, _), verdict in zip(pairs, verdicts, strict=True):
        print("PASS" if verdict.passed else "FAIL", verdict.ruleset, log, sep="  ")
        for message in verdict.messages:
            print(f"      {message}\n        {explain(message)}")
    return 0 if all(verdict.passed for verdict in verdicts) else 1


def report(options: argparse.Namespace) -> int:
    """Write the page, or print the figures as JSON."""
    from logs.show.report import figures_of, write_report  # noqa: PLC0415 (SciPy behind the references: half a second)

    if options.json:
        print(json.dumps(figures_of(options.paths), indent=2, allow_nan=False))
    else:
        print(write_report(options.paths, options.out))
    return 0


def package(options: argparse.Namespace) -> int:
    """Write a submission tree and print what the official tools say of it, or make a reference set of own runs."""
    from logs.judge.package import package as write_package  # noqa: PLC0415
    from logs.judge.rcp import custom_rcps  # noqa: PLC0415
    from logs.judge.system import read_fields  # noqa: PLC0415
    from logs.read.parse import parse_log  # noqa: PLC0415

    if options.make_rcp:
        logs = [find_logs(run, "4.0.0")[0][0] for run in options.runs]
        custom_rcps([parse_log(log) for log in logs], options.make_rcp)
        print(options.make_rcp)
        return 0
    if options.org is None:
        raise UserError("--org: got nothing, allowed: the submitter's name; give --org NAME")
    fields = read_fields(options.system_file, options.field)
    packaged = write_package(options.runs, options.org, options.out, fields=fields, custom_rcp=options.custom_rcp)
    for finding in packaged.findings:
        outcome = {True: "PASS", False: "FAIL", None: "----"}[finding.passed]
        words = finding.words or ("",)
        print(f"{outcome}  {finding.tool:<18}  {words[0]}".rstrip())
        for line in words[1:]:
            print(f"{'':26}{line}")
    print(packaged.folder)
    return 0 if packaged.passed else 1


def watch(options: argparse.Namespace) -> int:
    """Show a running job's figures until it ends."""
    from logs.show.watch import watch as follow  # noqa: PLC0415

    return follow(options.run_folder, sys.stdout, every_s=options.every, once=options.once)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="./run.sh", description="What a run has written, judged and shown.")
    verbs = parser.add_subparsers(required=True, metavar="VERB")
    _add_check(verbs)
    _add_report(verbs)
    _add_package(verbs)
    verb = verbs.add_parser("watch", help="a running job's figures, live in the terminal")
    verb.add_argument("run_folder", type=Path, metavar="RUN", help="a run's folder, also on another machine's disk")
    verb.add_argument("--every", type=_seconds, default=2.0, metavar="S", help="seconds between looks (default: 2)")
    verb.add_argument("--once", action="store_true", help="look once and leave")
    verb.set_defaults(run=watch)
    return parser


def _add_check(verbs: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    verb = verbs.add_parser("check", help="the official MLPerf compliance checker's verdict")
    verb.add_argument("paths", nargs="+", type=Path, metavar="RUN|LOG", help="a run folder, or a log in either dialect")
    verb.add_argument("--ruleset", metavar="R", help="0.6.0 to 4.0.0; by default the one that each log was written for")
    verb.add_argument("--division", choices=("open", "closed"), help="judge as this one; by default as the log says")
    verb.set_defaults(run=check)


def _add_report(verbs: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    verb = verbs.add_parser("report", help="one HTML page of one or several runs, ours or anybody's")
    verb.add_argument(
        "paths", nargs="+", type=Path, metavar="RUN|LOG", help="run folders, and logs of rounds v0.5 to v4.0"
    )
    verb.add_argument(
        "--out", type=Path, metavar="FILE", help="default: report.html in a single run's folder, else here"
    )
    verb.add_argument("--json", action="store_true", help="print each log's figures instead of writing a page")
    verb.set_defaults(run=report)


def _add_package(verbs: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    verb = verbs.add_parser("package", help="a submission tree from five runs, judged by the official tools")
    verb.add_argument("runs", nargs="+", type=Path, metavar="RUN", help="five folders of runs of one recipe")
    verb.add_argument("--org", metavar="NAME", help="the submitter; names the tree")
    verb.add_argument(
        "--out", type=Path, default=ROOT / "runs" / "packages", metavar="DIR", help="where the tree is written"
    )
    verb.add_argument("--system-file", type=Path, metavar="FILE", help="fields of the system description, YAML or JSON")
    verb.add_argument("--field", action="append", default=[], metavar="NAME=VALUE", help="one such field; repeatable")
    verb.add_argument("--custom-rcp", type=Path, metavar="FILE", help="reference points of one's own")
    verb.add_argument("--make-rcp", type=Path, metavar="FILE", help="make those from ten or more runs, and no package")
    verb.set_defaults(run=package)


def _seconds(text: str) -> float:
    seconds = float(text)
    if not 0.1 <= seconds <= 3600:  # noqa: PLR2004 (s)
        raise argparse.ArgumentTypeError(f"got {text}, allowed: 0.1 to 3600 seconds")
    return seconds


if __name__ == "__main__":
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # "... --json | head" ends it, without a word
    sys.exit(main())
