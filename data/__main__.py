"""``python -m data prepare``: pack or verify a data set. The command behind ``./run.sh prepare``."""

from __future__ import annotations

import argparse
import itertools
import os
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from tqdm import tqdm

from configs.arguments import Parser
from configs.errors import UserError
from data.manifest import load_manifest
from data.prepare import prepare
from data.sources.catalogue import Settings, open_source
from data.verify import verify_dataset

_SHOWN_FINDINGS = 20
_SETTINGS = ("size", "quality", "train", "eval", "classes", "labels", "seed")
_USAGE = "./run.sh prepare SOURCE DEST [options]\n       ./run.sh prepare --verify DEST [--workers N]"
_DESCRIPTION = """\
Pack images into RecordIO files with index, checksums and manifest, or verify a packed data set.

SOURCE is one of
  digits      scikit-learn's 8x8 handwritten digits, enlarged to 32 px; every third for evaluation
  generated   random images of ImageNet's sizes, for trials
  a folder    of train/<class>/*.jpg and val/<class>/*.jpg (bytes kept as they are), or
              of train.csv and val.csv (or .json), tables of file -> any number of labels (file,label|label), or
              of MNIST-style IDX files (train-images-idx3-ubyte, t10k-labels-idx1-ubyte ..., also .gz)
DEST appears when everything is packed; packing the same source again is quick and changes nothing.
"""
_EXAMPLES = """\
examples:
  ./run.sh prepare digits runs/data/digits
  ./run.sh prepare /usr/share/datasets/fashion-mnist runs/data/fashion-mnist   # Debian: dataset-fashion-mnist
  ./run.sh prepare /data/imagenet runs/data/imagenet --workers 32
  ./run.sh prepare generated runs/data/imagenet-smoke --train 64 --eval 16 --classes 1000
  ./run.sh prepare --verify runs/data/digits
exit status: 0 done, 1 --verify found something, 2 wrong input or a full disk, 130 interrupted
"""


def _whole(low: int, high: int) -> Callable[[str], int]:
    def parse(text: str) -> int:
        if not (text.isdecimal() and low <= int(text) <= high):
            raise argparse.ArgumentTypeError(f"got {text!r}, allowed: whole numbers {low} to {high}")
        return int(text)

    return parse


def _parser() -> Parser:
    parser = Parser(
        prog="./run.sh prepare", usage=_USAGE, description=_DESCRIPTION, epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    add = parser.add_argument
    add("source", metavar="SOURCE", nargs="?", help="digits, generated, or a folder")
    add("dest", metavar="DEST", nargs="?", type=Path, help="folder of the data set, to be made")
    add("--verify", metavar="DEST", type=Path, help="read every byte, decode every image; name what is wrong")
    add("--workers", metavar="N", type=_whole(1, 1024), default=os.cpu_count() or 1, help="processes (%(default)s)")
    add(
        "--size",
        metavar="PX",
        type=_whole(8, 1024),
        help="shorter side; digits and idx only grow, tables shrink too",
    )
    add("--quality", metavar="Q", type=_whole(50, 100), help="JPEG quality (95); not for class folders")
    add("--train", metavar="N", type=_whole(1, 10_000_000), help="generated: training images (256); idx: the first N")
    add("--eval", metavar="N", type=_whole(1, 10_000_000), help="generated: evaluation images (64); idx: the first N")
    add("--classes", metavar="K", type=_whole(2, 1_000_000), help="generated: classes (10)")
    add("--labels", metavar="CSV", type=Path, help="idx: table of class -> labels, for several labels an image")
    add("--seed", metavar="S", type=_whole(0, 2**31 - 1), help="training order and generated images (1)")
    return parser


def _parse(arguments: Sequence[str]) -> argparse.Namespace:
    parser = _parser()
    options: argparse.Namespace = parser.parse_args(arguments)
    given = [name for name in _SETTINGS if getattr(options, name) is not None]
    if options.verify is not None and (options.source is not None or given):
        parser.error("--verify takes one folder and --workers, nothing else")
    if options.verify is None and options.dest is None:
        parser.error("SOURCE and DEST are needed, as in: digits runs/data/digits")
    return options


def _prepare(options: argparse.Namespace) -> int:
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


def main(arguments: Sequence[str]) -> int:
    """Run ``prepare`` and give the exit status."""
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


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
