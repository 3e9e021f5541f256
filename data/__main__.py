"""``python -m data prepare``, the command behind ``./run.sh prepare``: pack a data set, or verify a packed one.

``--help`` works before anything is installed: only the standard library and what needs nothing else is imported here.
Every other import comes after the arguments are parsed.
"""

import argparse
import ast
import itertools
import os
import sys
import textwrap
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from configs.arguments import Parser
from configs.errors import UserError
from configs.registry import BUILT_IN_SOURCES, SOURCES

_ROOT = Path(__file__).parents[1]
_SHOWN_FINDINGS = 20
_SETTINGS = ("size", "quality", "train", "eval", "classes", "labels", "seed")
_USAGE = "./run.sh prepare SOURCE DEST [options]\n       ./run.sh prepare --verify DEST [--workers N]"
_DESCRIPTION = """\
Pack images into RecordIO files with an index, checksums and a manifest, or verify a packed data set.

SOURCE is one of
{sources}

DEST appears when everything is packed. Packing the same source again is quick and changes nothing.
"""
_EXAMPLES = """\
examples:
  ./run.sh prepare digits runs/data/digits
  ./run.sh prepare /usr/share/datasets/fashion-mnist runs/data/fashion-mnist   # Debian: dataset-fashion-mnist
  ./run.sh prepare /data/imagenet runs/data/imagenet --workers 32
  ./run.sh prepare generated runs/data/imagenet-smoke --train 64 --eval 16 --classes 1000
  ./run.sh prepare --verify runs/data/digits
exit status: 0 done, 1 --verify found damage, 2 wrong input or a full disk, 130 interrupted
"""


def main(arguments: Sequence[str]) -> int:
    """Run ``prepare`` and return the exit status."""
    try:
        if not arguments or arguments[0] != "prepare":
            raise UserError(f"python -m data: got {arguments[0] if arguments else ''!r}, allowed: prepare")
        options = _parse(arguments[1:])
        return _prepare(options) if options.verify is None else _verify(options.verify, options.workers)
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("\ninterrupted; nothing was left behind", file=sys.stderr)
        return 130


def _parse(arguments: Sequence[str]) -> argparse.Namespace:
    parser = _parser()
    options: argparse.Namespace = parser.parse_args(arguments)
    given = [name for name in _SETTINGS if getattr(options, name) is not None]
    if options.verify is not None and (options.source is not None or given):
        parser.error("--verify takes one folder and --workers, nothing else")
    if options.verify is None and options.dest is None:
        parser.error("SOURCE and DEST are needed, as in: digits runs/data/digits")
    return options


def _parser() -> Parser:
    parser = Parser(
        prog="./run.sh prepare",
        usage=_USAGE,
        description=_DESCRIPTION.format(sources=_sources_text()),
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    cores = os.cpu_count() or 1
    add("source", metavar="SOURCE", nargs="?", help=f"{', '.join(BUILT_IN_SOURCES)}, or a folder")
    add("dest", metavar="DEST", nargs="?", type=Path, help="folder of the data set; it is made")
    add("--verify", metavar="DEST", type=Path, help="read every byte, decode every image, and name what is damaged")
    add("--workers", metavar="N", type=_whole_number(1, 1024), default=cores, help="processes (default: %(default)s)")
    add("--seed", metavar="S", type=_whole_number(0, 2**31 - 1), help="order of the training images (default: 1)")
    group = parser.add_argument_group("options that only some sources take, as the list above says")
    add = group.add_argument
    add("--size", metavar="PX", type=_whole_number(8, 1024), help="shorter side of the packed images")
    add("--quality", metavar="Q", type=_whole_number(50, 100), help="JPEG quality (default: 95)")
    add("--train", metavar="N", type=_whole_number(1, 10_000_000), help="number of training images")
    add("--eval", metavar="N", type=_whole_number(1, 10_000_000), help="number of evaluation images")
    add("--classes", metavar="K", type=_whole_number(2, 1_000_000), help="number of classes")
    add("--labels", metavar="CSV", type=Path, help="table of class -> labels (class,label|label)")
    return parser


def _sources_text() -> str:
    """Return the docstring of every source's module, read without importing the module."""
    entries = []
    for module in SOURCES.values():
        file = _ROOT.joinpath(*module.split(".")).with_suffix(".py")
        docstring = ast.get_docstring(ast.parse(file.read_text(encoding="utf-8"))) or module
        entries.append("- " + textwrap.indent(docstring.replace("\n\n", "\n"), "  ").strip())
    return "\n".join(entries)


def _whole_number(low: int, high: int) -> Callable[[str], int]:
    """Return a parser of whole numbers from ``low`` to ``high``, for an option."""

    def parse(text: str) -> int:
        if not (text.isdecimal() and low <= int(text) <= high):
            raise argparse.ArgumentTypeError(f"got {text!r}, allowed: whole numbers {low} to {high}")
        return int(text)

    return parse


def _prepare(options: argparse.Namespace) -> int:
    from data.prepare import prepare
    from data.sources.catalogue import open_source
    from data.sources.image_source import Settings

    given = {name: value for name in _SETTINGS if (value := getattr(options, name)) is not None}
    settings = Settings(**given)
    start = time.monotonic()
    done = prepare(open_source(options.source, settings), options.dest, seed=settings.seed, workers=options.workers)
    manifest = done.manifest
    size_mb = (manifest.train.rec_bytes + manifest.eval.rec_bytes) / 1e6
    took = "up to date" if done.was_up_to_date else f"packed in {time.monotonic() - start:.1f} s"
    print(
        f"{options.dest}: {manifest.train.records:,} training and {manifest.eval.records:,} evaluation images of "
        f"{len(manifest.class_names):,} classes, {size_mb:,.1f} MB, {took}"
    )
    return 0


def _verify(folder: Path, workers: int) -> int:
    from tqdm import tqdm

    from data.manifest import load_manifest
    from data.verify import verify_dataset

    start = time.monotonic()
    findings = verify_dataset(folder, workers=workers)
    shown = 0
    for finding in itertools.islice(findings, _SHOWN_FINDINGS):
        tqdm.write(str(finding))
        shown += 1
    if not shown:
        manifest = load_manifest(folder)
        records = manifest.train.records + manifest.eval.records
        print(f"{folder}: all {records:,} records are sound ({time.monotonic() - start:.1f} s)")
        return 0
    hidden = sum(1 for _ in findings)
    print(f"{folder}: {shown + hidden:,} findings" + (f", the first {shown} shown" if hidden else ""))
    return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
