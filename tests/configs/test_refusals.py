"""Every refusal of a recipe and a cluster file, word for word: the key, what was given, what is allowed, what to do."""

import shlex
from pathlib import Path

import pytest

from configs.errors import ConfigError
from configs.load import load_both
from configs.plan import plan_run

REFUSALS = Path(__file__).parent / "refusals.txt"
"""Pairs of lines: recipe, cluster and the keys that are set; then what is told."""

INSTALLED_OR_NOT = ("cluster.engine.name=mxnet", "cluster.communication.kind=horovod")
"""Set before the keys of a line, because the defaults are those of the environment."""


def _told(words: str) -> str:
    recipe, cluster, *overrides = shlex.split(words)
    with pytest.raises(ConfigError) as caught:
        loaded, place = load_both(recipe, cluster, [*INSTALLED_OR_NOT, *overrides])
        plan_run(loaded, place.world_size)
    return f"{words}\n    {caught.value}"


def test_a_refusal_changes_on_purpose_only() -> None:
    """``python -m tests.configs.test_refusals`` writes the file anew, for review."""
    lines = REFUSALS.read_text(encoding="utf-8").splitlines()
    assert "\n".join(map(_told, lines[::2])).splitlines() == lines


if __name__ == "__main__":
    commands = REFUSALS.read_text(encoding="utf-8").splitlines()[::2]
    REFUSALS.write_text("".join(f"{_told(each)}\n" for each in commands), encoding="utf-8")
