"""Stands for `train.bench.launching.Jobs`: starts no program, notes what would be started, and answers at once."""

import ast
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from configs.load import ROOT
from configs.programs import Program
from train.bench.launching import Finished, Jobs

BEGUN_S = 1_700_000_000.0
"""When every program is started, Unix seconds; the readers of logs know no run before 2015."""


@dataclass(frozen=True)
class Started:
    """A program that would have been started.

    Attributes:
        program: The program; None for another command.
        command: The whole command line.
        task: The task of a program of the benches.
        place: The changes of the cluster under which its ranks start.
        timeout_s: Seconds that it may take.
        environment: Variables added to those of this process.
    """

    program: Program | None
    command: list[str]
    task: dict[str, Any]
    place: list[str]
    timeout_s: float | None
    environment: Mapping[str, str]

    def after(self, option: str) -> str:
        """Return the word after an option."""
        return self.command[self.command.index(option) + 1]


Answer = Callable[[Started], Mapping[str, Sequence[Mapping[str, Any]]] | Finished]
"""Returns alternative -> samples, or how the program ended."""


@dataclass(frozen=True)
class FakeJobs(Jobs):
    """See the module; `run` is the one method of `Jobs` that starts a program and waits for it."""

    answer: Answer = lambda _: {}
    started: list[Started] = field(default_factory=list)

    def run(
        self, command: Sequence[str], environment: Mapping[str, str] | None = None, timeout_s: float | None = None
    ) -> Finished:
        words = list(command)
        program = next((each for each in reversed(Program) if each.value in words), None)
        task: dict[str, Any] = {}
        if program is not None and program.value.startswith("train.bench.programs."):
            task = json.loads(words[-1])
            _check_parameters(program, set(task))
        own = words[: words.index("--")] if "--" in words else words
        place = [own[number + 1] for number, word in enumerate(own) if word == "--set"]
        self.started.append(Started(program, words, task, place, timeout_s, environment or {}))
        found = self.answer(self.started[-1])
        if isinstance(found, Finished):
            return found
        lines = [json.dumps({"alternative": name, "samples": samples}) for name, samples in found.items()]
        return Finished(words, 0, "\n".join(["a warning", *lines]), BEGUN_S, 4.0)

    def of(self, program: Program) -> list[Started]:
        """Return what was started of a program."""
        return [each for each in self.started if each.program is program]


def _check_parameters(program: Program, given: set[str]) -> None:
    """Expect that a program's main function takes these values; read its source, as its libraries may be missing."""
    tree = ast.parse((ROOT / f"{program.value.replace('.', '/')}.py").read_text(encoding="utf-8"))
    (main,) = (each for each in tree.body if isinstance(each, ast.FunctionDef) and each.name == "main")
    keywords = zip(main.args.kwonlyargs, main.args.kw_defaults, strict=True)
    needed = {each.arg for each in main.args.args} | {each.arg for each, default in keywords if default is None}
    assert needed <= given <= needed | {each.arg for each in main.args.kwonlyargs}


def write_run(folder: Path, *, at_s: Mapping[str, float], **summary: Any) -> None:
    """Write what a run leaves: its log, with the moments of its events after `BEGUN_S`, and its summary."""
    folder.mkdir(exist_ok=True, parents=True)
    lines = [
        ":::MLLOG " + json.dumps({"key": key, "time_ms": 1000 * (BEGUN_S + moment_s), "value": None})
        for key, moment_s in at_s.items()
    ]
    (folder / "result_0.txt").write_text("\n".join(lines), encoding="utf-8")
    (folder / "summary.json").write_text(json.dumps(summary), encoding="utf-8")
