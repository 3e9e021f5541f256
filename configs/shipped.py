"""``./run.sh recipes``: list the recipes that come with the program, with their data, time and hardware.

This module itself needs only the standard library, so that ``--help`` works before anything is installed.
"""

import sys
import textwrap
from collections.abc import Sequence

from configs.arguments import Parser, exit_status, parse
from configs.errors import UserError

_WIDTH = 100


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the recipes and return the exit status, see `configs.arguments.exit_status`."""
    parser = Parser(
        prog="./run.sh recipes",
        description="List the recipes in configs/recipes: purpose, data, time, hardware and command.",
    )
    words = "list only recipes with this word in their name, purpose, data or hardware"
    parser.add_argument("word", metavar="WORD", nargs="?", help=words)
    return exit_status(lambda: parse(parser, _print, arguments))


def _print(word: str | None) -> int:
    from configs.load import ROOT

    names = sorted(path.stem for path in (ROOT / "configs" / "recipes").glob("*.yaml"))
    entries = [entry for entry in map(_entry, names) if (word or "").lower() in entry.lower()]
    if not entries:
        raise UserError(f"{word}: in no recipe; ./run.sh recipes lists all of them")
    sys.stdout.write("\n".join(entries))
    return 0


def _entry(name: str) -> str:
    from configs.load import load_recipe

    recipe = load_recipe(name)
    card, data = recipe.card, recipe.data
    images = f"{data.name}, {data.train_samples:,} and {data.eval_samples:,} images of {recipe.model.num_classes:,} "
    rows = {
        "network": f"{recipe.model.name} at {recipe.model.image_size} px, batch {recipe.batch.global_size:,}",
        "data": f"{images}classes",
        "time": card.time.partition(". ")[0],
        "hardware": card.hardware,
        "command": card.command,
    }
    lines = [name, *textwrap.wrap(card.purpose, _WIDTH, initial_indent="  ", subsequent_indent="  ")]
    for title, text in rows.items():
        head = f"  {title:<9} "
        lines += textwrap.wrap(text, _WIDTH, initial_indent=head, subsequent_indent=" " * len(head)) if text else []
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.exit(main())
