"""Every option of the verbs of this package, word for word; the benches have a table of their own."""

from argparse import ArgumentParser, _SubParsersAction
from pathlib import Path

import pytest

from tests.parsers import described
from train import export
from train.plan import __main__ as plan
from train.rehearse import __main__ as rehearse

OPTIONS = Path(__file__).parent / "options.txt"
"""A paragraph for each verb."""


def _verb(parser: ArgumentParser, name: str) -> ArgumentParser:
    """Return the parser of a verb."""
    (verbs,) = (each for each in parser._actions if isinstance(each, _SubParsersAction))
    found: ArgumentParser = verbs.choices[name]
    return found


PARSERS = {"export": _verb(export._parser(), "export"), "plan": plan._parser(), "rehearse": rehearse._parser()}


@pytest.mark.parametrize("name", PARSERS)
def test_an_option_changes_on_purpose_only(name: str) -> None:
    """``python -m tests.train.test_options`` writes the file anew, for review."""
    expected = {each.partition(":")[0]: each for each in OPTIONS.read_text(encoding="utf-8").rstrip().split("\n\n")}
    assert f"{name}:\n{described(PARSERS[name])}".splitlines() == expected[name].splitlines()


if __name__ == "__main__":
    told = [f"{name}:\n{described(parser)}" for name, parser in PARSERS.items()]
    OPTIONS.write_text("\n\n".join(told) + "\n", encoding="utf-8")
