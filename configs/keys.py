"""``./run.sh keys``: list every key of recipe, cluster and study files, or print their JSON Schema.

This module itself needs only the standard library, so that ``--help`` works before anything is installed. The schema is
imported after the arguments are parsed.
"""

from __future__ import annotations

import json
import re
import sys
import textwrap
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from configs.arguments import Parser, exit_status, parse
from configs.errors import UserError, nearest
from configs.synonyms import synonym

if TYPE_CHECKING:
    from configs.json_schema import Block, Key


_WIDTH = 100
_HEADS = ("KEY", "TYPE AND RANGE", "UNIT", "DEFAULT")
_FILES = {
    "recipe": "configs/recipes/*.yaml, and --set KEY=VALUE",
    "cluster": "configs/clusters/*.yaml (without the prefix cluster.), and --set KEY=VALUE",
    "study": "configs/studies/*.yaml (without the prefix study.)",
}
_EPILOG = """\
In the listing, NAME stands for a free name and N for a position in a list.

With the JSON Schema (draft 7), an editor that has yaml-language-server (VS Code: the extension
YAML) completes keys and marks mistakes. Write the schema of recipe, cluster or study beside your
file:

  ./run.sh keys recipe --json > recipe.schema.json

and begin the file with the path to the schema:

  # yaml-language-server: $schema=recipe.schema.json

The schema knows types, ranges and required keys. ./run.sh plan also checks what must agree between
keys. Editors read numbers by YAML 1.2: 5e-5 and 1e6 are numbers, 1_000 is a text."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the keys and return the exit status, see `configs.arguments.exit_status`."""
    parser = Parser(
        prog="./run.sh keys",
        description="List every key of recipe, cluster and study files: type, range, unit, default and meaning.",
        epilog=_EPILOG,
    )
    words = (
        "recipe, cluster, study, a block (model, cluster.communication), a key (run.epochs), or a word to look for in "
        "names and descriptions (lr, momentum); default: all keys"
    )
    parser.add_argument("block", metavar="BLOCK", nargs="?", help=words)
    parser.add_argument(
        "--json",
        dest="as_json",
        action="store_true",
        help="print the JSON Schema of such a file, or of any",
    )
    return exit_status(lambda: parse(parser, _print_keys, arguments))


def _print_keys(block: str | None, *, as_json: bool) -> int:
    if as_json:
        sys.stdout.write(_json(block))
    else:
        found = _find(block).items()
        sys.stdout.write("\n".join(f"{kind}: {_FILES[kind]}\n\n{_listing(blocks)}" for kind, blocks in found))
    return 0


def _json(wanted: str | None) -> str:
    """Return the JSON Schema of a kind of file; if None, of any file."""
    from configs.json_schema import KINDS, json_schema

    if wanted not in (None, *KINDS):
        raise UserError(f"{wanted}: --json prints the schema of a whole file: {', '.join(KINDS)}, or of any of them")
    return json.dumps(json_schema(wanted), indent=2) + "\n"


def _find(wanted: str | None) -> dict[str, Sequence[Block]]:
    """Return the blocks at and below a dotted path, by kind of file. A key's path gives its block with that key only.

    Another word is looked for in names and descriptions, whose words may begin with it.

    Raises:
        UserError: There is no such block or key.
    """
    from configs.json_schema import KINDS, list_blocks

    every: dict[str, Sequence[Block]] = {kind: list_blocks(kind) for kind in KINDS}
    if wanted is None:
        return every
    if wanted in KINDS:
        return {wanted: every[wanted]}
    beginning, meant = re.compile(rf"(?<![^\W_]){re.escape(wanted)}", re.IGNORECASE), synonym(wanted)
    ways: list[Callable[[Key], bool]] = [
        lambda key: key.path == wanted,
        lambda key: key.path == meant or bool(beginning.search(f"{key.path} {key.sentence}")),
    ]
    for is_wanted in ways:
        parts = {kind: [*_parts(blocks, wanted, is_wanted)] for kind, blocks in every.items()}
        if found := {kind: blocks for kind, blocks in parts.items() if blocks}:
            return dict(found)
    listed = [block for blocks in every.values() for block in blocks]
    known = {block.path for block in listed} | {key.path for block in listed for key in block.keys}
    hint = nearest(wanted, known)
    if not hint.startswith("did you mean"):
        hint = "no name and no description has this word; ./run.sh keys lists all keys"
    raise UserError(f"{wanted}: no such block or key; {hint}")


def _parts(blocks: Sequence[Block], wanted: str, is_wanted: Callable[[Key], bool]) -> Iterator[Block]:
    """Yield the blocks at and below ``wanted``, and every other block that has wanted keys, with these only."""
    for block in blocks:
        if f"{block.path}.".startswith(f"{wanted}."):
            yield block
        elif keys := tuple(filter(is_wanted, block.keys)):
            yield replace(block, keys=keys)


def _listing(blocks: Sequence[Block]) -> str:
    lines = []
    for block in blocks:
        title = f"{block.path} ({block.variant})" if block.variant else block.path
        lines += [title, *_wrapped(block.text, "  "), ""]
        rows = [_HEADS, *((key.path, key.type, key.unit, key.default) for key in block.keys)]
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        heads, *cells = ["  " + "  ".join(map(str.ljust, row, widths)).rstrip() for row in rows]
        lines.append(heads)
        for key, row in zip(block.keys, cells, strict=True):
            allowed = _wrapped(f"Allowed: {', '.join(key.values)}.", "      ") if key.values else []
            lines += [row, *_wrapped(key.sentence, "      "), *allowed, ""]
    return "\n".join(lines)


def _wrapped(text: str, indent: str) -> list[str]:
    """Return the paragraphs of a text as lines of at most `_WIDTH` columns."""
    wrapper = textwrap.TextWrapper(_WIDTH, initial_indent=indent, subsequent_indent=indent, break_on_hyphens=False)
    return [line for paragraph in text.split("\n\n") for line in wrapper.wrap(paragraph)]


if __name__ == "__main__":
    sys.exit(main())
