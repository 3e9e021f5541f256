"""The command line of every program that is started with ``python -m``, and the status after Ctrl-C."""

from __future__ import annotations

import io
import sys
from contextlib import redirect_stderr, redirect_stdout, suppress
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

import pytest

from configs.programs import Program

USAGES = Path(__file__).with_name("usages.txt")
"""A line for each program that describes its arguments; what is not in brackets must be given."""
_OF_HOROVOD = {Program.HOROVODRUN, Program.HOROVOD_EXAMPLE}
"""Their arguments are Horovod's own, or they import it, after which DALI cannot be imported any more."""
_OF_TORCH = {Program.GPU_STEP, Program.PYTORCH_PEER, Program.PYTORCH_RACE}


def _usage(program: Program) -> str | None:
    """Return the line; None if the program takes no options."""
    found = find_spec(program.value)
    is_package = found is not None and found.submodule_search_locations is not None
    module = import_module(f"{program.value}.__main__" if is_package else program.value)
    if not {"argparse", "Parser"} & vars(module).keys():
        return None
    told = io.StringIO()
    with pytest.MonkeyPatch.context() as patch, redirect_stdout(told), redirect_stderr(io.StringIO()):
        patch.setenv("COLUMNS", "1000")
        # A thread that watches the parent process would outlive this test.
        patch.setattr("train.rank.watchdog.die_with_parent", lambda: None)
        patch.setattr(module, "die_with_parent", lambda: None, raising=False)
        patch.setattr(sys, "argv", [program.value, "--help"])
        with suppress(SystemExit):
            module.main(["--help"])
    usage = told.getvalue().partition("\n\n")[0]
    return f"{program.name} {usage.removeprefix('usage: ')}" if usage.startswith("usage: ") else None


def _usages() -> list[str]:
    left_out = _OF_HOROVOD | (set() if find_spec("torch") else _OF_TORCH)
    return list(filter(None, (_usage(program) for program in Program if program not in left_out)))


@pytest.mark.medium
def test_every_program_takes_the_arguments_of_the_table() -> None:
    """``python -m tests.test_usages`` writes the table anew, where both engines are installed."""
    missing = set() if find_spec("torch") else {program.name for program in _OF_TORCH}
    expected = [line for line in USAGES.read_text(encoding="utf-8").splitlines() if line.split()[0] not in missing]
    assert _usages() == expected


@pytest.mark.parametrize(
    ("module", "work", "words"),
    [
        ("launch", "_train", ["train", "digits"]),
        ("data", "_prepare", ["prepare", "digits", "nowhere"]),
        ("logs", "_parser", ["check", "nowhere"]),
        ("train.bench", "_run", ["bench", "step"]),
        ("train.sim", "_parser", ["simulate"]),
        ("train.rehearse", "_rehearse", ["rehearse", "digits", "--cluster", "laptop"]),
    ],
)
def test_a_verb_that_is_interrupted_ends_with_the_status_of_ctrl_c(
    module: str, work: str, words: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    program = import_module(f"{module}.__main__")
    monkeypatch.setattr(program, work, interrupt)
    assert program.main(words) == 130


if __name__ == "__main__":
    USAGES.write_text("\n".join([*_usages(), ""]), encoding="utf-8")
