"""Every option of every bench, word for word: type, default, choices and help."""

from argparse import ArgumentParser
from pathlib import Path

import pytest

from tests.parsers import described
from train.bench.bench_options import BENCHES

OPTIONS = Path(__file__).parent / "options.txt"
"""A paragraph for each bench."""


def _described(name: str) -> str:
    bench, parser = BENCHES[name], ArgumentParser(add_help=False)
    bench.add_options(parser)
    return f"{name}: {bench.question} | {bench.module} | {bench.needs} | {bench.only_here}\n{described(parser)}"


@pytest.mark.parametrize("name", BENCHES)
def test_an_option_changes_on_purpose_only(name: str) -> None:
    """``python -m tests.train.bench.test_bench_options`` writes the file anew, for review."""
    expected = {each.partition(":")[0]: each for each in OPTIONS.read_text(encoding="utf-8").rstrip().split("\n\n")}
    assert _described(name).splitlines() == expected[name].splitlines()


if __name__ == "__main__":
    OPTIONS.write_text("\n\n".join(map(_described, BENCHES)) + "\n", encoding="utf-8")
