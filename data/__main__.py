"""``python -m data prepare``, the command behind ``./run.sh prepare``: pack or list images, or verify a data set.

``--help`` works before anything is installed: only the standard library and what needs nothing else is imported here.
Every other import comes after the arguments are parsed.
"""

import argparse
import ast
import signal
import sys
import textwrap
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from configs.arguments import Parser, exit_status, parse, printable, whole_number
from configs.errors import UserError
from configs.interrupts import ending_signals
from configs.machine_limits import default_workers
from configs.outputs import guard_outputs
from configs.registry import BUILT_IN_SOURCES, MOST_CLASSES, SOURCES
from configs.table import table

if TYPE_CHECKING:
    from data.manifest import Manifest
    from data.sources.image_source import Source

_ROOT = Path(__file__).parents[1]
_SHOWN_FINDINGS = 20
_SHOWN_CLASSES = 20
_SETTINGS = ("size", "quality", "train", "eval", "classes", "labels", "eval_share", "seed")
_USAGE = """./run.sh prepare SOURCE DEST [options]
       ./run.sh prepare --check SOURCE [options]
       ./run.sh prepare --verify DEST [--workers N]"""
_DESCRIPTION = """\
Pack images into RecordIO files with an index, checksums and a manifest, or verify a data set.

SOURCE is one of
{sources}

Every file is decoded before the first image is packed, and all problems are listed at once (docs/images.md has the
rules); --skip-bad leaves damaged files out. DEST appears only when it is complete. Packing the same source again is
fast and changes nothing. At the end, DEST/recipe.yaml is written, unless it is there: a small network and a schedule
that suit the images.

With --in-place, DEST gets no image, but a list of those in SOURCE, which are read there during training. What is then
different, docs/images.md says.
"""
_EXAMPLES = """\
examples:
  ./run.sh prepare my-images runs/data/mine          # then: ./run.sh train runs/data/mine/recipe.yaml
  ./run.sh prepare digits runs/data/digits
  ./run.sh prepare /usr/share/datasets/fashion-mnist runs/data/fashion-mnist   # Debian: dataset-fashion-mnist
  ./run.sh prepare /data/imagenet runs/data/imagenet --workers 32
  ./run.sh prepare --in-place /data/imagenet runs/data/imagenet
  ./run.sh prepare --check /data/my-images
  ./run.sh prepare generated runs/data/imagenet-smoke --train 64 --eval 16 --classes 1000
  ./run.sh prepare --verify runs/data/digits
exit status: 0 done, 1 --verify or --check found something, 2 wrong input or a full disk, 130 interrupted
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run ``prepare`` and return the exit status, see `configs.arguments.exit_status`."""
    parser = Parser(
        prog="./run.sh prepare",
        usage=_USAGE,
        description=_DESCRIPTION.format(sources=_sources_text()),
        epilog=_EXAMPLES,
    )
    add = parser.add_argument
    add("source", metavar="SOURCE", nargs="?", help=f"{', '.join(BUILT_IN_SOURCES)}, or a folder")
    add("dest", metavar="DEST", nargs="?", type=Path, help="folder of the data set, which is created")
    add("--verify", metavar="DEST", type=Path, help="read every byte, decode every image, and report damage")
    add("--check", metavar="SOURCE", help="pack nothing; list every problem that prevents SOURCE from being packed")
    add("--no-decode", action="store_true", help="do not decode the images before packing; --verify can do so later")
    add("--skip-bad", action="store_true", help="leave out files that are no sound images, and list them in DEST")
    add("--in-place", action="store_true", help="pack nothing: list the images in DEST, to be read where they lie")
    told = "processes (default: %(default)s)"
    add("--workers", metavar="N", type=whole_number(1, 1024), default=default_workers(), help=told)
    add("--no-recipe", action="store_true", help="pack the images, but write no recipe.yaml")
    told = "order of the training images, and choice of those held out (default: 1)"
    add("--seed", metavar="S", type=whole_number(0, 2**31 - 1), help=told)
    group = parser.add_argument_group("options of some sources (see the list above)")
    add = group.add_argument
    add("--size", metavar="PX", type=_size, help="shorter side of the packed images, px; keep: bytes as they are")
    add("--quality", metavar="Q", type=whole_number(50, 100), help="JPEG quality (default: 95)")
    add("--train", metavar="N", type=whole_number(1, 10_000_000), help="number of training images")
    add("--eval", metavar="N", type=whole_number(1, 10_000_000), help="number of evaluation images")
    add("--classes", metavar="K", type=whole_number(2, MOST_CLASSES), help="number of classes")
    told = "share of each class that is held out, where the source has no evaluation part (default: 20)"
    add("--eval-share", metavar="PERCENT", type=whole_number(1, 90), help=told)
    add("--labels", metavar="CSV", type=Path, help="table of class -> labels (class,label|label)")
    return exit_status(lambda: _run(parse(parser, argparse.Namespace, arguments)))


def _run(options: argparse.Namespace) -> int:
    given = {name: value for name in _SETTINGS if (value := getattr(options, name)) is not None}
    names = [name for name in (options.source, options.dest) if name is not None]
    if options.verify is not None:
        if names or given or options.check is not None or options.no_decode or options.skip_bad or options.in_place:
            raise UserError("--verify takes one folder and --workers, nothing else; see ./run.sh prepare --help")
        return _verify(options.verify, options.workers)
    if options.check is not None:
        if names or options.skip_bad or options.in_place:
            told = "--check takes one source, no DEST, no --skip-bad and no --in-place; see ./run.sh prepare --help"
            raise UserError(told)
        return _check(_source(options.check, given), options)
    if not options.source or options.dest is None:
        raise UserError("SOURCE and DEST are needed, as in: digits runs/data/digits; see ./run.sh prepare --help")
    if options.in_place and (options.size or options.quality is not None):
        raise UserError("--in-place reads the images as they are; leave out --size and --quality, or --in-place")
    for ending in ending_signals():  # As Ctrl-C does, they leave nothing behind.
        signal.signal(ending, lambda number, _: sys.exit(128 + number))
    try:
        start = time.monotonic()
        return _prepare(_source(options.source, given | {"in_place": options.in_place}), options, start)
    except KeyboardInterrupt:
        raise KeyboardInterrupt("nothing was left behind") from None


def _sources_text() -> str:
    """Return the docstring of every source's module, read without importing the module."""
    entries = []
    for module in SOURCES.values():
        file = _ROOT.joinpath(*module.split(".")).with_suffix(".py")
        docstring = ast.get_docstring(ast.parse(file.read_text(encoding="utf-8"))) or module
        entries.append("- " + textwrap.indent(docstring.replace("\n\n", "\n"), "  ").strip())
    return "\n".join(entries)


def _size(text: str) -> int:
    """Return the number of pixels of ``--size``; 0 for ``keep``."""
    try:
        return 0 if text == "keep" else whole_number(8, 1024)(text)
    except argparse.ArgumentTypeError as error:
        raise argparse.ArgumentTypeError(f"{error}, or keep") from None


def _source(name: str, settings: Mapping[str, Any]) -> "Source":
    """Open a source, and print what the user should know of it."""
    from data.sources.catalogue import open_source
    from data.sources.image_source import Settings

    source = open_source(name, Settings(**settings))
    for note in source.notes:
        print(f"note: {printable(note)}", file=sys.stderr)
    return source


def _prepare(source: "Source", options: argparse.Namespace, start: float) -> int:
    from data.first_recipe import write_recipe
    from data.prepare import LEFT_OUT_FILE, SourceRefused, prepare

    folder = options.dest
    try:
        manifest, was_there = prepare(
            source,
            folder,
            seed=1 if options.seed is None else options.seed,
            workers=options.workers,
            is_decoded=not options.no_decode,
            skips_bad=options.skip_bad,
        )
    except SourceRefused as refused:
        told = f"{options.source}: {_print_findings(refused.problems, 'problem')}; nothing was packed"
        raise UserError("; ".join(filter(None, (told, refused.remedy)))) from None
    if (listed := folder / LEFT_OUT_FILE).exists():
        lines = listed.read_text(encoding="utf-8").splitlines()
        total = len(lines) + manifest.train.records + manifest.eval.records
        print(f"{listed}: left out of {total:,} images: {_print_findings(lines, 'bad file')}")
    done = "indexed" if options.in_place else "packed"
    _print_counts(folder, manifest, "up to date" if was_there else f"{done} in {time.monotonic() - start:.1f} s")
    if not options.no_recipe:
        path, is_new, command = write_recipe(folder, manifest)
        print(f"{path}: {'written' if is_new else 'kept; remove it to get a new one'}")
        print(f"next: {command}")
    return 0


def _print_counts(folder: Path, manifest: "Manifest", took: str) -> None:
    size_mb = (manifest.train.rec_bytes + manifest.eval.rec_bytes) / 1e6
    names = manifest.class_names
    print(
        f"{folder}: {manifest.train.records:,} training and {manifest.eval.records:,} evaluation images of "
        f"{len(names):,} classes, {size_mb:,.1f} MB, {took}"
    )
    counts = (map("{:,}".format, split.class_counts) for split in (manifest.train, manifest.eval))
    rows = [*zip(map(printable, names), *counts, strict=True)][:_SHOWN_CLASSES]
    print(textwrap.indent(table(rows, ("class", "training", "evaluation")), "  "))
    if len(names) > _SHOWN_CLASSES:
        print(f"  and {len(names) - _SHOWN_CLASSES:,} more classes")


def _check(source: "Source", options: argparse.Namespace) -> int:
    from data.prepare import check_source

    found = check_source(source, workers=options.workers, is_decoded=not options.no_decode)
    if told := _print_findings(found, "problem"):
        print(f"{options.check}: {told}")
        return 1
    images = f"{len(source.train.labels):,} training and {len(source.eval.labels):,} evaluation images"
    print(f"{options.check}: {images} of {len(source.class_names):,} classes can be packed")
    return 0


def _print_findings(findings: Iterable[str], noun: str) -> str:
    """Print the first findings, and return how many there are, in words; empty if there are none."""
    from tqdm import tqdm

    count = 0
    for count, finding in enumerate(findings, start=1):
        if count <= _SHOWN_FINDINGS:
            tqdm.write(printable(finding))
    shown = f", the first {_SHOWN_FINDINGS} shown" if count > _SHOWN_FINDINGS else ""
    return f"{count:,} {noun}{'s' * (count > 1)}{shown}" if count else ""


def _verify(folder: Path, workers: int) -> int:
    from data.manifest import load_manifest
    from data.verify import verify_dataset

    start = time.monotonic()
    if told := _print_findings(verify_dataset(folder, workers=workers), "finding"):
        print(f"{folder}: {told}")
        return 1
    manifest = load_manifest(folder)
    records = manifest.train.records + manifest.eval.records
    print(f"{folder}: all {records:,} records are sound ({time.monotonic() - start:.1f} s)")
    return 0


if __name__ == "__main__":
    guard_outputs(waits_for_reader=True)
    sys.exit(main())
