"""Stands for `train.bench.launching.Jobs`: starts no program, and answers at once with numbers of the test's."""

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from configs.programs import Program
from train.bench.launching import Finished, Jobs

BEGUN_S = 1_700_000_000.0
"""When every program is started, Unix seconds; the readers of logs know no run before 2015."""


@dataclass(frozen=True)
class Started:
    """A program that would have been started: its words, and of a rank of the benches its name and its task."""

    words: list[str]
    name: str = ""
    task: Mapping[str, Any] = field(default_factory=dict)

    @property
    def sets(self) -> list[str]:
        """The values of ``--set`` before the command of a rank."""
        own = self.words[: self.words.index("--")] if "--" in self.words else self.words
        return [own[number + 1] for number, word in enumerate(own) if word == "--set"]

    def after(self, option: str) -> str:
        """Return the word after an option."""
        return self.words[self.words.index(option) + 1]


@dataclass(frozen=True)
class Answering(Jobs):
    """See the module; ``answer`` returns alternative -> samples, the exit status and the output, or a real program."""

    answer: Callable[[Started], Mapping[str, Sequence[Mapping[str, Any]]] | tuple[int, str] | Finished] = lambda _: {}
    started: list[Started] = field(default_factory=list)

    def run(
        self, command: Sequence[str], timeout_s: float = math.inf, tell: Callable[[str], object] = lambda _: None
    ) -> Finished:
        words = list(command)
        is_rank = Program.BENCH_RANK.value in words
        self.started.append(Started(words, words[-2], json.loads(words[-1])) if is_rank else Started(words))
        found = self.answer(self.started[-1])
        if not isinstance(found, Finished):
            status, output = found if isinstance(found, tuple) else (0, "\n".join(["a warning", *_told(found)]))
            found = Finished(words, status, output, BEGUN_S, 4.0)
        tell(found.output)
        return found


def _told(found: Mapping[str, Any]) -> list[str]:
    return [json.dumps({"alternative": name, "samples": samples}) for name, samples in found.items()]


def write_run(folder: Path, *, at_s: Mapping[str, float], **summary: Any) -> None:
    """Write what a run leaves: its log, with the moments of its events after `BEGUN_S`, and its summary."""
    folder.mkdir(exist_ok=True, parents=True)
    lines = [
        ":::MLLOG " + json.dumps({"key": key, "time_ms": 1000 * (BEGUN_S + moment_s), "value": None})
        for key, moment_s in at_s.items()
    ]
    (folder / "result_0.txt").write_text("\n".join(lines), encoding="utf-8")
    (folder / "summary.json").write_text(json.dumps(summary), encoding="utf-8")
